"""Whether a backend can be installed on a node, told before a byte of it is fetched: it fits, it is blocked and why, or
nobody can tell from here.

The rules are those of the node's own worker. What is unknown never blocks: the worker looks again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from corral.base.sizes import format_size
from corral.galleries.build_uris import SCHEME, candidates, is_known_to_localai, is_pulled
from corral.galleries.capability import derived_capability
from corral.galleries.catalogue import Missing, UnresolvedBuild
from corral.galleries.gallery import GalleryEntry

_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "armv6l": "arm", "i686": "386"}
_VARIANTS: Final = {"armv7l": "v7", "armv6l": "v6"}
_PLAIN_VARIANTS: Final = {("arm64", "v8"): "", ("amd64", "v1"): "", ("arm", ""): "v7"}
"""Variants that say no more than their absence, and the one that is meant by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """What a program was built for, in the words of images: `linux`, `amd64`."""

    os: str
    architecture: str
    variant: str = ""
    """Of the architecture, as `v7`; empty when there is but one, or nobody said."""

    def __str__(self) -> str:
        return "/".join(part for part in (self.os, self.architecture, self.variant) if part)

    @property
    def level(self) -> int:
        """The variant as a number: within one architecture, a machine runs what is not above its own."""
        variant = _PLAIN_VARIANTS.get((self.architecture, self.variant), self.variant)
        number = variant.removeprefix("v").partition(".")[0]
        return int(number) if number.isdecimal() else 0


ASSUMED_PLATFORM: Final = Platform(os="linux", architecture="amd64")
"""Of a member of an image index that names none."""


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
    """What is known of a node that decides what fits it."""

    capability: str = ""
    """As the node reported it; empty when it did not."""
    platform: Platform | None = None
    gpu_vendor: str = ""
    total_vram: int | None = None
    disk_free: int | None = None
    """Bytes where backends are kept."""
    is_disk_certain: bool = True
    """False: it is the disk of the models, and nobody knows whether backends are kept on another one."""
    needs_scheme: bool = False
    """It takes a reference to an image only with `oci://` before it, or from one of three hosts, as LocalAI does."""
    installed: frozenset[str] = frozenset()
    """Canonical keys of what is there already."""

    @property
    def effective_capability(self) -> str:
        return self.capability or derived_capability(self.gpu_vendor, self.total_vram)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageManifest:
    """One image, for one platform."""

    platform: Platform | None = None
    digest: str = ""
    download_bytes: int | None = None
    """All layers, as they are fetched."""
    unpacked_bytes: int | None = None

    @property
    def disk_bytes(self) -> int | None:
        """The least room that an install needs: the layers, and what comes out of them, which is hardly ever less."""
        if self.download_bytes is None:
            return self.unpacked_bytes
        return self.download_bytes + max(self.unpacked_bytes or 0, self.download_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFacts:
    """What a registry told of an image."""

    is_index: bool
    """Whether it offers several platforms. A single image is taken as it is, whatever it says of its platform."""
    manifests: tuple[ImageManifest, ...] = ()
    digest: str = ""
    """Of what the tag names: of the index, where there is one."""
    uri: str = ""
    """Where it was found: that of the build, or a mirror's."""

    def manifest_for(self, platform: Platform | None) -> ImageManifest | None:
        """What a machine of that platform would fetch; None when there is nothing for it, or nobody can tell."""
        if self.is_index and platform is not None:
            return choose_manifest(self.manifests, platform)
        return self.manifests[0] if self.manifests and not self.is_index else None


def wanted_digests(image: ImageFacts, platform: Platform | None) -> frozenset[str]:
    """By which a node can show that it has this image: that of the index, or of the member for its platform."""
    manifest = image.manifest_for(platform)
    return frozenset({image.digest, "" if manifest is None else manifest.digest} - {""})


class Hindrance(StrEnum):
    """What stands in the way."""

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
    """It can be installed."""

    build: GalleryEntry
    manifest: ImageManifest | None = None
    """Which member of an image index; None when nothing is pulled."""
    word: str = field(default="fits", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """It cannot, and trying would not help."""

    hindrance: Hindrance
    reason: str
    would_fit: tuple[str, ...] = ()
    """Names of what could be installed instead."""
    word: str = field(default="blocked", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """Nothing known stands in the way, but something that matters is not known."""

    build: GalleryEntry
    reason: str
    manifest: ImageManifest | None = None
    """What would be fetched, as far as that can be told."""
    word: str = field(default="unknown", init=False)


Verdict = Fits | Blocked | Unknown


def blocked_by(missing: UnresolvedBuild) -> Blocked:
    """A name without a build, as a verdict."""
    return Blocked(hindrance=_HINDRANCES[missing.missing], reason=missing.message, would_fit=missing.would_fit)


def judge_build(build: GalleryEntry, node: NodeTraits, image: ImageFacts | None) -> Verdict:
    """The verdict on a build that a name has led to: platform and disk. The image is None when its registry could not
    be asked."""
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


def choose_manifest(manifests: Sequence[ImageManifest], wanted: Platform) -> ImageManifest | None:
    """The member of an image index for a platform: of those that run there the one that asks for most of it."""
    if len(manifests) == 1 and manifests[0].platform is None:
        return manifests[0]
    running = [one for one in manifests if _runs(one.platform or ASSUMED_PLATFORM, wanted)]
    return max(running, key=lambda one: (one.platform or ASSUMED_PLATFORM).level, default=None)


def _runs(offered: Platform, wanted: Platform) -> bool:
    is_alike = (offered.os, offered.architecture) == (wanted.os, wanted.architecture)
    return is_alike and offered.level <= wanted.level


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
