"""One connection to a worker's file server, Corral's or LocalAI's: what it has of a file, and sending what it lacks.

Everything here blocks and belongs into a thread; a thread's `stop` ends it within a moment. Bodies go from the disk's
cache to the socket inside the kernel, and an answer that comes before the whole body was sent is heard at once.
"""

import contextlib
import http.client
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final
from urllib.parse import quote, urlsplit

import msgspec

from corral.base.errors import CorralError
from corral.base.tls import TlsPeer
from corral.base.tls_tunnel import open_tunnel
from corral.base.values import PartlyPrinted
from corral.wire.files import CONTENT_RANGE, ContentRange

FILES: Final = "/v1/files/"
_LARGEST_ANSWER: Final = 64 * 1024
_AT_ONCE: Final = 8 * 1024 * 1024
"""Bytes that one call gives to the kernel at most; it takes what fits."""
_IN_ONE_PACKET: Final = 64 * 1024
"""Bodies up to this are sent together with their head."""
_LOOK_SECONDS: Final = 0.25
"""How often a thread that waits for its peer looks whether it shall stop."""
_MOMENT: Final = struct.pack("@ll", 0, int(_LOOK_SECONDS * 1_000_000))
"""`_LOOK_SECONDS` as the option of a socket takes it: seconds and microseconds."""
_INVITED_WITHIN: Final = 2.0
"""Seconds in which a peer says that it wants a body, if it does."""
_LARGEST_INVITATION: Final = 4096
_SHOWN: Final = 300
_HASHED_PER_SECOND: Final = 50 * 1024 * 1024
"""A peer hashes at least so fast before it answers."""


class TransferStopped(CorralError):
    """The transfer was ended from here; what the peer has got stays there."""

    code = "transfer_stopped"
    retryable = True


class FilePeerAway(CorralError):
    """The file server cannot be reached, or is silent."""

    code = "file_peer_away"
    retryable = True


class FilePeerUnreachable(FilePeerAway):
    """No connection to the file server can be made."""

    code = "file_peer_unreachable"


class LocalFileChanged(CorralError):
    """A file changed while it was sent."""

    code = "local_file_changed"
    retryable = True


class FilePeer(PartlyPrinted, frozen=True, kw_only=True):
    """A worker's file server."""

    unprinted = ("token",)

    address: str
    """Host and port."""
    token: str
    tls: TlsPeer | None = None
    """How it is dialled where it speaks TLS."""
    can_fetch: bool = False
    """Whether it gets files from elsewhere when it is asked to."""
    takes_late_digests: bool = False
    """Whether it takes a file of which the digest is told with the last range."""
    connect_seconds: float = 5.0
    stall_seconds: float = 30.0
    """So long it may take no byte, or owe an answer that needs no work."""
    patience_seconds: float = 20.0
    """So long a file may make no progress, whatever is tried."""

    def answer_seconds(self, size: int) -> float:
        """How long an answer may take for which the peer may have to hash a file of this size."""
        return self.stall_seconds + size / _HASHED_PER_SECOND


class RemoteFile(msgspec.Struct, frozen=True, kw_only=True):
    """What a file server says of a file."""

    size: int
    path: str
    """On the peer's disk."""
    digest: str = ""
    """SHA-256 of a finished file; empty for an unfinished one, and when the peer cannot tell."""
    target: str = ""
    """What the digest of an unfinished one will be."""


class PutAnswer(msgspec.Struct, frozen=True, kw_only=True):
    status: int
    path: str = ""
    """Where the file is, if all of it is there."""
    text: str = ""
    """What the peer says otherwise."""


class _LocalPath(msgspec.Struct):
    local_path: str = ""


class _Connection(http.client.HTTPConnection):
    """Connects as the peer wants it; its socket is a plain one in any case."""

    def __init__(self, peer: FilePeer) -> None:
        super().__init__("", timeout=peer.connect_seconds)
        self._peer = peer

    def connect(self) -> None:
        """FilePeerUnreachable says why that does not work; the address may be none."""
        try:
            if self._peer.tls is None:
                where = urlsplit(f"//{self._peer.address}")
                self.host, self.port = where.hostname or "", where.port or http.client.HTTP_PORT
                super().connect()
            else:
                self.sock = open_tunnel(self._peer.tls, connect_seconds=self._peer.connect_seconds)
        except (OSError, ValueError) as error:
            raise FilePeerUnreachable(_cannot_be_asked(self._peer, error)) from error


class FilePeerConnection:
    """Kept open between files where the peer allows it. For one thread at a time."""

    def __init__(self, peer: FilePeer, stop: threading.Event) -> None:
        self.peer = peer
        self._stop = stop
        self._http = _Connection(peer)

    def close(self) -> None:
        self._http.close()

    def head(self, key: str, size: int) -> RemoteFile | None:
        """What is there under a key; None: nothing that could be used. `size` bounds how long the peer may hash."""
        for is_last in (self._http.sock is None, True):
            try:
                with self._failures():
                    self._begin("HEAD", key, {})
                    self._http.endheaders()
                    answer = self._answer(self.peer.answer_seconds(size))
                break
            except FilePeerAway:
                if is_last:
                    raise  # else a kept connection had ended meanwhile
        headers = answer.headers
        if answer.status != http.client.OK:
            return None
        length = headers.get("X-File-Size", "")
        return RemoteFile(
            size=int(length) if length.isascii() and length.isdecimal() and len(length) < 20 else 0,
            path=_text(headers.get("X-Local-Path", "")),
            digest=headers.get("X-Content-SHA256", "").lower(),
            target=headers.get("X-Target-SHA256", "").lower(),
        )

    def put(
        self, key: str, descriptor: int, span: ContentRange | None, digest: str, sent: Callable[[int], None]
    ) -> PutAnswer:
        """Send a range of a file, or all of it where that is nothing or no range is given. `sent` hears how many bytes
        the kernel took each time."""
        size = os.fstat(descriptor).st_size
        start, length = (0, size) if span is None else (span.start, span.length)
        is_whole = True
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(length)}
        headers |= {"X-Content-SHA256": digest}
        if span is not None:
            headers[CONTENT_RANGE] = str(span)
        with self._failures():
            self._begin("PUT", key, headers)
            if length <= _IN_ONE_PACKET:
                body = os.pread(descriptor, length, start)
                if len(body) < length:
                    raise LocalFileChanged("the file became shorter while it was sent")
                self._http.endheaders(body)
                sent(length)
            else:
                self._http.putheader("Expect", "100-continue")
                self._http.endheaders()
                is_whole = self._is_invited() and self._send(descriptor, start, length, sent)
            answer = self._answer(self.peer.answer_seconds(size))
        if not is_whole:
            self._http.close()  # the peer would take the next request for the rest of this one
        if answer.status == http.client.OK:
            return PutAnswer(status=answer.status, path=_local_path(answer.body))
        return PutAnswer(status=answer.status, text=answer.body.decode(errors="replace").strip()[:_SHOWN])

    # How.

    def _begin(self, method: str, key: str, headers: Mapping[str, str]) -> None:
        self._http.putrequest(method, FILES + quote(os.fsencode(key)), skip_host=True, skip_accept_encoding=True)
        self._http.putheader("Host", self.peer.address)
        self._http.putheader("Authorization", f"Bearer {self.peer.token}")
        for name, value in headers.items():
            self._http.putheader(name, value)

    def _is_invited(self) -> bool:
        """Whether the peer wants the body, or does not say so in time, as some never do.

        What it refuses at once, because somebody else sends it or there is no room, costs no byte.
        """
        poll = select.poll()
        poll.register(self._http.sock, select.POLLIN)
        deadline = time.monotonic() + _INVITED_WITHIN
        while not self._stop.is_set():
            if not poll.poll(_LOOK_SECONDS * 1000):
                if time.monotonic() > deadline:
                    return True
                continue
            head = self._http.sock.recv(_LARGEST_INVITATION, socket.MSG_PEEK)
            if not head.startswith(b"HTTP/1.1 100"):
                return False
            if (end := head.find(b"\r\n\r\n")) >= 0:
                self._http.sock.recv(end + 4)
                return True
            if time.monotonic() > deadline or len(head) == _LARGEST_INVITATION:
                return False
        raise TransferStopped

    def _send(self, descriptor: int, offset: int, length: int, sent: Callable[[int], None]) -> bool:
        """Until all is sent, or the peer answers before: then it wants no more. Whether all was sent."""
        end, deadline = offset + length, time.monotonic() + self.peer.stall_seconds
        answered = select.poll()
        answered.register(self._http.sock, select.POLLIN)
        with _sending(self._http.sock) as descriptor_out:
            while offset < end:
                if self._stop.is_set():
                    raise TransferStopped
                if answered.poll(0):
                    return False
                try:
                    count = os.sendfile(descriptor_out, descriptor, offset, min(_AT_ONCE, end - offset))
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise self._silent(self.peer.stall_seconds) from None
                    continue
                except (BrokenPipeError, ConnectionResetError):
                    return False  # it may have said why
                if not count:
                    raise LocalFileChanged("the file became shorter while it was sent")
                offset += count
                deadline = time.monotonic() + self.peer.stall_seconds
                sent(count)
        return True

    def _wait(self, poll: select.poll, seconds: float) -> int:
        """What the connection is ready for. TransferStopped, or FilePeerAway after so long a silence."""
        deadline = time.monotonic() + seconds
        while not self._stop.is_set():
            if ready := poll.poll(_LOOK_SECONDS * 1000):
                return ready[0][1]
            if time.monotonic() > deadline:
                raise self._silent(seconds)
        raise TransferStopped

    def _silent(self, seconds: float) -> FilePeerAway:
        return FilePeerAway(f"{self.peer.address} is silent for {seconds:.0f} s")

    def _answer(self, seconds: float) -> "_Answer":
        poll = select.poll()
        poll.register(self._http.sock, select.POLLIN)
        self._wait(poll, seconds)
        self._http.sock.settimeout(self.peer.stall_seconds)
        response = self._http.getresponse()
        body = response.read(_LARGEST_ANSWER)
        if not response.isclosed():  # more than anybody needs
            self._http.close()
        return _Answer(status=response.status, headers=response.headers, body=body)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Turns what may go wrong with a connection into FilePeerAway. After a failure the next call connects anew."""
        try:
            yield
        except CorralError:
            self._http.close()
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._http.close()
            raise FilePeerAway(_cannot_be_asked(self.peer, error)) from error
        except BaseException:
            self._http.close()
            raise


@contextmanager
def _sending(connection: socket.socket) -> Iterator[int]:
    """Have the kernel wait for room in the connection, a moment at a time: fewer calls than being told of all room."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _MOMENT)
    os.set_blocking(connection.fileno(), True)
    try:
        yield connection.fileno()
    finally:
        os.set_blocking(connection.fileno(), False)


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    status: int
    headers: http.client.HTTPMessage
    body: bytes


def _cannot_be_asked(peer: FilePeer, error: Exception) -> str:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
    if isinstance(error, TimeoutError):
        reason = "timed out"
    elif isinstance(error, ValueError):
        reason = "its address cannot be used"
    return f"the file server at {peer.address} cannot be asked: {reason.lower()}"


def _local_path(body: bytes) -> str:
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
        return msgspec.json.decode(body, type=_LocalPath).local_path
    return ""


def _text(header: str) -> str:
    """A header's bytes as the path that they are."""
    return os.fsdecode(header.encode("latin-1", "replace"))
