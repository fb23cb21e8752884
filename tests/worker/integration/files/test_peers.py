"""Workers that fetch files from each other with tickets, or from the server that a file came from; and all that goes
wrong then."""

import asyncio
import random
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest

from corral.files.fetch_orders import FetchRefused, order_fetch
from corral.files.file_peer import FilePeer
from corral.wire.files import FETCHES, PEER_FILES, FetchAsk
from corral.wire.tickets import NODE_HEADER, SCHEME, FileTicket, issue
from corral.worker.config import FilesConfig
from corral.worker.files.fetching import why_not_public
from tests.kit.file_server import FileServer, Stall, answering
from tests.kit.file_worker import TOKEN, FileWorker, open_file_worker, stage
from tests.kit.relay import Relay
from tests.kit.waiting import eventually

SIZE = 12 * 1024 * 1024 + 3
CONTENT = random.Random(7).randbytes(SIZE)
DIGEST = sha256(CONTENT).hexdigest()
KEY = "models/m/weights ü.gguf"
SERVER_SECRET = "secret of the server"
LATER = 2**33


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[FileWorker]:
    """A worker that has the file."""
    async with open_file_worker(tmp_path / "server", secret=SERVER_SECRET, node_id="server") as worker:
        await stage(worker, "models/m/weights%20%C3%BC.gguf", CONTENT)
        yield worker


@pytest.fixture
async def fetcher(tmp_path: Path) -> AsyncIterator[FileWorker]:
    async with open_file_worker(
        tmp_path / "fetcher", node_id="fetcher", config=FilesConfig(stall_timeout=timedelta(seconds=2))
    ) as worker:
        yield worker


def a_ticket(**changes: object) -> FileTicket:
    ticket = FileTicket(key=KEY, digest=DIGEST, size=SIZE, server="server", fetcher="fetcher", expires=LATER)
    return msgspec.structs.replace(ticket, **changes)


def from_peer(port: int, *, ticket: str = "", key: str = KEY) -> FetchAsk:
    text = ticket or issue(a_ticket(), SERVER_SECRET)
    return FetchAsk(key=KEY, size=SIZE, digest=DIGEST, peer=f"127.0.0.1:{port}", peer_key=key, ticket=text)


async def fetch(worker: FileWorker, ask: FetchAsk, heard: Callable[[int], None] = lambda count: None) -> str:
    return await order_fetch(FilePeer(address=f"127.0.0.1:{worker.port}", token=TOKEN), ask, heard)


def content(path: str) -> bytes:
    return Path(path).read_bytes()


def left_behind(worker: FileWorker) -> list[str]:
    return sorted(path.name for path in worker.models.rglob("*") if path.is_file() and ".corral" not in path.parts)


async def test_a_worker_gets_a_file_from_another_one(server: FileWorker, fetcher: FileWorker) -> None:
    counts: list[int] = []

    path = await fetch(fetcher, from_peer(server.port), counts.append)

    assert Path(path) == fetcher.models / "m/weights ü.gguf"
    assert content(path) == CONTENT
    assert all(0 <= count <= SIZE for count in counts)
    head = await fetcher.ask("HEAD", "/v1/files/models/m/weights%20%C3%BC.gguf")
    assert (head.headers["X-Content-SHA256"], head.headers["X-File-Size"]) == (DIGEST, str(SIZE))


async def test_what_is_there_is_not_fetched_again(server: FileWorker, fetcher: FileWorker) -> None:
    await fetch(fetcher, from_peer(server.port))

    with nobody_listens() as port:
        assert content(await fetch(fetcher, from_peer(port))) == CONTENT


@pytest.mark.parametrize(
    "ticket",
    [
        issue(a_ticket(expires=1), SERVER_SECRET),
        issue(a_ticket(key="models/m/other.gguf"), SERVER_SECRET),
        issue(a_ticket(fetcher="a third one"), SERVER_SECRET),
        issue(a_ticket(), "the secret of a third one"),
        issue(a_ticket(), SERVER_SECRET)[:-1] + "x",
        "nonsense",
    ],
    ids=["expired", "of another file", "of another node", "for another node", "tampered", "nonsense"],
)
async def test_without_a_good_ticket_nothing_is_served(server: FileWorker, fetcher: FileWorker, ticket: str) -> None:
    with pytest.raises(FetchRefused, match="answers 401"):
        await fetch(fetcher, from_peer(server.port, ticket=ticket))

    assert [name for name in left_behind(fetcher) if name.endswith(".gguf")] == []


async def test_a_ticket_opens_nothing_else(server: FileWorker) -> None:
    await stage(server, "models/m/other.gguf", b"another file")
    headers = {"Authorization": f"{SCHEME} {issue(a_ticket(), SERVER_SECRET)}", NODE_HEADER: "fetcher"}
    own = f"{PEER_FILES}models/m/weights%20%C3%BC.gguf"

    for path in (
        f"{PEER_FILES}models/m/other.gguf",
        f"{PEER_FILES}models/m/",
        f"{PEER_FILES}models/m/x/../other.gguf",
        "/v1/files/models/m/weights%20%C3%BC.gguf",
        "/v1/corral/files/models/m/weights%20%C3%BC.gguf",
        "/v1/files-list/models/m",
        FETCHES,
        "/v1/backend-logs",
    ):
        assert (await server.ask("GET", path, headers=headers, token=None)).status == 401, path
    assert (await server.ask("PUT", own, headers=headers, token=None, body=b"x")).status == 405
    part = await server.ask("GET", own, headers={**headers, "Range": "bytes=10-19"}, token=None)
    assert (part.status, part.body) == (206, CONTENT[10:20])
    assert (await server.ask("GET", own, headers={**headers, "Range": f"bytes={SIZE}-"}, token=None)).status == 416


async def test_a_file_that_became_another_one_is_not_served(server: FileWorker, fetcher: FileWorker) -> None:
    await stage(server, "models/m/weights%20%C3%BC.gguf", CONTENT[::-1])

    with pytest.raises(FetchRefused, match="answers 404"):
        await fetch(fetcher, from_peer(server.port))


async def test_a_file_that_is_gone_is_not_served(server: FileWorker, fetcher: FileWorker) -> None:
    (server.models / "m/weights ü.gguf").unlink()

    with pytest.raises(FetchRefused, match="answers 404"):
        await fetch(fetcher, from_peer(server.port))


@contextmanager
def nobody_listens() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@contextmanager
def impostor(answer: Callable[[socket.socket, int], None]) -> Iterator[int]:
    """Takes one connection after the other, and answers with what the test wants; it is told the offset."""

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                request = b""
                while b"\r\n\r\n" not in request and (piece := connection.recv(65536)):
                    request += piece
                offset = int(request.partition(b"Range: bytes=")[2].partition(b"-")[0] or b"0")
                answer(connection, offset)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _head(offset: int) -> bytes:
    lines = ("HTTP/1.1 206 Partial Content", f"Content-Range: bytes {offset}-{SIZE - 1}/{SIZE}")
    return "\r\n".join((*lines, f"Content-Length: {SIZE - offset}", "", "")).encode()


async def test_a_peer_that_lies_is_found_out(server: FileWorker, fetcher: FileWorker) -> None:
    def lie(connection: socket.socket, offset: int) -> None:
        connection.sendall(_head(offset) + bytes(SIZE - offset))

    with impostor(lie) as port, pytest.raises(FetchRefused, match="sha256 mismatch"):
        await fetch(fetcher, from_peer(port))

    assert left_behind(fetcher) == []
    assert content(await fetch(fetcher, from_peer(server.port))) == CONTENT


async def test_after_a_peer_that_dies_the_next_one_goes_on(server: FileWorker, fetcher: FileWorker) -> None:
    def die(connection: socket.socket, offset: int) -> None:
        connection.sendall(_head(offset) + CONTENT[: SIZE // 2])

    with impostor(die) as port, pytest.raises(FetchRefused, match="unexpected end"):
        await fetch(fetcher, from_peer(port))
    head = await fetcher.ask("HEAD", "/v1/files/models/m/weights%20%C3%BC.gguf")
    assert (head.headers["X-File-Size"], head.headers["X-Target-SHA256"]) == (str(SIZE // 2), DIGEST)

    offsets: list[int] = []

    def go_on(connection: socket.socket, offset: int) -> None:
        offsets.append(offset)
        connection.sendall(_head(offset) + CONTENT[offset:])

    with impostor(go_on) as port:
        assert content(await fetch(fetcher, from_peer(port))) == CONTENT
    assert offsets == [SIZE // 2]


async def test_a_frontend_goes_on_behind_what_was_fetched(fetcher: FileWorker) -> None:
    def die(connection: socket.socket, offset: int) -> None:
        connection.sendall(_head(offset) + CONTENT[: SIZE // 2])

    with impostor(die) as port, pytest.raises(FetchRefused):
        await fetch(fetcher, from_peer(port))

    assert await stage(fetcher, "models/m/weights%20%C3%BC.gguf", CONTENT) == SIZE - SIZE // 2


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-2/3\r\n\r\nabc",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 \xff\r\n\r\n",
        b"x" * 100_000,
        b"",
    ],
)
async def test_nonsense_of_a_peer_is_refused(fetcher: FileWorker, answer: bytes) -> None:
    with impostor(lambda connection, _: connection.sendall(answer)) as port, pytest.raises(FetchRefused):
        await fetch(fetcher, from_peer(port))

    assert [name for name in left_behind(fetcher) if name.endswith(".gguf")] == []


async def test_a_peer_that_is_away_or_silent_is_given_up(fetcher: FileWorker) -> None:
    with nobody_listens() as port, pytest.raises(FetchRefused, match="cannot be reached"):
        await fetch(fetcher, from_peer(port))

    held = threading.Event()

    def stall(connection: socket.socket, offset: int) -> None:
        connection.sendall(_head(offset) + CONTENT[:100])
        held.wait()

    with impostor(stall) as port:
        try:
            with pytest.raises(FetchRefused, match="nothing came any more"):
                await fetch(fetcher, from_peer(port))
        finally:
            held.set()


async def test_whoever_leaves_ends_the_fetch_and_what_came_stays(server: FileWorker, fetcher: FileWorker) -> None:
    async with Relay(server.port) as relay:
        half = threading.Event()

        def stall(connection: socket.socket, offset: int) -> None:
            connection.sendall(_head(offset) + CONTENT[: SIZE // 2])
            half.wait()

        with impostor(stall) as port:
            work = asyncio.create_task(fetch(fetcher, from_peer(port)))

            async def has_half() -> bool:
                head = await fetcher.ask("HEAD", "/v1/files/models/m/weights%20%C3%BC.gguf")
                return int(head.headers.get("X-File-Size", 0)) >= SIZE // 4

            await eventually(has_half, "a part of the file")
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
            half.set()

        async def is_free() -> str:
            try:
                return await fetch(fetcher, from_peer(relay.port))
            except FetchRefused:
                return ""  # the first one is about to end

        assert content(await eventually(is_free, "the end of the first fetch")) == CONTENT


async def test_a_full_disk_is_told_as_such(
    server: FileWorker, fetcher: FileWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corral.worker.files.disk.Room.free", lambda *_: 1000)

    with pytest.raises(FetchRefused, match="not enough disk space") as refused:
        await fetch(fetcher, from_peer(server.port))

    assert refused.value.is_full
    assert left_behind(fetcher) == []


BAD: list[dict[str, object]] = [
    {"digest": "ab"},
    {"digest": DIGEST.upper()},
    {"size": 0},
    {"size": -1},
    {"size": 2**63},
    {"peer": ""},
    {"peer": "127.0.0.1:1", "url": "https://example.org/x"},
    {"ticket": "a\r\nHost: b"},
    {"peer": "127.0.0.1:1\r\nx"},
]


@pytest.mark.parametrize("change", BAD)
async def test_an_order_that_makes_no_sense_is_refused(fetcher: FileWorker, change: dict[str, object]) -> None:
    ask = {**msgspec.to_builtins(from_peer(1)), **change}

    answer = await fetcher.ask("POST", FETCHES, body=msgspec.json.encode(ask))

    assert answer.status == 400


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"key":1}', b"\xff", b"x" * 100_000])
async def test_a_body_that_is_no_order_is_refused(fetcher: FileWorker, body: bytes) -> None:
    assert (await fetcher.ask("POST", FETCHES, body=body)).status == 400


@pytest.mark.parametrize("key", ["models/../../x", "models/.corral-part-x", "", "models/"])
async def test_keys_are_confined(fetcher: FileWorker, server: FileWorker, key: str) -> None:
    ask = msgspec.structs.replace(from_peer(server.port), key=key)

    with pytest.raises(FetchRefused):
        await fetch(fetcher, ask)


# From the server that a file came from.


def from_origin(url: str, **changes: object) -> FetchAsk:
    return msgspec.structs.replace(FetchAsk(key=KEY, size=SIZE, digest=DIGEST, url=url), **changes)


async def test_a_worker_gets_a_file_from_its_origin(fetcher: FileWorker) -> None:
    with FileServer() as origin:
        url = origin.add("/weights.gguf", CONTENT)
        path = await fetch(fetcher, from_origin(url))

    assert Path(path) == fetcher.models / "m/weights ü.gguf"
    assert content(path) == CONTENT
    head = await fetcher.ask("HEAD", "/v1/files/models/m/weights%20%C3%BC.gguf")
    assert head.headers["X-Content-SHA256"] == DIGEST
    assert all("Authorization" not in request.headers for request in origin.requests)


async def test_an_origin_that_does_not_have_it_or_has_another_is_given_up(fetcher: FileWorker) -> None:
    with FileServer() as origin:
        with pytest.raises(FetchRefused, match="404"):
            await fetch(fetcher, from_origin(origin.url("/nothing")))
        other = origin.add("/other", CONTENT[::-1])
        with pytest.raises(FetchRefused):
            await fetch(fetcher, from_origin(other))
        refusing = origin.add("/gated", CONTENT, authorization="Bearer token")
        with pytest.raises(FetchRefused):
            await fetch(fetcher, from_origin(refusing))

    assert [name for name in left_behind(fetcher) if name.endswith(".gguf")] == []
    assert not list((fetcher.models / ".corral" / "partial").glob("*"))


async def test_what_came_from_an_origin_goes_when_the_file_comes_on_another_way(fetcher: FileWorker) -> None:
    partial = fetcher.models / ".corral" / "partial"
    with FileServer() as origin:
        url = origin.add("/weights.gguf", CONTENT)
        origin.faults["/weights.gguf"] += [held := Stall(1000)]
        work = asyncio.create_task(fetch(fetcher, from_origin(url)))
        await asyncio.to_thread(held.reached.wait)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        held.let_go()

    async def is_gone() -> bool:
        (fetcher.models / "m/weights ü.gguf").unlink(missing_ok=True)  # what is there is not received again
        await stage(fetcher, "models/m/weights%20%C3%BC.gguf", CONTENT)
        return not list(partial.iterdir())

    assert list(partial.iterdir())
    await eventually(is_gone, "the child to end, and what it left to go")


async def test_an_origin_that_recovers_is_used(fetcher: FileWorker) -> None:
    with FileServer() as origin:
        url = origin.add("/weights.gguf", CONTENT)
        origin.faults["/weights.gguf"].append(answering(503))
        assert content(await fetch(fetcher, from_origin(url))) == CONTENT


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/x",
        "https://127.0.0.1/x",
        "https://localhost/x",
        "https://metadata.internal/x",
        "https://169.254.169.254/latest",
        "https://[::1]/x",
        "https://10.0.0.1/x",
        "https://user@example.org/x",
        "file:///etc/passwd",
        "https://",
        "https://[",
    ],
)
async def test_only_public_servers_are_asked(url: str) -> None:
    assert await why_not_public(url)


async def test_a_private_origin_is_refused_before_anything_is_asked(fetcher: FileWorker) -> None:
    with pytest.raises(FetchRefused, match="no public host"):
        await fetch(fetcher, from_origin("https://127.0.0.1:1/x"))
