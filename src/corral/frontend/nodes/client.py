"""How a node is asked: typed calls over NATS, and its HTTP server for what backends have printed. Every call has a
deadline, and every way to fail has a name.

NodeUnreachable  nobody answers for the node; it counts as unhealthy until it is heard again
NodePending      nobody approved the node, so it is not contacted at all
NodeBusy         no answer in time: the node may still be working
NodeRefused      the node says why not, or its answer cannot be accepted
NodeTooOld       the node is there, and its worker is older than the question
"""

import asyncio
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Final, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from corral.base.clock import Clock
from corral.base.errors import BusTimeout, BusUnavailable, CorralError, InvalidInput, NoResponders
from corral.base.http_client import HttpFailed, asked, open_session, read_body
from corral.base.ids import NodeId
from corral.base.queues import Batches
from corral.base.tasks import Poke
from corral.base.values import PartlyPrinted
from corral.bus.port import Bus
from corral.frontend.nodes.decide.node import Node, may_not_listen_yet
from corral.frontend.nodes.decide.reports import NodeContact, Reach, ReportedProcess, contact_of
from corral.frontend.nodes.doors import NodeDoors
from corral.frontend.nodes.store.nodes import Nodes
from corral.frontend.store.secrets import Secrets, node_secret_name
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
from corral.wire.nodes import LogLine
from corral.wire.replicas import ReplicaAccess, RunningReply, StopRequest

log = logging.getLogger(__name__)

RUNNING_WITHIN: Final = timedelta(seconds=10)
STOP_WITHIN: Final = timedelta(seconds=10)
"""Workers give a process up to twenty seconds to free its model and end. A caller that wants to wait for that asks
again."""
LIST_WITHIN: Final = timedelta(seconds=30)
_THERE_WITHIN: Final = timedelta(seconds=5)
MOST_BYTES: Final = 1024 * 1024
"""A node sends no more at once: the limit of a NATS server with default settings."""
MOST_OBJECTS: Final = 4000
"""JSON objects in it. A megabyte of empty ones would take seconds to parse; a backend or a process is one or two."""

_SHOWN: Final = 200
_TOKEN: Final = re.compile(r"[!-~]{0,256}")
"""What a header can carry; a node reports the tokens of its processes."""
_LOGS_WITHIN: Final = timedelta(seconds=15)
_MOST_LOG_BYTES: Final = 16 * 1024 * 1024
"""The largest answer that is read: a worker keeps a thousand lines of each process."""
_ERRORS_WITHIN: Final = timedelta(seconds=5)
"""Another node is tried only after the lines of this one are there."""
_MOST_ERRORS: Final = 15
_LONGEST_ERROR: Final = 500
_CONTACT_KEPT_SECONDS: Final = 3.0
"""An operation on a thousand nodes takes less, so it reads each contact once."""

T = TypeVar("T", bound=msgspec.Struct)


class NodeUnreachable(CorralError):
    """Nobody answers for the node."""

    code = "node_unreachable"
    retryable = True


class NodeGone(NodeUnreachable):
    """The fleet has no such node."""

    code = "node_gone"


class NodePending(NodeUnreachable):
    """The node waits for a person's approval, and is not contacted before."""

    code = "node_pending"


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
        super().__init__(message, node_id=node_id)


class NodeTooOld(CorralError):
    """The node is there, but its worker does not know the question. Only LocalAI's first ones are so old."""

    code = "node_too_old"


class WorkerUnreachable(CorralError):
    """The worker's HTTP server could not be asked."""

    code = "worker_unreachable"
    retryable = True


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


class NodeContacts:
    """Decides, for all code that dials nodes, whether a node may be contacted. Code that is about to dial a node asks
    here first.

    An operation asks several times for each of its nodes, so an answer is kept for three seconds. What this process
    changes counts at once; what another frontend changes, within that time.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._reads = Batches(self._read, spacing_seconds=0)
        self._cache: dict[NodeId, tuple[NodeContact, float]] = {}
        self._kept_since_writes = nodes.writes

    async def of(self, node_id: NodeId) -> NodeContact:
        """The node's registered addresses. NodePending while nobody approved it; NodeGone when there is none."""
        now = asyncio.get_running_loop().time()
        if self._kept_since_writes == self._nodes.writes:
            contact, read_at = self._cache.get(node_id, (None, 0.0))
            if contact is not None and now - read_at < _CONTACT_KEPT_SECONDS:
                return contact
        contact = await self._reads.store(node_id)
        if contact is None:
            raise NodeGone(node_id=node_id)
        if not contact.is_approved:
            raise NodePending(f"node {contact.name} waits for approval; until then it is not contacted")
        return contact

    async def load(self, ids: Iterable[NodeId]) -> dict[NodeId, Node]:
        """Return those of the nodes that exist, and keep their addresses for the calls that follow."""
        read_at, writes = asyncio.get_running_loop().time(), self._nodes.writes
        nodes = await self._nodes.load_many(ids)
        self._keep({id: contact_of(node) for id, node in nodes.items()}, read_at, writes)
        return nodes

    async def _read(self, ids: Sequence[NodeId]) -> list[NodeContact | None]:
        read_at, writes = asyncio.get_running_loop().time(), self._nodes.writes
        contacts = await self._nodes.contacts(ids)
        self._keep(contacts, read_at, writes)
        return [contacts.get(id) for id in ids]

    def _keep(self, contacts: Mapping[NodeId, NodeContact], read_at: float, writes: int) -> None:
        """Keep what was read then. What is kept from before other writes of this process is not believed any more."""
        if self._kept_since_writes != writes:
            self._cache.clear()
            self._kept_since_writes = writes
        self._cache.update((id, (contact, read_at)) for id, contact in contacts.items() if contact.is_approved)


class NodeTokens:
    """The bearer that a node's servers accept from control: the node's own secret, or the token that it joined with.

    Of a node without secret that registered before that was kept, it is taken for the shared one.
    """

    def __init__(self, secrets: Secrets, registration_token: str) -> None:
        self._secrets = secrets
        self._shared = registration_token

    async def of(self, node_id: NodeId) -> str:
        return await self._secrets.get(node_secret_name(node_id)) or self._shared


class NodeClient:
    def __init__(self, bus: Bus, nodes: Nodes, clock: Clock, *, contacts: NodeContacts, health: Poke) -> None:
        self._bus = bus
        self._nodes = nodes
        self._clock = clock
        self._contacts = contacts
        self._health = health
        self._marks = Batches(self._mark)

    async def can_confine(self, node_id: NodeId) -> bool:
        """Whether the node confines backends as an install request says. LocalAI's workers do not."""
        return (await self._contacts.of(node_id)).can_confine

    async def install(self, node_id: NodeId, request: InstallRequest, *, timeout: timedelta) -> StartedBackend:
        """Have a process of the backend; returns when it is ready. Asking again finds the same process. A node that has
        only just joined may not listen yet, and does not count as unhealthy for it."""
        reply = await self._install(node_id, request, timeout)
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


class WorkerAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker answered, without its headers: what a node calls its answer is nothing to go by."""

    status: int
    body: bytes


def log_path(model: str) -> str:
    """The path of a log on a worker's HTTP server. InvalidInput for a name that leads to another path there: clients of
    HTTP resolve it, however it is written."""
    if model in (".", ".."):
        raise InvalidInput("model", f"{model!r} is no name of a log; name one process, such as {model}#0")
    return f"/v1/backend-logs/{quote(model, safe='')}"


class NodeLogs:
    """What backends of a node have printed, fetched from the worker's own HTTP server when somebody asks for it."""

    def __init__(self, contacts: NodeContacts, tokens: NodeTokens, doors: NodeDoors) -> None:
        self._contacts = contacts
        self._tokens = tokens
        self._doors = doors

    async def names(self, node_id: NodeId) -> WorkerAnswer:
        """The names that have logs. Fails as `NodeContacts` does for a node that must not be contacted."""
        return await self._ask(node_id, "/v1/backend-logs")

    async def lines(self, node_id: NodeId, model: str) -> WorkerAnswer:
        """The lines of all replicas of a model, or of one replica when its process key is given."""
        return await self._ask(node_id, log_path(model))

    async def last_errors(self, node_id: NodeId, process_key: str) -> tuple[str, ...]:
        """What a process wrote to standard error last; empty when its worker cannot be asked."""
        try:
            async with asyncio.timeout(_ERRORS_WITHIN.total_seconds()):
                answer = await self._ask(node_id, log_path(process_key))
            lines = msgspec.json.decode(answer.body, type=list[LogLine]) if answer.status == HTTPStatus.OK else []
        except (CorralError, TimeoutError, msgspec.MsgspecError) as error:
            log.info("no last lines of %s: %s", process_key, error, extra={"event": "load.no_last_lines"})
            return ()
        errors = [line.text[:_LONGEST_ERROR] for line in lines if line.stream == "stderr" and line.text.strip()]
        return tuple(errors[-_MOST_ERRORS:])

    async def _ask(self, node_id: NodeId, path: str) -> WorkerAnswer:
        node = await self._contacts.of(node_id)
        if not node.http_address:
            raise WorkerUnreachable(f"failed to reach worker: {node.name} registered without an http_address")
        headers = {"Authorization": f"Bearer {await self._tokens.of(node_id)}"}
        try:
            url, tls = self._doors.url(node_id, node, path)
            async with (
                open_session(timeout=_LOGS_WITHIN, connect_timeout=_LOGS_WITHIN) as session,
                asked(session, "GET", url, headers=headers, tls=tls) as answer,
            ):
                return WorkerAnswer(status=answer.status, body=await read_body(answer, _MOST_LOG_BYTES))
        except (HttpFailed, ValueError) as error:
            reason = error.reason if isinstance(error, HttpFailed) else str(error)
            raise WorkerUnreachable(f"failed to reach worker: http://{node.http_address}{path}: {reason}") from error
