"""Changes of models by people and programs: each is checked, written to the history, and announced.

Nothing is written for what is refused, and nothing is overwritten that somebody else changed meanwhile.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from corral.base.clock import Clock
from corral.base.errors import Conflict, InvalidInput, NotFound
from corral.base.words import near_names
from corral.base.yaml_values import write_document
from corral.frontend.models.decide.changing import (
    BY_HAND,
    ModelProvenance,
    change_event,
    last_change_of,
    merged,
    next_model,
    renamed,
)
from corral.frontend.models.decide.model import ModelSpec
from corral.frontend.models.decide.reading import ReadModel, config_of, read_one
from corral.frontend.models.decide.stored import (
    NEVER_CHANGED,
    LastChange,
    ModelChangeKind,
    ModelRevision,
    ModelSource,
    StoredModel,
)
from corral.frontend.models.decide.trust import check_trust
from corral.frontend.models.store.models import StoredModels
from corral.frontend.record.feed import Feed

log = logging.getLogger(__name__)

ReplicaRevisions = Callable[[str], Awaitable[Mapping[str, str]]]
"""The revisions that the living replicas of a model serve, by the replicas' ids."""
_SHOWN_NAME: Final = 100


class ChangedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model after a change, or as it would be."""

    name: str
    number: int
    revision: str
    change: ModelChangeKind | None
    """None: it was like this already."""
    text: str
    warnings: tuple[str, ...] = ()
    reloads: tuple[str, ...] = ()
    """The replicas that are replaced because they serve another revision."""


class ModelChanges:
    """`may_trust` means that the caller may let code run on nodes that comes from no gallery."""

    def __init__(
        self,
        store: StoredModels,
        refresh: Callable[[], Awaitable[object]],
        feed: Feed,
        clock: Clock,
        *,
        replicas: ReplicaRevisions,
    ) -> None:
        """`refresh` is awaited after each change, so that its caller finds it here at once."""
        self._store = store
        self._refresh = refresh
        self._feed = feed
        self._clock = clock
        self._replicas = replicas
        self.on_changed: list[Callable[[str], Awaitable[None]]] = []
        """Awaited with the name of each model that was changed, before whoever changed it hears that it was."""

    async def add(
        self,
        text: str,
        *,
        by: str,
        provenance: ModelProvenance = BY_HAND,
        may_trust: bool = False,
        dry_run: bool = False,
    ) -> ChangedModel:
        """Add a model. Conflict if there is one of its name; a pull of what is there changes it instead."""
        read = read_one(text)
        check_trust(read.spec.config, None, may_trust=may_trust)
        await self._check_alias(read.spec)
        before, last = await self._look(read.spec.name)
        is_pull = provenance.source is ModelSource.PULL
        if before is not None and not is_pull:
            raise Conflict(f"the model {before.name} is there already, {_last_change(before)}; edit it instead")
        if before is not None and (before.text, before.files) == (text, provenance.files):
            return _unchanged(before, read.spec.warnings)
        model = self._next(read, before, last, by=by, provenance=provenance)
        change = ModelChangeKind.PULLED if is_pull else ModelChangeKind.ADDED
        return await self._write(model, change, read, dry_run=dry_run)

    async def edit(
        self,
        name: str,
        text: str,
        *,
        by: str,
        if_revision: str = "",
        may_trust: bool = False,
        dry_run: bool = False,
    ) -> ChangedModel:
        """Give a model another configuration. Conflict if it is not of the revision that was asked for any more."""
        before = await self._existing(name)
        if if_revision and before.revision != if_revision:
            raise Conflict(f"the model {name} is another one by now, {_last_change(before)}; look at it again")
        read = read_one(text)
        if read.spec.name != name:
            raise InvalidInput("name", f"must stay {name!r}, got {read.spec.name[:80]!r}; copy the model instead")
        check_trust(read.spec.config, config_of(before.text), may_trust=may_trust)
        return await self._edit(before, read, ModelChangeKind.EDITED, by=by, dry_run=dry_run)

    async def patch(self, name: str, config: Mapping[str, object], *, by: str, may_trust: bool = False) -> ChangedModel:
        """Change some keys of a model: mappings are merged, null takes a key away, all else replaces what was there."""
        before = await self._existing(name)
        text = write_document(merged(config_of(before.text), config))
        return await self.edit(name, text, by=by, if_revision=before.revision, may_trust=may_trust)

    async def copy(self, name: str, to: str, *, by: str, may_trust: bool = False) -> ChangedModel:
        """Add the same model under another name. Both have the same files."""
        before = await self._existing(name)
        existing, last = await self._look(to)
        if existing is not None:
            raise Conflict(f"the model {to} is there already")
        read = read_one(renamed(before.text, to))
        check_trust(read.spec.config, None, may_trust=may_trust)
        model = self._next(
            read, None, last, by=by, provenance=ModelProvenance(ModelSource.API, before.origin, before.files)
        )
        return await self._write(model, ModelChangeKind.COPIED, read)

    async def rollback(
        self, name: str, number: int, *, by: str, may_trust: bool = False, dry_run: bool = False
    ) -> ChangedModel:
        """Give a model the configuration that it had after a change; also one that was removed."""
        entry = await self._store.at(name, number)
        if entry is None:
            await self._check_known(name)
            raise NotFound(f"the model {name} has no change {number}, or it is too long ago")
        read, (before, last) = read_one(entry.text), await self._look(name)
        trusted = None if before is None else config_of(before.text)
        check_trust(read.spec.config, trusted, may_trust=may_trust)
        if before is not None:
            return await self._edit(before, read, ModelChangeKind.ROLLED_BACK, by=by, dry_run=dry_run)
        model = self._next(
            read, None, last, by=by, provenance=ModelProvenance(ModelSource.API, entry.origin, entry.files)
        )
        return await self._write(model, ModelChangeKind.ROLLED_BACK, read, dry_run=dry_run)

    async def history(self, name: str) -> list[ModelRevision]:
        """All changes of a model that are kept, the newest first. NotFound if it never was."""
        entries = await self._store.history(name)
        if not entries:
            await self._check_known(name)
        return entries

    async def disable(self, name: str, *, by: str) -> ChangedModel:
        """Take a model out of use without removing it."""
        return await self._set(name, ModelChangeKind.DISABLED, by, is_disabled=True)

    async def enable(self, name: str, *, by: str) -> ChangedModel:
        return await self._set(name, ModelChangeKind.ENABLED, by, is_disabled=False)

    async def pin(self, name: str, *, by: str) -> ChangedModel:
        """Note that the model shall stay."""
        return await self._set(name, ModelChangeKind.PINNED, by, is_pinned=True)

    async def unpin(self, name: str, *, by: str) -> ChangedModel:
        return await self._set(name, ModelChangeKind.UNPINNED, by, is_pinned=False)

    # Steps.

    async def _existing(self, name: str) -> StoredModel:
        model = await self._store.get(name)
        if model is None:
            await self._check_known(name)
            raise NotFound(f"the model {name[:_SHOWN_NAME]!r} was removed; roll it back, or add it again")
        return model

    async def _check_known(self, name: str) -> None:
        """NotFound, with names that are like it, for a model that never was."""
        if await self._store.last_changes([name]):
            return
        near = near_names(name[:_SHOWN_NAME], await self._store.marks())
        hint = f"did you mean {' or '.join(near)}?" if near else "`corral models list` shows all"
        raise NotFound(f"the model {name[:_SHOWN_NAME]!r} does not exist; {hint}")

    async def _check_alias(self, spec: ModelSpec) -> None:
        if not spec.alias_of:
            return
        target = await self._store.get(spec.alias_of)
        if target is None:
            raise InvalidInput("alias", f"{spec.alias_of[:_SHOWN_NAME]!r} is no model")
        if config_of(target.text).get("alias"):
            raise InvalidInput("alias", f"{spec.alias_of[:_SHOWN_NAME]!r} is an alias itself")

    async def _look(self, name: str) -> tuple[StoredModel | None, LastChange]:
        """A model and its last change. The change is read first, so that a model which is added in between takes the
        next number."""
        last = (await self._store.last_changes([name])).get(name, NEVER_CHANGED)
        return await self._store.get(name), last

    def _next(
        self, read: ReadModel, before: StoredModel | None, last: LastChange, *, by: str, provenance: ModelProvenance
    ) -> StoredModel:
        """The model after its next change."""
        return next_model(read, before, last, provenance=provenance, by=by, now=self._clock.now())

    async def _edit(
        self, before: StoredModel, read: ReadModel, change: ModelChangeKind, *, by: str, dry_run: bool
    ) -> ChangedModel:
        if before.text == read.text:
            return _unchanged(before, read.spec.warnings)
        await self._check_alias(read.spec)
        origin = None if before.source is ModelSource.FILE else before.origin
        provenance = ModelProvenance(ModelSource.API, origin, before.files)
        model = self._next(read, before, NEVER_CHANGED, by=by, provenance=provenance)
        return await self._write(model, change, read, dry_run=dry_run)

    async def _set(
        self,
        name: str,
        change: ModelChangeKind,
        by: str,
        *,
        is_disabled: bool | None = None,
        is_pinned: bool | None = None,
    ) -> ChangedModel:
        before = await self._existing(name)
        model = replace(
            before,
            is_disabled=before.is_disabled if is_disabled is None else is_disabled,
            is_pinned=before.is_pinned if is_pinned is None else is_pinned,
        )
        if model == before:
            return ChangedModel(
                name=name, number=before.number, revision=before.revision, change=None, text=before.text
            )
        number, at = before.number + 1, last_change_of(before).next_at(self._clock.now())
        return await self._write(replace(model, number=number, changed_at=at, changed_by=by), change, None)

    async def _write(
        self, model: StoredModel, change: ModelChangeKind, read: ReadModel | None, *, dry_run: bool = False
    ) -> ChangedModel:
        serving = await self._replicas(model.name)
        reloads = tuple(id for id, revision in sorted(serving.items()) if revision != model.revision)
        changed = ChangedModel(
            name=model.name,
            number=model.number,
            revision=model.revision,
            change=change,
            text=model.text,
            warnings=() if read is None else read.spec.warnings,
            reloads=reloads,
        )
        if dry_run:
            return changed
        if not await self._store.write(model, change, events=[change_event(model, change)]):
            raise await self._overtaken(model.name)
        details = {"event": "model.changed", "model": model.name, "change": change.value, "number": model.number}
        log.info("a model was changed", extra=details)
        await self._refresh()
        await self._feed.announce()
        for tell in self.on_changed:
            await tell(model.name)
        return changed

    async def _overtaken(self, name: str) -> Conflict:
        (last,) = await self._store.history(name, limit=1)
        at = last.changed_at.isoformat(timespec="seconds")
        return Conflict(f"the model {name} was changed meanwhile by {last.changed_by} ({last.change}, {at})")


def _last_change(model: StoredModel) -> str:
    return f"changed by {model.changed_by} at {model.changed_at.isoformat(timespec='seconds')}"


def _unchanged(before: StoredModel, warnings: tuple[str, ...] = ()) -> ChangedModel:
    return ChangedModel(
        name=before.name,
        number=before.number,
        revision=before.revision,
        change=None,
        text=before.text,
        warnings=warnings,
    )
