"""Where a build is fetched from, by LocalAI's rules: how its uris are written, and in which order they are tried. Also
whether an installed build is still the offered one, which frontends and workers decide alike.

Published tags go missing, so a build whose release tag is missing is looked up under its branch tag.
"""

from enum import StrEnum
from typing import Final

import msgspec

from corral.galleries.gallery import GalleryEntry

SCHEME: Final = "oci://"
_KNOWN_HOSTS: Final = ("quay.io/", "ghcr.io/", "docker.io/")
"""Registries whose references LocalAI recognises without a scheme."""
_PATHS: Final = ("/", "./", "../")


def is_pulled(uri: str) -> bool:
    """Whether a uri names an image in a registry, and not a file, a directory or a download."""
    return uri.startswith(SCHEME) or not ("://" in uri or uri.startswith(_PATHS))


def is_known_to_localai(uri: str) -> bool:
    """Whether LocalAI's workers recognise this as an image reference."""
    return uri.startswith((SCHEME, *_KNOWN_HOSTS))


def understood_by_all(uri: str) -> str:
    """Return the uri in a form that LocalAI's workers and ours both accept. References to hosts that LocalAI knows
    stay bare, because it records digests only for those."""
    return f"{SCHEME}{uri}" if is_pulled(uri) and not is_known_to_localai(uri) else uri


def is_same_source(uri: str, other: str) -> bool:
    """Whether two uris refer to the same image, with or without the scheme."""
    return uri.removeprefix(SCHEME) == other.removeprefix(SCHEME)


class BackendRef(msgspec.Struct, frozen=True, kw_only=True):
    """Identifies a backend: by its name in galleries, or by the uri of a build and the name to give it."""

    backend: str = ""
    """The name that requests carry, with or without its gallery (`gallery@name`)."""
    galleries: str = ""
    """JSON text of the galleries to search; empty: the reader's own."""
    uri: str = ""
    name: str = ""
    """Name for an install from a uri."""
    alias: str = ""


class TagWords(msgspec.Struct, frozen=True, kw_only=True):
    """Tag names of images; LocalAI's workers always use these."""

    release: str = "latest"
    branch: str = "master"
    development: str = "development"


LOCALAI_TAGS: Final = TagWords()


def candidates(build: GalleryEntry, tags: TagWords = LOCALAI_TAGS) -> tuple[str, ...]:
    """Return all uris that may provide a build, in the order to try: its uri, its mirrors, then its branch tags."""
    branch = build.uri.replace(f"{tags.release}-", f"{tags.branch}-", 1)
    ending = f"-{tags.development}"
    fallbacks = () if branch == build.uri else (branch, branch if ending in branch else branch + ending)
    return tuple(dict.fromkeys(uri for uri in (build.artefact, *build.mirrors, *fallbacks) if uri))


class Freshness(StrEnum):
    CURRENT = "current"
    OUTDATED = "outdated"
    UNKNOWN = "unknown"


class Evidence(StrEnum):
    """What a freshness decision is based on."""

    DIGESTS = "digests"
    VERSIONS = "versions"
    UNREPORTED_DIGEST = "unreported_digest"
    """The versions are the same, but only the offered build has a digest: its tag may have been moved."""
    NOTHING = "nothing"
    """There is nothing to compare."""


class BuildMarks(msgspec.Struct, frozen=True, kw_only=True):
    """Version and digests that identify a build. Empty fields are unknown."""

    version: str = ""
    digests: frozenset[str] = frozenset()
    """Digests of the index, of the image for one platform, or of both."""


def judge_freshness(installed: BuildMarks, offered: BuildMarks) -> tuple[Freshness, Evidence]:
    """Decide whether an installed build is the offered one.

    Digests take precedence over versions: a tag may move while its version stays, and a new version without a new
    image leaves nothing to fetch.
    """
    if installed.digests and offered.digests:
        is_same = not installed.digests.isdisjoint(offered.digests)
        return (Freshness.CURRENT if is_same else Freshness.OUTDATED), Evidence.DIGESTS
    if offered.version and installed.version != offered.version:
        return Freshness.OUTDATED, Evidence.VERSIONS
    if offered.digests:
        return Freshness.UNKNOWN, Evidence.UNREPORTED_DIGEST
    if offered.version:
        return Freshness.CURRENT, Evidence.VERSIONS
    return Freshness.UNKNOWN, Evidence.NOTHING
