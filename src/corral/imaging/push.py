"""Pushes the image of a layout to a registry.

Content that the registry has is not sent again. Manifests follow after everything that they refer to, and the tag
is last: an interrupted push leaves the tag unchanged.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from corral.base.clock import Clock
from corral.base.tasks import in_thread, task_group
from corral.imaging.layouts import LayoutContents, Stored, read_contents
from corral.oci.auth import read_stored
from corral.oci.config import ImagesConfig
from corral.oci.contents import FilePart
from corral.oci.errors import ContentMismatch, ImageError, SourceInvalid
from corral.oci.http import RegistryResponse
from corral.oci.limits import persistently
from corral.oci.references import Reference, digest_of
from corral.oci.registry import Registry, open_registry

_PIECE_BYTES: Final = 256 * 1024
_BINARY: Final = {"Content-Type": "application/octet-stream"}


class PushedBlob(msgspec.Struct, frozen=True, kw_only=True):
    """One blob of a push, and whether the registry had it already."""

    digest: str
    size: int
    was_there: bool
    """Whether the registry had the content already, in this repository or in the one to mount from, so that it was not
    sent."""


class PushResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a push sent to the registry, and under which digest."""

    reference: str
    digest: str
    sent_bytes: int
    spared_bytes: int
    """Bytes that the registry had already."""
    notes: tuple[str, ...] = ()


def _unheard(_: PushedBlob) -> None:
    """Ignore the blob: the default callback."""


async def push_layout(
    path: Path,
    reference: Reference,
    *,
    config: ImagesConfig,
    clock: Clock,
    mount_from: str = "",
    on_blob: Callable[[PushedBlob], None] = _unheard,
) -> PushResult:
    """Push a layout, which is a directory or an archive. `mount_from` is a repository of the same registry that may
    have some blobs. Idempotent."""
    if reference.digest:
        raise SourceInvalid(f"{reference}: a push needs a tag, since the digest comes of what is pushed")
    contents = await in_thread(lambda: read_contents(path, config.limits))
    stored = await in_thread(lambda: read_stored(config.auth_files))
    async with open_registry(reference, config=config, clock=clock, actions="pull,push", stored=stored) as registry:
        push = _Push(registry, reference, config=config, clock=clock, mount_from=mount_from)
        blobs = await push.send_blobs(contents, on_blob)
        await push.send_manifests(contents)
    return PushResult(
        reference=str(reference),
        digest=contents.top.digest,
        sent_bytes=sum(blob.size for blob in blobs if not blob.was_there),
        spared_bytes=sum(blob.size for blob in blobs if blob.was_there),
        notes=stored.notes,
    )


class _Push:
    """One push to one repository."""

    def __init__(
        self, registry: Registry, reference: Reference, *, config: ImagesConfig, clock: Clock, mount_from: str
    ) -> None:
        self._registry = registry
        self._reference = reference
        self._config = config
        self._clock = clock
        self._mount_from = mount_from

    async def send_blobs(self, contents: LayoutContents, on_blob: Callable[[PushedBlob], None]) -> list[PushedBlob]:
        """Send blobs in parallel. Any failure ends all."""
        places = asyncio.Semaphore(self._config.parallel)

        async def send(blob: Stored) -> PushedBlob:
            async with places:
                network = self._config.network
                was_there = await persistently(lambda: self._provide(blob), network, self._clock)
            pushed = PushedBlob(digest=blob.descriptor.digest, size=blob.descriptor.size, was_there=was_there)
            on_blob(pushed)
            return pushed

        try:
            async with task_group() as group:
                sending = [group.create_task(send(blob), name=blob.descriptor.digest) for blob in contents.blobs]
        except ExceptionGroup as failures:
            raise _first_of(failures) from None
        return [task.result() for task in sending]

    async def send_manifests(self, contents: LayoutContents) -> None:
        for manifest in contents.manifests:
            is_top = manifest is contents.manifests[-1]
            selector = self._reference.tag if is_top else manifest.descriptor.digest
            await persistently(
                lambda manifest=manifest, selector=selector: self._put_manifest(manifest, selector),  # type: ignore[misc]
                self._config.network,
                self._clock,
            )

    async def _put_manifest(self, manifest: Stored, selector: str) -> None:
        body = await in_thread(lambda: _read(manifest.part))
        digest, media_type = manifest.descriptor.digest, manifest.descriptor.media_type
        headers = {"Content-Type": media_type, "Content-Length": str(len(body))}
        async with self._registry.send("PUT", f"manifests/{selector}", headers, content=lambda: _once(body)) as answer:
            await self._need(answer, 201, f"the manifest {selector}")
            stated = answer.header("Docker-Content-Digest")
        if stated and stated != digest_of(body, like=stated):
            raise ContentMismatch(f"{self._reference.registry} took the manifest {digest} for {stated}")

    async def _provide(self, blob: Stored) -> bool:
        """Make sure that the registry has the blob; return whether it was not sent."""
        digest = blob.descriptor.digest
        if await self._has(digest):
            return True
        place = await self._begin(digest)
        if not place:
            return True
        await self._upload(blob, place)
        return False

    async def _has(self, digest: str) -> bool:
        async with self._registry.send("HEAD", f"blobs/{digest}") as answer:
            if answer.status == 404:
                return False
            if answer.status >= 400:
                raise await answer.problem(f"{self._reference.name}@{digest}", may="write")
            return True  # a redirect leads to the storage of the blob

    async def _begin(self, digest: str) -> str:
        """Start an upload and return its URL; empty when the registry mounted the blob from another repository."""
        wish = f"?mount={quote(digest, safe='')}&from={quote(self._mount_from, safe='')}" if self._mount_from else ""
        async with self._registry.send("POST", f"blobs/uploads/{wish}", {"Content-Length": "0"}) as answer:
            if self._mount_from and answer.status == 201:
                return ""
            await self._need(answer, 202, "an upload")
            return _location(answer)

    async def _upload(self, blob: Stored, place: str) -> None:
        """Upload the blob in one request, then commit it with its digest, which the registry verifies."""
        size = blob.descriptor.size
        headers = {**_BINARY, "Content-Length": str(size)}
        async with self._registry.send("PATCH", place, headers, content=lambda: _pieces(blob.part, size)) as answer:
            await self._need(answer, 202, f"the content of {blob.descriptor.digest}")
            place = _location(answer)
        digest = quote(blob.descriptor.digest, safe="")
        sealed = f"{place}{'&' if '?' in place else '?'}digest={digest}"
        async with self._registry.send("PUT", sealed, {**_BINARY, "Content-Length": "0"}) as answer:
            await self._need(answer, 201, f"the end of {blob.descriptor.digest}")

    async def _need(self, answer: RegistryResponse, status: int, subject: str) -> None:
        if answer.status != status:
            raise await answer.problem(f"{subject} in {self._reference.name}", may="write")


def _location(answer: RegistryResponse) -> str:
    place = answer.header("Location")
    if not place:
        raise ContentMismatch("the registry took an upload, and does not say where to send it")
    return place


def _first_of(failures: "ExceptionGroup[Exception]") -> Exception:
    """Return the first failure, because users can act on one."""
    image_errors = [error for error in failures.exceptions if isinstance(error, ImageError)]
    return image_errors[0] if image_errors else failures.exceptions[0]


def _read(part: FilePart) -> bytes:
    with part.path.open("rb") as file:
        file.seek(part.offset)
        return file.read(part.size)


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content


async def _pieces(part: FilePart, size: int) -> AsyncIterator[bytes]:
    """Yield the file's content. Raise ContentMismatch when the file is shorter than described.

    Reads in the event loop and not in a thread: a cancelled upload must not leave a thread reading. A push does
    nothing else meanwhile.
    """
    with part.path.open("rb") as file:
        file.seek(part.offset)
        remaining_bytes = size
        while remaining_bytes > 0:
            piece = file.read(min(remaining_bytes, _PIECE_BYTES))
            if not piece:
                raise ContentMismatch(f"{part.path} ends {remaining_bytes} bytes before it should")
            remaining_bytes -= len(piece)
            yield piece
