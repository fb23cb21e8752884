"""Manifests and indexes, as far as unpacking needs them, and which image of an index fits a machine."""

import platform
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from corral.base.unreadable_json import UNREADABLE_JSON
from corral.oci.errors import ManifestUnusable, PlatformMissing, SourceInvalid
from corral.oci.references import check_digest

_ARCHITECTURES: Final = {
    "x86_64": ("amd64", ""),
    "amd64": ("amd64", ""),
    "aarch64": ("arm64", ""),
    "arm64": ("arm64", ""),
    "armv8l": ("arm", "v8"),
    "armv7l": ("arm", "v7"),
    "armv6l": ("arm", "v6"),
    "i386": ("386", ""),
    "i686": ("386", ""),
}
_PLAIN: Final = {("arm64", "v8"): "", ("amd64", "v1"): "", ("arm", ""): "v7"}
"""Default variants, which mean the same as no variant, and the default that a missing one stands for."""
_UNKNOWN: Final = "unknown"


class ImagePlatform(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A platform as image manifests state it."""

    # Factories instead of plain defaults: both fields are always written, because readers need them.
    os: str = msgspec.field(default_factory=lambda: "linux")
    architecture: str = msgspec.field(default_factory=lambda: "amd64")
    variant: str = ""

    def __str__(self) -> str:
        return "/".join(filter(None, (self.os, self.architecture, self.variant)))

    @property
    def level(self) -> int:
        """The variant as a number: a machine runs images of its architecture up to its own level."""
        variant = _PLAIN.get((self.architecture, self.variant), self.variant)
        digits = variant.removeprefix("v").partition(".")[0]
        return int(digits) if digits.isdecimal() else 0

    def runs_on(self, machine: "ImagePlatform") -> bool:
        is_alike = (self.os, self.architecture) == (machine.os, machine.architecture)
        return is_alike and self.level <= machine.level


ASSUMED: Final = ImagePlatform()
"""The platform of an entry that states none, as in LocalAI."""


def platform_of(system: str, machine: str) -> ImagePlatform | None:
    """Return the platform of a machine, from what its operating system says; None when that is empty."""
    os, word = system.lower(), machine.lower()
    if not os or not word:
        return None
    architecture, variant = _ARCHITECTURES.get(word, (word, ""))
    return ImagePlatform(os=os, architecture=architecture, variant=variant)


def this_platform() -> ImagePlatform:
    return platform_of(sys.platform, platform.machine()) or ASSUMED


def best_platform(offered: Sequence[ImagePlatform | None], machine: ImagePlatform) -> int | None:
    """Return the index of the best fitting platform; None if none fits. An only entry that states none always fits."""
    if list(offered) == [None]:
        return 0
    platforms = [platform or ASSUMED for platform in offered]
    fitting = [number for number, platform in enumerate(platforms) if platform.runs_on(machine)]
    return max(fitting, key=lambda number: (platforms[number].level, -number), default=None)


class PlatformImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image for one platform, as its registry describes it."""

    platform: ImagePlatform | None = None
    digest: str = ""
    download_bytes: int | None = None
    """Compressed size of all layers; None when the manifest was not read."""

    @property
    def disk_bytes(self) -> int | None:
        """Minimum disk space for an install: the layers, and their content, which is hardly ever smaller."""
        return None if self.download_bytes is None else 2 * self.download_bytes


class ImageFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a registry reports about an image."""

    is_index: bool
    """Whether it offers several platforms. A single image is used whatever platform it states."""
    members: tuple[PlatformImage, ...] = ()
    digest: str = ""
    """Digest that the tag resolves to: the index's if there is one."""
    uri: str = ""
    """The build's uri, or the mirror's that answered."""

    def member_for(self, platform: ImagePlatform | None) -> PlatformImage | None:
        """Return the image for a platform; None if the index has none, or its platforms are unknown."""
        if not self.is_index:
            return self.members[0] if self.members else None
        number = None if platform is None else best_platform([member.platform for member in self.members], platform)
        return None if number is None else self.members[number]


OCI_INDEX: Final = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
OCI_CONFIG: Final = "application/vnd.oci.image.config.v1+json"
OCI_LAYER: Final = "application/vnd.oci.image.layer.v1.tar"
OCI_LAYER_GZIP: Final = f"{OCI_LAYER}+gzip"
OCI_LAYER_ZSTD: Final = f"{OCI_LAYER}+zstd"
DOCKER_INDEX: Final = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST: Final = "application/vnd.docker.distribution.manifest.v2+json"
ACCEPTED: Final = ", ".join((OCI_INDEX, OCI_MANIFEST, DOCKER_INDEX, DOCKER_MANIFEST))

_LAYER_WORDS: Final = ("image.layer", "image.rootfs.diff.tar")
_ENCRYPTED: Final = "encrypted"
MAX_LAYERS: Final = 512
"""Docker's own limit is 127."""


class Descriptor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Refers to content by digest."""

    media_type: str = msgspec.field(default="", name="mediaType")
    digest: str
    size: int
    platform: ImagePlatform | None = None
    annotations: Mapping[str, str] | None = None
    urls: Sequence[str] | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """An image for one platform."""

    layers: Sequence[Descriptor]


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """A list of images, or of lists."""

    manifests: Sequence[Descriptor]


class _ManifestDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A manifest or an index. Its fields tell which, since media types are often missing."""

    manifests: Sequence[Descriptor] | None = None
    layers: Sequence[Descriptor] | None = None
    old_layers: object = msgspec.field(default=None, name="fsLayers")


def read_manifest(body: bytes, *, name: str) -> Manifest | Index:
    """Parse a manifest or an index. ManifestUnusable says what is wrong with it."""
    try:
        document = msgspec.json.decode(body, type=_ManifestDocument)
    except UNREADABLE_JSON as error:
        raise ManifestUnusable(f"{name}: its manifest cannot be read: {error}") from error
    if document.old_layers is not None:
        raise ManifestUnusable(f"{name}: its manifest has Docker's first form, which has no digests of layers")
    if document.layers is not None:
        if len(document.layers) > MAX_LAYERS:
            raise ManifestUnusable(f"{name}: it has {len(document.layers)} layers; {MAX_LAYERS} are allowed")
        for layer in document.layers:
            media_type = layer.media_type
            is_layer = not media_type or any(word in media_type for word in _LAYER_WORDS)
            if not is_layer or _ENCRYPTED in media_type:
                raise ManifestUnusable(f"{name}: a layer of the type {media_type[:200]!r} cannot be unpacked")
        return Manifest(layers=[_checked(layer, name) for layer in document.layers])
    if document.manifests is not None:
        return Index(manifests=document.manifests)
    raise ManifestUnusable(f"{name}: this is neither an image nor a list of images")


def choose_image(index: Index, machine: ImagePlatform, *, name: str) -> Descriptor:
    """Return the descriptor of the image for a platform, or of a nested index to search."""
    entries = index.manifests
    if not entries:
        raise ManifestUnusable(f"{name}: the list of its images is empty")
    number = best_platform([entry.platform for entry in entries], machine)
    if number is None:
        platforms = {entry.platform or ASSUMED for entry in entries}
        offered = ", ".join(sorted(str(platform) for platform in platforms if platform.os != _UNKNOWN)) or "nothing"
        raise PlatformMissing(f"{name}: there is no image for {machine}; there are images for {offered}")
    return _checked(entries[number], name)


def _checked(descriptor: Descriptor, name: str) -> Descriptor:
    try:
        check_digest(descriptor.digest)
    except SourceInvalid as error:
        raise ManifestUnusable(f"{name}: {error}") from None
    if descriptor.size < 0:
        raise ManifestUnusable(f"{name}: a size of {descriptor.size}")
    return descriptor
