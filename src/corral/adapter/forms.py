"""Reads request bodies, bounded by the size of one gRPC message: JSON, and multipart forms with a file.

Of a form, fields stay in memory and the file goes to disk.
"""

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from aiohttp import BodyPartReader, web
from aiohttp.http import HttpProcessingError

from corral.adapter.scratch import disk_errors
from corral.base.errors import InvalidInput
from corral.wire.adapter import PASSED_BYTES

MAX_BODY_BYTES: Final = PASSED_BYTES
"""The size of one gRPC message, minus room for the fields that are added."""
_FILE: Final = "file"
_MOST_FIELDS: Final = 64
_FIELD_BYTES: Final = 64 * 1024
_SUFFIX: Final = re.compile(r"\.[a-z0-9]{1,5}")
_WRITE_BYTES: Final = 256 * 1024


class RequestTooLarge(InvalidInput):
    """The request is too large."""

    code = "request_too_large"

    def __init__(self) -> None:
        super().__init__("", f"the body has more than {MAX_BODY_BYTES} bytes")


async def read_body(request: web.Request) -> bytes:
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise RequestTooLarge from error


async def read_form(request: web.Request, folder: Path) -> tuple[Mapping[str, list[str]], Path]:
    """Return the fields of a form and its file, stored in `folder`. Raise InvalidInput when it is malformed."""
    if request.content_type != "multipart/form-data":
        raise InvalidInput("", f"the body must be multipart/form-data, and is {request.content_type}")
    fields: dict[str, list[str]] = {}
    file: Path | None = None
    try:
        async for part in await request.multipart():
            if not isinstance(part, BodyPartReader) or part.name is None:
                raise InvalidInput("", "a part of the form has no name")
            if part.name == _FILE:
                file = await _stored(part, folder)
            else:
                fields.setdefault(part.name, []).append(await _text(part))
            if sum(map(len, fields.values())) > _MOST_FIELDS:
                raise InvalidInput("", f"the form has more than {_MOST_FIELDS} fields")
    except (ValueError, LookupError, RuntimeError, HttpProcessingError) as error:
        raise InvalidInput("", f"the form cannot be read: {error}") from error
    if file is None:
        raise InvalidInput(_FILE, "is missing: send the sound as a file")
    return fields, file


async def _stored(part: BodyPartReader, folder: Path) -> Path:
    """Store the file. Only the extension of the client's file name is kept, because some backends depend on it."""
    suffix = _SUFFIX.fullmatch(Path(part.filename or "").suffix.lower())
    target = folder / f"sound{suffix[0] if suffix else ''}"
    size = 0
    with disk_errors(), await asyncio.to_thread(target.open, "xb") as file:
        while chunk := await part.read_chunk(_WRITE_BYTES):
            size += len(chunk)
            if size > MAX_BODY_BYTES:
                raise RequestTooLarge
            await asyncio.to_thread(file.write, chunk)
    if not size:
        raise InvalidInput(_FILE, "is empty")
    return target


async def _text(part: BodyPartReader) -> str:
    content = b""
    while chunk := await part.read_chunk():
        content += chunk
        if len(content) > _FIELD_BYTES:
            raise InvalidInput(part.name or "", f"is longer than {_FIELD_BYTES} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(part.name or "", "is not text in UTF-8") from error
