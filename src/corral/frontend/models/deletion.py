"""Deletes the files of a removed model on this machine, and nothing outside of the models directory.

The weights go first and the file that names them last, so whoever is interrupted finds all that is left to do.
"""

import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

from corral.base.errors import CorralError
from corral.frontend.models.files import ModelFileMark


class FilesLeft(CorralError):
    """Files of a removed model are still there."""

    code = "model_files_left"
    retryable = True


def delete_model(file: Path, mark: ModelFileMark, weights: Sequence[str]) -> None:
    """The file, if it is still the one with this mark, and these paths beside it. FilesLeft when some cannot go."""
    try:
        if ModelFileMark.of(file) != mark:
            return  # somebody has put another one there; it is looked at anew
        for path in weights:
            _delete(file.parent, path)
        file.unlink(missing_ok=True)
    except FileNotFoundError:
        return
    except OSError as error:
        raise FilesLeft(f"{error.filename or file}: {error.strerror or error}") from error


def _delete(directory: Path, path: str) -> None:
    """Links are not followed: they go themselves. A path that leads out of the directory is left alone."""
    wanted = directory / path
    try:
        inside = wanted.parent.resolve(strict=True).is_relative_to(directory.resolve(strict=True))
        mode = os.lstat(wanted).st_mode
    except FileNotFoundError:
        return
    if not inside or ".." in Path(path).parts:
        return
    if stat.S_ISDIR(mode):
        shutil.rmtree(wanted)
    else:
        wanted.unlink(missing_ok=True)
