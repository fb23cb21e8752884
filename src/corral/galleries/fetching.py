"""Fetching an index from wherever it is: only when it changed, and never more, or for longer, than is allowed."""

import asyncio
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final, Protocol

import aiohttp

from corral.base.errors import CorralError, InvalidInput, PeerRefused, PeerUnavailable
from corral.base.http_client import HttpFailed, HttpFault, asked, is_passing, read_body
from corral.base.sizes import format_size
from corral.galleries.cache import Copy, Validators
from corral.galleries.places import IndexLocation, Scheme, without_secrets


class RegistryMissing(CorralError):
    """This program cannot read galleries from registries: give the index an http, https or file URL."""

    code = "registry_missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtefactFile:
    """The one file of an artefact."""

    digest: str
    """Of its manifest."""
    content: bytes = field(repr=False)


class ArtefactReader(Protocol):
    """Reads small artefacts from registries."""

    async def read_artefact(self, reference: str, *, known_digest: str, most_bytes: int) -> ArtefactFile | None:
        """The file of an artefact, verified; None when its digest is the known one, so that nothing is fetched.

        PeerUnavailable, PeerRefused or InvalidInput otherwise, also for one that is larger than allowed.
        """


class NoRegistry:
    """For programs without a client for registries."""

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
    """A new version of what lies at a URL."""

    content: bytes = field(repr=False)
    validators: Validators = field(default_factory=Validators)


class IndexFetcher:
    """Fetches copies. A place that has nothing new costs no more than the question."""

    def __init__(
        self, session: aiohttp.ClientSession, *, registry: ArtefactReader, timeout: timedelta, most_bytes: int
    ) -> None:
        self._session = session
        self._registry = registry
        self._timeout = timeout
        self._most_bytes = most_bytes

    async def fetch(self, place: IndexLocation, known: Copy | None, *, now: float) -> Copy:
        """What lies there; the known copy, as checked now, when it is still that. CorralError when it cannot be had."""
        target = await self._index_of(place)
        mine = known if known is not None and known.url == target.url else None
        fetched = await self._ask(target, mine)
        if fetched is None:
            assert mine is not None  # noqa: S101 - nothing is unchanged without a copy
            return replace(mine, checked_at=now)
        return replace(fetched, fetched_at=now, checked_at=now)

    async def _ask(self, place: IndexLocation, known: Copy | None) -> Copy | None:
        if place.scheme is Scheme.OCI:
            return await self._from_registry(place, known)
        validators = Validators() if known is None else known.validators
        found = await fetch(self._session, place.url, validators, most_bytes=self._most_bytes)
        if found is None:
            return None
        return Copy(url=place.url, content=found.content, validators=found.validators, fetched_at=0, checked_at=0)

    async def _from_registry(self, place: IndexLocation, known: Copy | None) -> Copy | None:
        digest = "" if known is None else known.digest
        try:
            async with asyncio.timeout(self._timeout.total_seconds()):
                found = await self._registry.read_artefact(
                    place.url.removeprefix("oci://"), known_digest=digest, most_bytes=self._most_bytes
                )
        except TimeoutError:
            raise PeerUnavailable(_REASONS[HttpFault.TIMEOUT]) from None
        if found is None:
            return None
        return Copy(url=place.url, content=found.content, digest=found.digest, fetched_at=0, checked_at=0)

    async def _index_of(self, place: IndexLocation) -> IndexLocation:
        """The index itself, where a place only names the file beside it."""
        if not place.is_reference:
            return place
        found = await fetch(self._session, place.url, Validators(), most_bytes=_LONGEST_REFERENCE)
        name = b"" if found is None else found.content.strip()
        if not name.isascii() or not name.decode("ascii").isprintable() or not name or b"://" in name:
            raise InvalidInput("", "does not hold the name of a file")
        return place.beside(name.decode("ascii"))


async def fetch(session: aiohttp.ClientSession, url: str, known: Validators, *, most_bytes: int) -> Fetched | None:
    """What lies at a URL; None when it is still the known version. PeerUnavailable, PeerRefused or InvalidInput."""
    try:
        async with asked(session, "GET", url, headers=known.headers, redirects=_MOST_REDIRECTS) as response:
            _refuse_downgrade(response)
            if response.status == _NOT_MODIFIED and known.headers:
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
    """What was asked for over TLS must not come without it."""
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
