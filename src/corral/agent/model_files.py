"""Removing a model's files, and nothing outside of the models directory, whatever links are on the way."""

import asyncio
import errno
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from corral.base.errors import CorralError

_NOTHING_THERE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG})
_OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class ModelNameRefused(CorralError):
    """The name cannot be a model's."""

    code = "model_name_refused"


class ModelFiles:
    """Below one directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def delete(self, name: str) -> None:
        """A model's directory with all that is in it; or its file, and what stands beside it as `<name>.…`. Nothing
        there is as good. ModelNameRefused for a name that leads elsewhere.
        """
        await asyncio.to_thread(self._delete, name)

    def _delete(self, name: str) -> None:
        *parents, leaf = _parts(name)
        try:
            with self._held(parents, name) as directory:
                _remove(leaf, directory)
        except OSError as error:
            if error.errno not in _NOTHING_THERE:
                raise

    @contextmanager
    def _held(self, parents: Sequence[str], name: str) -> Iterator[int]:
        """The directory that holds the model, held open. No link is followed on the way there, so that there is no
        moment between a check and its use."""
        with ExitStack() as stack:
            here = os.open(self._folder, _OPEN_DIRECTORY)
            stack.callback(os.close, here)
            for part in parents:
                if _is_link(part, here):
                    raise _escapes(name)
                here = os.open(part, _OPEN_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
                stack.callback(os.close, here)
            yield here


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
    return stat.S_ISDIR(_mode(name, directory))


def _is_link(name: str, directory: int) -> bool:
    return stat.S_ISLNK(_mode(name, directory))


def _mode(name: str, directory: int) -> int:
    try:
        return os.lstat(name, dir_fd=directory).st_mode
    except FileNotFoundError:
        return 0


def _escapes(name: str) -> ModelNameRefused:
    return ModelNameRefused(f'model name "{name}" escapes models directory')
