"""Resolves the path of a URL to a file in one of the three directories, and decides where these directories are.

The rules for keys are those of Go's router and of LocalAI's worker, since its frontends rely on both.
"""

import os
import posixpath
import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import unquote_to_bytes

import msgspec

from corral.base.errors import SettingInvalid
from corral.worker.files.refusals import bad_request, outside

_MOST_PARTS: Final = 100
"""Maximum depth of directories. Each is held open on the way down."""
_MOST_BYTES: Final = 4096
"""Maximum length of a path. Backends could not open a longer one."""
_BROKEN_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")


class Area(StrEnum):
    """The served directories. The first part of a key selects one; the default is staging."""

    MODELS = "models"
    DATA = "data"
    STAGING = "staging"


class Location(msgspec.Struct, frozen=True, kw_only=True):
    """A normalised key: no empty parts, no dots. Symbolic links are not resolved here."""

    area: Area
    parts: tuple[str, ...]
    path: Path
    """As reported to backends and frontends."""


def locate(key: str, bases: Mapping[Area, Path]) -> Location:
    """Resolve a key. Refuse it when it is empty or leads out of its directory."""
    if not key:
        raise bad_request("key is required")
    if "\0" in key:
        raise bad_request("the key contains a NUL character")
    area, below = Area.STAGING, key
    for named in (Area.MODELS, Area.DATA):
        if key.startswith(f"{named}/"):
            area, below = named, key.removeprefix(f"{named}/")
    base = bases[area]
    path = Path(posixpath.normpath(f"{base}/{below}"))
    if path != base and base not in path.parents:
        raise outside(path)
    parts = path.parts[len(base.parts) :]
    if len(parts) > _MOST_PARTS or len(os.fsencode(path)) >= _MOST_BYTES:
        raise bad_request("the path is too long")
    return Location(area=area, parts=parts, path=path)


def decoded(text: str) -> str:
    """Decode a percent-encoded file name. Any bytes are allowed, as on disk."""
    if _BROKEN_ESCAPE.search(text):
        raise bad_request("400 Bad Request")
    return os.fsdecode(unquote_to_bytes(os.fsencode(text)))


def cleaned(path: str) -> str:
    """Return the path that Go's router would redirect to: without `//`, `/./` and `/../`; a trailing slash stays."""
    clean = "/" + posixpath.normpath(f"/{path}").lstrip("/")
    return f"{clean}/" if path.endswith("/") and clean != "/" else clean


_CACHE: Final = "cache"
"""Directory beside the models for files of object storage."""


def served_directories(*, models: Path, staging: Path | None) -> Mapping[Area, Path]:
    """Return the directory of each area: beside the models, as in LocalAI's worker, unless configured otherwise."""
    beside = models.absolute().parent
    return {Area.MODELS: models, Area.STAGING: staging or beside / Area.STAGING, Area.DATA: beside / Area.DATA}


def refuse_private(*, models: Path, staging: Path | None, private: Path) -> None:
    """Raise SettingInvalid when frontends could read or write the directory of the setting `data`, which holds
    secrets.

    Compares real paths. Four names in the private directory are reserved for served files; the default settings use
    them.
    """
    own = Path(os.path.realpath(private))
    set_aside = {own / name for name in (*Area, _CACHE)}
    served = [("models", models.absolute().parent / _CACHE)]
    for area, path in served_directories(models=models, staging=staging).items():
        served.append(("staging" if area is Area.STAGING and staging else "models", path))
    for setting, path in served:
        real = Path(os.path.realpath(path))
        if real in set_aside or not (real.is_relative_to(own) or own.is_relative_to(real)):
            continue
        raise SettingInvalid(
            setting,
            f"frontends would be given the files of {path}, which is, contains or lies in {private}, the directory of "
            f"the setting data, where secrets are kept; choose another directory for one of the two settings, for "
            f"instance {own / Area.MODELS} for models",
        )
