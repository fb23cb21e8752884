"""A real HTTP(S) server in threads that serves files: with ranges, validators, logins and redirects; and on request
wrongly, slowly or not to the end. The base of doubles of hubs.

    with FileServer() as server:
        url = server.add("/model.gguf", content)
        server.faults["/model.gguf"] += [answering(503), cutting(1000)]
"""

import contextlib
import hashlib
import re
import socket
import ssl
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self, cast
from urllib.parse import urlsplit

CHUNK_BYTES = 16 * 1024


@dataclass(kw_only=True)
class ServedFile:
    content: bytes
    etag: str = ""
    """Empty: none is sent."""
    has_ranges: bool = True
    has_length: bool = True
    """Without a length, the body comes in chunks."""
    authorization: str = ""
    """What must be presented; empty: nothing."""
    refusal: Mapping[str, str] = field(default_factory=dict)
    """Headers of the answer to those who present something else."""
    location: str = ""
    """Where it redirects to, instead of answering."""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(kw_only=True)
class ServedRequest:
    """A request that came, and what was answered so far."""

    method: str
    path: str
    headers: Mapping[str, str]
    status: int = 0
    sent: int = 0


Fault = Callable[["FileHandler", ServedFile], None]
"""Answers one request in the place of the server."""


class FileServer:
    """Serves until the end of the block; then all its connections and threads are gone."""

    def __init__(self, *, host: str = "127.0.0.1", certificate: tuple[Path, Path] | None = None) -> None:
        self.files: dict[str, ServedFile] = {}
        self.faults: dict[str, list[Fault]] = defaultdict(list)
        """Per path, for the next requests, one each."""
        self.requests: list[ServedRequest] = []
        self.sent = 0
        """Bytes of bodies that were sent, of all files."""
        self.before_chunk: Callable[[FileServer], None] = lambda _: None
        """Called before each chunk of a body, by the thread that sends it."""
        self.chunk_bytes = CHUNK_BYTES
        self.tunnel_port = 0
        """As a proxy, the port on this host that every tunnel leads to."""
        self._lock = threading.Lock()
        self._held: set[threading.Event] = set()
        self._is_ending = False
        self._host = host
        self._server = _Server((host, 0), FileHandler)
        self._server.owner = self
        self._scheme = "https" if certificate else "http"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._server.context = context
        self._thread = threading.Thread(target=lambda: self._server.serve_forever(poll_interval=0.01))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.close_connections()
        self._let_all_go()
        self._server.server_close()

    def _let_all_go(self) -> None:
        """A test that failed lets nobody go, and the threads that it holds are waited for."""
        with self._lock:
            self._is_ending = True
            for held in self._held:
                held.set()

    def hold(self, held: threading.Event) -> None:
        """Wait until the event is set by the test, or by the end of the server."""
        with self._lock:
            self._held.add(held)
            if self._is_ending:
                held.set()
        held.wait()

    def hang_up(self) -> None:
        """End all connections, and with them their threads; new ones are served."""
        self._server.close_connections()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def url(self, path: str) -> str:
        return f"{self._scheme}://{self._host}:{self.port}{path}"

    def add(self, path: str, content: bytes, **changes: Any) -> str:
        """Serve a file with a validator, unless it is told otherwise. Returns its URL."""
        etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        self.files[path] = ServedFile(**{"content": content, "etag": etag, **changes})
        return self.url(path)

    def redirect(self, path: str, location: str) -> str:
        self.files[path] = ServedFile(content=b"", location=location)
        return self.url(path)

    def asked(self, path: str) -> list[ServedRequest]:
        return [request for request in self.requests if request.path == path]

    def count(self, request: ServedRequest, count: int) -> None:
        with self._lock:
            request.sent += count
            self.sent += count

    def next_fault(self, path: str) -> Fault | None:
        with self._lock:
            return self.faults[path].pop(0) if self.faults[path] else None


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True
    request_queue_size = 128
    owner: FileServer
    context: ssl.SSLContext | None = None

    def __init__(self, address: tuple[str, int], handler: "type[FileHandler]") -> None:
        self._open: set[socket.socket] = set()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """In the thread of the connection: a client that never greets must not hold up the others."""
        with contextlib.suppress(OSError):
            if self.context is None:
                super().finish_request(request, client_address)
                return
            with self.context.wrap_socket(request, server_side=True) as secure:
                self._open.add(secure)
                try:
                    super().finish_request(cast(Any, secure), client_address)
                finally:
                    self._open.discard(secure)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def close_connections(self) -> None:
        for connection in tuple(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that leave are what these tests are about."""


class FileHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    request_now: ServedRequest

    def do_GET(self) -> None:
        owner, path = self.server.owner, urlsplit(self.path).path
        self.request_now = ServedRequest(method=self.command, path=path, headers=dict(self.headers.items()))
        owner.requests.append(self.request_now)
        file = owner.files.get(path)
        if file is None:
            self.answer(404)
        elif (fault := owner.next_fault(path)) is not None:
            fault(self, file)
        elif file.location:
            self.answer(302, {"Location": file.location})
        elif file.authorization and self.headers["Authorization"] != file.authorization:
            self.answer(401, file.refusal)
        else:
            self.give(file)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_CONNECT(self) -> None:
        owner = self.server.owner
        self.request_now = ServedRequest(method=self.command, path=self.path, headers=dict(self.headers.items()))
        owner.requests.append(self.request_now)
        with socket.create_connection(("127.0.0.1", owner.tunnel_port)) as onward:
            self.head(200, {"X-Proxy": "yes"})
            back = threading.Thread(target=_pump, args=(onward, self.connection))
            back.start()
            _pump(self.connection, onward)
            back.join()
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def answer(self, status: int, headers: Mapping[str, str] | None = None, body: bytes = b"") -> None:
        """A whole answer with a short body."""
        self.head(status, {"Content-Length": str(len(body)), **(headers or {})})
        self.wfile.write(body)

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        self.request_now.status = status
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def wanted(self, file: ServedFile) -> tuple[int, int] | None:
        """Beginning and end of the range that is asked for; None for the whole file."""
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers["Range"] or "")
        if match is None or not file.has_ranges or (self.headers["If-Range"] or file.etag) != file.etag:
            return None
        return int(match[1]), min(int(match[2]) + 1 if match[2] else len(file.content), len(file.content))

    def give(self, file: ServedFile, *, most: int | None = None, changes: Mapping[str, str] | None = None) -> None:
        """Answer as one should; or only some bytes of the body, or with other headers."""
        span, size = self.wanted(file), len(file.content)
        if span is not None and span[0] >= size:
            self.answer(416, {"Content-Range": f"bytes */{size}"})
            return
        start, end = span or (0, size)
        headers = {"ETag": file.etag} if file.etag else {}
        if span is not None:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        headers |= {"Content-Length": str(end - start)} if file.has_length else {"Transfer-Encoding": "chunked"}
        headers |= {**file.headers, **(changes or {})}
        self.head(206 if span is not None else 200, {name: value for name, value in headers.items() if value})
        if self.command == "HEAD":
            return
        self.send(file.content[start:end][:most], is_chunked=not file.has_length)
        if most is not None and most < end - start:
            self.leave()

    def send(self, body: bytes, *, is_chunked: bool = False) -> None:
        owner, step = self.server.owner, self.server.owner.chunk_bytes
        for start in range(0, len(body), step):
            owner.before_chunk(owner)
            chunk = body[start : start + step]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk) if is_chunked else chunk)
            owner.count(self.request_now, len(chunk))
        if is_chunked:
            self.wfile.write(b"0\r\n\r\n")

    def leave(self) -> None:
        """Close the connection, whatever was promised."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(CHUNK_BYTES):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def answering(status: int, **headers: str) -> Fault:
    """Answer with a status: `answering(429, retry_after="1")`."""
    return lambda handler, _: handler.answer(status, _named(headers))


def cutting(after: int) -> Fault:
    """Break off after so many bytes of the body."""
    return lambda handler, file: handler.give(file, most=after)


def lying(**headers: str) -> Fault:
    """Answer with other headers than are true: `lying(content_range="…")`."""
    return lambda handler, file: handler.give(file, changes=_named(headers))


def _named(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-").title(): value for name, value in headers.items()}


def endless(block: bytes = b"x" * CHUNK_BYTES) -> Fault:
    """Send a body without length and without end."""

    def answer(handler: FileHandler, _: ServedFile) -> None:
        handler.head(200, {"Connection": "close"})
        handler.close_connection = True
        while True:
            handler.send(block)

    return answer


class Stall:
    """Stop after so many bytes of the body, and go on when it is let go, at the latest when the server ends."""

    def __init__(self, after: int = 0) -> None:
        self.reached = threading.Event()
        self._after = after
        self._go_on = threading.Event()

    def __call__(self, handler: FileHandler, file: ServedFile) -> None:
        start, end = handler.wanted(file) or (0, len(file.content))
        headers = {"Content-Length": str(end - start), "ETag": file.etag}
        if handler.wanted(file) is not None:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(file.content)}"
        handler.head(206 if "Content-Range" in headers else 200, headers)
        handler.send(file.content[start:end][: self._after])
        self.reached.set()
        handler.server.owner.hold(self._go_on)
        handler.send(file.content[start:end][self._after :])

    def let_go(self) -> None:
        self._go_on.set()
