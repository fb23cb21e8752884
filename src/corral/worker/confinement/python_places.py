"""A directory in which a backend with a Python of its own prepares itself, while what was installed stays as it is.

The start script of LocalAI's Python images makes links in its virtual environment and rewrites `pyvenv.cfg`, every
time and before anything else, so that they fit where the backend lies. A confined process may not write there, and two
that start at once would be in each other's way. Such a script takes the directory with the environment from a variable,
so each process gets one: links to all that the backend has, in directories of its own where something is replaced.

Nothing that the links lead to is opened here: an image chooses them, and the worker may read more than its backends.
Blocking: call it in a thread.
"""

import errno
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

_ENVIRONMENT: Final = "venv"
_PROGRAMS: Final = "bin"
_MOST_ENTRIES: Final = 10_000
"""Far more than are beside each other in any environment; an image must not fill the disk with links."""


def brings_python(home: Path) -> bool:
    """Whether a backend has an interpreter, and a virtual environment for it."""
    environment = home / _ENVIRONMENT
    programs = (home / "python" / _PROGRAMS, environment / _PROGRAMS)
    return all(folder.is_dir() for folder in programs) and not any(map(Path.is_symlink, (environment, programs[1])))


def is_compiled(home: Path) -> bool:
    """Whether the packages of a backend's virtual environment came with bytecode, by those beside each other."""
    return any(home.glob(f"{_ENVIRONMENT}/lib/python*/site-packages/*/__pycache__"))


def make_python_place(home: Path, place: Path) -> Iterator[Path]:
    """Make the directory; yield each one that the process must be able to write."""
    environment = place / _ENVIRONMENT
    yield _linked(home, place, own=_ENVIRONMENT)
    yield _linked(home / _ENVIRONMENT, environment, own=_PROGRAMS)
    yield _linked(home / _ENVIRONMENT / _PROGRAMS, environment / _PROGRAMS)


def _linked(source: Path, into: Path, *, own: str = "") -> Path:
    """Make a directory with links to everything in another one but `own`."""
    into.mkdir()
    entries = list(islice(source.iterdir(), _MOST_ENTRIES + 1))
    if len(entries) > _MOST_ENTRIES:
        raise OSError(errno.EMLINK, f"more than {_MOST_ENTRIES} files beside each other", str(source))
    for entry in entries:
        if entry.name != own:
            (into / entry.name).symlink_to(entry.absolute())
    return into
