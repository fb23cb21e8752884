"""A registry in the test's own loop that does what it is told, also what no registry should do."""

import asyncio
import base64
import re
import ssl
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import msgspec
from aiohttp import web

from corral.imaging.private_keys import SigningKey
from corral.oci.manifests import OCI_INDEX, OCI_LAYER_GZIP, OCI_MANIFEST, Descriptor, ImagePlatform, this_platform
from corral.oci.references import digest_of
from corral.oci.signatures.formats import MEDIA_TYPE, SIGNATURE_ANNOTATION, make_payload, signature_tag

_LOOPBACK: Final = "127.0.0.1"
_RANGE: Final = re.compile(r"bytes=(\d+)-")
_PIECE: Final = 64 * 1024
_MOST_SENT: Final = 64 * 1024 * 1024

Fault = Callable[[web.Request, bytes], Awaitable[web.StreamResponse]]
"""From a request, and what a good registry would answer, to what this one answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedRequest:
    """A request that the registry received."""

    path: str
    headers: Mapping[str, str]
    method: str = "GET"

    @property
    def range(self) -> str:
        return self.headers.get("Range", "")


@dataclass(kw_only=True)
class FakeRegistry:
    """`async with FakeRegistry() as registry:` listens on loopback. Faults of a path are used up one by one."""

    username: str = ""
    password: str = ""
    uses_tokens: bool = False
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[tuple[str, str], tuple[str, bytes]] = field(default_factory=dict)
    heard: list[ReceivedRequest] = field(default_factory=list)
    faults: dict[str, list[Fault]] = field(default_factory=lambda: defaultdict(list))
    """By a part of the method and the path, as in `PUT /v2/x`."""
    uploads: dict[str, bytes] = field(default_factory=dict)
    """Content that was sent and not sealed."""
    tokens: set[str] = field(default_factory=set)
    knows_ranges: bool = True
    tls: ssl.SSLContext | None = None

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=_MOST_SENT)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.0, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, _LOOPBACK, 0, ssl_context=self.tls)
        await site.start()
        self.address = f"{_LOOPBACK}:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    # What it holds.

    def add_blob(self, content: bytes, media_type: str = OCI_LAYER_GZIP) -> Descriptor:
        digest = digest_of(content)
        self.blobs[digest] = content
        return Descriptor(media_type=media_type, digest=digest, size=len(content))

    def add_image(
        self, name: str, layers: Sequence[bytes], *, platform: ImagePlatform | None = None, tag: str = "latest"
    ) -> Descriptor:
        descriptors = [self.add_blob(layer) for layer in layers]
        document = {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "layers": descriptors}
        return self.add_manifest(name, document, OCI_MANIFEST, tag=tag, platform=platform or this_platform())

    def add_index(self, name: str, images: Sequence[Descriptor], *, tag: str = "latest") -> Descriptor:
        document = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": list(images)}
        return self.add_manifest(name, document, OCI_INDEX, tag=tag)

    def add_manifest(
        self, name: str, document: object, media_type: str, *, tag: str, platform: ImagePlatform | None = None
    ) -> Descriptor:
        body = msgspec.json.encode(document)
        digest = digest_of(body)
        for selector in (tag, digest):
            self.manifests[name, selector] = (media_type, body)
        return Descriptor(media_type=media_type, digest=digest, size=len(body), platform=platform)

    def reference(self, name: str, tag: str = "latest") -> str:
        return f"{self.address}/{name}:{tag}"

    def asked_for(self, part: str) -> list[ReceivedRequest]:
        return [request for request in self.heard if part in request.path]

    # What it answers.

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.heard.append(ReceivedRequest(path=request.path_qs, headers=dict(request.headers), method=request.method))
        good = self._content(request.path)
        for part, waiting in self.faults.items():
            if part in f"{request.method} {request.path}" and waiting:
                return await waiting.pop(0)(request, good[1] if good else b"")
        if request.path == "/token":
            return self._give_token(request)
        if not self._is_welcome(request):
            return self._challenge()
        if request.method in ("POST", "PATCH", "PUT"):
            return await self._take(request)
        if good is None:
            return web.json_response({"errors": [{"code": "NAME_UNKNOWN", "message": "nothing there"}]}, status=404)
        return self._serve(request, *good)

    def _content(self, path: str) -> tuple[str, bytes] | None:
        match path.strip("/").split("/"):
            case ["v2", *name, "manifests", selector]:
                return self.manifests.get(("/".join(name), selector))
            case ["v2", *_, "blobs", digest] if digest in self.blobs:
                return "application/octet-stream", self.blobs[digest]
            case ["files", *_] if path in self.blobs:
                return "application/octet-stream", self.blobs[path]
            case _:
                return None

    async def _take(self, request: web.Request) -> web.Response:
        """What pushes send, as the specification of registries has it."""
        content, parts = await request.read(), request.path.strip("/").split("/")
        match (request.method, *parts[-2:]):
            case ("PUT", "manifests", selector):
                return self._take_manifest("/".join(parts[1:-2]), selector, request.content_type, content)
            case ("POST", "blobs", "uploads"):
                return self._upload_at(f"{request.path.rstrip('/')}/{len(self.heard)}", b"")
            case ("PATCH", "uploads", _):
                return self._upload_at(request.path, self.uploads.pop(request.path) + content)
            case ("PUT", "uploads", _):
                sent, digest = self.uploads.pop(request.path) + content, request.query["digest"]
                if digest_of(sent) != digest:
                    return web.Response(status=400)
                self.blobs[digest] = sent
                return web.Response(status=201)
            case _:
                return web.Response(status=405)

    def _upload_at(self, path: str, content: bytes) -> web.Response:
        self.uploads[path] = content
        return web.Response(status=202, headers={"Location": path})

    def _take_manifest(self, name: str, selector: str, media_type: str, content: bytes) -> web.Response:
        """Refused while something is missing that it names."""
        document = msgspec.json.decode(content, type=dict[str, Any])
        blobs = [*document.get("layers", ()), *filter(None, [document.get("config")])]
        has_blobs = all(blob["digest"] in self.blobs for blob in blobs)
        has_manifests = all((name, entry["digest"]) in self.manifests for entry in document.get("manifests", ()))
        if not has_blobs or not has_manifests:
            problem = {"code": "MANIFEST_BLOB_UNKNOWN", "message": "something is missing"}
            return web.json_response({"errors": [problem]}, status=400)
        for reference in (selector, digest_of(content)):
            self.manifests[name, reference] = (media_type, content)
        return web.Response(status=201, headers={"Docker-Content-Digest": digest_of(content)})

    def _serve(self, request: web.Request, media_type: str, content: bytes) -> web.Response:
        asked = _RANGE.match(request.headers.get("Range", "")) if self.knows_ranges else None
        if asked is None:
            return web.Response(body=content, content_type=media_type)
        start = int(asked[1])
        if start >= len(content):
            return web.Response(status=416)
        stated = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}
        return web.Response(status=206, body=content[start:], headers=stated)

    def _is_welcome(self, request: web.Request) -> bool:
        credentials = request.headers.get("Authorization", "")
        if self.uses_tokens:
            return credentials.removeprefix("Bearer ") in self.tokens
        return not self.username or credentials == self.basic()

    def basic(self) -> str:
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode()

    def _challenge(self) -> web.Response:
        challenge = 'Basic realm="tests"'
        if self.uses_tokens:
            challenge = f'Bearer realm="http://{self.address}/token",service="tests",scope="repository:x:pull"'
        return web.Response(status=401, headers={"WWW-Authenticate": challenge})

    def _give_token(self, request: web.Request) -> web.Response:
        if self.username and request.headers.get("Authorization") != self.basic():
            return web.Response(status=401)
        token = f"token-{len(self.tokens)}"
        self.tokens.add(token)
        return web.json_response({"token": token})


def answering(status: int, headers: Mapping[str, str] | None = None, body: bytes = b"") -> Fault:
    async def fault(_: web.Request, __: bytes) -> web.StreamResponse:
        return web.Response(status=status, headers=headers, body=body)

    return fault


def cutting(at: int) -> Fault:
    """Announces everything, and hangs up after so many bytes."""

    async def fault(request: web.Request, good: bytes) -> web.StreamResponse:
        start = int(asked[1]) if (asked := _RANGE.match(request.headers.get("Range", ""))) else 0
        stated = {"Content-Range": f"bytes {start}-{len(good) - 1}/{len(good)}"} if start else {}
        response = web.StreamResponse(status=206 if start else 200, headers=stated)
        response.content_length = len(good) - start
        await response.prepare(request)
        await response.write(good[start : start + at])
        if request.transport is not None:
            request.transport.close()  # after what was written
        return response

    return fault


def lying(content: bytes) -> Fault:
    """Return a fault that serves other content."""
    return answering(200, body=content)


def endless(piece: bytes = bytes(_PIECE)) -> Fault:
    """Announces no length and never ends by itself."""

    async def fault(request: web.Request, _: bytes) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        while True:
            await response.write(piece)

    return fault


def stalling(after: int, until: asyncio.Event, *, reached: asyncio.Event | None = None) -> Fault:
    """Gives so many bytes, and then nothing until the event; sets the other one when it has come so far."""

    async def fault(request: web.Request, good: bytes) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_length = len(good)
        await response.prepare(request)
        await response.write(good[:after])
        if reached is not None:
            reached.set()
        await until.wait()
        return response

    return fault


def pausing(after: int, until: asyncio.Event) -> Fault:
    """Gives so many bytes, and the others after the event."""

    async def fault(request: web.Request, good: bytes) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_length = len(good)
        await response.prepare(request)
        await response.write(good[:after])
        await until.wait()
        await response.write(good[after:])
        return response

    return fault


def trickling(piece: int, *, pause_seconds: float, until: asyncio.Event | None = None) -> Fault:
    """Gives everything, slowly: so many bytes, a pause, and so on; once the event is set, the rest at once."""

    async def fault(request: web.Request, good: bytes) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_length = len(good)
        await response.prepare(request)
        for start in range(0, len(good), piece):
            if until is not None and until.is_set():
                await response.write(good[start:])
                break
            await response.write(good[start : start + piece])
            await asyncio.sleep(pause_seconds)
        return response

    return fault


def silent(until: asyncio.Event, *, reached: asyncio.Event | None = None) -> Fault:
    """Takes the request and says nothing until the event."""

    async def fault(_: web.Request, __: bytes) -> web.StreamResponse:
        if reached is not None:
            reached.set()
        await until.wait()
        return web.Response(status=500)

    return fault


def a_signature(registry: FakeRegistry, name: str, digest: str, key: SigningKey) -> Descriptor:
    """A blob that no manifest names yet."""
    payload = make_payload(reference=name, digest=digest, annotations={})
    stated = {SIGNATURE_ANNOTATION: base64.b64encode(key.sign(payload)).decode()}
    return msgspec.structs.replace(registry.add_blob(payload, MEDIA_TYPE), annotations=stated)


def add_signatures(registry: FakeRegistry, name: str, digest: str, *keys: SigningKey, of: str = "") -> None:
    """`of` is the image whose signatures they pretend to be."""
    layers = [a_signature(registry, name, digest, key) for key in keys]
    registry.add_manifest(name, {"layers": layers}, OCI_MANIFEST, tag=signature_tag(of or digest))
