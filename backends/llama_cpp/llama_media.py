"""Pictures and sounds of a request. The contract gives them in base64, or as the path of a file on this machine."""

import base64
import binascii
from pathlib import Path
from typing import Final

from corral_backend_sdk import NotOffered, PredictOptions, RequestRefused

MARKER: Final = "<__media__>"
"""Marks the position of an image or a sound in a rendered prompt, for callers that do not ask for the engine's own
mark."""
_LONGEST_PATH: Final = 4096
_MOST_BYTES: Final = 50 * 1024 * 1024
"""As much as a message may hold."""


def with_media_inside(request: PredictOptions) -> PredictOptions:
    """Return the request with files read into it instead of paths. Slow: call it in a thread."""
    if request.Videos:
        raise NotOffered("llama-cpp: videos are unimplemented")
    if not request.Images and not request.Audios:
        return request
    whole = PredictOptions()
    whole.CopyFrom(request)
    whole.Images[:] = [_inside("Images", one) for one in request.Images]
    whole.Audios[:] = [_inside("Audios", one) for one in request.Audios]
    return whole


def _inside(field: str, value: str) -> str:
    """Pictures in base64 may begin like a path, so what is there decides."""
    if value.startswith("/") and len(value) <= _LONGEST_PATH and (found := _content(field, Path(value))) is not None:
        return base64.b64encode(found).decode()
    data = value.partition(",")[2] if value.startswith("data:") else value
    try:
        base64.b64decode(data, validate=True)
    except binascii.Error:
        shown = value[:80]
        raise RequestRefused(f"{field} holds neither base64 nor the path of a file: {shown}") from None
    return data


def _content(field: str, path: Path) -> bytes | None:
    try:
        if not path.is_file():
            return None
        if path.stat().st_size > _MOST_BYTES:
            raise RequestRefused(f"{field}: {path} is larger than {_MOST_BYTES} bytes")
        return path.read_bytes()
    except OSError:  # a name that no file can have, too: then it may still be base64
        return None


def marked(prompt: str, count: int, mark: str) -> str:
    """A prompt with the engine's mark for each of so many; those that have no place come first."""
    prompt = prompt.replace(MARKER, mark)
    return mark * (count - prompt.count(mark)) + prompt
