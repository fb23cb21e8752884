"""Fetches an index only if it changed, within limits of size and time: over HTTP, or from a registry as a single-file
artefact, as `oras push` makes them.
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final, Protocol

import aiohttp
import msgspec
from msgspec.structs import replace

from corral.base.clock import Clock
from corral.base.errors import InvalidInput, PeerRefused, PeerUnavailable
from corral.base.http_client import HttpFailed, HttpFault, asked, is_passing, read_body
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.base.values import PartlyPrinted
from corral.base.words import format_size
from corral.galleries.cache import Copy
from corral.galleries.places import IndexLocation, Scheme, without_secrets
from corral.oci.config import ImagesConfig
from corral.oci.errors import ImageError, ImageNotFound, RegistryRefused
from corral.oci.manifests import Descriptor
from corral.oci.references import check_digest, digest_of, parse_reference
from corral.oci.registry import open_registry


class ArtefactFile(PartlyPrinted, frozen=True, kw_only=True):
    """The file of a single-file artefact."""

    unprinted = ("content",)

    digest: str
    """Digest of the manifest that the copy was read from."""
    content: bytes


class ArtefactReader(Protocol):
    """Reads small artefacts from registries."""

    async def read_artefact(self, reference: str, *, known_digest: str, most_bytes: int) -> ArtefactFile | None:
        """Return the verified file of an artefact; None when its digest is the known one, and then nothing is fetched.

        Raise PeerUnavailable, PeerRefused or InvalidInput, also when it is larger than allowed.
        """


_LONGEST_REFERENCE: Final = 4096
_MOST_REDIRECTS: Final = 5
_NOT_MODIFIED: Final = 304
_HEADERS: Final = ("Content-Encoding", "ETag", "Last-Modified")
_REASONS: Final = {
    HttpFault.TIMEOUT: "does not answer: timed out; the setting gallery.timeout allows more",
    HttpFault.REDIRECTS: f"redirects more than {_MOST_REDIRECTS} times",
}


class IndexFetcher:
    """Fetches indexes. An unchanged index costs one conditional request."""

    def __init__(
        self, session: aiohttp.ClientSession, *, registry: ArtefactReader, timeout: timedelta, most_bytes: int
    ) -> None:
        self._session = session
        self._registry = registry
        self._timeout = timeout
        self._most_bytes = most_bytes

    async def fetch(self, place: IndexLocation, cached: Copy | None, *, now: float) -> Copy:
        """Return the current index; the cached copy with a new check time if it is unchanged. Raise CorralError on
        failure."""
        target = place
        if place.is_reference:  # it only names a file beside it, which is the index
            named = await fetch(self._session, place.url, {}, most_bytes=_LONGEST_REFERENCE)
            name = b"" if named is None else named.content.strip()
            if not name.isascii() or not name.decode("ascii").isprintable() or not name or b"://" in name:
                raise InvalidInput("", "does not hold the name of a file")
            target = place.beside(name.decode("ascii"))
        usable_copy = cached if cached is not None and cached.url == target.url else None
        if target.scheme is Scheme.OCI:
            fetched = await self._from_registry(
                target.url, known_digest="" if usable_copy is None else usable_copy.digest
            )
        else:
            conditions = {} if usable_copy is None else usable_copy.conditions
            fetched = await fetch(self._session, target.url, conditions, most_bytes=self._most_bytes)
        if fetched is None:
            assert usable_copy is not None  # noqa: S101 - nothing is unchanged without a copy
            return replace(usable_copy, checked_at=now)
        return replace(fetched, fetched_at=now, checked_at=now)

    async def _from_registry(self, url: str, *, known_digest: str) -> Copy | None:
        try:
            async with asyncio.timeout(self._timeout.total_seconds()):
                artefact = await self._registry.read_artefact(
                    url.removeprefix("oci://"), known_digest=known_digest, most_bytes=self._most_bytes
                )
        except TimeoutError:
            raise PeerUnavailable(_REASONS[HttpFault.TIMEOUT]) from None
        return None if artefact is None else Copy(url=url, content=artefact.content, digest=artefact.digest)


async def fetch(
    session: aiohttp.ClientSession, url: str, conditions: Mapping[str, str], *, most_bytes: int
) -> Copy | None:
    """Fetch a URL; None when the conditions say that it has no newer version. Raise PeerUnavailable, PeerRefused or
    InvalidInput."""
    try:
        async with asked(session, "GET", url, headers=conditions, redirects=_MOST_REDIRECTS) as response:
            hops = [*(hop.url for hop in response.history), response.url]
            if any(hop.scheme == "https" for hop in hops) and response.url.scheme != "https":
                where = without_secrets(str(response.url))
                raise PeerRefused(f"redirects from https to {where}, which is not protected", status=response.status)
            if response.status == _NOT_MODIFIED and conditions:
                return None
            if is_passing(response.status):
                raise PeerUnavailable(f"answers {response.status}")
            if response.status != 200:
                raise PeerRefused(f"answers {response.status}", status=response.status)
            encoding, etag, modified = (response.headers.get(name, "") for name in _HEADERS)
            if encoding not in ("", "identity"):
                raise InvalidInput("", f"comes packed as {encoding[:40]!r} although that was not asked for")
            content = await read_body(response, most_bytes)
            return Copy(url=url, content=content, etag=etag, last_modified=modified)
    except HttpFailed as error:
        if error.fault is HttpFault.TOO_LARGE:
            size = f"is larger than {format_size(most_bytes)}; the setting gallery.max_size allows more"
            raise InvalidInput("", size) from error
        raise PeerUnavailable(_REASONS.get(error.fault, f"does not answer: {error.reason}")) from error


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
            parsed = parse_reference(reference)
            async with open_registry(parsed, config=self._config, clock=self._clock) as registry:
                document = await registry.manifest(parsed.selector)
                if document.digest == known_digest:
                    return None
                file = _only_file(document.body, most_bytes)
                content = bytearray()
                async with registry.blob(file.digest, 0) as body:
                    async for piece in body.pieces:
                        content += piece
                        if len(content) > file.size:
                            break
                if len(content) != file.size or digest_of(bytes(content), like=file.digest) != file.digest:
                    raise PeerUnavailable("gave another file than the one that it announced")
                return ArtefactFile(digest=document.digest, content=bytes(content))
        except ImageNotFound as error:
            raise PeerRefused(f"has no such artefact: {error.message}", status=404) from error
        except RegistryRefused as error:
            raise PeerRefused(error.message, status=403) from error
        except ImageError as error:
            raise (PeerUnavailable(error.message) if error.retryable else InvalidInput("", error.message)) from error


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
