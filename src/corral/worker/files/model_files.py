"""Removes a model's files, and nothing outside their directories, whatever links are on the way."""

import asyncio
import os
import shutil
import stat
from pathlib import Path

from corral.base.errors import CorralError
from corral.base.open_directories import Confined, DirectoryUnusable, PathEscapes, PathRefused, look


class ModelNameRefused(CorralError):
    """The name cannot be a model's."""

    code = "model_name_refused"


class ModelFiles:
    """The model files below one or more directories."""

    def __init__(self, folder: Path, *others: Path) -> None:
        self._folders = [Confined(each) for each in (folder, *others)]

    async def delete(self, name: str) -> None:
        """Remove a model's directory; or its file and the files `<name>.…` beside it. Idempotent. Raise
        ModelNameRefused for a name that leads elsewhere."""
        await asyncio.to_thread(self._delete, name)

    def _delete(self, name: str) -> None:
        parts = _parts(name)
        for folder in self._folders:
            try:
                with folder.reach_unlinked(parts, folder.base.joinpath(*parts)) as place:
                    _remove(place.name, place.directory)
            except PathEscapes as error:
                raise _escapes(name) from error
            except DirectoryUnusable:
                if folder.base.is_dir():
                    raise
            except (FileNotFoundError, NotADirectoryError, PathRefused):
                continue  # missing, or a name that no disk can have


def _parts(name: str) -> list[str]:
    if not name:
        raise ModelNameRefused("empty model name")
    path = os.path.normpath(name.lstrip("/") or ".")
    parts = path.split("/")
    if path == "." or parts[0] == ".." or "\0" in path:
        raise _escapes(name)
    return parts


def _remove(leaf: str, directory: int) -> None:
    if _is_directory(leaf, directory):
        shutil.rmtree(leaf, dir_fd=directory)
        return
    for name in os.listdir(directory):
        if (name == leaf or name.startswith(f"{leaf}.")) and not _is_directory(name, directory):
            os.unlink(name, dir_fd=directory)


def _is_directory(name: str, directory: int) -> bool:
    status = look(directory, name)
    return status is not None and stat.S_ISDIR(status.st_mode)


def _escapes(name: str) -> ModelNameRefused:
    return ModelNameRefused(f'model name "{name}" escapes models directory')
