"""How hubs are asked: where they are, with which token, and what a redirect may do.

Tokens go to the host of their hub only, never to where it redirects. Proxies, certificate authorities and hosts without
TLS are those of image pulls. Answers are bounded in size and time.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Final, Self
from urllib.parse import urlsplit

from corral.base.clock import Clock, SystemClock
from corral.base.http_facts import host_of, origin_of
from corral.base.own_network import is_own_network
from corral.base.tasks import in_thread
from corral.base.words import format_duration
from corral.hubs.config import HubsConfig
from corral.hubs.listings import HubModelMissing, HubName, HubRefused, HubUnavailable
from corral.hubs.plans import PlannedFile
from corral.oci.auth import Credential, credential_for, read_stored
from corral.oci.errors import ImageError, ImageNotFound, RegistryRefused, RegistryUnavailable
from corral.oci.http import HttpFetcher, RegistryResponse, open_fetcher_session
from corral.oci.limits import Network, persistently
from corral.oci.references import DOCKER_HUB, HUB_NAMES, Reference
from corral.oci.registry import Registry

_ATTEMPTS: Final = 2
"""A caller waits for the plan, so the second failure of a hub is reported."""
_LONGEST_WAIT: Final = 5.0
"""Seconds that a hub may ask us to wait within a plan."""
_TOKEN_USER: Final = "token"  # noqa: S105 - registries want a name beside a token, and do not look at it


class HubAccess:
    """A client for all hubs. `async with HubAccess.open(config) as hub:`."""

    def __init__(
        self,
        config: HubsConfig,
        fetcher: HttpFetcher,
        *,
        network: Network,
        clock: Clock,
    ) -> None:
        self.config = config
        self._fetcher = fetcher
        self._network = network
        self._clock = clock

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        config: HubsConfig,
        *,
        clock: Clock | None = None,
        is_own: Callable[[str], Awaitable[bool]] = is_own_network,
    ) -> AsyncIterator[Self]:
        """Open a session. `is_own` says whether a host is of the own network."""

        async def check_redirect(original: str, onward: str) -> None:
            home, host = urlsplit(original).hostname or "", urlsplit(onward).hostname or ""
            if config.private_redirects or home == host or not await is_own(host) or await is_own(home):
                return
            advice = "hubs.private_redirects allows it"
            raise RegistryRefused(f"{host_of(original)} redirects to {host}, which is in the own network; {advice}")

        network = replace(
            config.network,
            answer_seconds=config.answer_timeout.total_seconds(),
            attempts=_ATTEMPTS,
            longest_retry_after_seconds=_LONGEST_WAIT,
        )
        async with open_fetcher_session(network) as session:
            yield cls(
                config,
                HttpFetcher(session, network, check_redirect=check_redirect),
                network=network,
                clock=clock or SystemClock(),
            )

    def token_for(self, url: str, hub: HubName) -> str:
        """Return the header for a URL of Hugging Face; empty where there is no token, or the host is another."""
        token = self.config.hf_token
        if hub is not HubName.HUGGING_FACE or not token or origin_of(url) != origin_of(self.config.hf_url):
            return ""
        return f"Bearer {token}"

    async def authorization(self, planned: PlannedFile) -> str:
        """Return the header that a file is downloaded with; empty if none is needed. A secret.

        Registries give tokens that live for minutes, so it is asked for when a download begins. Raise a HubRefused,
        HubUnavailable or HubModelMissing when the registry gives none.
        """
        hub = HubName(planned.hub)
        if hub in (HubName.OLLAMA, HubName.OCI):
            reference, digest = blob_of(planned.url)
            with hub_errors():
                return await (await self.registry(reference, hub)).authorization(digest)
        return self.token_for(planned.url, hub)

    def advice(self, planned: PlannedFile) -> str:
        """Return what to do when the server of a file answers 401 or 403, as a clause."""
        match HubName(planned.hub):
            case HubName.HUGGING_FACE:
                page = planned.url.partition("/resolve/")[0]
                if self.config.hf_token:
                    return f"accept its licence at {page}, or check the token of hubs.hf_token"
                return f"accept its licence at {page} and set HF_TOKEN (hubs.hf_token)"
            case HubName.OLLAMA:
                return "it is not there, or needs a token: set hubs.ollama_token"
            case HubName.OCI:
                return "it is not there, or needs a login: set images.registry_auth, or hubs.oci_token for a mirror"
            case HubName.NONE:
                return "it is not there, or a login is needed"

    async def registry(self, reference: Reference, hub: HubName) -> Registry:
        """Return a client for one model of a registry, with the logins that are there now."""
        images = self.config.images
        stored = await in_thread(lambda: read_stored(images.auth_files))
        url, token = {
            HubName.OLLAMA: (self.config.ollama_url, self.config.ollama_token),
            HubName.OCI: (self.config.oci_url, self.config.oci_token),
        }.get(hub, ("", ""))
        credential = credential_for((*images.credentials, *stored.credentials), reference)
        if token and urlsplit(url).netloc == reference.host:
            user, colon, password = token.partition(":")
            place = reference.registry
            if colon:
                credential = Credential(place=place, username=user, password=password)
            else:
                credential = Credential(place=place, username=_TOKEN_USER, password=token, access_token=token)
        return Registry(self._fetcher, reference, credential=credential, network=self._network, clock=self._clock)

    @asynccontextmanager
    async def ask(
        self, url: str, *, headers: Mapping[str, str] | None = None, authorization: str = ""
    ) -> AsyncIterator[RegistryResponse]:
        """Yield the response after all redirects, whatever its status. HubUnavailable when there is none."""
        with hub_errors():
            async with self._fetcher.ask(url, headers or {}, authorization=authorization) as answer:
                yield answer

    async def document(
        self, url: str, hub: HubName, *, most: int, problem: Callable[[RegistryResponse], Awaitable[Exception]]
    ) -> tuple[bytes, str]:
        """Return the body of a successful answer, and its Link header. Passing failures are tried twice.

        `problem` makes the error of any other status.
        """

        async def fetch() -> tuple[bytes, str]:
            async with self._fetcher.ask(url, {}, authorization=self.token_for(url, hub)) as answer:
                if answer.status == 200:
                    return await answer.body(most, within=self._network.answer_seconds), answer.header("Link")
                failure = await answer.problem(f"what {host_of(url)} has at this place")
                raise failure if isinstance(failure, RegistryUnavailable) else await problem(answer)

        with hub_errors():
            return await persistently(fetch, self._network, self._clock)


def blob_of(url: str) -> tuple[Reference, str]:
    """Return the repository and the digest that the URL of a blob names."""
    parts = urlsplit(url)
    repository, separator, digest = parts.path.removeprefix("/v2/").rpartition("/blobs/")
    if not separator:
        raise HubRefused(f"{host_of(url)}: this is not the address of a part of a model")
    registry = DOCKER_HUB if parts.netloc in HUB_NAMES else parts.netloc
    return Reference(registry=registry, repository=repository, digest=digest), digest


@contextmanager
def hub_errors() -> Iterator[None]:
    """Turn failures of registries and of HTTP into those of hubs."""
    try:
        yield
    except ImageNotFound as error:
        raise HubModelMissing(error.message) from error
    except RegistryUnavailable as error:
        wait = f"; it asks to wait {format_duration(timedelta(seconds=error.retry_after))}" if error.retry_after else ""
        raise HubUnavailable(error.message + wait, retry_after=error.retry_after) from error
    except ImageError as error:
        raise (HubUnavailable if error.retryable else HubRefused)(error.message) from error
