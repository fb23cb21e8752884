"""Loading a model: the work on a load job, from choosing a node to telling the backend there to load."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace as replace_struct

from corral.base.clock import Clock
from corral.base.errors import Conflict, CorralError
from corral.base.ids import LeaseToken, LoadJobId, NodeId, OperationId, new_replica_id
from corral.frontend.backends.decide.backend import artefact_of, wish_of
from corral.frontend.backends.operations import BackendOperations
from corral.frontend.backends.planning import Ask
from corral.frontend.models.catalogue import Models
from corral.frontend.models.decide.keys import request_rules
from corral.frontend.models.decide.model import ModelSpec, load_options, threads_of, with_answer_limit
from corral.frontend.nodes.client import (
    NodeBusy,
    NodeClient,
    NodeLogs,
    NodeRefused,
    NodeTokens,
    NodeUnreachable,
    StartedBackend,
)
from corral.frontend.nodes.decide.node import Node
from corral.frontend.nodes.fleet import Fleet
from corral.frontend.nodes.store.nodes import Nodes
from corral.frontend.operations.decide.intent import IntentKind, Verb
from corral.frontend.operations.progress import ProgressBoard
from corral.frontend.operations.store.intents import Intents
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.feed import Feed
from corral.frontend.serving.decide.load_job import LoadJob, LoadNeed, LoadPolicy, LoadState, needed_by_load
from corral.frontend.serving.decide.placement import CandidateNode, Placement, PlacementRefusal, PlacementRequest, place
from corral.frontend.serving.decide.replica import LIVE, Replica, ReplicaState
from corral.frontend.serving.store.load_jobs import LoadJobs
from corral.frontend.serving.store.replicas import ReplicaStore
from corral.galleries.build_uris import BackendRef
from corral.rpc.backend import Backend
from corral.rpc.errors import BackendBusy, BackendError, LoadFailed
from corral.rpc.messages import ModelOptions
from corral.wire.adapter import AdapterModel
from corral.wire.backends import CorralInstall, InstallRequest
from corral.wire.models import LoadReason
from corral.wire.registration import Feature

log = logging.getLogger(__name__)

INSTALLING: Final = "installing"
_BY: Final = "control"
_MEANWHILE: Final = timedelta(minutes=1)
"""The load itself installs the backend; so long nobody else does."""


async def choose_node(request: PlacementRequest, fleet: Fleet, replicas: ReplicaStore) -> Placement | PlacementRefusal:
    """Where the model goes, by what is stored now. Nothing is reserved."""
    living = await replicas.living()
    candidates = [
        CandidateNode(
            node=seen.node,
            status=seen.status,
            replicas=tuple(replica for replica in living if replica.node_id == seen.node.id),
        )
        for seen in await fleet.all()
    ]
    return place(request, candidates)


class BackendLoader(Protocol):
    """How a backend is told what to load."""

    async def load(self, address: str, *, token: str, options: ModelOptions, timeout: timedelta) -> None:
        """`rpc.errors.BackendError` when it does not."""


class GrpcLoader:
    """A channel for every call: loads are rare."""

    async def load(self, address: str, *, token: str, options: ModelOptions, timeout: timedelta) -> None:
        async with Backend(address, token=token) as backend:
            await backend.load(options, timeout=timeout)


def adapter_model(spec: ModelSpec, *, file: str, threads: int) -> AdapterModel:
    """How an adapter translates requests for this model, whose weights are in this file on the node, if in any."""
    rules = request_rules(spec.config)
    model = msgspec.convert({"name": spec.name, "identity": spec.model, "file": file, **rules}, AdapterModel)
    return replace_struct(model, defaults=replace_struct(model.defaults, threads=threads_of(spec.config, threads)))


_REASONS: Final[Sequence[tuple[type[CorralError], LoadReason]]] = (
    (Conflict, LoadReason.BEING_REMOVED),
    (NodeRefused, LoadReason.ENGINE_NOT_STARTED),
    (NodeUnreachable, LoadReason.MACHINE_AWAY),
    (NodeBusy, LoadReason.TIMED_OUT),
    (LoadFailed, LoadReason.REFUSED_BY_ENGINE),
    (BackendBusy, LoadReason.TIMED_OUT),
    (BackendError, LoadReason.ENGINE_ENDED),
)


def reason_of(error: CorralError) -> LoadReason:
    """Why a load failed, in a word that every client may read."""
    return next((reason for kind, reason in _REASONS if isinstance(error, kind)), LoadReason.OTHER)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsualLimits:
    """What models get whose configuration does not say it."""

    threads: int
    most_tokens: int
    """The limit of an answer, for requests that do not say it either; 0 is without limit."""


class ModelLoader:
    """Has a node load a model. Stores nothing."""

    def __init__(  # noqa: PLR0913 - each is a collaborator
        self,
        nodes: NodeClient,
        models: Models,
        tokens: NodeTokens,
        backends: BackendLoader,
        intents: Intents,
        operations: BackendOperations,
        *,
        usual: UsualLimits,
    ) -> None:
        self._nodes = nodes
        self._models = models
        self._tokens = tokens
        self._backends = backends
        self._intents = intents
        self._operations = operations
        self._usual = usual

    async def install(
        self, replica: Replica, node: Node, spec: ModelSpec, *, timeout: timedelta, job: LoadJobId, now: datetime
    ) -> StartedBackend:
        """Have a process of the model's backend on the node. Doing this again for the same place finds the same one.

        The node reports how far it is under the id of the job.
        """
        await self._admit(node, spec, now)
        request = InstallRequest(backend=spec.backend, model_id=spec.name, replica_index=replica.index, op_id=job)
        if node.peer is not None and Feature.ADAPTER in node.peer.features:
            file = self._models.file_of(spec)
            limited = with_answer_limit(spec, self._usual.most_tokens)
            request.corral = CorralInstall(model=adapter_model(limited, file=file, threads=self._usual.threads))
        return await self._nodes.install(node.id, request, timeout=timeout)

    async def _admit(self, node: Node, spec: ModelSpec, now: datetime) -> None:
        """Conflict when the backend, or what the node has of the model, is about to be deleted there.

        A backend that was deleted is wanted again from now on.
        """
        for intent in await self._intents.of_node(node.id):
            is_model = intent.kind is IntentKind.MODEL
            if not (intent.subject == spec.name if is_model else spec.backend in wish_of(intent).names):
                continue
            match needed_by_load(intent, since=self._models.time_of(spec), now=now):
                case LoadNeed.REFUSED:
                    name = intent.subject if is_model else artefact_of(intent.payload).backend
                    raise Conflict(f"{name} is about to be deleted there")
                case LoadNeed.REPLACE:
                    ref = BackendRef(backend=spec.backend)
                    ask = Ask(verb=Verb.INSTALL, ref=ref, nodes=(node.id,), by=_BY, delay=_MEANWHILE)
                    await self._operations.start(ask)
                case LoadNeed.FREE:
                    pass

    async def load(
        self,
        replica: Replica,
        node: Node,
        spec: ModelSpec,
        installed: StartedBackend,
        *,
        policy: LoadPolicy,
        clock: Clock,
    ) -> Replica:
        """Tell the process to load the model; the replica as it is when it serves."""
        address = installed.address or node.address
        fields = load_options(
            with_answer_limit(spec, self._usual.most_tokens),
            models=self._models.directory.absolute(),
            threads=self._usual.threads,
            is_asked_directly=installed.is_asked_directly,
        )
        await self._backends.load(
            address,
            token=await self._tokens.of(node.id),
            options=ModelOptions(**fields),  # type: ignore[arg-type]
            timeout=policy.load_time(self._models.size_of(spec)),
        )
        return replace(
            replica,
            address=address,
            url=installed.url,
            key=installed.key,
            routes=installed.routes,
            front_port=installed.front_port,
            changed_at=clock.now(),
        )

    async def stop(self, replica: Replica) -> None:
        """End what may be left of a load that failed."""
        await self._nodes.stop(replica.node_id, replica.process_key)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadStores:
    jobs: LoadJobs
    replicas: ReplicaStore
    nodes: Nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldJob:
    """A job that this process holds the lease of."""

    job: LoadJob
    token: LeaseToken
    spec: ModelSpec


class LoadWork:
    """Works on a job that this process holds: places the model, reserves the place, installs and loads."""

    def __init__(  # noqa: PLR0913 - each is a collaborator
        self,
        stores: LoadStores,
        models: Models,
        fleet: Fleet,
        loader: ModelLoader,
        feed: Feed,
        clock: Clock,
        *,
        policy: LoadPolicy,
        board: ProgressBoard,
        logs: NodeLogs,
    ) -> None:
        self._stores = stores
        self._models = models
        self._fleet = fleet
        self._loader = loader
        self._feed = feed
        self._clock = clock
        self._policy = policy
        self._board = board
        self._logs = logs
        self.phases: dict[str, str] = {}
        """What is being done, by the models that this process works on."""

    async def bring_up(self, held: HeldJob) -> None:
        """Try node after node, until one serves or it makes no sense to go on."""
        tried: dict[NodeId, str] = {}
        for _ in range(self._policy.attempts):
            placed = await self.place(held, tried)
            if placed is None:
                return
            replica, node = placed
            try:
                if replica.state is not ReplicaState.LOADING and not await self._stores.jobs.begin(
                    held.job, held.token, replica, at=self._clock.now()
                ):
                    return
                loaded = await self._load(held, replica, node)
            except CorralError as error:
                tried[node.id] = f"{node.name}: {error.message}"
                lines = await self._failed_on(held, replica, error)
                held = replace(held, job=replace(held.job, reason=reason_of(error), engine_lines=lines))
                if isinstance(error, LoadFailed):
                    break
            else:
                await self._finish(held, loaded, node)
                return
        await self._give_up(held, "; ".join(tried.values()))

    async def _load(self, held: HeldJob, replica: Replica, node: Node) -> Replica:
        self.phases[held.job.model] = INSTALLING
        policy, now = self._policy, self._clock.now()
        async with self._board.followed(OperationId(held.job.id)):
            installed = await self._loader.install(
                replica, node, held.spec, timeout=policy.install, job=held.job.id, now=now
            )
        self.phases[held.job.model] = ReplicaState.LOADING
        return await self._loader.load(replica, node, held.spec, installed, policy=policy, clock=self._clock)

    async def place(self, held: HeldJob, tried: Mapping[NodeId, str]) -> tuple[Replica, Node] | None:
        """A reserved place; None when the job was given back or lost."""
        if not tried and (taken_over := await self._taken_over(held)) is not None:
            return taken_over
        request = PlacementRequest(
            model=held.job.model,
            size_bytes=self._models.size_of(held.spec),
            exclude=frozenset(tried),
            prefer=held.job.preferred_node_id,
        )
        for _ in range(self._policy.attempts):
            choice = await choose_node(request, self._fleet, self._stores.replicas)
            if isinstance(choice, PlacementRefusal):
                if tried:
                    await self._give_up(held, "; ".join(tried.values()))
                else:
                    await self._wait(held, choice)
                return None
            replica = self._reservation(held, choice)
            if await self._stores.jobs.reserve(held.job, held.token, replica):
                return replica, choice.node
        await self._wait(held, PlacementRefusal(reasons={"the fleet": "changes faster than a place can be reserved"}))
        return None

    async def _taken_over(self, held: HeldJob) -> tuple[Replica, Node] | None:
        """The place that whoever held the job before had reserved, if it is still there."""
        if held.job.replica_id is None:
            return None
        replica = await self._stores.replicas.get(held.job.replica_id)
        node = None if replica is None else await self._stores.nodes.get(replica.node_id)
        if replica is None or node is None or replica.state not in LIVE:
            return None
        return replica, node

    def _reservation(self, held: HeldJob, choice: Placement) -> Replica:
        now = self._clock.now()
        return Replica(
            id=new_replica_id(),
            node_id=choice.node.id,
            model=held.spec.name,
            index=choice.index,
            revision=held.spec.revision,
            backend=held.spec.backend,
            state=ReplicaState.RESERVED,
            created_at=now,
            changed_at=now,
        )

    async def _failed_on(self, held: HeldJob, replica: Replica, error: CorralError) -> tuple[str, ...]:
        """Give the place up; returns what the engine wrote last, if it ran at all."""
        shown = {"event": "load.failed_on_node", "model": held.job.model, "node": replica.node_id}
        log.warning("a load failed: %s", error, extra=shown)
        await self._loader.stop(replica)
        failed = replace(replica, reason=error.message)
        await self._stores.jobs.abandon(held.job, held.token, failed, at=self._clock.now())
        if not isinstance(error, BackendError):
            return ()
        return await self._logs.last_errors(replica.node_id, replica.process_key)

    async def _finish(self, held: HeldJob, replica: Replica, node: Node) -> None:
        data = {"model": replica.model, "replica": replica.id, "node": node.name, "backend": replica.backend}
        event = Event(kind=EventKind.MODEL_LOADED, at=replica.changed_at, actor=_BY, node_id=node.id, data=data)
        if await self._stores.jobs.finish(held.job, held.token, replica, events=[event]):
            log.info("model loaded", extra={"event": "model.loaded", "model": replica.model, "node": node.name})
            await self._feed.announce()

    async def _wait(self, held: HeldJob, refusal: PlacementRefusal) -> None:
        """No node can take it now: look again soon."""
        now = self._clock.now()
        waiting = replace(
            held.job,
            state=LoadState.PENDING,
            message=refusal.message,
            reason=LoadReason.NO_PLACE,
            engine_lines=(),
            retry_at=now + self._policy.look_again,
            replica_id=None,
        )
        await self._stores.jobs.give_back(waiting, held.token, at=now, events=[])

    async def _give_up(self, held: HeldJob, why: str) -> None:
        now = self._clock.now()
        failures = held.job.failures + 1
        failed = replace(
            held.job,
            state=LoadState.FAILED,
            message=why,
            failures=failures,
            retry_at=now + self._policy.cooldown.steady(failures),
            replica_id=None,
        )
        data = {"model": held.job.model, "why": why, "failures": failures}
        event = Event(kind=EventKind.MODEL_LOAD_FAILED, at=now, actor=_BY, data=data)
        if await self._stores.jobs.give_back(failed, held.token, at=now, events=[event]):
            log.warning("model not loaded: %s", why, extra={"event": "model.load_failed", "model": held.job.model})
            await self._feed.announce()
