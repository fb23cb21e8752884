"""Reads the description in a backend's `corral.json`, as far as images and galleries repeat it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from corral.base.errors import InvalidInput
from corral.base.private_files import read_bounded
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.galleries.gallery import name_problem
from corral.imaging.errors import BuildFailed

FILE: Final = "corral.json"
TITLE: Final = "org.opencontainers.image.title"
VERSION: Final = "org.opencontainers.image.version"
DESCRIPTION: Final = "org.opencontainers.image.description"
LICENSES: Final = "org.opencontainers.image.licenses"
URL: Final = "org.opencontainers.image.url"
CREATED: Final = "org.opencontainers.image.created"
URLS: Final = "corral.backend.urls"
"""All URLs, if there are several: the standard annotation holds only one."""
TAGS: Final = "corral.backend.tags"
_MOST_BYTES: Final = 1024 * 1024


class _DescriptionFile(msgspec.Struct, frozen=True, kw_only=True):
    """Only the fields used here; the others are for the worker."""

    name: str = ""
    version: str = ""
    description: str = ""
    license: str = ""
    urls: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()


class BackendDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A backend's name, description and links."""

    name: str
    version: str = ""
    description: str = ""
    license: str = ""
    urls: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()

    def annotations(self) -> dict[str, str]:
        """Annotations of the image."""
        stated = {
            TITLE: self.name,
            VERSION: self.version,
            DESCRIPTION: self.description,
            LICENSES: self.license,
            URL: next(iter(self.urls), ""),
            URLS: " ".join(self.urls) if len(self.urls) > 1 else "",
            TAGS: ",".join(self.tags),
        }
        return {key: value for key, value in stated.items() if value}


def read_description(directory: Path) -> BackendDescription:
    """Read the description. The name defaults to the directory's."""
    path = directory / FILE
    try:
        content = read_bounded(path, _MOST_BYTES)
        if content is None:
            raise BuildFailed(f"{path} is larger than {_MOST_BYTES} bytes")
        stated = msgspec.json.decode(content, type=_DescriptionFile)
    except FileNotFoundError:
        stated = _DescriptionFile()
    except (InvalidInput, *UNREADABLE_JSON) as error:
        raise BuildFailed(f"{path}: {error}") from error
    except OSError as error:
        raise BuildFailed(f"{path} cannot be read: {error.strerror}") from error
    name = stated.name or directory.resolve().name.replace("_", "-")
    if problem := name_problem(name):
        raise BuildFailed(f"{path}: the name {name!r} {problem}")
    return BackendDescription(
        name=name,
        version=stated.version,
        description=" ".join(stated.description.split()),
        license=stated.license,
        urls=stated.urls,
        tags=stated.tags,
    )


def described_by(annotations: Mapping[str, str]) -> BackendDescription:
    """Parse an image's annotations. Without a title the name is empty."""
    return BackendDescription(
        name=annotations.get(TITLE, ""),
        version=annotations.get(VERSION, ""),
        description=annotations.get(DESCRIPTION, ""),
        license=annotations.get(LICENSES, ""),
        urls=tuple((annotations.get(URLS) or annotations.get(URL, "")).split()),
        tags=tuple(filter(None, annotations.get(TAGS, "").split(","))),
    )
