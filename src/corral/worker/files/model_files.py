"""Removing a model's files, and nothing outside of the directories for them, whatever links are on the way."""

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
    """Below one directory, and in the other places where files of models may be."""

    def __init__(self, folder: Path, *others: Path) -> None:
        self._folders = [Confined(each) for each in (folder, *others)]

    async def delete(self, name: str) -> None:
        """A model's directory with all that is in it; or its file, and what stands beside it as `<name>.…`. Nothing
        there is as good. ModelNameRefused for a name that leads elsewhere.
        """
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
                continue  # it is not there, or could not be: no disk has such names


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
    found = look(directory, name)
    return found is not None and stat.S_ISDIR(found.st_mode)


def _escapes(name: str) -> ModelNameRefused:
    return ModelNameRefused(f'model name "{name}" escapes models directory')
