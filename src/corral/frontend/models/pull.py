"""Pulling a model: from what somebody asks for to files that are proven and a model that every frontend has.

A plan says all that is needed. It is stored with the operation, and carried out by a frontend that has the store: the
files come in a child process, and the model is added when all of them are there. Killed anywhere, it goes on.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from corral.base.clock import Clock
from corral.base.errors import Conflict, CorralError, Overtaken
from corral.base.ids import new_operation_id
from corral.base.tasks import Poke, in_thread, running
from corral.frontend.models.changes import ModelChanges
from corral.frontend.models.decide.changing import ModelProvenance
from corral.frontend.models.decide.pulling import (
    PullAsk,
    PullPolicy,
    StoreSpace,
    check_name_is_free,
    check_places,
    check_space,
    evidence_of_pull,
    has_model,
    is_name_derived,
    is_name_free,
    joined,
    other_names,
    payload_of,
    plan_of,
)
from corral.frontend.models.decide.stored import KnownStore, ModelSource, WeightFile
from corral.frontend.models.storage import check_others, files_of_other_models, pulls_under_way, size_of, used_bytes
from corral.frontend.models.store.models import StoredModels
from corral.frontend.models.stores import StoreKeeper, StoreUnusable, place_of
from corral.frontend.nodes.client import NodeRefused
from corral.frontend.nodes.decide.node import Node
from corral.frontend.operations.decide.intent import Intent, IntentKey, IntentKind, IntentState, Sighting, Verb
from corral.frontend.operations.decide.operation import Operation, OperationState
from corral.frontend.operations.decide.reasons import Reason
from corral.frontend.operations.dispatcher import HopelessRefusal
from corral.frontend.operations.progress import ProgressBoard
from corral.frontend.operations.service import Operations, PlannedTarget, prepare
from corral.frontend.operations.store.intents import Intents
from corral.frontend.operations.store.operations import OperationStore
from corral.hubs.downloads.downloader import Downloader
from corral.hubs.downloads.orders import (
    DownloadCancelled,
    DownloadLimits,
    DownloadOrder,
    DownloadProgress,
    DownloadRefused,
    FetchedFile,
    FileOrder,
    FileState,
)
from corral.hubs.downloads.partial_files import PartialFolder
from corral.hubs.downloads.receipts import Receipts
from corral.hubs.listings import HubName
from corral.hubs.plans import PlannedFile, PullPlan
from corral.oci.limits import Network
from corral.wire.backends import FileBytes, InstallBytes, InstallProgress, Phase, size_text

log = logging.getLogger(__name__)

_TRIES: Final = 5
"""Attempts to accept a pull while others are accepted under the same name."""
_LOOK_PERIOD: Final = timedelta(seconds=1)
"""How often a running download asks whether it is still wanted, if nobody rings."""
_MOST_FILES_TOLD: Final = 64


class PullPlanner(Protocol):
    """Finds out what a reference means."""

    async def plan(self, ask: PullAsk) -> PullPlan:
        """Return the plan. InvalidInput, NotFound, Conflict and errors of hubs say why there is none."""


class DownloadTokens(Protocol):
    """Gives downloads the credentials that hubs ask for."""

    async def authorization(self, planned: PlannedFile) -> str:
        """Return the header for a file, a secret; empty for none. Raise a CorralError when a hub gives none."""

    def advice(self, planned: PlannedFile) -> str:
        """Return what to do when the server refuses, as a clause."""


class PullTools(msgspec.Struct, frozen=True, kw_only=True):
    """What planning and carrying out share."""

    stores: StoreKeeper
    models: StoredModels
    intents: Intents
    operations: OperationStore
    policy: PullPolicy
    clock: Clock
    may_redirect_inside: bool = False
    """Whether a public host may redirect downloads to the own network."""


class ModelPulls:
    """Plans pulls of models, and starts the operations that download them."""

    def __init__(self, tools: PullTools, operations: Operations, planner: PullPlanner) -> None:
        self._tools = tools
        self._operations = operations
        self._planner = planner

    async def plan(self, ask: PullAsk) -> PullPlan:
        """What a pull would download and add; nothing is stored.

        A name that nobody chose gives way to a model of another origin.
        """
        plan = await self._planner.plan(ask)
        if not is_name_derived(ask) or is_name_free(plan, await self._tools.models.get(plan.name)):
            return plan
        for name in other_names(plan.name):
            if is_name_free(plan, await self._tools.models.get(name)):
                other = await self._planner.plan(replace(ask, name=name))
                note = f"there is another model {plan.name}, so this one is called {name}"
                return msgspec.structs.replace(other, notes=(*other.notes, note))
        return plan

    async def needed_bytes(self, plan: PullPlan) -> int:
        """Disk space that is still needed, as far as sizes are known."""
        if self._tools.stores.own is None:
            return plan.bytes
        return await in_thread(lambda: _needed_bytes(self._tools.stores.directory, plan))

    async def start(self, ask: PullAsk) -> Operation:
        """Accept it, whole or not at all. Somebody who asks for what is being pulled gets that operation."""
        if (earlier := await self._operations.with_key(ask.idempotency_key)) is not None:
            return earlier
        await self._tools.stores.measure(make=True)
        self._usable()
        return await self._start(await self.plan(ask), ask)

    async def start_planned(self, plan: PullPlan, ask: PullAsk) -> Operation:
        """Accept what was planned just now for the same wish."""
        await self._tools.stores.measure(make=True)
        self._usable()
        return await self._start(plan, ask)

    async def _start(self, plan: PullPlan, ask: PullAsk) -> Operation:
        for _ in range(_TRIES):
            try:
                return await self._accept(plan, ask)
            except Overtaken:
                continue  # somebody else has asked for this name meanwhile: perhaps for the same
        raise Conflict(f"others ask for {plan.name} all the time; try again")

    async def _accept(self, plan: PullPlan, ask: PullAsk) -> Operation:
        tools, store = self._tools, self._usable()
        key: IntentKey = (place_of(store.id), IntentKind.PULL, plan.name)
        current = await tools.intents.get(key)
        if current is not None and joined(plan, current):
            if current.state is IntentState.BLOCKED or current.attempts:
                await self._operations.retry(current.operation_id, by=ask.by)
            return await self._operations.get(current.operation_id)
        await self._refuse(plan, store)
        operation = Operation(
            id=new_operation_id(),
            verb=Verb.PULL,
            subject=plan.name,
            asked_by=ask.by,
            accepted_at=tools.clock.now(),
            idempotency_key=ask.idempotency_key,
        )
        target = PlannedTarget(node_id=key[0], node_name=store.name, subject=plan.name, payload=payload_of(plan))
        seen = {key: 0 if current is None else current.generation}
        return await self._operations.start(prepare(operation, [target]), seen=seen)

    async def refusal(self, plan: PullPlan) -> str:
        """Why a pull would be refused now; empty: it would be accepted."""
        await self._tools.stores.measure(make=True)
        try:
            store = self._usable()
            current = await self._tools.intents.get((place_of(store.id), IntentKind.PULL, plan.name))
            if not joined(plan, current):
                await self._refuse(plan, store)
        except Conflict as error:
            return error.message
        return ""

    async def _refuse(self, plan: PullPlan, store: KnownStore) -> None:
        tools = self._tools
        check_name_is_free(plan, await tools.models.get(plan.name))
        check_places(plan, await pulls_under_way(tools.intents))
        other_files = await files_of_other_models(tools.models, plan)
        await in_thread(lambda: check_others(tools.stores.directory, plan, other_files))
        for operation in await tools.operations.current():
            is_removal = operation.verb is Verb.REMOVE and operation.subject == plan.name
            if is_removal and operation.state is OperationState.RUNNING:
                raise Conflict(f"{plan.name} is being removed (operation {operation.id}); pull it when that is over")
        has_quota = bool(tools.policy.quota_bytes)
        used = await in_thread(lambda: used_bytes(tools.stores.directory)) if has_quota else 0
        space = StoreSpace(name=store.name, free_bytes=store.free_bytes, used_bytes=used)
        check_space(plan, await self.needed_bytes(plan), space, tools.policy)

    def _usable(self) -> KnownStore:
        try:
            return self._tools.stores.usable()
        except StoreUnusable as error:
            raise Conflict(f"no model can be pulled here: {error.message}") from error


def _needed_bytes(directory: Path, plan: PullPlan) -> int:
    """Bytes that are still missing. A present file of the right size counts as the planned one, as for the downloader.
    Blocks."""
    with PartialFolder(directory) as folder:
        return sum(
            max(0, (file.size or 0) - folder.present_bytes(file.path))
            for file in plan.files
            if not (file.digest and file.size is not None and size_of(directory / file.path) == file.size)
        )


class PullEnded(CorralError):
    """The pull is not wanted any more."""

    code = "pull_ended"


class PullKind:
    """Implements the port of the dispatcher for pulls: this frontend is where they are sent to."""

    def __init__(
        self,
        tools: PullTools,
        changes: ModelChanges,
        tokens: DownloadTokens,
        progress: ProgressBoard,
        *,
        network: Network,
        environment: Mapping[str, str],
    ) -> None:
        """`environment` is what downloads are started with."""
        self._tools = tools
        self._changes = changes
        self._tokens = tokens
        self._progress = progress
        self._network = network
        self._environment = environment
        self._places = asyncio.Semaphore(tools.policy.at_once)

    async def look(self, intent: Intent) -> Sighting:
        plan, directory = plan_of(intent.payload), self._tools.stores.directory
        missing = await in_thread(lambda: _missing(directory, plan, intent.operation_id))
        is_added = not missing and await self._is_added(plan)
        return evidence_of_pull(intent, plan, missing, is_added=is_added)

    async def _is_added(self, plan: PullPlan) -> bool:
        models = self._tools.models
        stored = await models.get(plan.name)
        return stored is not None and has_model(plan, stored, await models.history(plan.name))

    async def hold(self, intent: Intent, node: Node, *, replaces: bool) -> Reason | None:
        return None

    async def send(self, intent: Intent, *, replaces: bool) -> list[str]:
        """Download what is missing, then add the model."""
        plan = plan_of(intent.payload)
        operation = await self._tools.operations.get(intent.operation_id)
        try:
            async with self._places:
                files = await self._download(intent, plan) if plan.files else ()
                await self._check_wanted(intent)
                check_name_is_free(plan, await self._tools.models.get(plan.name))  # it was, when this was accepted
                await self._changes.add(
                    plan.config,
                    by="pull" if operation is None else operation.asked_by,
                    provenance=ModelProvenance(
                        ModelSource.PULL, plan.origin, tuple(_weights(file, plan) for file in files)
                    ),
                    may_trust=True,  # who asked for it was checked then
                )
        except DownloadCancelled as error:
            raise PullEnded("the pull was ended") from error
        except CorralError as error:
            if isinstance(error, PullEnded) or error.code in _OURS:
                raise
            is_hopeful = error.retryable or isinstance(error, Conflict)
            refusal = NodeRefused if is_hopeful else HopelessRefusal
            raise refusal(error.message, node_id=intent.node_id) from error
        return []

    async def after(self, intent: Intent, stopped: Sequence[str], *, is_corral: bool) -> None:
        """Nothing was in the way."""

    async def _download(self, intent: Intent, plan: PullPlan) -> Sequence[FetchedFile]:
        """Download all files. Tokens of registries live for minutes, and large files take longer: a refusal is answered
        with new tokens, as long as each of them brings something."""
        directory = self._tools.stores.directory
        while True:
            before = await in_thread(lambda: _needed_bytes(directory, plan))
            try:
                return await self._download_once(intent, plan)
            except DownloadRefused:
                has_registry = any(file.hub in (HubName.OLLAMA, HubName.OCI) for file in plan.files)
                if not has_registry or await in_thread(lambda: _needed_bytes(directory, plan)) >= before:
                    raise

    async def _download_once(self, intent: Intent, plan: PullPlan) -> Sequence[FetchedFile]:
        other_files = await files_of_other_models(self._tools.models, plan)
        order = DownloadOrder(
            files=tuple(
                [await self._file_order(intent, file, is_shared=file.path in other_files) for file in plan.files]
            ),
            directory=str(self._tools.stores.directory.absolute()),
            limits=DownloadLimits(
                connections=self._tools.policy.connections,
                bytes_per_second=self._tools.policy.bytes_per_second,
                free_bytes=self._tools.policy.free_bytes,
                is_private_reachable=self._tools.may_redirect_inside,
            ),
            network=self._network,
        )
        async with Downloader(order, environment=self._environment) as child:
            telling = running(self._tell(intent, plan, child), name="progress of a pull")
            watching = running(self._end_unwanted(intent, child), name="cancel of a pull")
            async with telling, watching:
                result = await child.result()
        return result.files

    async def _file_order(self, intent: Intent, file: PlannedFile, *, is_shared: bool) -> FileOrder:
        return FileOrder(
            url=file.url,
            destination=file.path,
            authorization=await self._tokens.authorization(file),
            size=file.size,
            digest=file.digest,
            purpose=intent.operation_id,
            advice=self._tokens.advice(file),
            is_shared=is_shared,
        )

    async def _end_unwanted(self, intent: Intent, child: Downloader) -> None:
        """Have the child end when somebody cancels the pull or wants something else by its name."""
        poke = Poke()
        with self._progress.rings(poke, intent.operation_id):
            while True:
                try:
                    await self._check_wanted(intent)
                except PullEnded:
                    await child.cancel()
                    return
                except CorralError as error:
                    log.debug("nobody says whether a pull is wanted: %s", error, extra={"event": "pull.unheard"})
                await poke.wait(self._tools.clock, _LOOK_PERIOD)

    async def _check_wanted(self, intent: Intent) -> None:
        current = await self._tools.intents.get(intent.key)
        if current is None or current.generation != intent.generation or current.state is not IntentState.OPEN:
            raise PullEnded("the pull was cancelled, or something else is wanted by its name")

    async def _tell(self, intent: Intent, plan: PullPlan, child: Downloader) -> None:
        attempt = int(self._tools.clock.now().timestamp() * 1000)
        async for news in child.progress():
            report = progress_report(intent, plan, news, attempt=attempt)
            await self._progress.report(intent.operation_id, intent.node_id, report)


_OURS: Final = frozenset({"database_unavailable", "database_full", "bus_unavailable"})
"""Codes of troubles that say nothing about the pull."""


def _missing(directory: Path, plan: PullPlan, purpose: str) -> list[PlannedFile]:
    """The files that nothing proves to be there. Blocks."""
    receipts = Receipts(directory)
    return [
        file
        for file in plan.files
        if (receipt := receipts.find(file.path)) is None or not receipt.proves(file.digest, file.size, purpose)
    ]


def _weights(file: FetchedFile, plan: PullPlan) -> WeightFile:
    shape = next((planned.shape for planned in plan.files if planned.path == file.destination), None)
    return WeightFile(path=file.destination, size=file.size, digest=f"sha256:{file.sha256}", shape=shape)


def progress_report(intent: Intent, plan: PullPlan, news: DownloadProgress, *, attempt: int) -> InstallProgress:
    """How far a pull is, as nodes tell it of installs."""
    current = sum(file.current_bytes for file in news.files)
    total = sum(file.total_bytes for file in news.files)
    pairs = list(zip(plan.files, news.files, strict=True))
    moving = [pair for pair in pairs if pair[1].state in (FileState.FETCHING, FileState.CHECKING)]
    listed_files = pairs if len(pairs) <= _MOST_FILES_TOLD else moving[:_MOST_FILES_TOLD]
    is_fetching = any(progress.state is FileState.FETCHING for _, progress in pairs)
    return InstallProgress(
        op_id=intent.operation_id,
        node_id=intent.node_id,
        backend=intent.subject,
        file_name=moving[0][0].path if moving else "",
        current=size_text(current),
        total=size_text(total),
        percentage=min(100.0, 100.0 * current / total) if total else 0.0,
        phase=(Phase.DOWNLOADING if is_fetching or not moving else Phase.VERIFYING).value,
        corral=InstallBytes(
            sequence=news.sequence,
            current=current,
            total=total,
            attempt=attempt,
            files=[
                FileBytes(file.path, progress.state.value, progress.current_bytes, progress.total_bytes)
                for file, progress in listed_files
            ],
        ),
    )
