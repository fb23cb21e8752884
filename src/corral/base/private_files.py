"""Files that only their owner reads, and files that are read only up to a size."""

import contextlib
import errno
import fcntl
import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from corral.base.errors import AddressInUse, DataInUse, InvalidInput, PathNotUsable

_BACKLOG: Final = 1024


def bind_private_socket(path: Path) -> socket.socket:
    """Listen on a Unix socket that only we may use; what an earlier process left there is replaced."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            if probe.connect_ex(str(path)) == 0:
                raise AddressInUse(f"another process listens on {path}")
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(_BACKLOG)
    except AddressInUse:
        listener.close()
        raise
    except OSError as error:
        listener.close()
        raise PathNotUsable(f"cannot listen on {path}: {error.strerror or error}") from error
    listener.setblocking(False)
    return listener


def is_there(path: Path) -> bool:
    """Whether something has this path. Raise where that cannot be seen, such as in the directory of another user."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise PathNotUsable(f"cannot look at {path}: {error.strerror}") from error
    return True


def make_private_directory(path: Path) -> Path:
    """Create a directory that only its owner may enter. An existing one is not changed."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise PathNotUsable(f"cannot create the directory {path}: {error.strerror}") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise PathNotUsable(f"the directory {path} is not writable")
    return path


def write_private(path: Path, data: bytes) -> None:
    """Write with mode 0600 and rename into place: a reader sees the old content or the new one, never a part."""
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise PathNotUsable(f"cannot write {path}: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise PathNotUsable(f"cannot write {path}: {error.strerror}") from error


def sync_directory(path: Path) -> None:
    """Return when the names in a directory are on the disk: a file that was renamed may otherwise have its old content
    again after a loss of power. PathNotUsable when that cannot be said. File systems that cannot be told to write a
    directory, such as CIFS, keep their names in their own way."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _fsync_if_supported(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise PathNotUsable(f"cannot write the directory {path} to the disk: {error.strerror}") from error


def _fsync_if_supported(directory: int) -> None:
    try:
        os.fsync(directory)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def read_private(path: Path) -> bytes | None:
    """Return the file's bytes, or None when it does not exist. Raise when others may read it."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if mode & 0o077:
                raise PathNotUsable(f"{path} may be read by others; run: chmod 600 {path}")
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PathNotUsable(f"cannot read {path}: {error.strerror}") from error


@contextlib.contextmanager
def held(lock_file: Path, problem: str) -> Iterator[None]:
    """Hold a lock file until the end of the block; DataInUse with this sentence when another process holds it.

    The lock goes with the process, however it ends.
    """
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


def read_bounded(path: Path, most_bytes: int) -> bytes | None:
    """Return the file's bytes, or None when it has more than allowed. Raise InvalidInput for anything but a file, or
    OSError."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise InvalidInput("", "is not a file")
        content = file.read(most_bytes + 1)
    return content if len(content) <= most_bytes else None
