"""Removing a model everywhere: the kind of operations for it, and what it deletes on the frontend."""

import asyncio
import logging
import os
import shutil
import stat
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from corral.base.clock import Clock
from corral.base.errors import Conflict, CorralError, Overtaken
from corral.base.ids import new_operation_id
from corral.frontend.models.catalogue import Models
from corral.frontend.models.decide.model import ModelSpec, folder_of
from corral.frontend.models.decide.reading import read_stored
from corral.frontend.models.decide.removal import (
    NeededModel,
    RemovedModel,
    awaited_by_none,
    endangered,
    evidence_of_removal,
    files_of,
    kept_file,
)
from corral.frontend.models.decide.stored import ModelChangeKind, StoredModel, revision_row
from corral.frontend.models.directory import ModelFileMark, store_facts
from corral.frontend.models.store.models import ModelRemovals, Overwritten
from corral.frontend.models.watch import ModelsWatch
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
from corral.frontend.store.db import ConstraintViolated
from corral.hubs.plans import PullPlan

log = logging.getLogger(__name__)

PERIOD: Final = timedelta(seconds=2)
_TRIES: Final = 5
_TICK: Final = timedelta(microseconds=1)


class FilesLeft(CorralError):
    """Files of a removed model are still there."""

    code = "model_files_left"
    retryable = True


def delete_files(
    directory: Path, marks: Mapping[str, ModelFileMark], weights: Sequence[str], *, store_id: str = ""
) -> bool:
    """Delete these paths of a directory, then the files of these marks. FilesLeft when some cannot go.

    False, and nothing is deleted, if one of the files is another one by now.
    """
    try:
        if store_id and store_facts(directory, make=False).id != store_id:
            raise FilesLeft(f"{directory} is another directory by now: is its disk not mounted?")
        if any(_mark_of(directory / file) not in (mark, None) for file, mark in marks.items()):
            return False  # somebody has put another one there; it is looked at again
        for path in weights:
            _delete(directory, path)
        for file in marks:
            (directory / file).unlink(missing_ok=True)
    except OSError as error:
        raise FilesLeft(f"{error.filename or directory}: {error.strerror or error}") from error
    return True


def _mark_of(file: Path) -> ModelFileMark | None:
    try:
        return ModelFileMark.of(file)
    except FileNotFoundError:
        return None


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


class RemovalPreview(msgspec.Struct, frozen=True, kw_only=True):
    """What the removal of a model would do, but for its replicas."""

    model: ModelSpec
    number: int
    """Number of the model's last change."""
    deleted: tuple[str, ...]
    """Paths in the models directory that go with it."""
    kept: tuple[str, ...]
    """What stays there, and why, as sentences."""
    targets: tuple[PlannedTarget, ...]
    """The nodes that are asked to delete its files; a hindrance says why one is not."""
    aliases: tuple[str, ...]
    """Other names that lead to it."""


class ModelRemoval:
    def __init__(  # noqa: PLR0913 - each is a collaborator
        self,
        removals: ModelRemovals,
        operations: Operations,
        store: OperationStore,
        models: Models,
        watch: ModelsWatch,
        fleet: Fleet,
        feed: Feed,
        clock: Clock,
        *,
        is_served: Callable[[str], Awaitable[bool]],
        pulls: Callable[[], Awaitable[Sequence[PullPlan]]],
    ) -> None:
        """`is_served` tells whether processes may still read the files of a model, `pulls` what is being pulled."""
        self._removals = removals
        self._operations = operations
        self._store = store
        self._models = models
        self._watch = watch
        self._fleet = fleet
        self._feed = feed
        self._clock = clock
        self._is_served = is_served
        self._pulls = pulls
        self._logged: set[tuple[str, str]] = set()
        """Models whose files cannot be deleted, and why, so that it is logged once."""

    async def preview(self, name: str) -> RemovalPreview:
        """What a removal would mean as things are now. Fails as `remove` does."""
        await self._models.refresh()
        row = await self._removable(name)
        spec = self._spec(row)
        files = files_of(spec, row.files, self._other_models(name))
        return RemovalPreview(
            model=spec,
            number=row.number,
            deleted=tuple(files.own),
            kept=tuple(self._kept_reasons(row, spec)),
            targets=tuple(await self._targets(spec)),
            aliases=tuple(sorted(other.spec.name for other in self._other_models(name) if other.spec.alias_of == name)),
        )

    async def remove(self, name: str, *, by: str, idempotency_key: str = "", number: int | None = None) -> Operation:
        """Accept it, whole or not at all. NotFound for an unknown model, Conflict for a file that cannot be used.
        Overtaken when `number` is given and not that of the model's last change.

        An alias goes alone, its model stays.
        """
        if idempotency_key and (earlier := await self._store.with_key(idempotency_key)) is not None:
            return earlier
        for _ in range(_TRIES):
            try:
                operation, stored = await self._accept(name, by, idempotency_key, number)
                break
            except (Overwritten, ConstraintViolated):  # somebody changes or removes it at the same moment
                continue
        else:
            raise Conflict(f"the model {name} is being changed all the time; try again")
        log.info("a model is removed", extra={"event": "model.removed", "model": name, "operation": stored.id})
        await self.sweep()
        await self._operations.tell([stored] if stored.id == operation.id else [])
        return stored

    async def _accept(
        self, name: str, by: str, idempotency_key: str, number: int | None
    ) -> tuple[Operation, Operation]:
        """The operation, and what was stored: an earlier one with the same key. Overwritten when it has to be decided
        again."""
        await self._models.refresh()
        row = await self._removable(name)
        if number is not None and row.number != number:
            raise Overtaken
        spec, now = self._spec(row), self._clock.now()
        operation = Operation(
            id=new_operation_id(),
            verb=Verb.REMOVE,
            subject=name,
            asked_by=by,
            accepted_at=now,
            idempotency_key=idempotency_key,
        )
        prepared = prepare(operation, await self._targets(spec))
        operation = replace(prepared.operation, payload={"notes": self._kept_reasons(row, spec)})
        removed = RemovedModel(name=name, removed_at=now, operation_id=operation.id)
        ended = replace(row, number=row.number + 1, changed_at=max(now, row.changed_at + _TICK), changed_by=by)
        data = {"operation": operation.id, "targets": len(operation.targets), "model": name, "number": ended.number}
        event = Event(kind=EventKind.MODEL_REMOVED, at=now, actor=by, data=data)
        events = [event, started_event(operation)]
        last = revision_row(ended, ModelChangeKind.REMOVED)
        return operation, await self._removals.start(removed, last, operation, prepared.intents, events=events)

    async def sweep(self) -> bool:
        """Hide what was removed, delete what is left of it here, and notice what was added again.

        Whether files are left.
        """
        if await self._models.refresh():
            self._feed.ring()  # so that the view of this frontend is made again
        is_left = False
        for model in await self._removals.all():
            store = self._watch.store
            if model.name in self._models.rows:
                await self._add_again(model)
            elif store is not None and store.id not in model.cleared:
                is_left |= not (self._watch.is_there and await self._clear(model, store.id))
        return is_left

    async def _removable(self, name: str) -> StoredModel:
        row = self._models.rows.get(name)
        if row is None:
            if problems := self._models.catalogue.problems_of(name):
                raise Conflict(f"{problems[0].source} cannot be used ({problems[0].problem}); delete the file itself")
            raise self._models.unknown(name)
        if any(plan.name == name for plan in await self._pulls()):
            raise Conflict(f"{name} is being pulled; cancel that operation first, or wait for its end")
        return row

    def _spec(self, row: StoredModel) -> ModelSpec:
        spec = self._models.spec_of(row)
        return spec if isinstance(spec, ModelSpec) else ModelSpec(name=row.name)

    def _other_models(self, name: str) -> list[NeededModel]:
        rows = self._models.rows.values()
        return [NeededModel(self._spec(row), row.files) for row in rows if row.name != name]

    def _kept_reasons(self, row: StoredModel, spec: ModelSpec) -> list[str]:
        """What is known now to stay; each store decides again when it deletes."""
        reasons = files_of(spec, row.files, self._other_models(row.name)).kept
        holders = [kept_file(path, beside) for path, beside in self._holders(row.name).items() if beside]
        return [*reasons, *holders]

    def _holders(self, name: str) -> dict[str, list[str]]:
        """The files here that hold a model, and the names of others in them."""
        holders = {}
        for path, file in self._watch.files.items():
            names = [model.spec.name for model in file.content.models]
            if name in names:
                beside = [other for other in names if other != name]
                holders[path] = beside or ([] if file.content.is_whole else ["what cannot be read"])
        return holders

    async def _targets(self, spec: ModelSpec) -> list[PlannedTarget]:
        """Every node that may have files of the model."""
        if spec.alias_of:
            return []
        danger = endangered(spec.name, self._other_models(spec.name))
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

    async def _clear(self, removed: RemovedModel, store_id: str) -> bool:
        """Delete what is left of a removed model in the directory of this frontend. False: something is left."""
        name = removed.name
        if await self._is_served(name):
            return False  # processes end before the files that they may still read
        pulls = await self._pulls()
        if any(plan.name == name for plan in pulls):
            return False  # it is about to be there again
        holders = self._holders(name)
        kept_reasons = [kept_file(path, beside) for path, beside in holders.items() if beside]
        marks = {path: self._watch.files[path].mark for path, beside in holders.items() if not beside}
        weights = awaited_by_none(await self._weights(name, kept_reasons), pulls, kept_reasons)
        try:
            is_deleted = await asyncio.to_thread(
                delete_files, self._models.directory, marks, weights, store_id=store_id
            )
        except FilesLeft as error:
            self._log_once(name, error.message)
            return False
        await self._watch.forget(name, list(marks) if is_deleted else [])
        await self._watch.look()
        if self._models.rows.get(name) is None and is_deleted:
            for reason in kept_reasons:
                self._log_once(name, reason)
            await self._removals.clear(removed, store_id, kept_reasons)
        return is_deleted

    async def _weights(self, name: str, kept_reasons: list[str]) -> list[str]:
        """The paths that go with the model; what stays is added to `kept_reasons`."""
        last = await self._watch.last_of(name)
        spec = None if last is None else read_stored(last.text, source="")
        if spec is None:
            models_in_files = [
                model for file in self._watch.files.values() for model in file.content.models if model.spec.name == name
            ]
            spec = models_in_files[0].spec if models_in_files else None
        if not isinstance(spec, ModelSpec):
            return []
        files = files_of(spec, () if last is None else last.files, self._other_models(name))
        kept_reasons += files.kept
        unread = [problem.source for problem in self._models.catalogue.problems if problem.may_hide]
        if unread or not self._models.is_readable:
            # What was never read may need the weights of others.
            unreadable = unread[0] if unread else str(self._models.directory)
            kept_reasons += [f"{path} stays: {unreadable} cannot be read, and may need it" for path in files.own]
            return []
        return files.own

    def _log_once(self, name: str, why: str) -> None:
        if (name, why) not in self._logged:
            self._logged.add((name, why))
            details = {"event": "model.files_left", "model": name}
            log.warning("files of a removed model stay here: %s", why, extra=details)


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
        # Frontends stage the files of a name that no path can hold under another one.
        for name in dict.fromkeys((folder_of(intent.subject), intent.subject)):
            await self._client.delete_model(intent.node_id, name, timeout=self._policy.timeout(intent.verb))
        return []

    async def after(self, intent: Intent, stopped: Sequence[str], *, is_corral: bool) -> None:
        await self._replicas.after(intent, stopped, is_corral=is_corral)
