"""Bringing one file to a file server: nothing is sent that is there, and what was begun is continued. Blocks.

A file is told by its SHA-256. Whatever ends a transfer, the peer keeps what it got, and the next attempt begins behind
it; only a file without progress for a while is given up.
"""

import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from http import HTTPStatus
from typing import Final, Protocol

import msgspec

from corral.base.errors import CorralError
from corral.base.retry import Backoff
from corral.files.file_peer import (
    FilePeerAway,
    FilePeerConnection,
    LocalFileChanged,
    PutAnswer,
    RemoteFile,
    TransferStopped,
)
from corral.wire.files import ContentRange

_BACKOFF: Final = Backoff(first=timedelta(milliseconds=200), cap=timedelta(seconds=5), spread=0.2)
_TRY_AGAIN: Final = frozenset(
    {
        HTTPStatus.PERMANENT_REDIRECT,  # here: go on behind what is there
        HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,  # look again where it ends
        HTTPStatus.CONFLICT,
        HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)
_BROKEN_OFF: Final = ("reading body", "eof", "reset")
"""In the text of a 500: the connection ended, and not the peer's wish to have the file."""
_FULL: Final = ("no space left", "disk quota", "not enough disk")


class FileNotTaken(CorralError):
    """The peer does not take the file."""

    code = "file_not_taken"


class WrongDigest(FileNotTaken):
    """What arrived does not have the digest that was told."""

    code = "wrong_digest"
    retryable = True


class PeerDiskFull(FileNotTaken):
    """The peer has no room for the file."""

    code = "peer_disk_full"
    retryable = True


class FileMark(msgspec.Struct, frozen=True):
    """What tells a file from another one under its name, or the same one with another content."""

    size: int
    modified: int
    """In nanoseconds."""
    inode: int
    device: int

    @classmethod
    def of(cls, status: os.stat_result) -> "FileMark":
        return cls(status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev)


class TransferListener(Protocol):
    """Hears how far a file is; called from the thread that sends it."""

    def present(self, count: int) -> None:
        """So many bytes of the file are at the peer, if what was sent last arrives."""

    def sent(self, count: int) -> None:
        """So many bytes more were sent."""


class OutgoingFile(msgspec.Struct, frozen=True, kw_only=True):
    """An open file of this machine."""

    descriptor: int
    mark: FileMark
    digest: Callable[[], str]
    """Its SHA-256, which may take a while."""


def is_there(remote: RemoteFile | None, file: OutgoingFile) -> bool:
    """Whether the peer has exactly this file. Nothing is hashed that can be told apart by its size."""
    if remote is None or not remote.path or not remote.digest or remote.size != file.mark.size:
        return False
    return remote.digest == file.digest()


def offset_for(remote: RemoteFile | None, size: int, digest: str) -> int:
    """Where to continue an upload that was begun; 0 to begin."""
    if remote is not None and remote.target == digest and 0 < remote.size < size:
        return remote.size
    return 0


class FileSending:
    """One file on its way to one peer, through all attempts."""

    def __init__(
        self,
        connection: FilePeerConnection,
        key: str,
        file: OutgoingFile,
        *,
        stop: threading.Event,
        listener: TransferListener,
    ) -> None:
        self._connection = connection
        self._key = key
        self._file = file
        self._stop = stop
        self._listener = listener
        self._patience = connection.peer.patience_seconds
        self._furthest = 0
        self._failing_since: float | None = None
        self._fruitless = 0
        self._is_whole = False
        """Whether the file goes as a whole, because ranges lead nowhere."""

    def run(self) -> str:
        """Have the file there; returns its path on the peer."""
        while True:
            try:
                path, why = self._attempt()
            except FilePeerAway as error:
                path, why = "", error.message
            if path:
                return path
            self._fail(why)
            if self._stop.wait(_BACKOFF.steady(self._fruitless).total_seconds() if self._fruitless > 1 else 0):
                raise TransferStopped

    def _fail(self, why: str) -> None:
        """Count a fruitless attempt. FilePeerAway when there were only such for a while."""
        now = time.monotonic()
        self._fruitless += 1
        self._failing_since = now if self._failing_since is None else self._failing_since
        if now - self._failing_since > self._patience:
            raise FilePeerAway(f"{self._key}: no progress for {self._patience:.0f} s: {why}")

    def _attempt(self) -> tuple[str, str]:
        """The path when the file is there; else why it is not yet."""
        size = self._file.mark.size
        remote = self._connection.head(self._key, size)
        if remote is not None and is_there(remote, self._file):
            self._listener.present(size)
            return remote.path, ""
        digest = self._file.digest()
        offset = 0 if self._is_whole else offset_for(remote, size, digest)
        begun = remote.size if remote is not None and remote.target == digest else 0
        if begun > self._furthest:  # progress, whoever sent it
            self._furthest, self._fruitless, self._failing_since = begun, 0, None
        self._listener.present(offset)
        span = ContentRange(offset, size - 1, size) if size and not self._is_whole else None
        answer = self._connection.put(self._key, self._file.descriptor, span, digest, self._listener.sent)
        # A peer of LocalAI's that has all bytes, but was ended before it had checked them, refuses every range.
        is_refused = answer.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
        self._is_whole = self._is_whole or (is_refused and begun >= size)
        return self._judge(answer), f"it answers {answer.status} {answer.text}"

    def _judge(self, answer: PutAnswer) -> str:
        """The path of a file that is there; empty when another attempt makes sense."""
        if FileMark.of(os.fstat(self._file.descriptor)) != self._file.mark:
            raise LocalFileChanged(f"{self._key} changed while it was sent")
        if answer.status == HTTPStatus.OK and answer.path:
            return answer.path
        text = answer.text or "without saying why"
        if answer.status == HTTPStatus.INSUFFICIENT_STORAGE or _has(_FULL, text):
            raise PeerDiskFull(f"{self._key}: {text}")
        if answer.status == HTTPStatus.BAD_REQUEST and "sha256 mismatch" in text:
            raise WrongDigest(f"{self._key}: {text}")
        is_broken_off = answer.status == HTTPStatus.INTERNAL_SERVER_ERROR and _has(_BROKEN_OFF, text)
        if answer.status in _TRY_AGAIN or is_broken_off:
            return ""
        raise FileNotTaken(f"{self._key}: the file server answers {answer.status}: {text}")


def _has(words: tuple[str, ...], text: str) -> bool:
    return any(word in text.lower() for word in words)
