"""Decides before the download whether a backend can be installed on a node: it fits, it is blocked and why, or this is
unknown.

The rules are those of the node's own worker. Missing facts never block: the worker checks again.
"""

from enum import StrEnum
from typing import ClassVar, Final

import msgspec

from corral.base.words import format_size
from corral.galleries.build_uris import SCHEME, candidates, is_known_to_localai, is_pulled
from corral.galleries.catalogue import Missing, UnresolvedBuild, derived_capability
from corral.galleries.gallery import GalleryEntry
from corral.oci.manifests import ASSUMED, ImageFacts, ImagePlatform, PlatformImage


def read_platform(text: str) -> ImagePlatform | None:
    """A platform as workers write it, `linux/arm64` or `linux/arm/v7`; None when the text is no platform."""
    match text.split("/"):
        case [os, architecture, *rest] if os and architecture and len(rest) <= 1:
            return ImagePlatform(os=os, architecture=architecture, variant="".join(rest))
        case _:
            return None


class NodeTraits(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a node that decide what fits it."""

    capability: str = ""
    """As reported by the node; empty if it reported none."""
    platform: ImagePlatform | None = None
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


def wanted_digests(image: ImageFacts, platform: ImagePlatform | None) -> frozenset[str]:
    """Return the digests that prove that a node has this image: of the index, and of the member for its platform."""
    manifest = image.member_for(platform)
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


class Fits(msgspec.Struct, frozen=True, kw_only=True):
    """The backend can be installed."""

    word: ClassVar[str] = "fits"
    build: GalleryEntry
    manifest: PlatformImage | None = None
    """The chosen member of the image index; None when nothing is pulled."""


class Blocked(msgspec.Struct, frozen=True, kw_only=True):
    """The backend cannot be installed; a retry would not help."""

    word: ClassVar[str] = "blocked"
    hindrance: Hindrance
    reason: str
    would_fit: tuple[str, ...] = ()
    """Names of backends that could be installed instead."""


class Unknown(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing known prevents the install, but a relevant fact is missing."""

    word: ClassVar[str] = "unknown"
    build: GalleryEntry
    reason: str
    manifest: PlatformImage | None = None
    """What would be fetched, if known."""


Verdict = Fits | Blocked | Unknown


def blocked_by(missing: UnresolvedBuild) -> Blocked:
    """Convert an unresolved name to a verdict."""
    return Blocked(hindrance=_HINDRANCES[missing.missing], reason=missing.message, would_fit=missing.would_fit)


def judge_build(build: GalleryEntry, node: NodeTraits, image: ImageFacts | None) -> Verdict:
    """Judge a resolved build by platform and disk. `image` is None when its registry gave no answer."""
    if not is_pulled(build.uri):
        return Fits(build=build)
    if node.needs_scheme and not any(map(is_known_to_localai, candidates(build))):
        reason = (
            f"the gallery names the image of {build.name} as {build.uri}, which LocalAI's workers do not take for an "
            f"image; the gallery has to say {SCHEME}{build.uri}"
        )
        return Blocked(hindrance=Hindrance.REFUSED_URI, reason=reason)
    if image is None:
        return Unknown(build=build, reason="its image could not be looked at")
    if image.is_index and node.platform is None:
        return Unknown(build=build, reason="the node did not say which platform it is")
    manifest = image.member_for(node.platform)
    if image.is_index and node.platform is not None and manifest is None:
        platforms = dict.fromkeys(str(member.platform or ASSUMED) for member in image.members)
        offered = ", ".join(platforms) or "no platform"
        reason = f"the image of {build.name} is for {offered}, and this machine is {node.platform}"
        return Blocked(hindrance=Hindrance.OTHER_PLATFORM, reason=reason)
    return _judge_disk(build, manifest, node)


def _judge_disk(build: GalleryEntry, manifest: PlatformImage | None, node: NodeTraits) -> Verdict:
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
