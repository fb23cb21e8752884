"""Client for one repository of a registry: manifests and blobs, with login; and what an image is, without layers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final
from urllib.parse import urlencode, urljoin, urlsplit

import msgspec

from corral.base.clock import Clock
from corral.base.http_client import host_of
from corral.base.tasks import in_thread, task_group
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.oci.auth import Challenge, Credential, StoredCredentials, credential_for, read_challenge, read_stored
from corral.oci.blobs import Body, body_of
from corral.oci.config import ImagesConfig
from corral.oci.errors import ContentMismatch, ImageError, RegistryRefused, RegistryUnavailable, SourceInvalid
from corral.oci.http import Content, HttpFetcher, RegistryResponse, open_fetcher_session
from corral.oci.limits import MANIFEST_BYTES, Network, check_url, persistently, scheme_of
from corral.oci.manifests import (
    ACCEPTED,
    OCI_INDEX,
    Descriptor,
    ImageFacts,
    Index,
    Manifest,
    PlatformImage,
    read_manifest,
)
from corral.oci.references import Reference, RegistryImage, check_digest, digest_of, parse_source

_CLIENT: Final = "corral"
_UNKNOWN_ROUTE: Final = frozenset({400, 404, 405, 501})
"""Statuses that registries return for an unknown API route. The standard says 404."""


class _Token(msgspec.Struct, frozen=True, kw_only=True):
    token: str = ""
    access_token: str = ""


class _Tags(msgspec.Struct, frozen=True, kw_only=True):
    tags: list[str] | None = None


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A manifest or an index, with its actual digest."""

    body: bytes
    digest: str


class Registry:
    """Sends authenticated requests, and logs in again when a token expires."""

    def __init__(
        self,
        fetcher: HttpFetcher,
        reference: Reference,
        *,
        credential: Credential | None,
        network: Network,
        clock: Clock,
        actions: str = "pull",
    ) -> None:
        self._fetcher = fetcher
        self._actions = actions
        self._reference = reference
        self._credential = credential
        self._network = network
        self._clock = clock
        self._base = f"{scheme_of(reference.host, network)}://{reference.host}/v2/{reference.repository}"
        self._authorization = f"Bearer {credential.access_token}" if credential and credential.access_token else ""
        self._logging_in = asyncio.Lock()

    async def manifest(self, selector: str) -> Document:
        """Fetch a manifest by tag or digest. With a digest the content is verified."""
        name = f"{self._reference.name}:{selector}"
        body = await self._whole(f"manifests/{selector}", {"Accept": ACCEPTED}, MANIFEST_BYTES, name)
        if ":" not in selector:
            return Document(body=body, digest=digest_of(body))
        digest = digest_of(body, like=selector)
        if digest != selector:
            raise ContentMismatch(f"{self._reference.host} gave a manifest {digest} where {selector} was asked for")
        return Document(body=body, digest=digest)

    async def small_blob(self, digest: str, most: int) -> bytes:
        """Fetch and verify a whole blob. Raise ContentMismatch when it is larger than `most`."""
        body = await self._whole(f"blobs/{check_digest(digest)}", {}, most, f"{self._reference.name}@{digest}")
        if digest_of(body, like=digest) != digest:
            raise ContentMismatch(f"{self._reference.host} gave something else than the blob {digest}")
        return body

    async def tags(self) -> list[str]:
        """Return the first tags of the repository, as many as fit into one answer."""
        body = await self._whole("tags/list", {}, MANIFEST_BYTES, f"the tags of {self._reference.name}")
        try:
            return msgspec.json.decode(body, type=_Tags).tags or []
        except UNREADABLE_JSON:
            raise RegistryUnavailable(f"{self._reference.host} gave something that is no list of tags") from None

    async def referrers(self, digest: str) -> bytes | None:
        """Return the list of manifests that refer to an image; None if the registry does not support such lists."""
        subject = f"what refers to {self._reference.name}@{digest}"

        async def fetch() -> bytes | None:
            async with self._ask(f"{self._base}/referrers/{digest}", {"Accept": OCI_INDEX}) as answer:
                return None if answer.status in _UNKNOWN_ROUTE else await self._body(answer, MANIFEST_BYTES, subject)

        return await persistently(fetch, self._network, self._clock)

    async def _whole(self, path: str, headers: dict[str, str], most: int, subject: str) -> bytes:
        async def fetch() -> bytes:
            async with self._ask(f"{self._base}/{path}", headers) as answer:
                return await self._body(answer, most, subject)

        return await persistently(fetch, self._network, self._clock)

    async def _body(self, answer: RegistryResponse, most: int, subject: str) -> bytes:
        if answer.status != 200:
            raise await answer.problem(subject)
        return await answer.body(most, within=self._network.answer_seconds)

    @asynccontextmanager
    async def blob(self, digest: str, offset: int) -> AsyncIterator[Body]:
        """Yield the content from the offset, or from 0 if the registry does not support ranges. Does not retry."""
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        async with self._ask(f"{self._base}/blobs/{digest}", headers) as answer:
            yield await body_of(answer, offset, f"{self._reference.name}@{digest}", self._network)

    @property
    def url(self) -> str:
        """URL of the repository; blobs are below it."""
        return self._base

    async def authorization(self, digest: str) -> str:
        """Return the header that a blob is fetched with now; empty if none is needed. Tokens live for minutes."""

        async def ask() -> str:
            async with self._ask(f"{self._base}/blobs/{check_digest(digest)}", {"Range": "bytes=0-0"}) as answer:
                if answer.status not in (200, 206):
                    raise await answer.problem(f"{self._reference.name}@{digest}")
            return self._authorization

        return await persistently(ask, self._network, self._clock)

    @asynccontextmanager
    async def _ask(self, url: str, headers: dict[str, str]) -> AsyncIterator[RegistryResponse]:
        async with self._with_login(lambda login: self._fetcher.ask(url, headers, authorization=login)) as answer:
            yield answer

    @asynccontextmanager
    async def send(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, *, content: Content | None = None
    ) -> AsyncIterator[RegistryResponse]:
        """Send one request that changes something, without retry. `path` is below the repository, or a URL from the
        registry."""
        url = urljoin(f"{self._base}/", path)
        is_home = url.startswith(self._base.partition("/v2/")[0] + "/")

        def asked(login: str) -> AbstractAsyncContextManager[RegistryResponse]:
            authorization = login if is_home else ""  # an upload URL may point to another host
            return self._fetcher.send(method, url, headers or {}, content=content, authorization=authorization)

        async with self._with_login(asked) as answer:
            yield answer

    @asynccontextmanager
    async def _with_login(
        self, send: Callable[[str], AbstractAsyncContextManager[RegistryResponse]]
    ) -> AsyncIterator[RegistryResponse]:
        """Send with the current login, and once more with a new one when the registry asks for it."""
        used = self._authorization
        async with send(used) as answer:
            if answer.status != 401 or not answer.is_from_home:
                yield answer
                return
            challenge = read_challenge(answer.challenges)
        async with self._logging_in:  # held while a token is fetched: parallel downloads need the same one
            if self._authorization == used:
                self._authorization = await self._authorization_for(challenge)
        async with send(self._authorization) as answer:
            yield answer

    async def _authorization_for(self, challenge: Challenge) -> str:
        if challenge.scheme == "bearer":
            return "Bearer " + await self._token(challenge)
        if self._credential is None or not self._credential.username:
            advice = "add it to the `auths` of a Docker configuration, or set images.registry_auth_file"
            raise RegistryRefused(f"{self._reference.registry} wants a login, and there is none for it: {advice}")
        if self._authorization == self._credential.basic():
            raise RegistryRefused(f"{self._reference.registry} does not accept the login of {self._credential.place}")
        return self._credential.basic()

    async def _token(self, challenge: Challenge) -> str:
        realm = self._checked_realm(challenge.realm)
        parameters = {"scope": challenge.scope or f"repository:{self._reference.repository}:{self._actions}"}
        if challenge.service:
            parameters["service"] = challenge.service
        status, body = await self._ask_for_token(realm, parameters)
        if status in (400, 401, 403, 404):
            rejected_login = (
                f"the login of {self._credential.place}" if self._credential else f"a {self._actions} without a login"
            )
            raise RegistryRefused(
                f"{self._reference.registry} does not accept {rejected_login} ({status} from {host_of(realm)})"
            )
        if status != 200:
            raise RegistryUnavailable(f"{host_of(realm)} answered {status} when asked for a token")
        try:
            answered = msgspec.json.decode(body, type=_Token)
        except UNREADABLE_JSON:
            raise RegistryUnavailable(f"{host_of(realm)} gave something that is no token") from None
        token = answered.token or answered.access_token
        if not token or not token.isascii() or not token.isprintable():
            raise RegistryRefused(f"{host_of(realm)} gave no token that could be used")
        return token

    async def _ask_for_token(self, realm: str, parameters: dict[str, str]) -> tuple[int, bytes]:
        credential = self._credential
        if credential is not None and credential.identity_token:
            exchange = {"grant_type": "refresh_token", "client_id": _CLIENT, "refresh_token": credential.identity_token}
            return await self._fetcher.post(realm, {**parameters, **exchange})
        login = credential.basic() if credential is not None and credential.username else ""
        url = realm + ("&" if urlsplit(realm).query else "?") + urlencode(parameters)
        async with self._fetcher.ask(url, {}, authorization=login) as answer:
            return answer.status, await answer.body(MANIFEST_BYTES, within=self._network.answer_seconds)

    def _checked_realm(self, realm: str) -> str:
        """Check the URL of the token service, which the registry chooses: it must use TLS like the registry."""
        try:
            check_url(realm, self._network)
        except (SourceInvalid, ValueError) as error:
            raise RegistryRefused(f"{self._reference.registry} sends us for a token where we do not go") from error
        if self._base.startswith("https:") and not realm.startswith("https:"):
            raise RegistryRefused(f"{self._reference.registry} sends us for a token from HTTPS to HTTP")
        return realm


@asynccontextmanager
async def open_registry(
    reference: Reference,
    *,
    config: ImagesConfig,
    clock: Clock,
    actions: str = "pull",
    stored: StoredCredentials | None = None,
) -> AsyncIterator[Registry]:
    """Open a client for one image. `actions` is the scope of the token; `stored` are logins that were read already."""
    if stored is None:
        stored = await in_thread(lambda: read_stored(config.auth_files))
    async with open_fetcher_session(config.network) as session:
        yield Registry(
            HttpFetcher(session, config.network),
            reference,
            credential=credential_for((*config.credentials, *stored.credentials), reference),
            network=config.network,
            clock=clock,
            actions=actions,
        )


_MOST_MEMBERS: Final = 16
"""Maximum number of images of an index that are read. Nobody builds for more platforms."""
_MOST_SIZES: Final = 4096
_NO_PLATFORM: Final = "unknown"
"""The platform that builders give to entries that are not images, such as attestations."""


async def digests_at(uri: str, config: ImagesConfig, clock: Clock) -> tuple[str, ...]:
    """Return the digests that a uri resolves to now: of the index first, if there is one, then of its images. Empty if
    it is not in a registry. Raise ImageError when the registry gives no answer."""
    reference = _reference(uri)
    if reference is None:
        return ()
    async with open_registry(reference, config=config, clock=clock) as registry:
        top = await registry.manifest(reference.selector)
    read = read_manifest(top.body, name=str(reference))
    return (top.digest, *(image.digest for image in _images(read))) if isinstance(read, Index) else (top.digest,)


class ImageLooks:
    """Looks up images in registries. A tag is resolved each time, since it may move; results by digest are cached."""

    def __init__(self, config: ImagesConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._sizes: dict[str, int | None] = {}

    async def at(self, uri: str) -> ImageFacts | None:
        """Return None if the uri is not in a registry. Raise ImageError when the registry gives no answer. Takes as
        long as the network settings allow."""
        reference = _reference(uri)
        if reference is None:
            return None
        name = str(reference)
        async with open_registry(reference, config=self._config, clock=self._clock) as registry:
            top = await registry.manifest(reference.selector)
            read = read_manifest(top.body, name=name)
            if isinstance(read, Manifest):
                only = PlatformImage(digest=top.digest, download_bytes=_layer_bytes(read))
                return ImageFacts(digest=top.digest, is_index=False, members=(only,), uri=uri)
            images = _images(read)
            async with task_group() as group:
                for image in images[:_MOST_MEMBERS]:
                    if image.digest not in self._sizes:
                        group.create_task(self._look_into(registry, image, name), name=f"look at {image.digest}")
        members = (
            PlatformImage(digest=image.digest, platform=image.platform, download_bytes=self._sizes.get(image.digest))
            for image in images
        )
        return ImageFacts(digest=top.digest, is_index=True, members=tuple(members), uri=uri)

    async def _look_into(self, registry: Registry, member: Descriptor, name: str) -> None:
        """Read one image's manifest. An unreadable one does not affect the others."""
        try:
            read = read_manifest((await registry.manifest(member.digest)).body, name=name)
        except ImageError:
            return
        while len(self._sizes) >= _MOST_SIZES:
            del self._sizes[next(iter(self._sizes))]
        self._sizes[member.digest] = _layer_bytes(read) if isinstance(read, Manifest) else None


def _reference(uri: str) -> Reference | None:
    try:
        source = parse_source(uri)
    except SourceInvalid:
        return None
    return source.reference if isinstance(source, RegistryImage) else None


def _images(index: Index) -> list[Descriptor]:
    return [
        manifest for manifest in index.manifests if manifest.platform is None or manifest.platform.os != _NO_PLATFORM
    ]


def _layer_bytes(image: Manifest) -> int:
    return sum(layer.size for layer in image.layers)
