"""Makes a gallery index of images, in LocalAI's format.

A backend with one image is one entry. If images state a capability, each is a build with its own name, and a meta
entry maps capabilities to builds. The result is checked by the rules of workers before it is returned, because they
judge builds by words in names and uris.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import yaml

from corral.base.errors import InvalidInput
from corral.galleries.build_uris import understood_by_all
from corral.galleries.catalogue import BackendCatalogue, ResolvedBuild
from corral.galleries.gallery import GalleryContent, GalleryEntry, GallerySource, name_problem
from corral.imaging.image_facts import DescribedImage

ANY: Final = "default"
_PREFIXES: Final = {
    ANY: "cpu",
    "nvidia-cuda-12": "cuda12",
    "nvidia-cuda-13": "cuda13",
    "nvidia-l4t-cuda-12": "cuda12-nvidia-l4t",
    "nvidia-l4t-cuda-13": "cuda13-nvidia-l4t",
    "nvidia": "cuda",
    "amd": "rocm",
}
"""Suffixes of builds in LocalAI's gallery by capability; for others the capability itself is used."""


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """An image to list in a gallery index."""

    facts: DescribedImage
    capability: str = ""
    """Empty: the only build, for all machines."""


def make_index(images: Sequence[Listed], *, folder: Path) -> str:
    """Return the text of an index for `folder`. InvalidInput names the image that cannot be listed."""
    entries = [entry for name, group in _groups(images).items() for entry in _entries(name, group, folder)]
    _check(entries)
    head = "# A gallery of backends, in the form of LocalAI's; made by `corral backend index`.\n"
    return head + yaml.safe_dump([_written(item) for item in entries], sort_keys=False, allow_unicode=True, width=120)


def _groups(images: Iterable[Listed]) -> dict[str, list[Listed]]:
    groups: dict[str, list[Listed]] = {}
    for image in images:
        name = image.facts.description.name
        if problem := name_problem(name):
            label = image.facts.shown
            raise InvalidInput("IMAGE", f"{label}: its annotation org.opencontainers.image.title {problem}")
        groups.setdefault(name, []).append(image)
    return groups


def _entries(name: str, group: Sequence[Listed], folder: Path) -> Iterator[GalleryEntry]:
    if len(group) == 1 and not group[0].capability:
        yield _entry(name, group[0], folder)
        return
    builds: dict[str, GalleryEntry] = {}
    for image in group:
        capability = image.capability or ANY
        if capability in builds:
            raise InvalidInput(
                "IMAGE", f"{image.facts.shown} is another build of {name} for {capability}; write CAPABILITY=IMAGE"
            )
        builds[capability] = _entry(f"{_PREFIXES.get(capability, capability)}-{name}", image, folder, alias=name)
    description = group[0].facts.description
    yield GalleryEntry(
        name=name,
        alias=name,
        capabilities={capability: build.name for capability, build in builds.items()},
        description=description.description,
        license=description.license,
        urls=description.urls,
        tags=description.tags,
    )
    yield from builds.values()


def _entry(name: str, image: Listed, folder: Path, *, alias: str = "") -> GalleryEntry:
    description = image.facts.description
    return GalleryEntry(
        name=name,
        alias=alias,
        uri=_uri(image.facts, folder),
        version=description.version,
        description=description.description,
        license=description.license,
        urls=description.urls,
        tags=description.tags,
    )


def _uri(facts: DescribedImage, folder: Path) -> str:
    if facts.path is None:
        return understood_by_all(facts.reference)
    if facts.is_archive:
        return f"ocifile://{facts.path.absolute()}"  # a plain path would mean an archive that contains the backend
    relative = os.path.relpath(facts.path, folder.absolute())
    return relative if relative.startswith("../") else f"./{relative}"


def _check(entries: Sequence[GalleryEntry]) -> None:
    """Check that each name resolves to its build: workers take `amd64` in a uri for a build for AMD's GPUs, for
    example."""
    catalogue = BackendCatalogue([GalleryContent(source=GallerySource(name="", url=""), entries=tuple(entries))])
    for meta in entries:
        expected = meta.capabilities if meta.is_meta else {ANY: meta.name} if not meta.alias else {}
        for capability, build in expected.items():
            resolution = catalogue.resolve(meta.name, capability)
            if not isinstance(resolution, ResolvedBuild) or resolution.build.name != build:
                reason = "" if isinstance(resolution, ResolvedBuild) else f": {resolution.message}"
                raise InvalidInput("IMAGE", f"workers would not take {build} for {capability}{reason}")


def _written(entry: GalleryEntry) -> dict[str, object]:
    stated: dict[str, object] = {
        "name": entry.name,
        "alias": entry.alias,
        "uri": entry.uri,
        "version": entry.version,
        "description": entry.description,
        "license": entry.license,
        "urls": list(entry.urls),
        "tags": list(entry.tags),
        "capabilities": dict(entry.capabilities),
    }
    return {key: value for key, value in stated.items() if value}
