"""Forms with a file, as clients upload sounds: fields are texts, and the file goes straight to the disk."""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiohttp import BodyPartReader, web
from aiohttp.http import HttpProcessingError

from corral.adapter.bodies import MAX_BODY_BYTES, BodyTooLarge
from corral.adapter.scratch import told_as_ours
from corral.base.errors import InvalidInput

_FILE: Final = "file"
_MOST_FIELDS: Final = 64
_FIELD_BYTES: Final = 64 * 1024
_SUFFIX: Final = re.compile(r"\.[a-z0-9]{1,5}")
_WRITE_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    fields: Mapping[str, list[str]]
    file: Path

    def text(self, name: str, default: str = "") -> str:
        """The last one counts, where there are several."""
        return self.fields.get(name, [default])[-1]


async def read_form(request: web.Request, folder: Path) -> Form:
    """InvalidInput tells what is wrong with it."""
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
    return Form(fields=fields, file=file)


async def _stored(part: BodyPartReader, folder: Path) -> Path:
    """Only the ending of the client's name is kept: some backends go by it."""
    suffix = _SUFFIX.fullmatch(Path(part.filename or "").suffix.lower())
    target = folder / f"sound{suffix[0] if suffix else ''}"
    size = 0
    with told_as_ours(), await asyncio.to_thread(target.open, "wb") as file:
        while chunk := await part.read_chunk(_WRITE_BYTES):
            size += len(chunk)
            if size > MAX_BODY_BYTES:
                raise BodyTooLarge
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
