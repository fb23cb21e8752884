"""Which file a request means: from the path of its URL to a place in one of the three directories, and where these
directories may be.

The rules for keys are those of Go's router and of LocalAI's worker, since its frontends count on both.
"""

import os
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import unquote_to_bytes

from corral.base.errors import SettingInvalid
from corral.worker.files.refusals import bad_request, outside

_MOST_PARTS: Final = 100
"""Directories below each other. Each is held open on the way down."""
_MOST_BYTES: Final = 4096
"""Of a path. Backends could not open a longer one."""
_BROKEN_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")


class Area(StrEnum):
    """The directories that files may be in. The first part of a key chooses; everything unnamed is staged."""

    MODELS = "models"
    DATA = "data"
    STAGING = "staging"


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A key, made clean: no empty parts, no dots. Symbolic links are not looked at here."""

    area: Area
    parts: tuple[str, ...]
    path: Path
    """As backends and frontends are told."""


def locate(key: str, bases: Mapping[Area, Path]) -> Location:
    """Refused when the key is empty, or leads out of its directory by itself."""
    if not key:
        raise bad_request("key is required")
    if "\0" in key:
        raise bad_request("the key contains a NUL character")
    area, below = _area_of(key)
    base = bases[area]
    path = Path(posixpath.normpath(f"{base}/{below}"))
    if path != base and base not in path.parents:
        raise outside(path)
    parts = path.parts[len(base.parts) :]
    if len(parts) > _MOST_PARTS or len(os.fsencode(path)) >= _MOST_BYTES:
        raise bad_request("the path is too long")
    return Location(area=area, parts=parts, path=path)


def _area_of(key: str) -> tuple[Area, str]:
    for area in (Area.MODELS, Area.DATA):
        if key.startswith(f"{area}/"):
            return area, key.removeprefix(f"{area}/")
    return Area.STAGING, key


def decoded(text: str) -> str:
    """A percent-encoded text as a file name: any bytes are possible, as they are on disk."""
    if _BROKEN_ESCAPE.search(text):
        raise bad_request("400 Bad Request")
    return os.fsdecode(unquote_to_bytes(os.fsencode(text)))


def cleaned(path: str) -> str:
    """The path that Go's router would redirect to: without `//`, `/./` and `/../`; a slash at the end stays."""
    clean = "/" + posixpath.normpath(f"/{path}").lstrip("/")
    return f"{clean}/" if path.endswith("/") and clean != "/" else clean


_CACHE: Final = "cache"
"""Beside the models: what comes through object storage."""


def served_directories(*, models: Path, staging: Path | None) -> Mapping[Area, Path]:
    """By area, placed as LocalAI's worker has them: all beside the models, unless the settings say otherwise."""
    beside = models.absolute().parent
    return {
        Area.MODELS: models,
        Area.STAGING: staging or beside / Area.STAGING,
        Area.DATA: beside / Area.DATA,
    }


def refuse_private(*, models: Path, staging: Path | None, private: Path) -> None:
    """SettingInvalid when frontends could read or write the directory of the setting `data`, where secrets are.

    Compared by real path, whatever links lead there. Four names in the private directory are set aside for files that
    are served; the default settings use them.
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
