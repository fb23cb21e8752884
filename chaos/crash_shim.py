"""Counts what a process does to the files below one directory, and ends it at one of these steps, as a crash would.

Names in `os` are replaced, and files that are open for writing are wrapped, so whatever is written in Python is seen.
All processes of a run append to one file, whose length is the count. A write that is the last one is done by half.
"""

import builtins
import functools
import io
import os
import signal
import threading
from collections.abc import Callable
from typing import Any, Final, NoReturn

_RECORD: Final = 96
_BY_PATH: Final = ("rename", "replace", "link", "symlink", "unlink", "remove", "rmdir", "mkdir")
_BY_DESCRIPTOR: Final = ("fsync", "write", "ftruncate", "pwrite", "pwritev", "copy_file_range")
_DIRECTORIES: Final = ("src_dir_fd", "dst_dir_fd", "dir_fd")


class Shim:
    """For one process of a run."""

    def __init__(self, *, root: str, trace: str, fatal: int, takes_parent: bool) -> None:
        self._root = os.path.realpath(root)
        self._fatal = fatal
        self._takes_parent = takes_parent
        self._lock = threading.Lock()
        self._write = os.write
        self._trace = os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def arm(self) -> None:
        for name in _BY_PATH:
            self._replace(name, functools.partial(self._by_path, name, getattr(os, name)))
        for name in _BY_DESCRIPTOR:
            self._replace(name, functools.partial(self._by_descriptor, name, getattr(os, name)))
        os.open = functools.partial(self._opened, os.open)
        opening = functools.partial(self._file, io.open)
        io.open = builtins.open = opening
        os.fdopen = opening

    def _replace(self, name: str, counted: Callable[..., Any]) -> None:
        original = getattr(os, name)
        for able in (os.supports_dir_fd, os.supports_follow_symlinks):
            if original in able:
                able.add(counted)  # callers that check for support compare the function itself
        setattr(os, name, counted)

    # Steps.

    def _by_path(self, name: str, original: Callable[..., Any], *args: Any, **more: Any) -> Any:
        folders = [more[key] for key in _DIRECTORIES if more.get(key) is not None]
        for path in args[:2] if name in ("rename", "replace", "link", "symlink") else args[:1]:
            if self._is_ours(path, folders[-1] if folders else None):
                self._step(name, path)
                break
        return original(*args, **more)

    def _by_descriptor(self, name: str, original: Callable[..., Any], descriptor: int, *rest: Any) -> Any:
        if (path := self._path_of(descriptor)) is not None:
            half = functools.partial(_HALVES[name], original, descriptor, *rest) if name in _HALVES else None
            self._step(name, path, half)
        return original(descriptor, *rest)

    def _opened(self, original: Callable[..., int], path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_CREAT and self._is_ours(path, more.get("dir_fd")):
            self._step("create", path)
        return original(path, flags, *rest, **more)

    def _file(self, original: Callable[..., Any], file: Any, mode: str = "r", *rest: Any, **more: Any) -> Any:
        opened = original(file, mode, *rest, **more)
        path = self._path_of(opened.fileno()) if set(mode) & set("wa+x") else None
        return opened if path is None else _Written(opened, self, path)

    def written(self, path: str, half: Callable[[], None]) -> None:
        self._step("write", path, half)

    def step(self, name: str, what: str) -> None:
        """Count something else that the process does."""
        self._step(name, what)

    def _step(self, name: str, path: object, half: Callable[[], None] | None = None) -> None:
        shown = f"{os.getpid()} {name} {os.path.basename(os.fspath(path))}"  # type: ignore[call-overload]
        record = shown.encode(errors="replace")[: _RECORD - 1].ljust(_RECORD - 1) + b"\n"
        with self._lock:
            self._write(self._trace, record)
            number = os.lseek(self._trace, 0, os.SEEK_CUR) // _RECORD
        if number == self._fatal:
            if half is not None:
                half()
            self._die()

    def _die(self) -> NoReturn:
        if self._takes_parent:
            os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("nobody survives that")

    # Where.

    def _is_ours(self, path: Any, folder: int | None) -> bool:
        text = os.fsdecode(path)
        if not os.path.isabs(text):
            base = self._path_of(folder) if folder is not None else os.getcwd()
            return base is not None and self._is_below(os.path.join(base, text))
        return self._is_below(text)

    def _path_of(self, descriptor: int) -> str | None:
        try:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            return None
        return path if self._is_below(path) else None

    def _is_below(self, path: str) -> bool:
        folder = os.path.realpath(os.path.dirname(path))
        return folder == self._root or folder.startswith(self._root + os.sep)


def _half_write(write: Callable[..., Any], descriptor: int, data: Any, *rest: Any) -> None:
    write(descriptor, data[: len(data) // 2], *rest)


def _half_vector(write: Callable[..., Any], descriptor: int, chunks: Any, *rest: Any) -> None:
    whole = b"".join(chunks)
    write(descriptor, [whole[: len(whole) // 2]], *rest)


_HALVES: Final[dict[str, Callable[..., None]]] = {
    "write": _half_write,
    "pwrite": _half_write,
    "pwritev": _half_vector,
}


class _Written:
    """A file whose writes count; whatever else it can do, the real one does."""

    def __init__(self, file: Any, shim: Shim, path: str) -> None:
        self._file = file
        self._shim = shim
        self._path = path

    def __enter__(self) -> "_Written":
        self._file.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._file.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: Any) -> Any:
        self._shim.written(self._path, lambda: self._half(data))
        return self._file.write(data)

    def _half(self, data: Any) -> None:
        self._file.write(data[: len(data) // 2])
        self._file.flush()


def steps_in(trace: os.PathLike[str] | str) -> list[str]:
    """What was counted, in order."""
    with open(trace, encoding="utf-8") as file:
        return [line.strip().partition(" ")[2] for line in file]
