"""Files through doors with TLS: from a frontend to a worker, and from worker to worker."""

import asyncio
import random
import threading
from hashlib import sha256
from pathlib import Path

import pytest

from corral.files.fetch_orders import FetchRefused, order_fetch
from corral.files.file_peer import FilePeer, FilePeerAway, FilePeerConnection
from corral.wire.files import FetchAsk
from corral.wire.fleet_tls import FleetRole, file_server_name
from corral.wire.tickets import FileTicket, issue
from tests.kit.file_worker import TOKEN, open_file_worker, stage
from tests.kit.fleet_tls import NODE, OTHER_NODE, TestFleet, node_door

SIZE = 5 * 1024 * 1024 + 3
CONTENT = random.Random(8).randbytes(SIZE)
DIGEST = sha256(CONTENT).hexdigest()
KEY = "models/m/weights.gguf"
SECRET = "secret of the server"


def ask(port: int, name: str) -> FetchAsk:
    ticket = FileTicket(key=KEY, digest=DIGEST, size=SIZE, server=NODE, fetcher=OTHER_NODE, expires=2**33)
    peer = f"127.0.0.1:{port}"
    text = issue(ticket, SECRET)
    return FetchAsk(key=KEY, size=SIZE, digest=DIGEST, peer=peer, peer_name=name, peer_key=KEY, ticket=text)


async def test_a_frontend_sends_a_file_and_has_another_worker_fetch_it(tmp_path: Path) -> None:
    fleet = TestFleet()
    file = tmp_path / "file"
    file.write_bytes(CONTENT)
    context = fleet.caller(FleetRole.NODE, node_id=OTHER_NODE)
    async with (
        open_file_worker(tmp_path / "server", secret=SECRET, node_id=NODE) as server,
        open_file_worker(tmp_path / "fetcher", node_id=OTHER_NODE, tls=context) as fetcher,
        node_door(fleet.identity(FleetRole.NODE, node_id=NODE), [], file_server=server.port) as door,
        node_door(fleet.identity(FleetRole.NODE, node_id=OTHER_NODE), [], file_server=fetcher.port) as other,
    ):
        tls = fleet.peer(door, file_server_name(NODE))
        peer = FilePeer(address=tls.address, token=SECRET, tls=tls)
        sent: list[int] = []

        def send() -> str:
            connection = FilePeerConnection(peer, threading.Event())
            try:
                with file.open("rb") as source:
                    assert connection.put(KEY, source.fileno(), None, DIGEST, sent.append).status == 200
                found = connection.head(KEY, SIZE)
            finally:
                connection.close()
            return "" if found is None else found.digest

        assert await asyncio.to_thread(send) == DIGEST
        assert sum(sent) == SIZE

        order = FilePeer(address=f"127.0.0.1:{other}", token=TOKEN, tls=fleet.peer(other, file_server_name(OTHER_NODE)))
        path = await order_fetch(order, ask(door, file_server_name(NODE)), lambda count: None)
        assert await asyncio.to_thread(Path(path).read_bytes) == CONTENT


async def test_a_worker_that_is_another_node_gets_and_gives_nothing(tmp_path: Path) -> None:
    fleet = TestFleet()
    context = fleet.caller(FleetRole.NODE, node_id=OTHER_NODE)
    async with (
        open_file_worker(tmp_path / "server", secret=SECRET, node_id=NODE) as server,
        open_file_worker(tmp_path / "fetcher", node_id=OTHER_NODE, tls=context) as fetcher,
        node_door(fleet.identity(FleetRole.NODE, node_id="impostor"), [], file_server=server.port) as door,
    ):
        await stage(server, KEY, CONTENT)
        tls = fleet.peer(door, file_server_name(NODE))
        connection = FilePeerConnection(FilePeer(address=tls.address, token=SECRET, tls=tls), threading.Event())
        with pytest.raises(FilePeerAway, match="cannot be asked"):
            await asyncio.to_thread(connection.head, KEY, SIZE)
        order = FilePeer(address=f"127.0.0.1:{fetcher.port}", token=TOKEN)
        with pytest.raises(FetchRefused, match="cannot be reached"):
            await order_fetch(order, ask(door, file_server_name(NODE)), lambda count: None)


async def test_a_worker_without_a_certificate_says_so(tmp_path: Path) -> None:
    async with open_file_worker(tmp_path / "fetcher", node_id=OTHER_NODE) as fetcher:
        order = FilePeer(address=f"127.0.0.1:{fetcher.port}", token=TOKEN)
        with pytest.raises(FetchRefused, match="this worker has no certificate"):
            await order_fetch(order, ask(1, file_server_name(NODE)), lambda count: None)
        with pytest.raises(FetchRefused, match="peer_name: it takes the name of a worker's file server"):
            await order_fetch(order, ask(1, "evil.example"), lambda count: None)
