"""Converts transcripts to each format that OpenAI's clients may request. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from corral.base.errors import InvalidInput
from corral.rpc.messages import TranscriptRequest, TranscriptResult, TranscriptSegment, TranscriptStreamResponse
from corral.wire.adapter import AdapterModel

_NANOSECONDS: Final = 1_000_000_000
_JSON: Final = "application/json"
_PLAIN: Final = "text/plain; charset=utf-8"
_GRANULARITIES: Final = ("word", "segment")
_TRUE: Final = ("true", "1")
_encode: Final = msgspec.json.encode


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptionWish:
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
    wish = TranscriptionWish(
        response_format=last.get("response_format") or "json",
        language=last.get("language", ""),
        prompt=last.get("prompt", ""),
        temperature=_temperature(last.get("temperature", "0")),
        granularities=granularities,
        stream=last.get("stream", "").lower() in _TRUE,
    )
    if wish.response_format not in _FORMS:
        raise InvalidInput("response_format", f"{wish.response_format} is not offered, but {', '.join(_FORMS)}")
    for granularity in granularities:
        if granularity not in _GRANULARITIES:
            raise InvalidInput(
                "timestamp_granularities", f"{granularity} is not offered, but {', '.join(_GRANULARITIES)}"
            )
    return wish


def _temperature(text: str) -> float:
    try:
        number = float(text or "0")
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise InvalidInput("temperature", f"must be a number from 0 to 1, and is {text}")
    return number


def transcription_options(wish: TranscriptionWish, model: AdapterModel, *, file: str) -> TranscriptRequest:
    return TranscriptRequest(
        dst=file,
        language=wish.language,
        prompt=wish.prompt,
        temperature=wish.temperature,
        threads=max(0, model.defaults.threads),
        timestamp_granularities=wish.granularities,
        stream=wish.stream,
        ModelIdentity=model.identity,
    )


def transcription_answer(result: TranscriptResult, wish: TranscriptionWish) -> tuple[bytes, str]:
    """Return the body and its content type."""
    return _FORMS[wish.response_format](result, wish)


def transcription_event(part: TranscriptStreamResponse) -> bytes:
    """Return an event of a stream; nothing where the part has no text."""
    if part.HasField("final_result"):
        return _event({"type": "transcript.text.done", "text": part.final_result.text})
    return _event({"type": "transcript.text.delta", "delta": part.delta}) if part.delta else b""


def _event(event: Mapping[str, Any]) -> bytes:
    return b"data: " + _encode(event) + b"\n\n"


# Output formats.


def _as_json(result: TranscriptResult, _: TranscriptionWish) -> tuple[bytes, str]:
    return _encode({"text": result.text}), _JSON


def _as_text(result: TranscriptResult, _: TranscriptionWish) -> tuple[bytes, str]:
    return result.text.encode() + b"\n", _PLAIN


def _as_verbose_json(result: TranscriptResult, wish: TranscriptionWish) -> tuple[bytes, str]:
    answer: dict[str, Any] = {
        "task": "transcribe",
        "language": result.language,
        "duration": round(result.duration, 3),
        "text": result.text,
    }
    if "segment" in wish.granularities or not wish.granularities:
        answer["segments"] = [_segment(segment) for segment in result.segments]
    if "word" in wish.granularities:
        words = [word for segment in result.segments for word in segment.words]
        answer["words"] = [
            {"word": word.text, "start": _seconds(word.start), "end": _seconds(word.end)} for word in words
        ]
    return _encode(answer), _JSON


def _segment(segment: TranscriptSegment) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "id": segment.id,
        "start": _seconds(segment.start),
        "end": _seconds(segment.end),
        "text": segment.text,
        "tokens": list(segment.tokens),
    }
    return plain | ({"speaker": segment.speaker} if segment.speaker else {})


def _as_srt(result: TranscriptResult, _: TranscriptionWish) -> tuple[bytes, str]:
    blocks = (f"{number}\n{cue}" for number, cue in enumerate(_cues(result.segments, ","), start=1))
    return "\n".join(blocks).encode(), "application/x-subrip; charset=utf-8"


def _as_vtt(result: TranscriptResult, _: TranscriptionWish) -> tuple[bytes, str]:
    return "\n".join(("WEBVTT\n", *_cues(result.segments, "."))).encode(), "text/vtt; charset=utf-8"


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


_FORMS: Final[Mapping[str, Callable[[TranscriptResult, TranscriptionWish], tuple[bytes, str]]]] = {
    "json": _as_json,
    "text": _as_text,
    "srt": _as_srt,
    "verbose_json": _as_verbose_json,
    "vtt": _as_vtt,
}
