"""The file server of a worker over real connections, with directories of its own, and without the rest of a worker."""

import asyncio
import io
import os
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Final

import aiohttp
from yarl import URL

from corral.base.clock import Clock
from corral.base.ids import NodeId
from corral.oci.limits import Network
from corral.worker.config import FilesConfig
from corral.worker.files.fetching import why_not_public
from corral.worker.files.serving import FileMember, FileServing
from corral.worker.http import HttpServer, readiness_problems
from corral.worker.membership.addresses import HostPort
from corral.worker.membership.registration import AcceptedRegistration, Presence
from corral.worker.processes.backend_logs import BackendLogs, LiveTimes, LogRoutes
from tests.kit.clock import ManualClock

TOKEN: Final = "tok"


class StubLink:
    """Whether NATS is there."""

    connected = True
    refused: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class FileAnswer:
    status: int
    headers: Mapping[str, str]
    """Headers by name, in any letter case."""
    body: bytes


class FileWorker:
    """A file server, with what a test needs to use it."""

    def __init__(self, root: Path, session: aiohttp.ClientSession, port: int, logs: BackendLogs) -> None:
        self.models = root / "models"
        self.staging = root / "staging"
        self.data = root / "data"
        self.root = root
        self.link = StubLink()
        self.logs = logs
        self.session = session
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.node_id = "n1"
        """Whom tickets have to be for."""

    async def is_receiving(self) -> bool:
        """Whether the first bytes of a file are on the disk."""
        with suppress(FileNotFoundError):  # some names last for a moment only
            return any(path.stat().st_size for path in self.root.rglob(".corral-*"))
        return False

    async def ask(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | AsyncIterable[bytes] | None = None,
        token: str | None = TOKEN,
    ) -> FileAnswer:
        """The path goes out exactly as it is given."""
        own = {} if token is None else {"Authorization": f"Bearer {token}"}
        url = URL(self.url + path, encoded=True)
        async with self.session.request(
            method,
            url,
            headers={**own, **(headers or {})},
            data=io.BytesIO(body) if isinstance(body, bytes) else body,
            allow_redirects=False,
        ) as answer:
            return FileAnswer(answer.status, answer.headers, await answer.read())

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A bare connection, for what no HTTP client would send."""
        return await asyncio.open_connection("127.0.0.1", self.port)


async def _may_be_fetched(url: str) -> str:
    """Servers of tests are on this machine; others are judged as in earnest."""
    return "" if url.startswith("http://127.0.0.1:") else await why_not_public(url)


@asynccontextmanager
async def open_file_worker(
    root: Path,
    *,
    clock: Clock | None = None,
    config: FilesConfig | None = None,
    times: LiveTimes | None = None,
    secret: str = "own-secret",
    node_id: str = "n1",
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[FileWorker]:
    """A worker that is registered; its directories are made below `root`. Its clock begins now: files carry times."""
    presence, time = Presence(), clock or ManualClock(datetime.now(UTC))
    presence.member = AcceptedRegistration(node_id=NodeId("n1"), bearer="b")
    logs = BackendLogs(time)
    link = StubLink()
    known: list[FileWorker] = []
    member = FileMember(
        node_id=lambda: known[-1].node_id if known else "",
        secret=lambda: secret,
        network=Network(attempts=2, first_pause_seconds=0.01),
        environment=os.environ,
        why_not=_may_be_fetched,
        may_ask=lambda: True,
        tls=lambda: tls,
    )
    serving = FileServing(config or FilesConfig(), models=root / "models", clock=time, member=member)
    async with serving as files:
        server = HttpServer(
            address=HostPort("127.0.0.1", 0),
            readiness=lambda: readiness_problems(presence, link),
            bearers=lambda: (secret, TOKEN),
            routes=(*files.routes, LogRoutes(logs, times=times)),
            admits=files.admits,
        )
        async with server, aiohttp.ClientSession(auto_decompress=False) as session:
            worker = FileWorker(root, session, server.port, logs)
            worker.link = link
            worker.node_id = node_id
            known.append(worker)
            yield worker


async def stage(worker: FileWorker, key: str, data: bytes, *, attempts: int = 10) -> int:
    """Bring a file to a worker just as LocalAI's frontends do; returns how many bytes were sent. AssertionError when
    they would give up, or go on for ever."""
    digest = sha256(data).hexdigest()
    head = await worker.ask("HEAD", f"/v1/files/{key}")
    if head.status == 200 and head.headers.get("X-Local-Path") and head.headers.get("X-Content-SHA256") == digest:
        return 0
    for _ in range(attempts):
        offset = await _resume_offset(worker, key, digest, len(data))
        stated = {"Content-Range": f"bytes {offset}-{len(data) - 1}/{len(data)}"} if data else {}
        answer = await worker.ask(
            "PUT", f"/v1/files/{key}", body=data[offset:], headers={**stated, "X-Content-SHA256": digest}
        )
        if answer.status == 200:
            return len(data) - offset
        if answer.status not in (308, 416):
            break
    raise AssertionError(f"{key} could not be staged: {answer.status} {answer.body!r}")


async def _resume_offset(worker: FileWorker, key: str, digest: str, size: int) -> int:
    head = await worker.ask("HEAD", f"/v1/files/{key}")
    present = int(head.headers.get("X-File-Size", 0))
    is_same = head.headers.get("X-Target-SHA256", "").lower() == digest
    return present if head.status == 200 and is_same and 0 < present < size else 0
