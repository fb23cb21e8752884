"""The directory that an image is unpacked into: empty before, whole or as it was afterwards."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from corral.oci.errors import TargetUnusable

_MODE: Final = 0o750
"""As LocalAI makes directories of backends."""


def prepare_target(target: Path) -> Callable[[], None]:
    """Make the directory, or take an empty one that is there; what is returned makes it as it was."""
    try:
        os.mkdir(target, _MODE)
    except FileExistsError:
        _check_empty(target)
        return lambda: empty(target)
    except OSError as error:
        raise TargetUnusable(f"{target} cannot be made: {error.strerror}") from error
    return lambda: shutil.rmtree(target, ignore_errors=True)


def is_directory(target: Path) -> bool:
    return target.is_dir() and not target.is_symlink()


def empty(target: Path) -> None:
    """Remove what is in it, as far as that can be done."""
    for path in target.iterdir():
        if is_directory(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _check_empty(target: Path) -> None:
    if not is_directory(target):
        raise TargetUnusable(f"{target} is there, and is not a directory")
    if os.listdir(target):
        raise TargetUnusable(f"{target} is not empty")
