"""Staging a model: its files are brought to nodes, and nothing is loaded. An operation with one target for each node.

A frontend does the work itself. What it brought stays when it dies, and whoever goes on sends only the rest; the
digests that the nodes tell are the proof.
"""

import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final, Protocol

import msgspec

from corral.base.clock import Clock
from corral.base.errors import Conflict, CorralError, InvalidInput, NotFound
from corral.base.ids import NodeId, OperationId, new_operation_id
from corral.base.tasks import Poke, first_done, running
from corral.files.file_peer import FilePeerAway
from corral.frontend.models.catalogue import Models
from corral.frontend.models.decide.model import ModelSpec
from corral.frontend.nodes.client import NodeRefused
from corral.frontend.nodes.contacts import NodeUnreachable
from corral.frontend.nodes.decide.node import Node, NodeStatus, NodeType, SeenNode
from corral.frontend.nodes.fleet import Fleet, NodeFilter
from corral.frontend.operations.decide.intent import (
    Before,
    Intent,
    IntentKind,
    IntentState,
    Proven,
    Sighting,
    Unproven,
    Verb,
)
from corral.frontend.operations.decide.operation import Operation
from corral.frontend.operations.decide.reasons import Reason, ReasonCode, because
from corral.frontend.operations.dispatcher import HopelessRefusal
from corral.frontend.operations.progress import ProgressBoard
from corral.frontend.operations.service import Operations, PlannedTarget, prepare
from corral.frontend.operations.store.intents import Intents
from corral.frontend.serving.decide.load_job import LoadNeed, needed_by_load
from corral.frontend.serving.staging.decide.staged import ON_NODE, ON_NODE_BEFORE
from corral.frontend.serving.staging.service import ModelFilesUnusable, StagingFailed, StagingWatch, staging_report

log = logging.getLogger(__name__)

_LOOK_PERIOD: Final = timedelta(seconds=1)
"""How often a staging asks whether it is still wanted, if nobody rings."""
_TOLD_SECONDS: Final = 0.5
_MOST_PROOFS: Final = 10_000


class StagingAsk(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody wants to be brought where."""

    model: str
    nodes: tuple[NodeId, ...] = ()
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    is_everywhere: bool = False
    by: str
    idempotency_key: str = ""


class Stagings:
    """Starts operations that bring the files of a model to nodes."""

    def __init__(self, operations: Operations, models: Models, fleet: Fleet, clock: Clock) -> None:
        self._operations = operations
        self._models = models
        self._fleet = fleet
        self._clock = clock

    async def start(self, ask: StagingAsk) -> Operation:
        """Accept it, whole or not at all. NotFound for an unknown model or node, InvalidInput without a place."""
        if (earlier := await self._operations.with_key(ask.idempotency_key)) is not None:
            return earlier
        spec = self._models.find(ask.model)
        targets = [PlannedTarget.on(seen, spec.name) for seen in await self._places(ask)]
        if not targets:
            raise Conflict("no node of the fleet fits: none is approved, or none has these labels")
        operation = Operation(
            id=new_operation_id(),
            verb=Verb.STAGE,
            subject=spec.name,
            asked_by=ask.by,
            accepted_at=self._clock.now(),
            node_id=ask.nodes[0] if len(ask.nodes) == 1 else None,
            idempotency_key=ask.idempotency_key,
        )
        return await self._operations.start(prepare(operation, targets))

    async def _places(self, ask: StagingAsk) -> list[SeenNode]:
        if sum((bool(ask.nodes), bool(ask.labels), ask.is_everywhere)) != 1:
            raise InvalidInput("nodes", "say where the files shall be: exactly one of nodes, selector and all")
        if not ask.nodes:
            backends = NodeFilter(types=frozenset({NodeType.BACKEND}), labels=ask.labels)
            return [seen for seen in await self._fleet.all(backends) if seen.status is not NodeStatus.PENDING]
        seen = [await self._fleet.get(id) for id in dict.fromkeys(ask.nodes)]
        for node in seen:
            if node.node.type is not NodeType.BACKEND:
                raise InvalidInput("nodes", f"{node.node.name} runs agents, and no models")
            if node.status is NodeStatus.PENDING:
                raise Conflict(f"{node.node.name} waits for approval; until then it is not contacted")
        return seen


class StagingEnded(CorralError):
    """The staging is not wanted any more."""

    code = "staging_ended"


class Stager(Protocol):
    """Brings the files of a model to a node."""

    async def stage(self, node: Node, spec: ModelSpec, watch: StagingWatch) -> object | None:
        """None: nothing is known of the files here, or the node takes none. StagingFailed, ModelFilesUnusable."""


class StagingKind:
    """Implements the port of the dispatcher for stagings."""

    def __init__(
        self, stager: Stager, models: Models, fleet: Fleet, intents: Intents, progress: ProgressBoard, clock: Clock
    ) -> None:
        self._stager = stager
        self._models = models
        self._fleet = fleet
        self._intents = intents
        self._progress = progress
        self._clock = clock
        self._proofs: OrderedDict[tuple[OperationId, NodeId], str] = OrderedDict()
        """What nodes told while their files were brought: the look that follows settles it."""

    async def look(self, intent: Intent) -> Sighting:
        """Each file is compared by its digest while it is brought, and nothing is sent of what is there."""
        rung = self._proofs.pop((intent.operation_id, intent.node_id), "")
        unseen = Unproven(reason=because(ReasonCode.NOT_ASKED))
        return Sighting(
            proof=Proven(rung=rung) if rung else unseen, had=Before(present=bool(rung)), payload=intent.payload
        )

    async def hold(self, intent: Intent, node: Node, *, replaces: bool) -> Reason | None:
        """A model that is being removed there is not brought there before that is over."""
        removal = await self._intents.get((node.id, IntentKind.MODEL, intent.subject))
        now = self._clock.now()
        if needed_by_load(removal, since=intent.accepted_at, now=now) is LoadNeed.REFUSED:
            return because(ReasonCode.EARLIER_REQUEST)
        return None

    async def send(self, intent: Intent, *, replaces: bool) -> list[str]:
        """Bring the files that the node lacks, and report progress meanwhile."""
        watch = StagingWatch(self._clock)
        try:
            async with running(self._tell(intent, watch), name="progress of a staging"):
                if await first_done(self._bring(intent, watch), self._until_unwanted(intent)):
                    raise StagingEnded("the staging was ended")
        except ModelFilesUnusable as error:
            raise HopelessRefusal(error.message, node_id=intent.node_id) from error
        except NotFound as error:
            raise HopelessRefusal(f"{error.message}; nothing is brought there", node_id=intent.node_id) from error
        except StagingFailed as error:
            if isinstance(error.__cause__, FilePeerAway):
                raise NodeUnreachable(error.message, node_id=intent.node_id) from error
            raise NodeRefused(error.message, node_id=intent.node_id) from error
        self._proofs[intent.operation_id, intent.node_id] = ON_NODE if watch.count.sent_bytes else ON_NODE_BEFORE
        while len(self._proofs) > _MOST_PROOFS:
            self._proofs.popitem(last=False)
        return []

    async def after(self, intent: Intent, stopped: Sequence[str], *, is_corral: bool) -> None:
        """Nothing was in the way."""

    async def _bring(self, intent: Intent, watch: StagingWatch) -> None:
        spec = self._models.find(intent.subject)
        node = (await self._fleet.get(intent.node_id)).node
        if await self._stager.stage(node, spec, watch) is None:
            text = f"this frontend has no files of {spec.name}, or the node takes none: it has no file server"
            raise NodeRefused(text, node_id=intent.node_id)

    async def _until_unwanted(self, intent: Intent) -> None:
        """Return when somebody cancels the staging."""
        poke = Poke()
        with self._progress.rings(poke, intent.operation_id):
            while True:
                try:
                    current = await self._intents.get(intent.key)
                except CorralError as error:
                    log.debug("nobody says whether files are wanted: %s", error, extra={"event": "staging.unheard"})
                else:
                    if (
                        current is None
                        or current.generation != intent.generation
                        or current.state is not IntentState.OPEN
                    ):
                        return
                await poke.wait(self._clock, _LOOK_PERIOD)

    async def _tell(self, intent: Intent, watch: StagingWatch) -> None:
        attempt, sequence = int(self._clock.now().timestamp() * 1000), 0
        while True:
            await self._clock.sleep(_TOLD_SECONDS)
            sequence += 1
            report = staging_report(watch.count)
            report.op_id, report.node_id, report.backend = intent.operation_id, intent.node_id, intent.subject
            report.file_name = watch.count.file
            if report.corral is not None:
                report.corral.attempt, report.corral.sequence = attempt, sequence
            await self._progress.report(intent.operation_id, intent.node_id, report)
