"""Frees the shared memory that backends leave: it would be taken from the machine until somebody restarts it, and no
limit counts it once its process is gone.

Only backends with a user of their own are looked at. What others leave could be anybody's.
"""

import contextlib
import os
import shutil
import threading
from pathlib import Path
from typing import Final

SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - where programs expect it


class SharedMemory:
    """Knows the users of all backends that run. Methods block, and may be called from several threads."""

    def __init__(self, folder: Path = Path(SHARED_MEMORY)) -> None:
        self._folder = folder
        self._users: dict[str, int] = {}
        """User of each process by its mark."""
        self._changing = threading.Lock()

    def begin(self, mark: str, user: int | None) -> None:
        """A process is about to start; None: as the worker's own user."""
        if user is not None:
            with self._changing:
                self._users[mark] = user

    def end(self, mark: str) -> None:
        """A process has ended. What its user left is removed, unless another process of the user runs."""
        with self._changing:
            user = self._users.pop(mark, None)
            if user is not None and user not in self._users.values():
                self._remove(user)

    def _remove(self, user: int) -> None:
        with contextlib.suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_uid != user:
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        shutil.rmtree(entry.path, ignore_errors=True)
                    else:
                        os.unlink(entry.path)
