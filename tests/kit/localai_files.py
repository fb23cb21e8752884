"""The file server of LocalAI's worker as it is seen from outside: uploads in ranges, and the notes beside its files.

Written from the facts of the protocol, its dead ends included: what a real one was left with, nobody but a sender can
get it out of.
"""

import hashlib
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from corral.wire.files import ContentRange

FILES: Final = "/v1/files/"


@dataclass
class LocalAiFiles:
    """One directory of models, and what was asked for."""

    models: Path
    port: int = 0
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Methods and the ranges that came with them."""


@asynccontextmanager
async def localai_files(models: Path) -> AsyncIterator[LocalAiFiles]:
    served = LocalAiFiles(models)
    server = _Server(served)
    served.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    def __init__(self, served: LocalAiFiles) -> None:
        self.served = served
        served.models.mkdir(parents=True, exist_ok=True)
        super().__init__(("127.0.0.1", 0), _Handler)


def finished_note(file: Path) -> Path:
    return file.with_name(f"{file.name}.sha256")


def target_note(file: Path) -> Path:
    return file.with_name(f"{file.name}.sha256.target")


def _read(note: Path) -> str:
    return note.read_text().strip() if note.is_file() else ""


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class _Refused(Exception):
    def __init__(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        self.status, self.text, self.headers = status, text, headers or {}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_HEAD(self) -> None:
        self._note()
        file = self._file()
        if not file.exists():
            self._answer(404, {})
            return
        if file.is_dir():
            self._answer(400, {})
            return
        headers = {"X-File-Size": str(file.stat().st_size), "X-Local-Path": str(file), "Accept-Ranges": "bytes"}
        if target := _read(target_note(file)):
            headers["X-Target-SHA256"] = target
        else:
            headers["X-Content-SHA256"] = self._known_digest(file)
        self._answer(200, headers, length=file.stat().st_size)

    def do_PUT(self) -> None:
        self._note()
        file, digest = self._file(), self.headers.get("X-Content-SHA256", "")
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            text = self.headers.get("Content-Range", "")
            if not text:
                self._take_whole(file, body, digest)
            elif (size := self._take_range(file, body, ContentRange.parse(text), digest)) is not None:
                self._answer(308, {"X-File-Size": str(size), "Range": f"bytes=0-{size - 1}"})
                return
        except _Refused as refused:
            self._answer(refused.status, refused.headers, f"{refused.text}\n".encode())
            return
        self._answer(200, {}, json.dumps({"local_path": str(file)}).encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _note(self) -> None:
        self.server.served.asked.append((self.command, self.headers.get("Content-Range", "")))

    def _file(self) -> Path:
        return self.server.served.models / unquote(self.path).removeprefix(f"{FILES}models/")

    def _known_digest(self, file: Path) -> str:
        note = finished_note(file)
        if note.is_file() and note.stat().st_mtime_ns >= file.stat().st_mtime_ns:
            return _read(note)
        digest = digest_of(file.read_bytes())
        note.write_text(digest)
        return digest

    def _take_whole(self, file: Path, body: bytes, digest: str) -> None:
        if file.is_dir():
            raise _Refused(500, f"creating file: open {file}: is a directory")
        target_note(file).unlink(missing_ok=True)
        file.write_bytes(body)
        if digest and digest.lower() != digest_of(body):
            file.unlink()
            raise _Refused(400, "sha256 mismatch")
        finished_note(file).write_text(digest_of(body))

    def _take_range(self, file: Path, body: bytes, span: ContentRange, digest: str) -> int | None:
        """The size so far; None: all is there."""
        if file.is_dir():
            raise _Refused(400, "destination is a directory")
        size, target = file.stat().st_size if file.exists() else 0, _read(target_note(file))
        if not span.start and size and (not digest or (target or _read(finished_note(file))) != digest):
            self._remove(file)
            size = 0
        elif span.start and digest and target and target != digest:
            self._remove(file)
            raise _Refused(409, "mismatch with in-progress upload; restart from byte 0")
        if span.start != size:
            headers = {"Content-Range": f"bytes */{span.total}", "X-File-Size": str(size)}
            raise _Refused(416, "Content-Range start does not match current file size", headers)
        if digest:
            target_note(file).write_text(digest)
        with file.open("ab") as opened:
            opened.write(body[: span.length])
        if len(body) < span.length:
            raise _Refused(400, "short body")
        size = file.stat().st_size
        if size < span.total:
            return size
        if digest and digest_of(file.read_bytes()) != digest:
            self._remove(file)
            raise _Refused(400, "sha256 mismatch")
        finished_note(file).write_text(digest_of(file.read_bytes()))
        target_note(file).unlink(missing_ok=True)
        return None

    def _remove(self, file: Path) -> None:
        for path in (file, finished_note(file), target_note(file)):
            path.unlink(missing_ok=True)

    def _answer(self, status: int, headers: dict[str, str], body: bytes = b"", length: int | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)
