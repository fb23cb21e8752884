"""Bringing one file to a file server: nothing is sent that is there, and what was begun is continued. Blocks.

A file is told by its SHA-256. Whatever ends a transfer, the peer keeps what it got, and the next attempt begins behind
it; only a file without progress for a while is given up.

A file whose SHA-256 nobody has computed yet is hashed while it is sent, if the peer takes a digest with the last range.
"""

import hashlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import timedelta
from http import HTTPStatus
from typing import Final, Protocol

import msgspec

from corral.base.errors import CorralError
from corral.base.retry import Backoff
from corral.files.file_peer import (
    FilePeer,
    FilePeerAway,
    FilePeerConnection,
    LocalFileChanged,
    PutAnswer,
    RemoteFile,
    TransferStopped,
)
from corral.wire.files import PENDING, ContentRange, is_pending

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
WORTH_HASHING_MEANWHILE: Final = 16 * 1024 * 1024
"""Bytes from which a file is hashed while it is sent. Smaller ones are hashed within a moment."""
_LAST_RANGE: Final = 1024 * 1024
"""Bytes that are held back until the digest is known."""
_LOOK_SECONDS: Final = 0.25
"""How often a thread that waits for a digest looks whether it shall stop."""


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

    @property
    def pending(self) -> str:
        """What stands for the digest of the file until it is known; the same after a restart."""
        text = f"{self.size} {self.modified} {self.inode} {self.device}"
        return PENDING + hashlib.sha256(text.encode()).hexdigest()


class TransferListener(Protocol):
    """Hears how far a file is; called from the thread that sends it."""

    def present(self, count: int) -> None:
        """So many bytes of the file are at the peer, if what was sent last arrives."""

    def sent(self, count: int) -> None:
        """So many bytes more were sent."""


class FileDigest:
    """The SHA-256 of an open file: known before, computed when it is asked for, or computed by a thread meanwhile.

    Must be closed before the file is. For one thread at a time.
    """

    def __init__(
        self, recall: Callable[[], str], compute: Callable[[threading.Event], str], stop: threading.Event
    ) -> None:
        """`recall` returns an empty text when the digest has to be computed; `compute` ends soon when its event is set.
        Whoever waits for the digest ends with TransferStopped when `stop` is set."""
        self._recall = recall
        self._compute = compute
        self._stop = stop
        self._digest = ""
        self._end = threading.Event()
        self._thread: ThreadPoolExecutor | None = None
        self._computed: Future[str] | None = None

    def known(self) -> str:
        """Return the digest if it is known by now, else an empty text."""
        if not self._digest and self._computed is None:
            self._digest = self._recall()
        elif self._computed is not None and self._computed.done():
            self._digest = self._computed.result()
        return self._digest

    def begin(self) -> None:
        """Have a thread compute the digest. Idempotent."""
        if self._computed is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="corral-staging-hash")
            self._computed = self._thread.submit(self._compute, self._end)

    def get(self) -> str:
        """Return the digest; compute it, or wait until the thread has, if necessary. Raises what computing raises."""
        if self._computed is None:
            self._digest = self._digest or self._compute(self._stop)
            return self._digest
        while not wait([self._computed], timeout=_LOOK_SECONDS).done:
            if self._stop.is_set():
                raise TransferStopped
        return self.known()

    def close(self) -> None:
        """End the thread, which takes a moment."""
        self._end.set()
        if self._thread is not None:
            self._thread.shutdown()


class OutgoingFile(msgspec.Struct, frozen=True, kw_only=True):
    """An open file of this machine."""

    descriptor: int
    mark: FileMark
    digest: FileDigest


def is_there(remote: RemoteFile | None, file: OutgoingFile) -> bool:
    """Whether the peer has exactly this file. Nothing is hashed that can be told apart by its size."""
    if remote is None or not remote.path or not remote.digest or remote.size != file.mark.size:
        return False
    return remote.digest == file.digest.get()


def is_hashed_meanwhile(peer: FilePeer, file: OutgoingFile) -> bool:
    """Whether a file is sent to this peer before its digest is known."""
    return peer.takes_late_digests and file.mark.size >= WORTH_HASHING_MEANWHILE and not file.digest.known()


def _begun(remote: RemoteFile | None, stated: str, file: OutgoingFile) -> int:
    """How many bytes the peer has of an upload of this file that was begun."""
    return remote.size if remote is not None and remote.target in (stated, file.mark.pending) else 0


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
        stated = self._stated_digest(remote)
        begun = _begun(remote, stated, self._file)
        offset = begun if begun < size and not self._is_whole else 0
        is_by_another = remote is not None and is_pending(remote.target)  # which may become this very file
        progress = remote.size if remote is not None and is_by_another else begun
        if progress > self._furthest:  # whoever sent it
            self._furthest, self._fruitless, self._failing_since = progress, 0, None
        self._listener.present(offset)
        answer = self._put(offset, stated)
        # A peer of LocalAI's that has all bytes, but was ended before it had checked them, refuses every range. So does
        # one whose file lost its end after its digest was noted.
        is_refused = answer.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
        is_cut = remote is not None and not remote.target and remote.digest == stated
        self._is_whole = self._is_whole or (is_refused and (begun >= size or is_cut))
        return self._judge(answer), f"it answers {answer.status} {answer.text}"

    def _stated_digest(self, remote: RemoteFile | None) -> str:
        """Return the digest, or what stands for it while a thread computes it.

        An upload that was begun with a digest can only be resumed with the same one, so the digest is computed first.
        """
        is_begun_with_digest = remote is not None and remote.target and not is_pending(remote.target)
        if self._is_whole or is_begun_with_digest or not is_hashed_meanwhile(self._connection.peer, self._file):
            return self._file.digest.get()
        self._file.digest.begin()
        return self._file.mark.pending

    def _put(self, offset: int, stated: str) -> PutAnswer:
        """Send everything behind the offset. A file whose digest is not known yet is sent in two ranges, because only
        the head of a range can tell the digest."""
        size = self._file.mark.size
        if is_pending(stated):
            last = size - _LAST_RANGE
            if offset < last:
                answer = self._put_range(ContentRange(offset, last - 1, size), stated)
                if answer.status != HTTPStatus.PERMANENT_REDIRECT:
                    return answer
                offset = last
            stated = self._file.digest.get()
        return self._put_range(ContentRange(offset, size - 1, size) if size and not self._is_whole else None, stated)

    def _put_range(self, span: ContentRange | None, stated: str) -> PutAnswer:
        return self._connection.put(self._key, self._file.descriptor, span, stated, self._listener.sent)

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
