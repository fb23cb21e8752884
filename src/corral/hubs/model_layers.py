"""Reads manifests of models in registries: which layers there are, pinned and checked."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from corral.base.unreadable_json import UNREADABLE_JSON
from corral.base.words import listed
from corral.hubs.access import HubAccess, hub_errors
from corral.hubs.listings import HubFile, HubModelMissing, HubName, HubRefused
from corral.oci.errors import ImageError
from corral.oci.manifests import MAX_LAYERS, Descriptor, Index, choose_image, this_platform
from corral.oci.references import Reference, digest_of, is_digest
from corral.oci.registry import Registry

_SMALL: Final = 1 << 20
_NESTED: Final = 3
_SHOWN: Final = 5


class _ModelManifest(msgspec.Struct, frozen=True, kw_only=True):
    layers: Sequence[Descriptor] | None = None
    manifests: Sequence[Descriptor] | None = None
    annotations: Mapping[str, str] | None = None


class ModelLayers(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest of a model in a registry, pinned by its digest."""

    registry: Registry
    reference: Reference
    digest: str
    """Digest of the manifest that was read."""
    layers: tuple[Descriptor, ...]
    licence: str = ""

    def file(self, layer: Descriptor, path: str, hub: HubName) -> HubFile:
        """Return a layer as a file of this path."""
        url = f"{self.registry.url}/blobs/{layer.digest}"
        return HubFile(path=path, url=url, hub=hub, size=layer.size, digest=layer.digest)

    async def text(self, layer: Descriptor) -> str:
        """Return the content of a small layer. HubRefused if it is large or no text."""
        with hub_errors():
            content = await self.registry.small_blob(layer.digest, _SMALL)
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise HubRefused(f"{self.reference}: its layer {layer.media_type} is no text") from None


async def read_layers(reference: Reference, hub: HubAccess, name: HubName) -> ModelLayers:
    """Read the manifest of a model; of a list of them, that for this machine or the first."""
    registry, selector = await hub.registry(reference, name), reference.selector
    for _ in range(_NESTED):
        try:
            with hub_errors():
                document = await registry.manifest(selector)
        except HubModelMissing as error:
            raise HubModelMissing(error.message + await _near_tags(registry, selector)) from error
        try:
            manifest = msgspec.json.decode(document.body, type=_ModelManifest)
        except UNREADABLE_JSON as error:
            raise HubRefused(f"{reference}: its manifest cannot be read: {error}") from error
        if manifest.layers is not None:
            return ModelLayers(
                registry=registry,
                reference=reference,
                digest=digest_of(document.body),
                layers=_checked(manifest.layers, reference),
                licence=(manifest.annotations or {}).get("org.opencontainers.image.licenses", "")[:100],
            )
        if not manifest.manifests:
            break
        selector = _chosen(manifest.manifests, reference)
    raise HubRefused(f"{reference}: its manifest names no layers")


async def _near_tags(registry: Registry, tag: str) -> str:
    """Return a clause with tags that the repository does have; empty if they cannot be had."""
    try:
        tags = await registry.tags()
    except ImageError:
        return ""
    near = difflib.get_close_matches(tag, tags, n=_SHOWN, cutoff=0.3) or tags
    return f"; there is {listed(near, most=_SHOWN)}" if near else ""


def _chosen(manifests: Sequence[Descriptor], reference: Reference) -> str:
    with hub_errors():
        if any(manifest.platform is not None for manifest in manifests):
            return choose_image(Index(manifests=manifests), this_platform(), name=str(reference)).digest
    if not is_digest(manifests[0].digest):
        raise HubRefused(f"{reference}: its list names no digest")
    return manifests[0].digest


def _checked(layers: Sequence[Descriptor], reference: Reference) -> tuple[Descriptor, ...]:
    if len(layers) > MAX_LAYERS:
        raise HubRefused(f"{reference}: it has {len(layers)} layers; {MAX_LAYERS} are allowed")
    for layer in layers:
        if not is_digest(layer.digest) or not layer.digest.startswith("sha256:") or layer.size < 0:
            raise HubRefused(f"{reference}: its manifest names a layer {layer.digest[:80]!r} of {layer.size} bytes")
    return tuple(layers)
