"""Where the directories are whose files frontends may read and write, and where they must not be."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from corral.base.errors import SettingInvalid
from corral.worker.files.keys import Area

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
