"""Files of the own machine, which are copied where others are downloaded. Blocks."""

import contextlib
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from corral.hubs.downloads.orders import DownloadDamaged, DownloadRefused, FileMissing, FileOrder
from corral.hubs.downloads.partial_files import PartialFile

_FICLONE: Final = 0x40049409
_AT_ONCE: Final = 8 * 1024 * 1024


def local_source(url: str) -> Path | None:
    """The file that a URL names on this machine; None for URLs of servers."""
    return Path(unquote(urlsplit(url).path)) if url.lower().startswith("file:") else None


@contextmanager
def opened_source(path: Path, order: FileOrder) -> Iterator[int]:
    """Open a file that shall be copied, and check its size."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise FileMissing(f"{path} is not there") from error
    except OSError as error:
        raise DownloadRefused(f"{path} cannot be read: {error.strerror}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise DownloadRefused(f"{path} is not a file")
        if order.size not in (None, status.st_size):
            raise DownloadDamaged(f"{path} has {status.st_size} bytes where {order.size} belong")
        yield descriptor
    finally:
        os.close(descriptor)


def copy_into(part: PartialFile, source: int, *, wrote: Callable[[int], None], is_stopped: Callable[[], bool]) -> int:
    """Copy all bytes, or share them where the file system can. Return how many."""
    part.empty()
    size = os.fstat(source).st_size
    with contextlib.suppress(OSError):
        fcntl.ioctl(part.descriptor, _FICLONE, source)
        return size
    position = 0
    while position < size and not is_stopped():
        count = os.copy_file_range(source, part.descriptor, min(_AT_ONCE, size - position), position, position)
        if not count:
            raise DownloadDamaged("the file became shorter while it was copied")
        position += count
        wrote(position)
    return size
