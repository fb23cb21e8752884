"""The steps of a load on one node: have the backend there, bring the files, tell the backend to load.

`within_bound` ends a step that takes too long, `LoadMeter` counts what steps cost.
"""

from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime, timedelta
from pathlib import PurePath
from typing import Any, Final, Protocol, TypeVar

import msgspec
from msgspec.structs import replace
from msgspec.structs import replace as replace_struct

from corral.base.clock import Clock
from corral.base.errors import Conflict, CorralError
from corral.base.ids import LoadJobId
from corral.base.tasks import first_done
from corral.base.tls import TlsPeer
from corral.base.words import format_duration
from corral.frontend.backends.decide.backend import artefact_of, wish_of
from corral.frontend.backends.operations import BackendOperations
from corral.frontend.backends.planning import Ask
from corral.frontend.backends.policies import BackendPolicies
from corral.frontend.models.catalogue import Models
from corral.frontend.models.decide.keys import request_rules
from corral.frontend.models.decide.model import ModelSpec, load_options, threads_of, weights_path, with_answer_limit
from corral.frontend.models.decide.uses import takes_grammars, takes_no_media
from corral.frontend.nodes.client import NodeClient, StartedBackend
from corral.frontend.nodes.contacts import NodeDoors, NodeTokens
from corral.frontend.nodes.decide.node import Node
from corral.frontend.nodes.decide.reports import with_host
from corral.frontend.operations.decide.intent import IntentKind, Verb
from corral.frontend.operations.store.intents import Intents
from corral.frontend.serving.decide.load_job import LoadNeed, LoadPolicy, LoadStepName, StepBound, needed_by_load
from corral.frontend.serving.decide.replica import Replica
from corral.frontend.serving.staging.decide.paths import moved, without_paths
from corral.frontend.serving.staging.service import Staging, StagingWatch
from corral.galleries.build_uris import BackendRef
from corral.rpc.backend import Backend
from corral.rpc.messages import ModelOptions
from corral.wire.adapter import AdapterModel
from corral.wire.backends import CorralInstall, InstallRequest
from corral.wire.confinement import ConfinementWish
from corral.wire.metrics import HistogramCounts
from corral.wire.registration import Feature

_BY: Final = "control"
_MEANWHILE: Final = timedelta(minutes=1)
"""The load itself installs the backend; so long nobody else does."""


class BackendLoader(Protocol):
    """Sends a backend the order to load a model."""

    async def load(
        self, address: str, *, token: str, options: ModelOptions, timeout: timedelta, tls: TlsPeer | None
    ) -> None:
        """Dial the address, or with `tls` the door in front of it. `rpc.errors.BackendError` when it does not."""


class GrpcLoader:
    """A channel for every call: loads are rare."""

    async def load(
        self, address: str, *, token: str, options: ModelOptions, timeout: timedelta, tls: TlsPeer | None
    ) -> None:
        async with Backend(address, token=token, tls=tls) as backend:
            await backend.load(options, timeout=timeout)


def adapter_model(spec: ModelSpec, *, file: str, threads: int) -> AdapterModel:
    """How an adapter translates requests for this model, whose weights are in this file on the node, if in any."""
    rules = request_rules(spec.config)
    about = {"name": spec.name, "identity": spec.model, "file": file}
    takes = {"takes_grammars": takes_grammars(spec.backend), "takes_no_media": takes_no_media(spec.config)}
    model = msgspec.convert({**about, **takes, **rules}, AdapterModel)
    return replace_struct(model, defaults=replace_struct(model.defaults, threads=threads_of(spec.config, threads)))


def visible_cards(replica: Replica, node: Node) -> list[str]:
    """The GPUs that the process of a replica may see: its own, or where none were chosen, all that are in service."""
    return list(replica.cards) or [card.id for card in node.cards if not card.is_out]


class UsualLimits(msgspec.Struct, frozen=True, kw_only=True):
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
        staging: Staging,
        *,
        doors: NodeDoors,
        usual: UsualLimits,
        policies: BackendPolicies,
    ) -> None:
        self._nodes = nodes
        self._models = models
        self._tokens = tokens
        self._backends = backends
        self._intents = intents
        self._operations = operations
        self._staging = staging
        self._doors = doors
        self._usual = usual
        self._policies = policies

    async def install(  # noqa: PLR0913 - what is loaded where, and for whom
        self,
        replica: Replica,
        node: Node,
        spec: ModelSpec,
        *,
        timeout: timedelta,
        job: LoadJobId,
        now: datetime,
        models: PurePath | None = None,
    ) -> StartedBackend:
        """Have a process of the model's backend on the node. Doing this again for the same place finds the same one.

        The node reports how far it is under the id of the job. `models` is its models directory, if that is known.
        """
        request = InstallRequest(
            backend=await self._operations.name_for(spec.backend, node),
            model_id=spec.name,
            # A worker that lacks the backend fetches it, and its own galleries may not have it.
            backend_galleries=await self._operations.galleries_for(spec.backend, node),
            replica_index=replica.index,
            op_id=job,
        )
        features = frozenset[str]() if node.peer is None else node.peer.features
        corral = CorralInstall(own_token=Feature.REPLICA_TOKENS in features)
        if Feature.ADAPTER in features:
            file = self._file_of(spec, models)
            limited = with_answer_limit(spec, self._usual.most_tokens)
            corral.model = adapter_model(limited, file=file, threads=self._usual.threads)
        if Feature.CARDS in features and node.cards:
            corral.cards = visible_cards(replica, node)
        if Feature.CONFINEMENT in features and (wish := await self._policies.wish(spec.backend)) != ConfinementWish():
            corral.confinement = wish
        if corral != CorralInstall():
            request.corral = corral
        await self._admit(node, spec, now)  # last: a delete that is accepted later sees that this is asked for
        return await self._nodes.start(node.id, request, timeout=timeout)

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

    async def stage(self, node: Node, spec: ModelSpec, watch: StagingWatch) -> PurePath | None:
        """Have the model's files on the node; returns what is the models directory there for this model, if files of it
        are there at all."""
        return await self._staging.bring(spec.name, self._options(spec), node.id, watch)

    def size_of(self, spec: ModelSpec) -> int:
        """Bytes of its weights; 0 when nobody has seen them."""
        return self._models.size_of(spec)

    def needs_telling(self, installed: StartedBackend, spec: ModelSpec, models: PurePath | None) -> bool:
        """Whether an adapter has another path of the model's file than the node."""
        is_told = bool(installed.url) and not installed.is_asked_directly
        return is_told and self._file_of(spec, models) != self._models.file_of(spec)

    def _file_of(self, spec: ModelSpec, models: PurePath | None) -> str:
        """Where the weights are on the node; before that is known, where they are here."""
        path = weights_path(spec)
        return str(models / path) if models is not None and path else self._models.file_of(spec)

    def _options(self, spec: ModelSpec, *, is_asked_directly: bool = False) -> dict[str, object]:
        return load_options(
            with_answer_limit(spec, self._usual.most_tokens),
            models=self._staging.models,
            threads=self._usual.threads,
            is_asked_directly=is_asked_directly,
        )

    async def load(  # noqa: PLR0913 - what is loaded where
        self,
        replica: Replica,
        node: Node,
        spec: ModelSpec,
        installed: StartedBackend,
        *,
        models: PurePath | None,
        policy: LoadPolicy,
        clock: Clock,
    ) -> Replica:
        """Tell the process to load the model; the replica as it is when it serves."""
        address = installed.address or with_host(node.address)
        fields = self._options(spec, is_asked_directly=installed.is_asked_directly)
        if models is not None:
            fields = moved(fields, self._staging.models, models)
        elif not await self._staging.has_files(fields):
            fields = without_paths(fields, self._staging.models)
        await self._backends.load(
            address,
            token=installed.token or await self._tokens.of(node.id),
            options=ModelOptions(**fields),  # type: ignore[arg-type]
            timeout=policy.load_time(self._models.size_of(spec)),
            tls=await self._doors.replica(node.id, address),
        )
        return replace(
            replica,
            address=address,
            url=installed.url,
            key=installed.key,
            routes=installed.routes,
            front_port=installed.front_port,
            token=installed.token,
            models_path="" if models is None else str(models),
            changed_at=clock.now(),
        )

    async def stop(self, replica: Replica) -> None:
        """End what may be left of a load that failed."""
        await self._nodes.stop(replica.node_id, replica.process_key)


STEP_BOUNDS: Final = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0)
"""Bounds of the histogram of a step's duration, in seconds."""


class LoadMeter:
    """Counts since the start of the process."""

    def __init__(self) -> None:
        self.steps = {step: HistogramCounts() for step in LoadStepName}
        """Seconds that each step took, of loads that succeeded at this frontend."""
        self.staged_bytes = 0
        self.staging_seconds = 0.0

    def loaded(self, seconds: Mapping[str, float]) -> None:
        """A load succeeded, and its steps took so long."""
        for name, took in seconds.items():
            self.steps[LoadStepName(name)].add(took, STEP_BOUNDS)

    def staged(self, count: int, seconds: float) -> None:
        """So many bytes were sent to a node in so many seconds; also when the staging failed later."""
        self.staged_bytes += count
        self.staging_seconds += seconds


T = TypeVar("T")
_LOOK_SECONDS: Final = 1.0


class StepTimedOut(CorralError):
    """A step of a load took too long, or did not move."""

    code = "step_timed_out"
    retryable = True


async def within_bound(
    step_name: str, work: Coroutine[Any, Any, T], *, moved: Callable[[], object], bound: StepBound, clock: Clock
) -> T:
    """The result of the work, which is cancelled when it takes too long: then StepTimedOut says how long nothing moved.

    `moved` returns another value whenever something has moved since.
    """
    results: list[T] = []
    began = moved_at = clock.monotonic()

    async def run() -> None:
        results.append(await work)

    async def watch() -> None:
        nonlocal moved_at
        last = moved()
        while (now := clock.monotonic()) < (end := bound.ends_at(began, moved_at)):
            await clock.sleep(min(_LOOK_SECONDS, end - now))
            if (latest := moved()) != last:
                last, moved_at = latest, clock.monotonic()

    if await first_done(run(), watch()) == 0:
        return results[0]
    now = clock.monotonic()
    took, still = timedelta(seconds=now - began), timedelta(seconds=now - moved_at)
    raise StepTimedOut(
        f"{step_name} was given up after {format_duration(took)}: nothing moved for {format_duration(still)}"
    )
