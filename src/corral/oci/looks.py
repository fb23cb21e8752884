"""Asks a registry about an image without downloading it: digests, platforms, sizes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from corral.base.clock import Clock
from corral.base.tasks import task_group
from corral.oci.config import ImagesConfig
from corral.oci.errors import ImageError, SourceInvalid
from corral.oci.manifests import Descriptor, ImagePlatform, Index, Manifest, read_manifest
from corral.oci.references import Reference, RegistryImage, parse_source
from corral.oci.registry import Registry, open_registry

_MOST_MEMBERS: Final = 16
"""Maximum number of images of an index that are read. Nobody builds for more platforms."""
_MOST_SIZES: Final = 4096
_NO_PLATFORM: Final = "unknown"
"""The platform that builders give to entries that are not images, such as attestations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformImage:
    """An image for one platform."""

    digest: str
    platform: ImagePlatform | None = None
    layer_bytes: int | None = None
    """Compressed size of all layers; None when the manifest was not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLook:
    """What a uri resolves to now."""

    digest: str
    """Digest of the index, or of the image if there is no index."""
    is_index: bool
    members: tuple[PlatformImage, ...]


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

    async def at(self, uri: str) -> ImageLook | None:
        """Return None if the uri is not in a registry. Raise ImageError when the registry gives no answer. Takes as
        long as the network settings allow."""
        reference = _reference(uri)
        return None if reference is None else await self._at(reference)

    async def _at(self, reference: Reference) -> ImageLook:
        name = str(reference)
        async with open_registry(reference, config=self._config, clock=self._clock) as registry:
            top = await registry.manifest(reference.selector)
            read = read_manifest(top.body, name=name)
            if isinstance(read, Manifest):
                only = PlatformImage(digest=top.digest, layer_bytes=_layer_bytes(read))
                return ImageLook(digest=top.digest, is_index=False, members=(only,))
            members = await self._members(registry, read, name)
        return ImageLook(digest=top.digest, is_index=True, members=tuple(members))

    async def _members(self, registry: Registry, index: Index, name: str) -> Sequence[PlatformImage]:
        images = _images(index)
        async with task_group() as group:
            for image in images[:_MOST_MEMBERS]:
                if image.digest not in self._sizes:
                    group.create_task(self._look_into(registry, image, name), name=f"look at {image.digest}")
        return [
            PlatformImage(digest=image.digest, platform=image.platform, layer_bytes=self._sizes.get(image.digest))
            for image in images
        ]

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
