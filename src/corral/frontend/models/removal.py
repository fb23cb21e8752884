"""Removing a model everywhere: the kind of operations for it, and what it deletes on the frontend."""

import asyncio
import logging
import os
import shutil
import stat
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final, Protocol

from corral.base.clock import Clock
from corral.base.errors import Conflict, CorralError
from corral.base.ids import new_operation_id
from corral.frontend.models.catalogue import ModelFileMark, Models
from corral.frontend.models.decide.model import ModelSpec
from corral.frontend.models.decide.removal import RemovedModel, endangered, evidence_of_removal, own_weights
from corral.frontend.models.store.removals import ModelRemovals
from corral.frontend.nodes.client import NodeClient
from corral.frontend.nodes.decide.node import Node, NodeStatus, NodeType
from corral.frontend.nodes.fleet import Fleet, NodeFilter
from corral.frontend.operations.decide import intent as intents
from corral.frontend.operations.decide.intent import Intent, IntentPolicy, Sighting, Verb
from corral.frontend.operations.decide.operation import Operation
from corral.frontend.operations.decide.reasons import Reason, ReasonCode, because
from corral.frontend.operations.service import Operations, PlannedTarget, prepare, started_event
from corral.frontend.operations.store.operations import OperationStore
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.feed import Feed

log = logging.getLogger(__name__)

PERIOD: Final = timedelta(seconds=2)


class FilesLeft(CorralError):
    """Files of a removed model are still there."""

    code = "model_files_left"
    retryable = True


def delete_model(file: Path, mark: ModelFileMark, weights: Sequence[str]) -> None:
    """The file, if it is still the one with this mark, and these paths beside it. FilesLeft when some cannot go."""
    try:
        if ModelFileMark.of(file) != mark:
            return  # somebody has put another one there; it is looked at again
        for path in weights:
            _delete(file.parent, path)
        file.unlink(missing_ok=True)
    except FileNotFoundError:
        return
    except OSError as error:
        raise FilesLeft(f"{error.filename or file}: {error.strerror or error}") from error


def _delete(directory: Path, path: str) -> None:
    """Links are not followed: they go themselves. A path that leads out of the directory is left alone."""
    target = directory / path
    try:
        inside = target.parent.resolve(strict=True).is_relative_to(directory.resolve(strict=True))
        mode = os.lstat(target).st_mode
    except FileNotFoundError:
        return
    if not inside or ".." in Path(path).parts:
        return
    if stat.S_ISDIR(mode):
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)


class ModelRemoval:
    def __init__(  # noqa: PLR0913 - each is a collaborator
        self,
        removals: ModelRemovals,
        operations: Operations,
        store: OperationStore,
        models: Models,
        fleet: Fleet,
        feed: Feed,
        clock: Clock,
        *,
        is_served: Callable[[str], Awaitable[bool]],
    ) -> None:
        """`is_served` tells whether processes may still read the files of a model."""
        self._removals = removals
        self._operations = operations
        self._store = store
        self._models = models
        self._fleet = fleet
        self._feed = feed
        self._clock = clock
        self._is_served = is_served
        self._logged: set[tuple[str, str]] = set()
        """Models whose files cannot be deleted, and why, so that it is logged once."""

    async def remove(self, name: str, *, by: str, idempotency_key: str = "") -> Operation:
        """Accept it, whole or not at all. NotFound for an unknown model, Conflict when it is not alone in its file.

        An alias goes alone, its model stays.
        """
        if idempotency_key and (earlier := await self._store.with_key(idempotency_key)) is not None:
            return earlier
        spec = self._removable(name)
        now = self._clock.now()
        operation = Operation(
            id=new_operation_id(),
            verb=Verb.REMOVE,
            subject=name,
            asked_by=by,
            accepted_at=now,
            idempotency_key=idempotency_key,
        )
        prepared = prepare(operation, await self._targets(spec))
        operation = prepared.operation
        removed_at = max(now, self._models.time_of(spec))
        removed = RemovedModel(name=name, removed_at=removed_at, operation_id=operation.id)
        data = {"operation": operation.id, "targets": len(operation.targets), "model": name}
        event = Event(kind=EventKind.MODEL_REMOVED, at=now, actor=by, data=data)
        events = [event, started_event(operation)]
        stored = await self._removals.start(removed, operation, prepared.intents, events=events)
        log.info("a model is removed", extra={"event": "model.removed", "model": name, "operation": stored.id})
        await self.sweep()
        await self._operations.tell([stored] if stored.id == operation.id else [])
        return stored

    async def sweep(self) -> bool:
        """Hide what was removed, delete what is left of it here, and notice what was added again.

        Whether files are left.
        """
        removed = await self._removals.all()
        if self._models.hide({model.name: model.removed_at for model in removed}):
            self._feed.ring()  # so that the view of this frontend is made again
        for model in removed:
            if model.name in self._models.catalogue.models:
                await self._add_again(model)
            else:
                await self._delete_here(model.name)
        return any(self._models.leftovers(model.name) for model in removed)

    def _removable(self, name: str) -> ModelSpec:
        catalogue = self._models.catalogue
        spec = catalogue.models.get(name)
        if spec is None:
            if problems := catalogue.problems_of(name):
                raise Conflict(f"{problems[0].source} cannot be used ({problems[0].problem}); delete the file itself")
            raise self._models.unknown(name)
        models = [other for other in catalogue.models.values() if other.source == spec.source]
        beside = sorted(other.name for other in models if other is not spec)
        if beside:
            raise Conflict(f"{spec.source} also holds {', '.join(beside)}; take {name} out of the file instead")
        return spec

    async def _targets(self, spec: ModelSpec) -> list[PlannedTarget]:
        """Every node that may have files of the model."""
        if spec.alias_of:
            return []
        danger = endangered(spec.name, self._models.catalogue.models.values())
        hindrance = because(ReasonCode.SHARED_DIRECTORY, danger=danger) if danger else None
        return [
            PlannedTarget.on(seen, spec.name, hindrance=hindrance)
            for seen in await self._fleet.all(NodeFilter(types=frozenset({NodeType.BACKEND})))
            if seen.status is not NodeStatus.PENDING
        ]

    async def _add_again(self, removed: RemovedModel) -> None:
        """Nodes first: what was forgotten could not be taken back any more."""
        now, why = self._clock.now(), because(ReasonCode.MODEL_ADDED_AGAIN)

        def cancelled(intent: Intent) -> Intent | None:
            return intents.cancel(intent, why, now) if intents.may_cancel(intent) else None

        await self._store.change(removed.operation_id, None, cancelled, events=[])
        data = {"model": removed.name, "operation": removed.operation_id}
        event = Event(kind=EventKind.MODEL_ADDED_AGAIN, at=now, actor="control", data=data)
        if await self._removals.forget(removed, events=[event]):
            log.info("a model is there again", extra={"event": "model.added_again", "model": removed.name})
            await self._feed.announce()

    async def _delete_here(self, name: str) -> None:
        leftovers = self._models.leftovers(name)
        if not leftovers or await self._is_served(name):
            return  # processes end before the files that they may still read
        catalogue = self._models.catalogue
        # A file that cannot be read may need the weights of others: then they stay.
        may_delete_weights = self._models.is_readable and not catalogue.problems
        for file, read in leftovers:
            if len(read.readings) > 1:
                self._log_once(name, f"{file.name} also holds other models")
                continue
            specs = [reading for reading in read.readings if isinstance(reading, ModelSpec) and may_delete_weights]
            weights = [path for spec in specs for path in own_weights(spec, catalogue.models.values())]
            try:
                await asyncio.to_thread(delete_model, file, read.mark, weights)
            except FilesLeft as error:
                self._log_once(name, error.message)
        await self._models.look()

    def _log_once(self, name: str, why: str) -> None:
        if (name, why) not in self._logged:
            self._logged.add((name, why))
            shown = {"event": "model.files_left", "model": name}
            log.warning("files of a removed model stay here: %s", why, extra=shown)


class RemovalMoves(Protocol):
    """Takes replicas of a model out of the way of a request that deletes its files."""

    async def before_removal(self, model: str, node: Node) -> Reason | None:
        """Why the files may not be deleted yet; None when they may."""

    async def after(self, intent: Intent, stopped: Sequence[str], *, is_corral: bool) -> None:
        """The node has answered. Must not fail."""


class ModelKind:
    """Implements the port of the dispatcher for intents about models: nodes delete the files of removed models."""

    def __init__(self, client: NodeClient, replicas: RemovalMoves, policy: IntentPolicy) -> None:
        self._client = client
        self._replicas = replicas
        self._policy = policy

    async def look(self, intent: Intent) -> Sighting:
        return evidence_of_removal(intent)

    async def hold(self, intent: Intent, node: Node, *, replaces: bool) -> Reason | None:
        return await self._replicas.before_removal(intent.subject, node)

    async def send(self, intent: Intent, *, replaces: bool) -> list[str]:
        await self._client.delete_model(intent.node_id, intent.subject, timeout=self._policy.timeout(intent.verb))
        return []

    async def after(self, intent: Intent, stopped: Sequence[str], *, is_corral: bool) -> None:
        await self._replicas.after(intent, stopped, is_corral=is_corral)
