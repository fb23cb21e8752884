"""Which artefacts of a build are tried, in which order: LocalAI's rules about mirrors and tags.

Published tags go missing, so a build whose release tag is not there is looked for under its branch tag.
"""

from dataclasses import dataclass
from typing import Final

from corral.domain.gallery import GalleryEntry


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
