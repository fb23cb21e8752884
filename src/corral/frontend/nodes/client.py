"""How a node is asked: typed calls over NATS. Every call has a deadline, and every way to fail has a name.

NodeUnreachable  nobody answers for the node; it counts as unhealthy until it is heard again
NodePending      nobody approved the node, so it is not contacted at all
NodeBusy         no answer in time: the node may still be working
NodeRefused      the node says why not, or its answer cannot be accepted
NodeTooOld       the node is there, and its worker is older than the question
"""

import asyncio
import logging
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, TypeVar

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from corral.base.clock import Clock
from corral.base.errors import BusTimeout, BusUnavailable, CorralError, InvalidInput, NoResponders
from corral.base.ids import NodeId
from corral.base.queues import Batches
from corral.base.tasks import Poke, first_done
from corral.base.values import PartlyPrinted
from corral.base.words import abridged
from corral.bus.port import Bus
from corral.frontend.nodes.contacts import NodeContacts, NodeGone, NodePending, NodeUnreachable
from corral.frontend.nodes.decide.node import may_not_listen_yet
from corral.frontend.nodes.decide.reports import NodeContact, Reach, ReportedProcess
from corral.frontend.nodes.store.nodes import Nodes
from corral.wire import go_json, subjects
from corral.wire.backends import (
    ChangeReply,
    DeleteRequest,
    InstalledBackend,
    InstallReply,
    InstallRequest,
    ListReply,
    UpgradeRequest,
)
from corral.wire.models import (
    ModelCommandReply,
    ModelDeleteRequest,
    ModelStopReply,
    ModelStopRequest,
    known_routes,
)
from corral.wire.replicas import ReplicaAccess, RunningReply, StopRequest

log = logging.getLogger(__name__)

RUNNING_WITHIN: Final = timedelta(seconds=10)
STOP_WITHIN: Final = timedelta(seconds=10)
"""Workers give a process up to twenty seconds to free its model and end. A caller that wants to wait for that asks
again."""
LIST_WITHIN: Final = timedelta(seconds=30)
_THERE_WITHIN: Final = timedelta(seconds=5)
_RECONNECTING_PAUSE: Final = timedelta(seconds=1)
"""Until a node is asked again that may not have noticed that NATS is back."""
MOST_BYTES: Final = 1024 * 1024
"""A node sends no more at once: the limit of a NATS server with default settings."""
MOST_OBJECTS: Final = 4000
"""JSON objects in it. A megabyte of empty ones would take seconds to parse; a backend or a process is one or two."""

_SHOWN: Final = 200
_TOKEN: Final = re.compile(r"[!-~]{0,256}")
"""What a header can carry; a node reports the tokens of its processes."""
_LONGEST_REFUSAL: Final = 4000
"""Refusals are stored, and waiting requests are answered with them. LocalAI's may quote twenty lines of a backend."""

T = TypeVar("T", bound=msgspec.Struct)


class NodeBusy(CorralError):
    """The node did not answer in time; it may still be working."""

    code = "node_busy"
    retryable = True


class NodeRefused(CorralError):
    """The node refused the request."""

    code = "node_refused"

    def __init__(self, message: str, *, node_id: NodeId, stopped: Sequence[str] = ()) -> None:
        self.stopped = stopped
        """The processes that had ended for it by then."""
        super().__init__(abridged(message, _LONGEST_REFUSAL), node_id=node_id)


class NodeTooOld(CorralError):
    """The node is there, but its worker does not know the question. Only LocalAI's first ones are so old."""

    code = "node_too_old"


class StartedBackend(PartlyPrinted, frozen=True, kw_only=True):
    """A process that is ready to load a model."""

    unprinted = ("key", "token")

    address: str
    """Empty when the node did not say: then the address of the node itself is meant."""
    url: str = ""
    key: str = ""
    routes: tuple[str, ...] | None = None
    """Which routes of inference the URL answers; None when the node did not say."""
    front_port: int = 0
    """A second port of the same host, with the same key, for requests that need care; 0 when there is none."""
    token: str = ""
    """What the process wants to hear over gRPC; empty where that is the node's secret or the shared token."""
    is_asked_directly: bool = False
    """Requests come to the backend as they are, and not through an adapter."""


class StoppedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that is to be ended, and no other one."""

    model: str
    process_key: str
    port: int
    revision: str


class NodeClient:
    def __init__(self, bus: Bus, nodes: Nodes, clock: Clock, *, contacts: NodeContacts, health: Poke) -> None:
        self._bus = bus
        self._nodes = nodes
        self._clock = clock
        self._contacts = contacts
        self._health = health
        self._marks = Batches(self._mark)
        self._is_cut_off = not bus.connected
        self._reconnected = asyncio.Event()
        """Set, and replaced by another one, when NATS is back."""
        self._reconnected_at: datetime | None = None
        bus.on_connection(self._on_connection)

    def _on_connection(self, connected: bool) -> None:
        if not connected:
            self._is_cut_off = True
        elif self._is_cut_off:
            self._is_cut_off, self._reconnected_at = False, self._clock.now()
            self._reconnected.set()
            self._reconnected = asyncio.Event()

    async def can_confine(self, node_id: NodeId) -> bool:
        """Whether the node confines backends as an install request says. LocalAI's workers do not."""
        return (await self._contacts.of(node_id)).can_confine

    async def install(self, node_id: NodeId, request: InstallRequest, *, timeout: timedelta) -> StartedBackend:
        """Have a process of the backend; returns when it is ready. Asking again finds the same process. A node that has
        only just joined may not listen yet, and does not count as unhealthy for it."""
        return await self._started(node_id, await self._install(node_id, request, timeout))

    async def start(self, node_id: NodeId, request: InstallRequest, *, timeout: timedelta) -> StartedBackend:
        """Have a process, as `install` does, whatever becomes of NATS meanwhile: no other node can be asked without it.

        The node is asked again when NATS is back, because the question or the answer may be lost, and for a while if
        it is not back itself. So the request must not be one that replaces what is installed.
        """
        replies: list[InstallReply] = []

        async def ask() -> None:
            replies.append(await self._install(node_id, request, timeout))

        while not replies:
            try:
                await first_done(ask(), self._reconnected.wait())
            except NodeUnreachable as error:
                if isinstance(error, NodePending | NodeGone) or not self._may_still_reconnect():
                    raise
                await self._clock.sleep(_RECONNECTING_PAUSE.total_seconds())
            except BusUnavailable:
                await self._bus.wait_connected()
        return await self._started(node_id, replies[0])

    def _may_still_reconnect(self) -> bool:
        """Whether NATS is back for so short a time that a worker may not have noticed: LocalAI's look every 2 s."""
        return self._reconnected_at is not None and may_not_listen_yet(self._reconnected_at, self._clock.now())

    async def _started(self, node_id: NodeId, reply: InstallReply) -> StartedBackend:
        if not reply.success:
            raise NodeRefused(reply.error or "the node did not say why", node_id=node_id)
        contact = await self._contacts.of(node_id)  # as of now: this took minutes, and the process is dialled next
        address = contact.dialled(reply.address) if reply.address else ""
        if address is None:
            raise _foreign(node_id, contact, reply.address)
        access = reply.corral
        if access is UNSET:
            return StartedBackend(address=address)
        reach = _reach(node_id, contact, access)
        is_direct = bool(access.url) and not access.adapted
        return StartedBackend(address=address, **reach._asdict(), is_asked_directly=is_direct)

    async def _install(self, node_id: NodeId, request: InstallRequest, timeout: timedelta) -> InstallReply:
        subject = subjects.backend_install(node_id)
        try:
            _, reply = await self._ask(node_id, subject, request, InstallReply, timeout)
        except (NodePending, NodeGone):
            raise
        except NodeUnreachable:
            if not may_not_listen_yet((await self._contacts.of(node_id)).joined_at, self._clock.now()):
                await self._mark_silent(node_id)
            raise
        return reply

    async def upgrade(self, node_id: NodeId, request: UpgradeRequest, *, timeout: timedelta) -> list[str]:
        """Replace a backend; returns the processes that ended for it. Nobody listens: the worker is older than that."""
        subject = subjects.backend_upgrade(node_id)
        _, reply = await self._ask(node_id, subject, request, ChangeReply, timeout)
        return _changed(node_id, reply)

    async def delete(self, node_id: NodeId, request: DeleteRequest, *, timeout: timedelta) -> list[str]:
        """Remove a backend; returns the processes that ended for it."""
        subject = subjects.backend_delete(node_id)
        _, reply = await self._needed(node_id, subject, request, ChangeReply, timeout)
        return _changed(node_id, reply)

    async def delete_model(self, node_id: NodeId, model: str, *, timeout: timedelta) -> None:
        """Remove what the node has of a model's files; nothing there is as good."""
        request = ModelDeleteRequest(model_name=model)
        _, outcome = await self._needed(node_id, subjects.model_delete(node_id), request, ModelCommandReply, timeout)
        if not outcome.success:
            raise NodeRefused(outcome.error or "the node did not say why", node_id=node_id)

    async def running(self, node_id: NodeId) -> list[ReportedProcess]:
        """Return the node's own report of its processes. A node that nobody answers for counts as unhealthy, unless it
        only is too old for this question: then NodeTooOld."""
        subject, question = subjects.models_running(node_id), msgspec.Raw(b"{}")
        try:
            contact, reply = await self._ask(node_id, subject, question, RunningReply, RUNNING_WITHIN)
        except (NodePending, NodeGone):
            raise
        except NodeUnreachable as error:
            if await self._is_there(node_id):
                raise NodeTooOld("its worker is too old to say what runs there", node_id=node_id) from error
            await self._mark_silent(node_id)
            raise
        return _processes(node_id, contact, reply)

    async def _is_there(self, node_id: NodeId) -> bool:
        """Whether anybody listens on a subject that workers of all versions have."""
        try:
            await self._ask(node_id, subjects.backend_list(node_id), msgspec.Raw(b"{}"), ListReply, _THERE_WITHIN)
        except NodeUnreachable:
            return False
        except (NodeBusy, NodeRefused):
            return True
        return True

    async def glimpse(self, node_id: NodeId) -> list[ReportedProcess]:
        """Return the node's report of its processes, for background checks: no answer does not make it unhealthy."""
        subject = subjects.models_running(node_id)
        contact, reply = await self._ask(node_id, subject, msgspec.Raw(b"{}"), RunningReply, RUNNING_WITHIN)
        return _processes(node_id, contact, reply)

    async def backends(self, node_id: NodeId) -> list[InstalledBackend]:
        """What is on the node's disk."""
        subject = subjects.backend_list(node_id)
        _, reply = await self._needed(node_id, subject, msgspec.Raw(b"{}"), ListReply, LIST_WITHIN)
        return _listed(node_id, reply)

    async def glimpse_backends(self, node_id: NodeId, *, within: timedelta = LIST_WITHIN) -> list[InstalledBackend]:
        """Return the backends on the node's disk, for background checks: no answer does not make it unhealthy."""
        subject = subjects.backend_list(node_id)
        _, reply = await self._ask(node_id, subject, msgspec.Raw(b"{}"), ListReply, within)
        return _listed(node_id, reply)

    async def stop(self, node_id: NodeId, process_key: str) -> bool:
        """Ask for the end of exactly this process. False: it could not be said; nothing ever answers it."""
        try:
            await self._contacts.of(node_id)
            request = msgspec.json.encode(StopRequest(backend=process_key, force=False))
            await self._bus.publish(subjects.backend_stop(node_id), request)
        except (BusUnavailable, NodeUnreachable) as error:
            log.info("a process was not stopped: %s", error, extra={"event": "replica.stop_unsent", "node": node_id})
            return False
        return True

    async def stop_exactly(self, node_id: NodeId, process: StoppedProcess) -> bool:
        """End this process and none that took its place; whether the node says that it is gone.

        Workers that are too old for the question do not answer it, and others need longer than the caller waits.
        """
        request = ModelStopRequest(
            model_name=process.model,
            process_key=process.process_key,
            expected_address=f"127.0.0.1:{process.port}",
            config_revision=process.revision,
        )
        try:
            _, reply = await self._ask(node_id, subjects.model_stop(node_id), request, ModelStopReply, STOP_WITHIN)
        except (BusUnavailable, NodeUnreachable, NodeBusy, NodeRefused) as error:
            log.info("no exact stop: %s", error, extra={"event": "replica.stop_unanswered", "node": node_id})
            return False
        if not reply.terminated:
            details = {"event": "replica.stop_refused", "node": node_id, "key": process.process_key}
            log.info("a process was not stopped: %s", reply.error[:_SHOWN], extra=details)
        return reply.terminated

    async def _needed(
        self, node_id: NodeId, subject: str, request: object, answer: type[T], timeout: timedelta
    ) -> tuple[NodeContact, T]:
        """Ask for something that somebody waits for: a node that does not respond counts as unhealthy."""
        try:
            return await self._ask(node_id, subject, request, answer, timeout)
        except (NodePending, NodeGone):
            raise
        except NodeUnreachable:
            await self._mark_silent(node_id)
            raise

    async def _mark_silent(self, node_id: NodeId) -> None:
        if self._may_still_reconnect():
            return
        await self._marks.store((node_id, self._clock.now()))

    async def _mark(self, silent: Sequence[tuple[NodeId, datetime]]) -> Sequence[None]:
        """Mark nodes as of the first silence: writing may take a while, and nodes that were heard meanwhile are
        present."""
        ids = sorted({id for id, _ in silent})
        if await self._nodes.mark_no_responders(ids, at=min(at for _, at in silent)):
            self._health.ring()
        return [None] * len(silent)

    async def _ask(
        self, node_id: NodeId, subject: str, request: object, answer: type[T], timeout: timedelta
    ) -> tuple[NodeContact, T]:
        """What the node answers, and who it was when it was asked."""
        contact = await self._contacts.of(node_id)
        try:
            content = await self._bus.request(subject, msgspec.json.encode(request), timeout=timeout)
            if why := too_much(content):
                raise NodeRefused(f"the node's answer is not read: {why}", node_id=node_id)
            return contact, go_json.decode(content, answer)
        except NoResponders as error:
            raise NodeUnreachable("the node does not respond on NATS", node_id=node_id) from error
        except BusTimeout as error:
            raise NodeBusy(f"no answer within {timeout.total_seconds():.0f} s", node_id=node_id) from error
        except InvalidInput as error:
            raise NodeRefused(f"the node answers what nobody understands: {error}", node_id=node_id) from error


def too_much(content: bytes) -> str:
    """Why this content must not be parsed, judged by its bytes alone; empty when it may be."""
    if len(content) > MOST_BYTES:
        return f"it has {len(content)} bytes, and {MOST_BYTES} are the most"
    if (objects := content.count(b"{")) > MOST_OBJECTS:
        return f"it has {objects} JSON objects, and {MOST_OBJECTS} are the most"
    return ""


def _listed(node_id: NodeId, reply: ListReply) -> list[InstalledBackend]:
    if reply.error:
        raise NodeRefused(reply.error, node_id=node_id)
    return reply.backends or []


def _changed(node_id: NodeId, reply: ChangeReply) -> list[str]:
    stopped = reply.stopped_process_keys
    if not reply.success:
        raise NodeRefused(reply.error or "the node did not say why", node_id=node_id, stopped=stopped)
    return stopped


def _foreign(node_id: NodeId, contact: NodeContact, address: str) -> NodeRefused:
    address = address[:_SHOWN]
    log.warning(
        "an answer names an address that is not on the node's registered host",
        extra={"event": "node.foreign_address", "node": node_id, "node_name": contact.name, "told": address},
    )
    return NodeRefused(
        f"the answer names {address!r}, which is not on the host of the address {contact.address} that the node "
        "registered; if it moved, register it again",
        node_id=node_id,
    )


def _processes(node_id: NodeId, contact: NodeContact, reply: RunningReply) -> list[ReportedProcess]:
    """One address on another host makes the whole report worthless: it was not the node that sent it."""
    if reply.error:
        raise NodeRefused(reply.error, node_id=node_id)
    processes = []
    for model in reply.models:
        if model.address and not contact.has_own_address(model.address):
            raise _foreign(node_id, contact, model.address)
        process = ReportedProcess(model=model.model_id, index=model.replica_index, address=model.address)
        if model.corral is not UNSET:
            process = replace(process, **_reach(node_id, contact, model.corral)._asdict())
        processes.append(process)
    return processes


def _reach(node_id: NodeId, contact: NodeContact, access: ReplicaAccess) -> Reach:
    """How requests reach a process, as its node tells it. A URL on another host is refused."""
    if access.url and not contact.has_url(access.url):
        raise _foreign(node_id, contact, access.url)
    routes = None if access.routes is None else tuple(sorted(known_routes(access.routes)))
    front_port = access.front_port if 0 < access.front_port < 2**16 else 0
    if not _TOKEN.fullmatch(access.token):
        raise NodeRefused("the answer names a token for gRPC that cannot be one", node_id=node_id)
    return Reach(url=access.url, key=access.key, routes=routes, front_port=front_port, token=access.token)
