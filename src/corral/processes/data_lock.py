"""One process at a time in a data directory. The lock goes with the process, however it ends."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from corral.base.errors import CorralError, PathNotUsable


class DataInUse(CorralError):
    """Another process uses this data directory."""

    code = "data_in_use"


@contextmanager
def held(lock_file: Path, problem: str) -> Iterator[None]:
    """Keep others out until the end of the block; DataInUse with this sentence when somebody is in."""
    try:
        descriptor = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise PathNotUsable(f"cannot write {lock_file}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DataInUse(problem) from error
        yield
    finally:
        os.close(descriptor)
