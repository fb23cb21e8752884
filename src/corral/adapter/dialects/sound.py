"""OpenAI's routes for speech and transcripts: requests, gRPC messages, and each format of a transcript. Pure."""

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from corral.base.errors import InvalidInput
from corral.rpc.messages import (
    Reply,
    TranscriptRequest,
    TranscriptResult,
    TranscriptSegment,
    TranscriptStreamResponse,
    TTSRequest,
)
from corral.wire.adapter import AdapterModel

MOST_CHARACTERS: Final = 4096
"""OpenAI's own limit of the input's length."""
_SPEEDS: Final = (0.25, 4.0)
_FORMATS: Final = ("wav",)
_DEFAULT_RATE: Final = 16_000
"""Sample rate of streams that do not report theirs."""
_UNKNOWN_SIZE: Final = 0xFFFFFFFF
_NANOSECONDS: Final = 1_000_000_000
_TRANSCRIPT_FORMATS: Final = ("json", "text", "srt", "verbose_json", "vtt")
_GRANULARITIES: Final = ("word", "segment")
_TRUE: Final = ("true", "1")
_encode: Final = msgspec.json.encode


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
            self._rate = _reported_rate(reply.message) or self._rate
        if not reply.audio:
            return b""
        begins, self._has_begun = not self._has_begun, True
        if not begins or reply.audio.startswith(b"RIFF"):
            return reply.audio
        # A WAV header for mono, 16 bits.
        form = struct.pack("<IHHIIHH", 16, 1, 1, self._rate, self._rate * 2, 2, 16)
        size = struct.pack("<I", _UNKNOWN_SIZE)
        return b"RIFF" + size + b"WAVEfmt " + form + b"data" + size + reply.audio


def _reported_rate(message: bytes) -> int | None:
    try:
        header = json.loads(message)
    except ValueError:
        return None
    rate = header.get("sample_rate") if isinstance(header, dict) else None
    return rate if isinstance(rate, int) and 0 < rate < 2**31 else None


class TranscriptionWish(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of the form, parsed."""

    response_format: str = "json"
    language: str = ""
    prompt: str = ""
    temperature: float = 0.0
    granularities: tuple[str, ...] = ()
    stream: bool = False


def transcription_wish(fields: Mapping[str, list[str]]) -> TranscriptionWish:
    """Parse the form's fields. Raise InvalidInput with the name of the wrong one."""
    last = {name: values[-1] for name, values in fields.items()}
    granularities = (*fields.get("timestamp_granularities[]", ()), *fields.get("timestamp_granularities", ()))
    try:
        temperature = float(last.get("temperature") or "0")
    except ValueError:
        temperature = -1.0
    if not 0 <= temperature <= 1:
        raise InvalidInput("temperature", f"must be a number from 0 to 1, and is {last['temperature']}")
    wish = TranscriptionWish(
        response_format=last.get("response_format") or "json",
        language=last.get("language", ""),
        prompt=last.get("prompt", ""),
        temperature=temperature,
        granularities=granularities,
        stream=last.get("stream", "").lower() in _TRUE,
    )
    if wish.response_format not in _TRANSCRIPT_FORMATS:
        formats = ", ".join(_TRANSCRIPT_FORMATS)
        raise InvalidInput("response_format", f"{wish.response_format} is not offered, but {formats}")
    for granularity in granularities:
        if granularity not in _GRANULARITIES:
            raise InvalidInput(
                "timestamp_granularities", f"{granularity} is not offered, but {', '.join(_GRANULARITIES)}"
            )
    return wish


def transcription_options(wish: TranscriptionWish, model: AdapterModel, *, file: str) -> TranscriptRequest:
    return TranscriptRequest(
        dst=file,
        language=wish.language or model.defaults.language,
        translate=model.defaults.translate,
        prompt=wish.prompt,
        temperature=wish.temperature,
        threads=max(0, model.defaults.threads),
        timestamp_granularities=wish.granularities,
        stream=wish.stream,
        ModelIdentity=model.identity,
    )


def transcription_answer(result: TranscriptResult, wish: TranscriptionWish) -> tuple[bytes, str]:
    """Return the body and its content type."""
    match wish.response_format:
        case "text":
            return result.text.encode() + b"\n", "text/plain; charset=utf-8"
        case "srt":
            blocks = (f"{number}\n{cue}" for number, cue in enumerate(_cues(result.segments, ","), start=1))
            return "\n".join(blocks).encode(), "application/x-subrip; charset=utf-8"
        case "vtt":
            return "\n".join(("WEBVTT\n", *_cues(result.segments, "."))).encode(), "text/vtt; charset=utf-8"
        case "verbose_json":
            return _encode(_verbose(result, wish.granularities)), "application/json"
        case _:
            return _encode({"text": result.text}), "application/json"


def transcription_event(part: TranscriptStreamResponse) -> bytes:
    """Return an event of a stream; nothing where the part has no text."""
    if part.HasField("final_result"):
        event = {"type": "transcript.text.done", "text": part.final_result.text}
    elif part.delta:
        event = {"type": "transcript.text.delta", "delta": part.delta}
    else:
        return b""
    return b"data: " + _encode(event) + b"\n\n"


def _verbose(result: TranscriptResult, granularities: Sequence[str]) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "task": "transcribe",
        "language": result.language,
        "duration": round(result.duration, 3),
        "text": result.text,
    }
    if "segment" in granularities or not granularities:
        answer["segments"] = [
            {
                "id": segment.id,
                "start": _seconds(segment.start),
                "end": _seconds(segment.end),
                "text": segment.text,
                "tokens": list(segment.tokens),
            }
            | ({"speaker": segment.speaker} if segment.speaker else {})
            for segment in result.segments
        ]
    if "word" in granularities:
        words = [word for segment in result.segments for word in segment.words]
        answer["words"] = [
            {"word": word.text, "start": _seconds(word.start), "end": _seconds(word.end)} for word in words
        ]
    return answer


def _cues(segments: Sequence[TranscriptSegment], point: str) -> Iterator[str]:
    for segment in segments:
        yield f"{_clock(segment.start, point)} --> {_clock(segment.end, point)}\n{segment.text.strip()}\n"


def _clock(nanoseconds: int, point: str) -> str:
    milliseconds = max(0, nanoseconds) // 1_000_000
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{rest // 1000:02}{point}{rest % 1000:03}"


def _seconds(nanoseconds: int) -> float:
    return round(nanoseconds / _NANOSECONDS, 3)
