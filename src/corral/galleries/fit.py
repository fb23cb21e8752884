"""Decides before the download whether a backend can be installed on a node: it fits, it is blocked and why, or this is
unknown.

The rules are those of the node's own worker. Missing facts never block: the worker checks again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from corral.base.words import format_size
from corral.galleries.build_uris import SCHEME, candidates, is_known_to_localai, is_pulled
from corral.galleries.catalogue import Missing, UnresolvedBuild, derived_capability
from corral.galleries.gallery import GalleryEntry

_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "armv6l": "arm", "i686": "386"}
_VARIANTS: Final = {"armv7l": "v7", "armv6l": "v6"}
_PLAIN_VARIANTS: Final = {("arm64", "v8"): "", ("amd64", "v1"): "", ("arm", ""): "v7"}
"""Default variants, which mean the same as no variant, and the default that a missing one stands for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """What a program was built for, in the words of images: `linux`, `amd64`."""

    os: str
    architecture: str
    variant: str = ""
    """Variant of the architecture, like `v7`; empty if there is only one, or it is unknown."""

    def __str__(self) -> str:
        return "/".join(part for part in (self.os, self.architecture, self.variant) if part)

    @property
    def level(self) -> int:
        """The variant as a number: within one architecture, a machine runs what is not above its own."""
        variant = _PLAIN_VARIANTS.get((self.architecture, self.variant), self.variant)
        number = variant.removeprefix("v").partition(".")[0]
        return int(number) if number.isdecimal() else 0


ASSUMED_PLATFORM: Final = Platform(os="linux", architecture="amd64")
"""Platform of a member of an image index that states none."""


def platform_of(system: str, machine: str) -> Platform | None:
    """The platform of a machine, from the words of its operating system; None when it told none."""
    os, word = system.lower(), machine.lower()
    if not os or not word:
        return None
    return Platform(os=os, architecture=_ARCHITECTURES.get(word, word), variant=_VARIANTS.get(word, ""))


def read_platform(text: str) -> Platform | None:
    """A platform as workers write it, `linux/arm64` or `linux/arm/v7`; None when it is none."""
    match text.split("/"):
        case [os, architecture, *rest] if os and architecture and len(rest) <= 1:
            return Platform(os=os, architecture=architecture, variant="".join(rest))
        case _:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTraits:
    """The facts about a node that decide what fits it."""

    capability: str = ""
    """As reported by the node; empty if it reported none."""
    platform: Platform | None = None
    gpu_vendor: str = ""
    total_vram: int | None = None
    disk_free: int | None = None
    """Free bytes on the disk of the backends."""
    is_disk_certain: bool = True
    """False: this is the disk of the models; backends may be on another one."""
    needs_scheme: bool = False
    """Needs `oci://` before an image reference, except for three known hosts, like LocalAI."""
    installed: frozenset[str] = frozenset()
    """Canonical keys of the installed backends."""

    @property
    def effective_capability(self) -> str:
        return self.capability or derived_capability(self.gpu_vendor, self.total_vram)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageManifest:
    """An image for one platform."""

    platform: Platform | None = None
    digest: str = ""
    download_bytes: int | None = None
    """Compressed size of all layers."""
    unpacked_bytes: int | None = None

    @property
    def disk_bytes(self) -> int | None:
        """Minimum disk space for an install: the layers, and their content, which is hardly ever smaller."""
        if self.download_bytes is None:
            return self.unpacked_bytes
        return self.download_bytes + max(self.unpacked_bytes or 0, self.download_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFacts:
    """What a registry reports about an image."""

    is_index: bool
    """Whether it offers several platforms. A single image is used whatever platform it states."""
    manifests: tuple[ImageManifest, ...] = ()
    digest: str = ""
    """Digest that the tag resolves to: the index's if there is one."""
    uri: str = ""
    """The build's uri, or the mirror's that answered."""

    def manifest_for(self, platform: Platform | None) -> ImageManifest | None:
        """Return the image for a platform; None if there is none, or it is unknown."""
        if self.is_index and platform is not None:
            return choose_manifest(self.manifests, platform)
        return self.manifests[0] if self.manifests and not self.is_index else None


def wanted_digests(image: ImageFacts, platform: Platform | None) -> frozenset[str]:
    """Return the digests that prove that a node has this image: of the index, and of the member for its platform."""
    manifest = image.manifest_for(platform)
    return frozenset({image.digest, "" if manifest is None else manifest.digest} - {""})


class Hindrance(StrEnum):
    """Why a backend is blocked."""

    NO_SUCH_BACKEND = "no_such_backend"
    NO_BUILD = "no_build"
    BROKEN_META = "broken_meta"
    OTHER_HARDWARE = "other_hardware"
    OTHER_PLATFORM = "other_platform"
    DISK_FULL = "disk_full"
    REFUSED_URI = "refused_uri"


_HINDRANCES: Final = {
    Missing.UNKNOWN: Hindrance.NO_SUCH_BACKEND,
    Missing.NO_KEY: Hindrance.NO_BUILD,
    Missing.DANGLING: Hindrance.BROKEN_META,
    Missing.UNSUITED: Hindrance.OTHER_HARDWARE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fits:
    """The backend can be installed."""

    build: GalleryEntry
    manifest: ImageManifest | None = None
    """The chosen member of the image index; None when nothing is pulled."""
    word: str = field(default="fits", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """The backend cannot be installed; a retry would not help."""

    hindrance: Hindrance
    reason: str
    would_fit: tuple[str, ...] = ()
    """Names of backends that could be installed instead."""
    word: str = field(default="blocked", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """Nothing known prevents the install, but a relevant fact is missing."""

    build: GalleryEntry
    reason: str
    manifest: ImageManifest | None = None
    """What would be fetched, if known."""
    word: str = field(default="unknown", init=False)


Verdict = Fits | Blocked | Unknown


def blocked_by(missing: UnresolvedBuild) -> Blocked:
    """Convert an unresolved name to a verdict."""
    return Blocked(hindrance=_HINDRANCES[missing.missing], reason=missing.message, would_fit=missing.would_fit)


def judge_build(build: GalleryEntry, node: NodeTraits, image: ImageFacts | None) -> Verdict:
    """Judge a resolved build by platform and disk. `image` is None when its registry gave no answer."""
    if not is_pulled(build.uri):
        return Fits(build=build)
    if node.needs_scheme and not any(map(is_known_to_localai, candidates(build))):
        return _refused_uri(build)
    if image is None:
        return Unknown(build=build, reason="its image could not be looked at")
    if image.is_index and node.platform is None:
        return Unknown(build=build, reason="the node did not say which platform it is")
    manifest = image.manifest_for(node.platform)
    if image.is_index and node.platform is not None and manifest is None:
        return _other_platform(build, node.platform, image)
    return _judge_disk(build, manifest, node)


def choose_manifest(manifests: Sequence[ImageManifest], platform: Platform) -> ImageManifest | None:
    """Return the member of an image index for a platform: of those that run there, the one with the highest level."""
    if len(manifests) == 1 and manifests[0].platform is None:
        return manifests[0]
    running = [manifest for manifest in manifests if _runs(manifest.platform or ASSUMED_PLATFORM, platform)]
    return max(running, key=lambda manifest: (manifest.platform or ASSUMED_PLATFORM).level, default=None)


def _runs(offered: Platform, machine: Platform) -> bool:
    is_alike = (offered.os, offered.architecture) == (machine.os, machine.architecture)
    return is_alike and offered.level <= machine.level


def _other_platform(build: GalleryEntry, platform: Platform, image: ImageFacts) -> Blocked:
    offered = dict.fromkeys(str(manifest.platform or ASSUMED_PLATFORM) for manifest in image.manifests)
    reason = f"the image of {build.name} is for {', '.join(offered) or 'no platform'}, and this machine is {platform}"
    return Blocked(hindrance=Hindrance.OTHER_PLATFORM, reason=reason)


def _refused_uri(build: GalleryEntry) -> Blocked:
    reason = (
        f"the gallery names the image of {build.name} as {build.uri}, which LocalAI's workers do not take for an "
        f"image; the gallery has to say {SCHEME}{build.uri}"
    )
    return Blocked(hindrance=Hindrance.REFUSED_URI, reason=reason)


def _judge_disk(build: GalleryEntry, manifest: ImageManifest | None, node: NodeTraits) -> Verdict:
    needed = None if manifest is None else manifest.disk_bytes
    if needed is None:
        return Unknown(build=build, reason="its image does not say how large it is")
    if node.disk_free is None:
        return Unknown(build=build, reason="nobody knows how much room the node's disk has", manifest=manifest)
    if needed > node.disk_free:
        room = f"{build.name} needs {format_size(needed)} of disk, and {format_size(node.disk_free)} are free"
        if node.is_disk_certain:
            return Blocked(hindrance=Hindrance.DISK_FULL, reason=room)
        reason = f"{room} on the disk of its models; whether backends are on another one it does not say"
        return Unknown(build=build, reason=reason, manifest=manifest)
    return Fits(build=build, manifest=manifest)
