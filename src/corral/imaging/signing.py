"""Signs an image in its registry with a key; for an index, every image in it too.

Signatures are added to the existing ones, like cosign does. Signing again with the same key changes nothing.
"""

import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias
from urllib.parse import quote

import msgspec

from corral.base.clock import Clock
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.imaging.private_keys import SigningKey
from corral.oci.config import ImagesConfig
from corral.oci.errors import ContentMismatch, ImageNotFound, ManifestUnusable
from corral.oci.http import RegistryResponse
from corral.oci.limits import MAX_SIGNATURES, persistently
from corral.oci.manifests import OCI_CONFIG, OCI_MANIFEST, Descriptor
from corral.oci.references import Reference, check_digest, digest_of
from corral.oci.registry import Registry, open_registry
from corral.oci.signatures.formats import MEDIA_TYPE, SIGNATURE_ANNOTATION, make_payload, signature_tag

_MAX_IMAGES: Final = 256
_BINARY: Final = {"Content-Type": "application/octet-stream"}
_Layer: TypeAlias = Mapping[str, object]
"""Kept as parsed, so that nothing of other signatures is lost."""


class _List(msgspec.Struct, frozen=True, kw_only=True):
    manifests: Sequence[Descriptor] = ()


class _Signatures(msgspec.Struct, frozen=True, kw_only=True):
    layers: Sequence[_Layer] = ()


class SignedDigest(msgspec.Struct, frozen=True, kw_only=True):
    """Result of signing one image or index."""

    digest: str
    signature: str
    """Reference to the tag with its signatures."""
    was_signed: bool
    """Whether the same key had signed it before; nothing was pushed."""


async def sign_image(
    reference: Reference, key: SigningKey, *, config: ImagesConfig, clock: Clock, annotations: Mapping[str, str]
) -> list[SignedDigest]:
    """Sign the index first, if there is one, and then its images."""
    async with open_registry(reference, config=config, clock=clock, actions="pull,push") as registry:
        digests = await _digests(registry, reference)
        pushing = _Pushing(registry, reference, config=config, clock=clock)
        return [await _sign(digest, key, pushing, annotations) for digest in digests]


async def _digests(registry: Registry, reference: Reference) -> list[str]:
    """Return all digests to sign, so that pulls of the index and pulls of one image both find a signature."""
    digests: list[str] = []
    waiting = [reference.selector]
    while waiting:
        document = await registry.manifest(waiting.pop(0))
        if document.digest in digests:
            continue
        digests.append(document.digest)
        waiting += [check_digest(entry.digest) for entry in _listed(document.body, str(reference))]
        if len(digests) + len(waiting) > _MAX_IMAGES:
            raise ManifestUnusable(f"{reference}: a list of more than {_MAX_IMAGES} images")
    return digests


def _listed(body: bytes, name: str) -> Sequence[Descriptor]:
    """Return the descriptors of an index, including entries that are not images, such as attestations."""
    try:
        return msgspec.json.decode(body, type=_List).manifests
    except UNREADABLE_JSON as error:
        raise ManifestUnusable(f"{name}: its manifest cannot be read: {error}") from error


async def _sign(digest: str, key: SigningKey, pushing: "_Pushing", annotations: Mapping[str, str]) -> SignedDigest:
    payload = make_payload(reference=pushing.name, digest=digest, annotations=annotations)
    tag = signature_tag(digest)
    layers = await pushing.signatures(tag)
    was_signed = any(_is_same(layer, payload, key) for layer in layers)
    if not was_signed:
        if len(layers) >= MAX_SIGNATURES:
            raise ManifestUnusable(
                f"{pushing.name}:{tag} has {len(layers)} signatures, of which none more is looked at"
            )
        await pushing.add(tag, layers, payload, key.sign(payload))
    return SignedDigest(digest=digest, signature=f"{pushing.name}:{tag}", was_signed=was_signed)


def _is_same(layer: _Layer, payload: bytes, key: SigningKey) -> bool:
    annotations = layer.get("annotations")
    stated = annotations.get(SIGNATURE_ANNOTATION) if isinstance(annotations, Mapping) else None
    if layer.get("digest") != digest_of(payload) or not isinstance(stated, str):
        return False
    try:
        return key.public_key.verifies(base64.b64decode(stated), payload)
    except ValueError:
        return False


class _Pushing:
    """Pushes signatures to one repository."""

    def __init__(self, registry: Registry, reference: Reference, *, config: ImagesConfig, clock: Clock) -> None:
        self._registry = registry
        self._config = config
        self._clock = clock
        self.name = reference.name

    async def signatures(self, tag: str) -> Sequence[_Layer]:
        """Return the existing signatures."""
        try:
            document = await self._registry.manifest(tag)
        except ImageNotFound:
            return ()
        try:
            return msgspec.json.decode(document.body, type=_Signatures).layers
        except UNREADABLE_JSON as error:
            raise ManifestUnusable(f"{self.name}:{tag} does not hold signatures: {error}") from error

    async def add(self, tag: str, layers: Sequence[_Layer], payload: bytes, signature: bytes) -> None:
        """Push a signature. The manifest is last: an interrupted push leaves the signatures unchanged."""
        stated = {SIGNATURE_ANNOTATION: base64.b64encode(signature).decode()}
        added = [*layers, {**_descriptor(MEDIA_TYPE, payload), "annotations": stated}]
        rootfs = {"type": "layers", "diff_ids": [layer.get("digest") for layer in added]}
        config = msgspec.json.encode({"architecture": "", "os": "", "config": {}, "rootfs": rootfs})
        manifest = {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": _descriptor(OCI_CONFIG, config),
            "layers": added,
        }
        for content in (payload, config):
            await self._persistently(lambda content=content: self._put_blob(content))  # type: ignore[misc]
        await self._persistently(lambda: self._put_manifest(tag, msgspec.json.encode(manifest)))

    async def _persistently(self, work: Callable[[], Awaitable[None]]) -> None:
        await persistently(work, self._config.network, self._clock)

    async def _put_blob(self, content: bytes) -> None:
        digest = digest_of(content)
        async with self._registry.send("POST", "blobs/uploads/", {"Content-Length": "0"}) as answer:
            await self._need(answer, 202, "an upload")
            place = answer.header("Location")
        if not place:
            raise ContentMismatch(f"{self.name}: the registry took an upload, and does not say where to send it")
        sealed = f"{place}{'&' if '?' in place else '?'}digest={quote(digest, safe='')}"
        headers = {**_BINARY, "Content-Length": str(len(content))}
        async with self._registry.send("PUT", sealed, headers, content=lambda: _once(content)) as answer:
            await self._need(answer, 201, digest)

    async def _put_manifest(self, tag: str, body: bytes) -> None:
        headers = {"Content-Type": OCI_MANIFEST, "Content-Length": str(len(body))}
        async with self._registry.send("PUT", f"manifests/{tag}", headers, content=lambda: _once(body)) as answer:
            await self._need(answer, 201, f"the signatures {tag}")

    async def _need(self, answer: RegistryResponse, status: int, subject: str) -> None:
        if answer.status != status:
            raise await answer.problem(f"{subject} in {self.name}", may="write")


def _descriptor(media_type: str, content: bytes) -> _Layer:
    return {"mediaType": media_type, "digest": digest_of(content), "size": len(content)}


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content
