"""Setting and deleting rules of scheduling: by people, by a file that declares them, by the settings of a frontend."""

import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from corral.base.careful_yaml import UNREADABLE, YamlLimits, why
from corral.base.clock import Clock
from corral.base.errors import InvalidInput, NotFound, Overtaken
from corral.base.ids import NodeId
from corral.base.private_files import read_bounded
from corral.base.words import listed
from corral.base.yaml_values import read_document
from corral.frontend.nodes.fleet import Fleet
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.feed import Feed
from corral.frontend.serving.decide.scheduling import (
    RuleSource,
    RuleStamp,
    RulesUpdate,
    SchedulingRule,
    SchedulingWish,
    check,
    in_words,
    rules_after,
    rules_mark,
    seeds_of,
    update,
)
from corral.frontend.serving.store.scheduling import SchedulingStore

log = logging.getLogger(__name__)

MOST_RULES: Final = 10_000
_LARGEST_FILE: Final = 1024 * 1024
_LIMITS: Final = YamlLimits(most_values=50_000, things="rules")
_BY_SETTING: Final = "control"

Revise = Callable[[SchedulingWish], SchedulingWish]


class PruneRules(StrEnum):
    """Which rules are deleted that a file does not name."""

    NONE = ""
    DEMANDED = "demanded"
    """Delete rules that came from a file."""
    ALL = "all"


class RulesChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of rules, as functions of the rules that there are."""

    wishes: Callable[[Sequence[SchedulingRule]], Sequence[SchedulingWish]] = lambda _: ()
    source: RuleSource = RuleSource.API
    drop: Callable[[Sequence[SchedulingRule]], Collection[str]] = lambda _: ()
    """The models whose rules are deleted."""


def revision(model: str, revise: Revise) -> RulesChange:
    """Change the rule of a model, or make it one. `revise` gets what the rule says so far."""

    def wishes(current: Sequence[SchedulingRule]) -> list[SchedulingWish]:
        before = next((rule.wish for rule in current if rule.model == model), SchedulingWish(model=model))
        return [check(revise(before))]

    return RulesChange(wishes=wishes)


def removal(models: Collection[str]) -> RulesChange:
    """Have no rule for these models any more."""
    return RulesChange(drop=lambda _: models)


def declaration(
    wishes: Sequence[SchedulingWish],
    *,
    prune: PruneRules,
    remove: Collection[str] = (),
    source: RuleSource = RuleSource.FILE,
) -> RulesChange:
    """Make these the rules of their models, delete those of `remove`, and others as `prune` says. InvalidInput says
    what is wrong."""
    _refuse_twice(wishes)
    checked = [_checked_entry(place, wish) for place, wish in enumerate(wishes)]
    named = {wish.model for wish in checked}

    def drop(current: Sequence[SchedulingRule]) -> Collection[str]:
        other_rules = [rule for rule in current if rule.model not in named]
        match prune:
            case PruneRules.NONE:
                return remove
            case PruneRules.DEMANDED:
                return [rule.model for rule in other_rules if rule.source is RuleSource.FILE or rule.model in remove]
            case PruneRules.ALL:
                return [rule.model for rule in other_rules]

    return RulesChange(wishes=lambda _: checked, source=source, drop=drop)


class Scheduling:
    """Changes rules. What follows from them is the business of the loop that scales."""

    def __init__(self, store: SchedulingStore, fleet: Fleet, feed: Feed, clock: Clock) -> None:
        self._store = store
        self._fleet = fleet
        self._feed = feed
        self._clock = clock

    async def all(self) -> list[SchedulingRule]:
        """All rules, by the names of their models."""
        return await self._store.all()

    async def find(self, model: str) -> SchedulingRule | None:
        return await self._store.get(model)

    async def get(self, model: str) -> SchedulingRule:
        """NotFound for a model without a rule."""
        rule = await self._store.get(model)
        if rule is None:
            raise NotFound(f"there is no rule of scheduling for {model[:100]!r}: it is loaded when somebody asks")
        return rule

    async def revise(self, model: str, revise: Revise, *, by: str, mark: str | None = None) -> SchedulingRule:
        """Change the rule of a model, or make it one. `revise` gets what the rule says so far."""
        await self.change(revision(model, revise), by=by, mark=mark)
        return await self.get(model)

    async def delete(self, model: str, *, by: str, mark: str | None = None) -> bool:
        """Have no rule for a model any more; its replicas stay for now. False: there was none."""
        return bool((await self.change(removal([model]), by=by, mark=mark)).removed)

    async def declare(self, wishes: Sequence[SchedulingWish], *, prune: PruneRules, by: str) -> RulesUpdate:
        """Make these the rules of their models; delete others as `prune` says."""
        return await self.change(declaration(wishes, prune=prune), by=by)

    async def preview(self, change: RulesChange, *, by: str) -> tuple[RulesUpdate, list[SchedulingRule], str]:
        """What a change would do to the rules of now, all rules after it, and the mark of those that it touches."""
        current, stamp = await self._store.all(), RuleStamp(source=change.source, by=by, at=self._clock.now())
        written, dropped = change.wishes(current), change.drop(current)
        ids = {wish.model: "" for wish in written}
        changed = update(current, written, stamp, ids=ids, drop=dropped)
        return changed, rules_after(current, changed), rules_mark(current, _touched(written, dropped))

    async def seed(self, wishes: Sequence[SchedulingWish]) -> None:
        """Write the rules that settings name. Others stay as they are."""
        if not wishes:
            return
        change = RulesChange(wishes=lambda _: list(wishes), source=RuleSource.SETTING)
        changed = await self.change(change, by=_BY_SETTING)
        details = {"event": "scheduling.seeded", "rules": len(wishes), "written": len(changed.write)}
        log.info("rules of scheduling taken from the settings", extra=details)

    async def nodes_named(self, references: Iterable[str]) -> tuple[NodeId, ...]:
        """The nodes that these ids, or names that only one node has, stand for; each once."""
        names_asked = list(dict.fromkeys(references))
        if not names_asked:
            return ()
        nodes = [seen.node for seen in await self._fleet.all()]
        chosen: dict[NodeId, None] = {}
        for reference in names_asked:
            ids = [node.id for node in nodes if node.id == reference]
            ids = ids or [node.id for node in nodes if node.name == reference]
            if not ids:
                raise InvalidInput("pinned_nodes", f"no node has the id or name {reference[:100]!r}")
            if len(ids) > 1:
                raise InvalidInput("pinned_nodes", f"{reference[:100]!r} may mean {listed(ids)}; name one by its id")
            chosen[ids[0]] = None
        return tuple(chosen)

    async def change(self, change: RulesChange, *, by: str, mark: str | None = None) -> RulesUpdate:
        """Change rules. Overtaken when those that it touches do not have the `mark` that was seen, if one is given."""
        stamp = RuleStamp(source=change.source, by=by, at=self._clock.now())

        def decide(current: Sequence[SchedulingRule]) -> tuple[RulesUpdate, list[Event]]:
            written, dropped = change.wishes(current), change.drop(current)
            if mark is not None and rules_mark(current, _touched(written, dropped)) != mark:
                raise Overtaken
            ids = {wish.model: str(uuid.uuid4()) for wish in written}
            changed = update(current, written, stamp, ids=ids, drop=dropped)
            if len(current) + len(changed.added) > MOST_RULES:
                raise InvalidInput("rules", f"there would be more than {MOST_RULES} rules")
            return changed, [] if changed.is_nothing else [_event(changed, stamp)]

        changed = await self._store.change(decide)
        if not changed.is_nothing:
            await self._feed.announce()
        return changed


def _touched(written: Sequence[SchedulingWish], dropped: Collection[str]) -> set[str]:
    return {wish.model for wish in written} | set(dropped)


def _refuse_twice(wishes: Sequence[SchedulingWish]) -> None:
    models = [wish.model for wish in wishes]
    for place, model in enumerate(models):
        if models.index(model) != place:
            raise InvalidInput(f"rules[{place}].model", f"{model[:100]!r} has two rules")


def _checked_entry(place: int, wish: SchedulingWish) -> SchedulingWish:
    try:
        return check(wish)
    except InvalidInput as error:
        raise InvalidInput(f"rules[{place}].{error.field}", error.problem) from error


def _event(changed: RulesUpdate, stamp: RuleStamp) -> Event:
    data = {
        "added": list(changed.added),
        "changed": list(changed.changed),
        "removed": list(changed.removed),
        "source": stamp.source.value,
        "rules": {rule.model: in_words(rule.wish) for rule in changed.write},
    }
    return Event(kind=EventKind.SCHEDULING_CHANGED, at=stamp.at, actor=stamp.by, data=data)


def read_seed_file(path: Path) -> tuple[SchedulingWish, ...]:
    """The rules in a YAML file as LocalAI's `LOCALAI_MODEL_SCHEDULING_CONFIG` names it; InvalidInput names the file."""
    try:
        content = read_bounded(path, _LARGEST_FILE)
        if content is None:
            raise InvalidInput("", f"is larger than {_LARGEST_FILE // 1024} KiB")
        return seeds_of(read_document(content.decode("utf-8-sig"), _LIMITS))
    except OSError as error:
        raise InvalidInput(str(path), f"cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(str(path), f"is not UTF-8 text: see byte {error.start}") from error
    except UNREADABLE as error:
        raise InvalidInput(str(path), why(error)) from None
    except InvalidInput as error:
        raise InvalidInput(f"{path} {error.field}".strip(), error.problem) from error


def revised(wish: SchedulingWish, **fields: object) -> SchedulingWish:
    """The wish with these fields; those that are None stay."""
    return replace(wish, **{name: value for name, value in fields.items() if value is not None})
