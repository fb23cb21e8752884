"""An interpreter that goes into an image: a relocatable tree such as python-build-standalone's. It is never run here,
since it may be for another machine."""

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
    """From the name of its library. InvalidInput when this is no such tree."""
    if not (tree / _PROGRAM).exists():
        raise InvalidInput("--python", f"{tree} has no {_PROGRAM}: wanted is the folder of a relocatable Python")
    places = [tree / "lib", tree / "lib64"]
    names = sorted(child.name for place in places if place.is_dir() for child in place.iterdir() if child.is_dir())
    versions = {found[1] for name in names if (found := _LIBRARY.fullmatch(name))}
    if len(versions) != 1:
        there = ", ".join(sorted(versions)) or "none"
        raise InvalidInput("--python", f"{tree} has libraries of {there}; expected is one, in lib/python3.x")
    return read_python_version(versions.pop())


def interpreter_entries(tree: Path) -> list[Entry]:
    return entries_of(tree, below=PYTHON)
