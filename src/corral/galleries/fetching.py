"""Fetches an index only if it changed, within limits of size and time."""

import asyncio
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final, Protocol

import aiohttp

from corral.base.errors import CorralError, InvalidInput, PeerRefused, PeerUnavailable
from corral.base.http_client import HttpFailed, HttpFault, asked, is_passing, read_body
from corral.base.words import format_size
from corral.galleries.cache import Copy, Validators
from corral.galleries.places import IndexLocation, Scheme, without_secrets


class RegistryMissing(CorralError):
    """This program cannot read galleries from registries: give the index an http, https or file URL."""

    code = "registry_missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtefactFile:
    """The file of a single-file artefact."""

    digest: str
    """Digest of its manifest."""
    content: bytes = field(repr=False)


class ArtefactReader(Protocol):
    """Reads small artefacts from registries."""

    async def read_artefact(self, reference: str, *, known_digest: str, most_bytes: int) -> ArtefactFile | None:
        """Return the verified file of an artefact; None when its digest is the known one, and then nothing is fetched.

        Raise PeerUnavailable, PeerRefused or InvalidInput, also when it is larger than allowed.
        """


class NoRegistry:
    """For programs without a registry client."""

    async def read_artefact(self, reference: str, *, known_digest: str, most_bytes: int) -> ArtefactFile | None:
        raise RegistryMissing


_LONGEST_REFERENCE: Final = 4096
_MOST_REDIRECTS: Final = 5
_NOT_MODIFIED: Final = 304
_REASONS: Final = {
    HttpFault.TIMEOUT: "does not answer: timed out; the setting gallery.timeout allows more",
    HttpFault.REDIRECTS: f"redirects more than {_MOST_REDIRECTS} times",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A new version of a URL's content."""

    content: bytes = field(repr=False)
    validators: Validators = field(default_factory=Validators)


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
        target = await self._index_of(place)
        mine = cached if cached is not None and cached.url == target.url else None
        fetched = await self._ask(target, mine)
        if fetched is None:
            assert mine is not None  # noqa: S101 - nothing is unchanged without a copy
            return replace(mine, checked_at=now)
        return replace(fetched, fetched_at=now, checked_at=now)

    async def _ask(self, place: IndexLocation, cached: Copy | None) -> Copy | None:
        if place.scheme is Scheme.OCI:
            return await self._from_registry(place, cached)
        validators = Validators() if cached is None else cached.validators
        fetched = await fetch(self._session, place.url, validators, most_bytes=self._most_bytes)
        if fetched is None:
            return None
        return Copy(url=place.url, content=fetched.content, validators=fetched.validators, fetched_at=0, checked_at=0)

    async def _from_registry(self, place: IndexLocation, cached: Copy | None) -> Copy | None:
        digest = "" if cached is None else cached.digest
        try:
            async with asyncio.timeout(self._timeout.total_seconds()):
                artefact = await self._registry.read_artefact(
                    place.url.removeprefix("oci://"), known_digest=digest, most_bytes=self._most_bytes
                )
        except TimeoutError:
            raise PeerUnavailable(_REASONS[HttpFault.TIMEOUT]) from None
        if artefact is None:
            return None
        return Copy(url=place.url, content=artefact.content, digest=artefact.digest, fetched_at=0, checked_at=0)

    async def _index_of(self, place: IndexLocation) -> IndexLocation:
        """Return the location of the index itself, if this place only names a file beside it."""
        if not place.is_reference:
            return place
        fetched = await fetch(self._session, place.url, Validators(), most_bytes=_LONGEST_REFERENCE)
        name = b"" if fetched is None else fetched.content.strip()
        if not name.isascii() or not name.decode("ascii").isprintable() or not name or b"://" in name:
            raise InvalidInput("", "does not hold the name of a file")
        return place.beside(name.decode("ascii"))


async def fetch(session: aiohttp.ClientSession, url: str, validators: Validators, *, most_bytes: int) -> Fetched | None:
    """Fetch a URL; None when it still has the known version. Raise PeerUnavailable, PeerRefused or InvalidInput."""
    try:
        async with asked(session, "GET", url, headers=validators.headers, redirects=_MOST_REDIRECTS) as response:
            _refuse_downgrade(response)
            if response.status == _NOT_MODIFIED and validators.headers:
                return None
            if response.status != 200:
                raise _refusal(response.status)
            _refuse_packed(response.headers.get("Content-Encoding", "identity"))
            return Fetched(content=await read_body(response, most_bytes), validators=_validators(response))
    except HttpFailed as error:
        if error.fault is HttpFault.TOO_LARGE:
            size = f"is larger than {format_size(most_bytes)}; the setting gallery.max_size allows more"
            raise InvalidInput("", size) from error
        raise PeerUnavailable(_REASONS.get(error.fault, f"does not answer: {error.reason}")) from error


def _refuse_downgrade(response: aiohttp.ClientResponse) -> None:
    """Refuse a redirect from TLS to plain HTTP."""
    hops = [*(hop.url for hop in response.history), response.url]
    if any(hop.scheme == "https" for hop in hops) and response.url.scheme != "https":
        where = without_secrets(str(response.url))
        raise PeerRefused(f"redirects from https to {where}, which is not protected", status=response.status)


def _refusal(status: int) -> CorralError:
    return (
        PeerUnavailable(f"answers {status}") if is_passing(status) else PeerRefused(f"answers {status}", status=status)
    )


def _refuse_packed(encoding: str) -> None:
    if encoding != "identity":
        raise InvalidInput("", f"comes packed as {encoding[:40]!r} although that was not asked for")


def _validators(response: aiohttp.ClientResponse) -> Validators:
    return Validators(etag=response.headers.get("ETag", ""), last_modified=response.headers.get("Last-Modified", ""))
