"""Reads indexes stored in registries as single-file artefacts, as `oras push` makes them."""

from collections.abc import Sequence
from typing import Final

import msgspec

from corral.base.clock import Clock
from corral.base.errors import CorralError, InvalidInput, PeerRefused, PeerUnavailable
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.galleries.fetching import ArtefactFile
from corral.oci.config import ImagesConfig
from corral.oci.errors import ImageError, ImageNotFound, RegistryRefused
from corral.oci.manifests import Descriptor
from corral.oci.references import Reference, check_digest, digest_of, parse_reference
from corral.oci.registry import Registry, open_registry

_NOT_FOUND: Final = 404
_FORBIDDEN: Final = 403


class _ArtefactManifest(msgspec.Struct, frozen=True, kw_only=True):
    layers: Sequence[Descriptor] = ()


class RegistryArtefacts:
    """Reads artefacts with the logins, proxies and timeouts of pulls."""

    def __init__(self, config: ImagesConfig, *, clock: Clock) -> None:
        self._config = config
        self._clock = clock

    async def read_artefact(self, reference: str, *, known_digest: str, most_bytes: int) -> ArtefactFile | None:
        """Implements `ArtefactReader`."""
        try:
            return await self._read(parse_reference(reference), known_digest, most_bytes)
        except ImageError as error:
            raise _as_galleries_know_it(error) from error

    async def _read(self, reference: Reference, known_digest: str, most_bytes: int) -> ArtefactFile | None:
        async with open_registry(reference, config=self._config, clock=self._clock) as registry:
            document = await registry.manifest(reference.selector)
            if document.digest == known_digest:
                return None
            file = _only_file(document.body, most_bytes)
            return ArtefactFile(digest=document.digest, content=await _content(registry, file))


def _only_file(manifest: bytes, most_bytes: int) -> Descriptor:
    try:
        files = msgspec.json.decode(manifest, type=_ArtefactManifest).layers
    except UNREADABLE_JSON as error:
        raise InvalidInput("", f"has a manifest that cannot be read: {error}") from error
    if len(files) != 1:
        raise InvalidInput("", f"has {len(files)} files, where an index is one")
    check_digest(files[0].digest)
    if files[0].size > most_bytes:
        raise InvalidInput("", "is larger than the setting gallery.max_size allows")
    return files[0]


async def _content(registry: Registry, file: Descriptor) -> bytes:
    content = bytearray()
    async with registry.blob(file.digest, 0) as body:
        async for piece in body.pieces:
            content += piece
            if len(content) > file.size:
                break
    if len(content) != file.size or digest_of(bytes(content), like=file.digest) != file.digest:
        raise PeerUnavailable("gave another file than the one that it announced")
    return bytes(content)


def _as_galleries_know_it(error: ImageError) -> CorralError:
    if isinstance(error, ImageNotFound):
        return PeerRefused(f"has no such artefact: {error.message}", status=_NOT_FOUND)
    if isinstance(error, RegistryRefused):
        return PeerRefused(error.message, status=_FORBIDDEN)
    if error.retryable:
        return PeerUnavailable(error.message)
    return InvalidInput("", error.message)
