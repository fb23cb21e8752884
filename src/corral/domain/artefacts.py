"""Where a build is fetched from: how its uris are written, and in which order they are tried, by LocalAI's rules.

Published tags go missing, so a build whose release tag is not there is looked for under its branch tag.
"""

from dataclasses import dataclass
from typing import Final

from corral.domain.gallery import GalleryEntry

SCHEME: Final = "oci://"
_KNOWN_HOSTS: Final = ("quay.io/", "ghcr.io/", "docker.io/")
"""Registries whose references LocalAI takes for images without a scheme."""
_PATHS: Final = ("/", "./", "../")


def is_pulled(uri: str) -> bool:
    """Whether a uri names an image in a registry, and not a file, a directory or a download."""
    return uri.startswith(SCHEME) or not ("://" in uri or uri.startswith(_PATHS))


def is_known_to_localai(uri: str) -> bool:
    """Whether LocalAI's workers see that this is a reference to an image."""
    return uri.startswith((SCHEME, *_KNOWN_HOSTS))


def understood_by_all(uri: str) -> str:
    """The uri in a form that LocalAI's workers and ours take alike. References to hosts that LocalAI knows stay bare:
    of those it records digests, of others it does not."""
    return f"{SCHEME}{uri}" if is_pulled(uri) and not is_known_to_localai(uri) else uri


def is_same_source(one: str, other: str) -> bool:
    """Whether two uris name the same place, with or without the scheme of images."""
    return one.removeprefix(SCHEME) == other.removeprefix(SCHEME)


@dataclass(frozen=True, slots=True, kw_only=True)
class TagWords:
    """How the tags of images are called; LocalAI's workers always use these."""

    release: str = "latest"
    branch: str = "master"
    development: str = "development"


LOCALAI_TAGS: Final = TagWords()


def candidates(build: GalleryEntry, tags: TagWords = LOCALAI_TAGS) -> tuple[str, ...]:
    """All that may deliver a build: its uri, its mirrors, then the same image under the tags of its branch."""
    branch = _on_branch(build.uri, tags)
    fallbacks = () if branch == build.uri else (branch, _in_development(branch, tags))
    return tuple(dict.fromkeys(uri for uri in (build.artefact, *build.mirrors, *fallbacks) if uri))


def _on_branch(uri: str, tags: TagWords) -> str:
    return uri.replace(f"{tags.release}-", f"{tags.branch}-", 1)


def _in_development(uri: str, tags: TagWords) -> str:
    ending = f"-{tags.development}"
    return uri if ending in uri else uri + ending
