"""Reads files that others wrote: bounded in size, and without blocking on pipes or devices."""

import os
import stat
from pathlib import Path

from corral.base.errors import InvalidInput


def read_bounded(path: Path, most_bytes: int) -> bytes | None:
    """Return the file's bytes, or None when it has more than allowed. Raise InvalidInput for anything but a file, or
    OSError."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise InvalidInput("", "is not a file")
        content = file.read(most_bytes + 1)
    return content if len(content) <= most_bytes else None
