"""A gateway without sockets and without a running loop: bytes in, bytes out, every piece as small as a test wants.

Thousands of cases a second, so that HTTP handling can be searched for mistakes instead of sampled.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, cast

from corral.base.clock import SystemClock
from corral.base.tls_keys import PrivateKey
from corral.gateway.bodies import UnfinishedHeads
from corral.gateway.config import GatewayConfig, Limits
from corral.gateway.dialling import EngineDialler, FleetDialler
from corral.gateway.dispatch import RequestDispatcher, Tasks
from corral.gateway.exchange import Services
from corral.gateway.pool import Pool
from corral.gateway.relay import ClientConnection
from corral.gateway.routes import Router
from corral.gateway.senders import Senders
from corral.gateway.tally import Ledger
from corral.gateway.upstream import Origin, UpstreamConnection
from corral.gateway.view import Directory
from corral.wire.fleet_tls import IssuedCertificate
from corral.wire.keys import hash_secret
from corral.wire.view import KeyEntry, Loading, ModelEntry, ReplicaEntry, View

KEY: Final = "k"
CONTROL: Final = Origin("control", 1, "")
ENGINE: Final = Origin("engine", 2, "")


class Wire(asyncio.Transport):
    """The gateway's end of a connection that leads nowhere."""

    def __init__(self, protocol: asyncio.Protocol, journal: list[bytes]) -> None:
        super().__init__({"peername": ("192.0.2.1", 5)})
        self.protocol = protocol
        self._journal = journal
        self.written = bytearray()
        self.is_open = True
        self.is_paused = False
        self.was_aborted = False
        self._is_lost = False
        protocol.connection_made(self)

    def write(self, data: Any) -> None:
        if self.is_open:
            self.written += data
            self._journal.append(bytes(data))

    def is_closing(self) -> bool:
        return not self.is_open

    def close(self) -> None:
        self.is_open = False

    def abort(self) -> None:
        self.is_open = False
        self.was_aborted = True

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        pass

    def settle(self) -> bool:
        """Do what the event loop does later: tell the protocol that a closed connection is lost. Whether it was now."""
        if self.is_open or self._is_lost:
            return False
        self._is_lost = True
        self.protocol.connection_lost(None)
        return True


def no_fleet(loop: asyncio.AbstractEventLoop) -> FleetDialler:
    """A dialler for tests in which no worker has TLS."""

    async def ask(csr: str) -> IssuedCertificate:
        raise AssertionError("no certificate is needed here")

    return FleetDialler(loop, ask=ask, new_key=PrivateKey, clock=SystemClock())


class WirePool(Pool):
    """Makes new connections at once, to origins that exist only here."""

    def __init__(self, config: GatewayConfig, loop: asyncio.AbstractEventLoop) -> None:
        engines = EngineDialler(loop, is_ours=lambda address, port: False)
        control = Origin.of(config.control_url)
        super().__init__(config.limits, config.time_outs, loop, control=control, engines=engines, fleet=no_fleet(loop))
        self.wires: list[Wire] = []
        self.journal: list[bytes] = []
        """All writes to all engines and to control, in order."""

    async def connect(self, origin: Origin) -> UpstreamConnection:
        made = UpstreamConnection(self, origin, self._batcher)
        self.wires.append(Wire(made, self.journal))
        self._open.add(made)
        return made


class _Ended:
    def cancel(self) -> bool:
        return False


class InlineTasks(Tasks):
    """Runs each task to its end at once: nothing here has to wait."""

    def start(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        try:
            work.send(None)
        except StopIteration:
            return cast(asyncio.Task[None], _Ended())
        raise AssertionError(f"{name} waits for something")


class _NoLoader:
    async def ensure(self, model: str) -> Loading:
        raise NotImplementedError


class WireGateway:
    """One gateway with one replica of the model `m`."""

    is_draining = False

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        config = GatewayConfig(control_url="http://control:1", control_key="x", limits=Limits(head=4096, body=4096))
        directory, tasks = Directory(), InlineTasks()
        self.pool = WirePool(config, loop)
        self.services = Services(
            config=config,
            clock=SystemClock(),
            loop=loop,
            control=CONTROL,
            pool=self.pool,
            directory=directory,
            dispatcher=RequestDispatcher(config, directory, _NoLoader(), tasks),
            ledger=Ledger("g"),
            tasks=tasks,
            fleet=no_fleet(loop),
            heads=UnfinishedHeads(config.limits.unfinished_heads),
        )
        replica = ReplicaEntry(id="r", model="m", node_id="n", url="http://engine:2", key="rk")
        key = KeyEntry(hash=hash_secret(KEY), id="key", scopes=("inference",))
        view = View(version=1, models={"m": ModelEntry(name="m")}, replicas={"r": replica}, keys={key.hash: key})
        directory.hear(view, now=loop.time())
        self.clients: set[ClientConnection] = set()
        self.senders = Senders(config, Counter())

    def opened(self, client: ClientConnection) -> bool:
        self.clients.add(client)
        return True

    def closed(self, client: ClientConnection) -> None:
        self.clients.discard(client)

    def connect(self) -> Wire:
        return Wire(ClientConnection(self.services, Router(self.services), self), [])

    def settle(self, *wires: Wire) -> None:
        while any([wire.settle() for wire in (*wires, *self.pool.wires)]):
            pass

    def talk(self, client: Wire, pieces: Iterable[bytes], answer: "Answerer") -> None:
        """Feed a client's pieces; engines answer whenever a whole request has come."""
        for piece in pieces:
            if client.is_open:
                client.protocol.data_received(piece)
            self.settle(client)
            while answer.answer_all(self.pool.wires):
                self.settle(client)

    def expire(self, client: Wire) -> None:
        """Let all timeouts expire, one after another."""
        for turn in range(1, 10):
            for connection in list(self.clients):
                connection.sweep(self.services.loop.time() + turn * 1e6)
            self.settle(client)


class Answerer:
    """Answers each request that is complete by the measure of `count`, which says how many there are in some bytes."""

    def __init__(self, count: Callable[[bytes], int], answer: Callable[[], Iterable[bytes]]) -> None:
        self._count = count
        self._answer = answer
        self._answered: dict[int, int] = {}

    def answer_all(self, wires: list[Wire]) -> bool:
        """Whether there was anything to answer."""
        moved = False
        for wire in list(wires):
            done = self._answered.get(id(wire), 0)
            if wire.is_open and self._count(bytes(wire.written)) > done:
                self._answered[id(wire)] = done + 1
                moved = True
                for piece in self._answer():
                    if wire.is_open:
                        wire.protocol.data_received(piece)
        return moved
