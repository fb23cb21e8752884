"""Interpreters to include in an image: relocatable trees such as python-build-standalone's. They are never executed
here, since they may be for another platform."""

import re
from pathlib import Path
from typing import Final

from corral.base.errors import InvalidInput
from corral.imaging.entries import Entry, entries_of
from corral.imaging.source import PYTHON
from corral.imaging.targets import read_python_version

_PROGRAM: Final = "bin/python3"
_LIBRARY: Final = re.compile(r"python(3\.\d+)")


def version_of(tree: Path) -> str:
    """Return the Python version from the name of its library. Raise InvalidInput when this is not such a tree."""
    if not (tree / _PROGRAM).exists():
        raise InvalidInput("--python", f"{tree} has no {_PROGRAM}: wanted is the folder of a relocatable Python")
    places = [tree / "lib", tree / "lib64"]
    names = sorted(child.name for place in places if place.is_dir() for child in place.iterdir() if child.is_dir())
    versions = {match[1] for name in names if (match := _LIBRARY.fullmatch(name))}
    if len(versions) != 1:
        there = ", ".join(sorted(versions)) or "none"
        raise InvalidInput("--python", f"{tree} has libraries of {there}; expected is one, in lib/python3.x")
    return read_python_version(versions.pop())


def interpreter_entries(tree: Path) -> list[Entry]:
    return entries_of(tree, below=PYTHON)
