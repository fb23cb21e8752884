"""Looks into files without downloading them: the head of a GGUF file by ranged reads, and small files whole."""

import asyncio
import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec

from corral.base.http_facts import host_of
from corral.hubs.access import HubAccess, hub_errors
from corral.hubs.archives import content_in, member_name, members_in, split_member, unpacked_prefix
from corral.hubs.gguf import ByteRange, GgufFacts, GgufProblem, read_gguf, read_gguf_file
from corral.hubs.listings import HubModelMissing, HubRefused
from corral.hubs.plans import PlannedFile
from corral.oci.http import RegistryResponse

_AHEAD: Final = 4 << 20
"""Bytes that are asked for at once: most headers fit into two such ranges, and each costs a redirect."""
_MOST_WITHOUT_RANGES: Final = 32 << 20
"""Bytes from the beginning that are read from a server without ranges."""
_MOST_OF_ARCHIVE: Final = 32 << 20
"""Bytes of an archive that are read to look at a file inside."""
_READ_SECONDS: Final = 60.0
_CONTENT_RANGE: Final = re.compile(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18})")


def local_path(url: str) -> Path | None:
    """Return the path of a `file://` URL; None for any other."""
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


class RemoteFileReader:
    """Ranges of one remote file. Reads ahead; a server without ranges is read from the beginning, once."""

    def __init__(self, hub: HubAccess, planned: PlannedFile, authorization: str, *, ahead: int = _AHEAD) -> None:
        """`ahead` is how many bytes are asked for at least."""
        self._ahead = ahead
        self._hub = hub
        self._planned = planned
        self._authorization = authorization
        self._start = 0
        self._content = b""
        self.size = planned.size
        """None until the server has said it, or if it does not."""

    async def read(self, span: ByteRange) -> bytes:
        """Return a range; shorter where the file ends. HubRefused for a server that cannot give it."""
        begin = span.offset - self._start
        if begin < 0 or begin + span.size > len(self._content):
            await self._fetch(span)
            begin = span.offset - self._start
        return self._content[begin : begin + span.size]

    async def _fetch(self, span: ByteRange) -> None:
        size = max(span.size, self._ahead)
        headers = {"Range": f"bytes={span.offset}-{span.offset + size - 1}"}
        async with self._hub.ask(self._planned.url, headers=headers, authorization=self._authorization) as answer:
            if answer.status == 416:
                self._start, self._content = span.offset, b""
                return
            if answer.status not in (200, 206):
                raise await self._problem(answer)
            part = _CONTENT_RANGE.fullmatch(answer.header("Content-Range")) if answer.status == 206 else None
            if answer.status == 206 and (part is None or int(part[1]) != span.offset):
                raise HubRefused(f"{host_of(self._planned.url)} gives other bytes of the file than were asked for")
            if part is not None:
                self.size = self.size if self.size is not None else int(part[2])
                self._start, self._content = span.offset, await _read_up_to(answer, size)
                return
            self.size = self.size if self.size is not None else answer.length
            if span.offset + span.size > _MOST_WITHOUT_RANGES:
                raise HubRefused(
                    f"{host_of(self._planned.url)} cannot give parts of a file, so this one cannot be read"
                )
            most = self._ahead if span.offset + span.size <= self._ahead else _MOST_WITHOUT_RANGES
            self._start, self._content = 0, await _read_up_to(answer, most)

    async def _problem(self, answer: RegistryResponse) -> Exception:
        name = self._planned.path or "the file"
        host = host_of(self._planned.url)
        if answer.status in (404, 410):
            return HubModelMissing(f"{host} has no {name} ({answer.status})")
        if answer.status in (401, 403):
            return HubRefused(f"{host} does not give {name} ({answer.status}); {self._hub.advice(self._planned)}")
        with hub_errors():
            raise await answer.problem(name)


async def _read_up_to(answer: RegistryResponse, most: int) -> bytes:
    """Return the first bytes of a body, however much more of it there is."""
    content = bytearray()
    with hub_errors():
        async with asyncio.timeout(_READ_SECONDS):
            async for piece in answer.pieces(stall_seconds=_READ_SECONDS, stall_bytes=1):
                content += piece
                if len(content) >= most:
                    break
    return bytes(content[:most])


class ArchivedFileReader:
    """The beginning of a file inside of a remote archive, as far as the beginning of the archive shows it."""

    def __init__(self, reader: RemoteFileReader, member: str, size: int | None) -> None:
        self._reader = reader
        self._member = member
        self._content = b""
        self.size = size

    async def read(self, span: ByteRange) -> bytes:
        """Return a range; shorter where the file ends. HubRefused for one that is too far inside."""
        end = span.offset + span.size
        for most in (_AHEAD, _MOST_OF_ARCHIVE):
            if end <= len(self._content):
                break
            prefix = await archive_prefix(self._reader, most)
            content = await asyncio.to_thread(content_in, prefix, self._member)
            self._content = content or b""
        if end > len(self._content) and len(self._content) != self.size:
            raise HubRefused(f"{self._member} is too far inside of its archive to be looked at before the download")
        return self._content[span.offset : end]


async def archive_prefix(reader: RemoteFileReader, most: int) -> bytes:
    """Return the beginning of an archive, unpacked: as much as its first bytes hold."""
    data = await reader.read(ByteRange(0, most))
    return await asyncio.to_thread(unpacked_prefix, data, 2 * most)


async def archived_files(hub: HubAccess, archive: PlannedFile) -> list[tuple[str, int]]:
    """Return names and sizes of the files that begin in the beginning of an archive."""
    reader = RemoteFileReader(hub, archive, await hub.authorization(archive))
    members = await asyncio.to_thread(members_in, await archive_prefix(reader, _AHEAD))
    return [(member_name(member), member.size) for member in members]


async def open_reader(hub: HubAccess, planned: PlannedFile) -> RemoteFileReader | ArchivedFileReader:
    """Return a reader of a remote file, which may be inside of an archive."""
    location, authorization = split_member(planned.url), await hub.authorization(planned)
    if not location.member:
        return RemoteFileReader(hub, planned, authorization)
    archive = msgspec.structs.replace(planned, url=location.url, size=None)
    return ArchivedFileReader(RemoteFileReader(hub, archive, authorization), location.member, planned.size)


async def measure(hub: HubAccess, planned: PlannedFile) -> int | None:
    """Return the size of a file; None if its server does not say it. Raises as the server refuses."""
    path = local_path(planned.url)
    if path is not None:
        return await asyncio.to_thread(_local_size, path)
    reader = RemoteFileReader(hub, planned, await hub.authorization(planned), ahead=1)
    await reader.read(ByteRange(0, 1))
    return reader.size


async def look_into_gguf(hub: HubAccess, planned: PlannedFile) -> GgufFacts:
    """Read the head of a file, remote or local. GgufProblem says why it cannot be used."""
    path = local_path(planned.url)
    if path is not None:
        return await asyncio.to_thread(_read_local, path)
    reader = await open_reader(hub, planned)
    first = await reader.read(ByteRange(0, 8))
    if reader.size is None:
        raise HubRefused(f"{host_of(planned.url)} does not say how large {planned.path} is")
    if not first.startswith(b"GGUF"):
        raise GgufProblem(f"it does not begin like a GGUF file, but with {first[:4]!r}")
    reading = read_gguf(reader.size)
    span = next(reading)
    while True:
        content = await reader.read(span)
        try:
            span = reading.send(content)
        except StopIteration as end:
            facts: GgufFacts = end.value
            return facts


async def read_small(hub: HubAccess, planned: PlannedFile, most: int) -> bytes:
    """Return a file of up to so many bytes. HubRefused if it is larger."""
    reader = await open_reader(hub, planned)
    content = await reader.read(ByteRange(0, most + 1))
    if len(content) > most:
        raise HubRefused(f"{planned.path} is larger than {most} bytes")
    return content


def _local_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise HubModelMissing(f"{path} cannot be read: {error.strerror}") from error


def _read_local(path: Path) -> GgufFacts:
    try:
        return read_gguf_file(path)
    except OSError as error:
        raise HubModelMissing(f"{path} cannot be read: {error.strerror}") from error
