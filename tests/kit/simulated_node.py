"""A worker that exists only as its messages: for benches and for tests with more nodes than machines.

It registers and beats over HTTP like a Corral worker, and can do what no honest worker does: lie about what it has, go
silent, say everything twice, or deliver old messages late.
"""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import aiohttp
import msgspec
from msgspec import UNSET

from corral import __version__
from corral.base.clock import Clock, SystemClock
from corral.base.errors import PeerRefused, PeerUnavailable
from corral.base.ids import Incarnation, NodeId, new_incarnation, new_secret
from corral.wire.registration import (
    FEATURES,
    CardReport,
    CorralBeat,
    CorralHello,
    HeartbeatRequest,
    HeartbeatResponse,
    RegisterRequest,
    RegisterResponse,
)

_GIB: Final = 1024**3
_FORGOTTEN: Final = frozenset({401, 404})


@dataclass(slots=True, kw_only=True)
class SimulatedIdentity:
    """Who a node says it is. A node without a secret is known by its name, as LocalAI's workers are."""

    secret: str = field(default_factory=new_secret, repr=False)
    incarnation: Incarnation = field(default_factory=new_incarnation)


class SimulatedMachine(msgspec.Struct, kw_only=True, frozen=True):
    """The hardware that a node reports; sizes in GiB."""

    ram: int = 32
    free_ram: int = 16
    disk: int = 512
    free_disk: int = 256
    one_disk: bool = False
    """Backends are on the same disk, so that its room is known to be theirs."""
    cards: int = 0
    """How many GPUs it has."""
    card_name: str = ""
    card_memory: int = 0
    free_card_memory: int = 0
    labels: dict[str, str] = msgspec.field(default_factory=lambda: {"simulated": "true"})

    def card_reports(self) -> list[CardReport]:
        return [
            CardReport(
                id=f"GPU-{index}",
                index=index,
                name=self.card_name,
                vendor="nvidia",
                total=self.card_memory * _GIB,
                free=self.free_card_memory * _GIB,
            )
            for index in range(self.cards)
        ]


class SimulatedNode:
    """One node. `url` may be changed at any time: the next message goes to that frontend."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        token: str,
        name: str,
        interval: timedelta = timedelta(seconds=10),
        *,
        identity: SimulatedIdentity | None = None,
        machine: SimulatedMachine | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.url = url
        self.name = name
        self.id: NodeId | None = None
        self.status = ""
        """As control saw it in its last answer; empty before the first."""
        self.beats = 0
        """Heartbeats that were answered with 200."""
        self.varies = False
        """While set, each heartbeat reports other free memory than the one before."""
        self.silent = False
        """While set, `run` sends nothing."""
        self.lies: dict[str, object] = {}
        """Fields that replace the true ones in each heartbeat, of any type."""
        self._session = session
        self._token = token
        self._interval = interval
        self._identity = identity or SimulatedIdentity()
        self._machine = machine or SimulatedMachine()
        self._clock = clock or SystemClock()

    @property
    def node_id(self) -> NodeId:
        if self.id is None:
            raise RuntimeError(f"{self.name} has not registered yet")
        return self.id

    @property
    def bearer(self) -> str:
        """What it presents after its registration."""
        return self._identity.secret or self._token

    def restart(self) -> None:
        """A new life of the same node; it is known again only after `register`."""
        self._identity.incarnation = new_incarnation()

    def registration(self) -> bytes:
        """The body, for those who want to send it late, twice or elsewhere."""
        secret, machine = self._identity.secret, self._machine
        hello = CorralHello(
            version=__version__,
            features=list(FEATURES),
            secret=secret,
            incarnation=self._identity.incarnation,
            heartbeat_seconds=self._interval.total_seconds(),
            one_disk=machine.one_disk,
            cards=machine.card_reports() or None,
        )
        request = RegisterRequest(
            name=self.name,
            address="127.0.0.1:50051",
            http_address="127.0.0.1:50050",
            token=self._token,
            total_ram=machine.ram * _GIB,
            available_ram=machine.free_ram * _GIB,
            total_disk=machine.disk * _GIB,
            available_disk=machine.free_disk * _GIB,
            max_replicas_per_model=1,
            labels=machine.labels,
            corral=hello if secret else UNSET,
        )
        if machine.cards:
            request.total_vram = machine.cards * machine.card_memory * _GIB
            request.available_vram = machine.cards * machine.free_card_memory * _GIB
            request.gpu_vendor = "nvidia"
        return msgspec.json.encode(request)

    def heartbeat(self) -> bytes:
        """The body of a heartbeat, with the fields that replace the true ones."""
        machine = self._machine
        beat = HeartbeatRequest(
            available_ram=(machine.free_ram + (self.beats % 8 if self.varies else 0)) * _GIB,
            available_disk=machine.free_disk * _GIB,
            corral=CorralBeat(incarnation=self._identity.incarnation) if self._identity.secret else UNSET,
        )
        if machine.cards:
            beat.available_vram = machine.cards * machine.free_card_memory * _GIB
        if not self.lies:
            return msgspec.json.encode(beat)
        return msgspec.json.encode({**msgspec.to_builtins(beat), **self.lies})

    async def register(self) -> NodeId:
        """Join, or join again. PeerRefused and PeerUnavailable as any client of a frontend."""
        return self.take_in(await self.send("register", self.registration(), bearer=self._token))

    def take_in(self, answer: bytes) -> NodeId:
        """The answer to a registration, for those who sent it themselves."""
        registered = msgspec.json.decode(answer, type=RegisterResponse)
        self.id, self.status = NodeId(registered.id), registered.status
        return self.id

    async def beat(self) -> str:
        """One heartbeat; returns the status that control sees, as far as it says."""
        answer = await self.send(f"{self.node_id}/heartbeat", self.heartbeat())
        self.beats += 1
        reply = msgspec.json.decode(answer, type=HeartbeatResponse).corral
        if reply is not UNSET:
            self.status = reply.status
        return self.status

    async def drain(self) -> None:
        await self.send(f"{self.node_id}/drain")

    async def deregister(self) -> None:
        """Deregister: the node is offline until it registers again."""
        await self.send(f"{self.node_id}/deregister")

    async def run(self) -> None:
        """Register and beat until cancelled; joins again when it was forgotten, and outlives what does not answer."""
        while True:
            if not self.silent:
                await self._say_something()
            await self._clock.sleep(self._interval.total_seconds())

    async def _say_something(self) -> None:
        try:
            if self.id is None:
                await self.register()
            else:
                await self.beat()
        except PeerUnavailable:
            return
        except PeerRefused as error:
            if error.status not in _FORGOTTEN:
                raise
            self.id = None

    async def send(self, action: str, body: bytes = b"", *, bearer: str | None = None) -> bytes:
        """POST to `/api/node/<action>` and return the body of the answer, which is 2xx."""
        headers = {"Authorization": f"Bearer {self.bearer if bearer is None else bearer}"}
        if body:
            headers["Content-Type"] = "application/json"
        url = f"{self.url}/api/node/{action}"
        try:
            async with self._session.post(url, data=body, headers=headers) as response:
                answer = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise PeerUnavailable(f"{self.url} does not answer: {error}") from error
        if response.status >= 500:
            raise PeerUnavailable(f"{self.url} answered {response.status} to {action}")
        if response.status >= 400:
            raise PeerRefused(f"{self.url} answered {response.status} to {action}", status=response.status)
        return answer
