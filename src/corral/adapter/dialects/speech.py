"""Converts OpenAI's speech requests and LocalAI's voice activity requests to gRPC messages. Pure."""

import json
import struct
from typing import Final

import msgspec

from corral.base.errors import InvalidInput
from corral.rpc.messages import Reply, TTSRequest, VADRequest, VADResponse
from corral.wire.adapter import AdapterModel

MOST_CHARACTERS: Final = 4096
"""OpenAI's own limit of the input's length."""
_SPEEDS: Final = (0.25, 4.0)
_FORMATS: Final = ("wav",)
_DEFAULT_RATE: Final = 16_000
"""Sample rate of streams that do not report theirs."""
_UNKNOWN_SIZE: Final = 0xFFFFFFFF


class SpeechRequest(msgspec.Struct, kw_only=True):
    input: str
    model: str | None = None
    voice: str | None = None
    response_format: str | None = None
    speed: float | None = None
    instructions: str | None = None
    language: str | None = None
    stream: bool | None = None
    stream_format: str | None = None

    def check(self) -> None:
        """Check what the types do not express."""
        if not self.input.strip():
            raise InvalidInput("input", "must not be empty")
        if len(self.input) > MOST_CHARACTERS:
            raise InvalidInput("input", f"has {len(self.input)} characters, and {MOST_CHARACTERS} are the most")
        if self.response_format not in (None, *_FORMATS):
            raise InvalidInput("response_format", f"{self.response_format} is not offered, but {', '.join(_FORMATS)}")
        if self.stream_format not in (None, "audio"):
            raise InvalidInput("stream_format", f"{self.stream_format} is not offered, but audio")
        if self.speed is not None and not _SPEEDS[0] <= self.speed <= _SPEEDS[1]:
            raise InvalidInput("speed", f"must be between {_SPEEDS[0]} and {_SPEEDS[1]}")


def speech_options(request: SpeechRequest, model: AdapterModel, *, file: str = "") -> TTSRequest:
    """Build the message; without `file` for a stream."""
    return TTSRequest(
        text=request.input,
        model=model.file or model.identity,
        dst=file,
        voice=request.voice or model.voice,
        language=request.language or "",
        instructions=request.instructions,
        params={} if request.speed is None else {"speed": f"{request.speed:g}"},
        ModelIdentity=model.identity,
    )


class SpeechParts:
    """Joins the parts of a stream to one WAV file of unknown size.

    Some backends report their sample rate first and then send bare samples; others send a WAV file of their own.
    """

    def __init__(self) -> None:
        self._rate = _DEFAULT_RATE
        self._has_begun = False

    def part(self, reply: Reply) -> bytes:
        if reply.message and not self._has_begun:
            self._rate = _told_rate(reply.message) or self._rate
        if not reply.audio:
            return b""
        begins, self._has_begun = not self._has_begun, True
        bare = begins and not reply.audio.startswith(b"RIFF")
        return (_header(self._rate) if bare else b"") + reply.audio


def _told_rate(message: bytes) -> int | None:
    try:
        header = json.loads(message)
    except ValueError:
        return None
    rate = header.get("sample_rate") if isinstance(header, dict) else None
    return rate if isinstance(rate, int) and 0 < rate < 2**31 else None


def _header(rate: int) -> bytes:
    """Return a WAV header for mono, 16 bits."""
    form = struct.pack("<IHHIIHH", 16, 1, 1, rate, rate * 2, 2, 16)
    size = struct.pack("<I", _UNKNOWN_SIZE)
    return b"RIFF" + size + b"WAVEfmt " + form + b"data" + size


class VoiceActivityRequest(msgspec.Struct, kw_only=True):
    """LocalAI's request: samples from -1 to 1, mono, 16,000 per second."""

    audio: list[float]
    model: str | None = None


def voice_activity_options(request: VoiceActivityRequest, model: AdapterModel) -> VADRequest:
    if not request.audio:
        raise InvalidInput("audio", "must not be empty")
    return VADRequest(audio=request.audio, ModelIdentity=model.identity)


def voice_activity_answer(response: VADResponse) -> bytes:
    """Return the segments in seconds, rounded to milliseconds: the contract's floats are not more exact."""
    segments = [{"start": round(segment.start, 3), "end": round(segment.end, 3)} for segment in response.segments]
    return msgspec.json.encode({"segments": segments})
