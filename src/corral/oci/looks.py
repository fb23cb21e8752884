"""What an image is, told by its registry without fetching any of it: digests, platforms, sizes."""

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
"""Of an index that are looked into. Nobody builds for more machines."""
_MOST_SIZES: Final = 4096
_NO_PLATFORM: Final = "unknown"
"""How builders call what is no image for anybody, such as an attestation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformImage:
    """An image for one platform."""

    digest: str
    platform: ImagePlatform | None = None
    layer_bytes: int | None = None
    """All layers, as they are fetched; None when it was not looked into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLook:
    """What a uri names at this moment."""

    digest: str
    """Of the index, where there is one."""
    is_index: bool
    members: tuple[PlatformImage, ...]


async def digests_at(uri: str, config: ImagesConfig, clock: Clock) -> tuple[str, ...]:
    """The digests of what a uri names now: of the index first, where there is one, then of the images in it. None for
    what lies in no registry. ImageError when nobody can tell."""
    reference = _reference(uri)
    if reference is None:
        return ()
    async with open_registry(reference, config=config, clock=clock) as registry:
        top = await registry.manifest(reference.selector)
    read = read_manifest(top.body, name=str(reference))
    return (top.digest, *(image.digest for image in _images(read))) if isinstance(read, Index) else (top.digest,)


class ImageLooks:
    """A tag is asked for each time, since it may move. What has a digest never changes, and is remembered."""

    def __init__(self, config: ImagesConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._sizes: dict[str, int | None] = {}

    async def at(self, uri: str) -> ImageLook | None:
        """None for what lies in no registry. ImageError when nobody can tell; takes as long as the network allows."""
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
            for one in images[:_MOST_MEMBERS]:
                if one.digest not in self._sizes:
                    group.create_task(self._look_into(registry, one, name), name=f"look at {one.digest}")
        return [
            PlatformImage(digest=one.digest, platform=one.platform, layer_bytes=self._sizes.get(one.digest))
            for one in images
        ]

    async def _look_into(self, registry: Registry, member: Descriptor, name: str) -> None:
        """One that cannot be read says nothing of the others."""
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
    return [one for one in index.manifests if one.platform is None or one.platform.os != _NO_PLATFORM]


def _layer_bytes(image: Manifest) -> int:
    return sum(layer.size for layer in image.layers)
