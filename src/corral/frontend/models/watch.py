"""Takes over what people write into the models directory: reads it in a thread, decides, and writes to the database."""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Final

import msgspec
from msgspec.structs import replace

from corral.base.clock import Clock
from corral.base.ids import FrontendId
from corral.frontend.models import directory
from corral.frontend.models.catalogue import Models
from corral.frontend.models.decide.changing import ModelProvenance, change_event, last_change_of, next_model
from corral.frontend.models.decide.imports import FileChange, ImportPlan, KnownModels, plan_imports
from corral.frontend.models.decide.model import ModelSpec
from corral.frontend.models.decide.reading import ReadModel, digest_of
from corral.frontend.models.decide.removal import paths_of
from corral.frontend.models.decide.stored import (
    NEVER_CHANGED,
    ImportedFile,
    KnownStore,
    LastChange,
    ModelChangeKind,
    ModelRevision,
    ModelSource,
    StoredModel,
    WeightFile,
    revision_row,
)
from corral.frontend.models.directory import DirectoryReading, MeasuredPath, ReadFile, StoreFacts
from corral.frontend.models.store.models import ModelRemovals, StoredModels
from corral.frontend.models.store.stores import ModelImports, ModelStores, TakenOver
from corral.frontend.record.feed import Feed
from corral.hubs.plans import ModelOrigin

log = logging.getLogger(__name__)

PERIOD: Final = timedelta(seconds=2)
_AT_ONCE: Final = 200
"""Models that are written in one transaction."""
_TRIES: Final = 5


class ModelsWatch:
    def __init__(  # noqa: PLR0913 - each is a collaborator
        self,
        models: Models,
        store: StoredModels,
        imports: ModelImports,
        stores: ModelStores,
        removals: ModelRemovals,
        feed: Feed,
        clock: Clock,
        *,
        frontend_id: FrontendId,
    ) -> None:
        self._models = models
        self._store = store
        self._imports = imports
        self._stores = stores
        self._removals = removals
        self._feed = feed
        self._clock = clock
        self._frontend_id = frontend_id
        self._looking = asyncio.Lock()
        self.store: StoreFacts | None = None
        """The models directory of this frontend as a place for files; None while there is none."""
        self.is_there = False
        """Whether the last look found it."""
        self.files: Mapping[str, ReadFile] = {}
        self._handled: dict[str, str] = {}
        """The content of each file that was handled, by its digest."""
        self._settled: tuple[object, ...] = ()
        self._imported: Mapping[str, ImportedFile] = {}
        self._sizes: Mapping[str, MeasuredPath] = {}
        self._weights: Mapping[tuple[str, str], list[str]] = {}
        self._weighed: object = None
        self._offered: Mapping[str, int] = {}

    async def look(self) -> None:
        """Read what changed, take it over, and measure what models are loaded from. Fails as the database does."""
        async with self._looking:
            reading = await asyncio.to_thread(directory.read_directory, self._models.directory, self.files)
            await self._take(reading)
            await self._measure(reading)

    async def last_of(self, name: str) -> ModelRevision | None:
        """The last entry in the history of a model; None if it never was, or nobody kept one."""
        return next(iter(await self._store.history(name, limit=1)), None)

    async def forget(self, name: str, deleted: Collection[str]) -> None:
        """Note that these files were deleted. What other files say about the model is forgotten too, so that it counts
        as a change if they still say it."""
        if self.store is None:
            return
        imported = await self._imports.of(self.store.id)
        files = [
            replace(file, names={other: digest for other, digest in file.names.items() if other != name})
            for path, file in imported.items()
            if name in file.names and path not in deleted and not self._holds_others(path, name)
        ]
        async with self._looking:
            self._settled = ()
            await self._imports.take_over(self.store.id, TakenOver(files=files, forgotten=deleted))

    def _holds_others(self, path: str, name: str) -> bool:
        file = self.files.get(path)
        return file is not None and any(model.spec.name != name for model in file.content.models)

    async def _take(self, reading: DirectoryReading) -> None:
        self.is_there = reading.store is not None
        if reading.store is None:
            self._models.is_readable = reading.problem is None or self.store is not None
            self._settled = ()
            self._tell(ImportPlan(), reading)
            return
        if self.store is None or reading.store.id != self.store.id:
            self._handled, self._settled = {}, ()
        self.store, self.files = reading.store, reading.files
        self._models.is_readable = True
        rows = self._models.rows
        marks = tuple((path, file.mark, file.content.digest) for path, file in sorted(reading.files.items()))
        if self._settled == (marks, rows) and self._settled[1] is rows:
            return
        plan = await self._taken_over(reading, reading.store)
        self._tell(plan, reading)
        self._handled = {path: file.content.digest for path, file in reading.files.items()}
        self._settled = (marks, self._models.rows)

    async def _taken_over(self, reading: DirectoryReading, store: StoreFacts) -> ImportPlan:
        """Write what the files change about models; again when somebody else changed one of them meanwhile."""
        known_store = await self._stores.get(store.id)
        self._models.hear(_by_name(reading.files))
        plan = ImportPlan()
        names = {model.spec.name for file in reading.files.values() for model in file.content.models}
        for _ in range(_TRIES):
            # Read first: a model that is added after this takes the next number.
            last = await self._store.last_changes(names) if names else {}
            await self._models.refresh()
            stored = await self._stored_state(reading, store, is_new=known_store is None)
            contents = {path: file.content for path, file in reading.files.items()}
            fresh = [path for path, file in contents.items() if self._handled.get(path) != file.digest]
            plan = plan_imports(contents, stored, fresh=fresh, may_remove=reading.is_whole)
            if await self._write(store.id, plan, stored, last):
                break
        self._imported = await self._imports.of(store.id) if plan.changes else stored.imports
        if plan.changes:
            await self._models.refresh()
            await self._feed.announce()
        if known_store is None:  # only now: after a crash, what is left of it is new again
            now = self._clock.now()
            await self._stores.see(KnownStore(**store._asdict(), frontend_id=self._frontend_id, seen_at=now))
        return plan

    async def _stored_state(self, reading: DirectoryReading, store: StoreFacts, *, is_new: bool) -> KnownModels:
        imports, rows = await self._imports.of(store.id), self._models.rows
        ended: dict[str, set[str]] = {}
        if is_new:
            removed = {model.name: model.removed_at.timestamp() for model in await self._removals.all()}
            listed_models = [
                (file_model, file) for file in reading.files.values() for file_model in file.content.models
            ]
            absent = [(file_model, file) for file_model, file in listed_models if file_model.spec.name not in rows]
            remembered = (
                await self._store.last_changes([file_model.spec.name for file_model, _ in absent]) if absent else {}
            )
            for file_model, file in absent:
                name = file_model.spec.name
                history = await self._store.history(name) if name in remembered else []
                ended[name] = {digest_of(entry.text) for entry in history}
                # Removed by a version that kept no history: then the age of the file tells.
                if not history and file.mark.changed <= removed.get(name, 0) * 1e9:
                    ended[name].add(file_model.digest)
        return KnownModels(imports=imports, models=rows, ended=ended, is_new=is_new)

    async def _write(
        self, store_id: str, plan: ImportPlan, stored: KnownModels, last: Mapping[str, LastChange]
    ) -> bool:
        """False: a model was changed at the same moment; what is left is planned again."""
        for batch in _batches(plan.changes):
            changes = self._batch(batch, stored, last)
            if not await self._imports.take_over(store_id, changes):
                return False
            for event in changes.events:
                log.info("a file changed a model", extra={**event.data, "event": "model.changed"})
        return True

    def _batch(self, changes: Sequence[FileChange], stored: KnownModels, last: Mapping[str, LastChange]) -> TakenOver:
        now = self._clock.now()
        models = [
            next_model(
                file_model,
                stored.models.get(file_model.spec.name),
                last.get(file_model.spec.name, NEVER_CHANGED),
                provenance=_from_file(change.path, stored.models.get(file_model.spec.name)),
                by=_by(change.path),
                now=now,
            )
            for change in changes
            for file_model in change.models
        ]
        ended = [
            replace(
                stored.models[name],
                number=stored.models[name].number + 1,
                changed_at=last_change_of(stored.models[name]).next_at(now),
                changed_by=_by(change.path),
            )
            for change in changes
            for name in change.removed
        ]
        events = [change_event(model, ModelChangeKind.FILE) for model in models]
        return TakenOver(
            files=[change.note for change in changes if change.note is not None],
            forgotten=[change.path for change in changes if change.note is None],
            models=models,
            removed=[revision_row(model, ModelChangeKind.REMOVED) for model in ended],
            events=[*events, *(change_event(model, ModelChangeKind.REMOVED) for model in ended)],
        )

    def _tell(self, plan: ImportPlan, reading: DirectoryReading) -> None:
        """Show what files say, and what is wrong with them."""
        problems = [] if reading.problem is None else [reading.problem]
        if reading.store is None:
            self._models.see(_by_name(self.files), problems)
            return
        for path, file in reading.files.items():
            earlier = self._imported.get(path)
            problems += [
                replace(problem, may_hide=earlier is None or bool(problem.name and problem.name not in earlier.names))
                for problem in file.problems
            ]
        self._models.see(_by_name(reading.files), [*problems, *plan.problems])

    # What models are loaded from.

    async def _measure(self, reading: DirectoryReading) -> None:
        """What nobody has stated is noted, so that frontends without the directory know it too."""
        rows, before = self._models.rows, self._sizes
        if rows is not self._weighed:
            self._weights = self._weights_by_model()
        paths = sorted({path for some in self._weights.values() for path in some})
        self._sizes = await asyncio.to_thread(directory.measure, self._models.directory, paths, before)
        if rows is self._weighed and self._sizes == before and reading.weights == self._offered:
            return
        self._weighed, self._offered = rows, reading.weights
        lone = {path: size for path, size in reading.weights.items() if path not in paths}
        files = {
            path: WeightFile(path=path, size=measured.size, shape=measured.shape)
            for path, measured in self._sizes.items()
        }
        self._models.measured(files, lone)
        news: list[tuple[StoredModel, Sequence[WeightFile]]] = []
        for (name, _), some in self._weights.items():
            row = rows.get(name)
            if row is not None and (noted := self._noted(row, some, before)) != row.files:
                news.append((row, noted))
        if news:
            await self._store.measure(news)

    def _noted(
        self, row: StoredModel, paths: Sequence[str], before: Mapping[str, MeasuredPath]
    ) -> tuple[WeightFile, ...]:
        """What the database shall know of the files of a model. Sizes that were stated stay."""
        stored = {file.path: file for file in row.files}
        measured = [_here(path, self._sizes[path], stored.get(path)) for path in paths if path in self._sizes]
        if any(file.digest for file in row.files):
            read = {(file.path, file.size): file.shape for file in measured}
            return tuple(
                msgspec.structs.replace(file, shape=file.shape or read.get((file.path, file.size)))
                for file in row.files
            )
        is_news = any(before.get(path) != self._sizes.get(path) for path in paths)
        return tuple(measured) if measured and (is_news or not row.files) else row.files

    def _weights_by_model(self) -> dict[tuple[str, str], list[str]]:
        """What each model is loaded from; that of models which are as they were is not found out again."""
        specs = [spec for row in self._models.rows.values() if isinstance(spec := self._models.spec_of(row), ModelSpec)]
        marks = [((spec.name, spec.revision), spec) for spec in specs]
        return {mark: self._weights[mark] if mark in self._weights else paths_of(spec, ()) for mark, spec in marks}


def _here(path: str, measured: MeasuredPath, stored: WeightFile | None) -> WeightFile:
    """A file as it is here; what was read of it elsewhere holds until it is read here."""
    shape = measured.shape
    if stored is not None and stored.size == measured.size and not measured.is_read:
        shape = stored.shape
    return WeightFile(path=path, size=measured.size, shape=shape)


def _by(path: str) -> str:
    return f"file {path}"


def _from_file(path: str, before: StoredModel | None) -> ModelProvenance:
    files = () if before is None else before.files
    return ModelProvenance(ModelSource.FILE, ModelOrigin(reference=path), files)


def _by_name(files: Mapping[str, ReadFile]) -> dict[tuple[str, str], ReadModel]:
    """What files say about models, by model and file."""
    return {(model.spec.name, path): model for path, file in files.items() for model in file.content.models}


def _batches(changes: Sequence[FileChange]) -> list[list[FileChange]]:
    """Files of about so many models together."""
    batches: list[list[FileChange]] = []
    size = _AT_ONCE
    for change in changes:
        if size >= _AT_ONCE:
            batches.append([])
            size = 0
        batches[-1].append(change)
        size += 1 + len(change.models)
    return batches
