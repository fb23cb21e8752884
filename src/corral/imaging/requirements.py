"""Parses the lock file of a backend's Python packages: each must be pinned and have hashes.

Checked before anything is fetched, so that the error names the line; the installer verifies the hashes.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from corral.base.errors import InvalidInput
from corral.base.private_files import read_bounded
from corral.imaging.errors import BuildFailed

FILE: Final = "requirements.txt"
_MOST_BYTES: Final = 16 * 1024 * 1024
_COMMENT: Final = re.compile(r"(^|\s)#.*$")
_PINNED: Final = re.compile(
    r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*==\s*[A-Za-z0-9][A-Za-z0-9.!+_-]*\s*(?:;|\s|$)"
)
_HASH: Final = re.compile(r"\s--hash[= ]sha(?:256|384|512):[0-9a-f]{64,128}(?=\s|$)")
_ADVICE: Final = "make the file with `uv pip compile --universal --generate-hashes`"


def read_lock(path: Path) -> tuple[str, ...]:
    """Return the names of the packages, in order; empty when there is no file. BuildFailed names the line."""
    try:
        content = read_bounded(path, _MOST_BYTES)
    except FileNotFoundError:
        return ()
    except (InvalidInput, OSError) as error:
        raise BuildFailed(f"{path} cannot be read: {error}") from error
    if content is None:
        raise BuildFailed(f"{path} is larger than {_MOST_BYTES} bytes")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise BuildFailed(f"{path} is not text in UTF-8") from error
    return tuple(_checked(requirement, path, line) for line, requirement in _requirements(text))


def _requirements(text: str) -> Iterator[tuple[int, str]]:
    """Yield each requirement with the number of its first line; a backslash joins lines."""
    first, gathered = 0, ""
    for number, raw in enumerate(text.splitlines(), start=1):
        line = _COMMENT.sub("", raw).rstrip()
        goes_on = line.endswith("\\")
        first = first if gathered else number
        gathered += line.removesuffix("\\") + " "
        if not goes_on:
            if gathered.strip():
                yield first, gathered.strip()
            gathered = ""
    if gathered.strip():
        yield first, gathered.strip()


def _checked(requirement: str, path: Path, line: int) -> str:
    excerpt = requirement.partition(" --hash")[0][:100]
    if requirement.startswith("-"):
        raise BuildFailed(f"{path}: line {line}: {excerpt!r} is an option, and a lock has none: {_ADVICE}")
    pinned = _PINNED.match(requirement)
    if pinned is None:
        raise BuildFailed(f"{path}: line {line}: {excerpt!r} is not pinned with ==; {_ADVICE}")
    if not _HASH.search(requirement):
        raise BuildFailed(f"{path}: line {line}: {excerpt!r} has no hash; {_ADVICE}")
    return pinned[1].lower()
