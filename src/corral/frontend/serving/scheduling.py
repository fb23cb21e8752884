"""Setting and deleting rules of scheduling: by people, by a file that declares them, by the settings of a frontend."""

import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from corral.base.careful_yaml import UNREADABLE, YamlLimits, why
from corral.base.clock import Clock
from corral.base.errors import InvalidInput, NotFound
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
    """Those that came from a file."""
    ALL = "all"


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

    async def revise(self, model: str, revise: Revise, *, by: str) -> SchedulingRule:
        """Change the rule of a model, or make it one. `revise` gets what the rule says so far."""

        def wishes(current: Sequence[SchedulingRule]) -> list[SchedulingWish]:
            before = next((rule.wish for rule in current if rule.model == model), SchedulingWish(model=model))
            return [check(revise(before))]

        await self._change(wishes, RuleSource.API, by=by)
        return await self.get(model)

    async def delete(self, model: str, *, by: str) -> bool:
        """Have no rule for a model any more; its replicas stay for now. False: there was none."""
        changed = await self._change(lambda _: [], RuleSource.API, by=by, drop=lambda _: {model})
        return bool(changed.removed)

    async def declare(self, wishes: Sequence[SchedulingWish], *, prune: PruneRules, by: str) -> RulesUpdate:
        """Make these the rules of their models; delete others as `prune` says."""
        _refuse_twice(wishes)
        checked = [_checked_entry(place, wish) for place, wish in enumerate(wishes)]
        named = {wish.model for wish in checked}

        def drop(current: Sequence[SchedulingRule]) -> Collection[str]:
            others = [rule for rule in current if rule.model not in named]
            match prune:
                case PruneRules.NONE:
                    return ()
                case PruneRules.DEMANDED:
                    return [rule.model for rule in others if rule.source is RuleSource.FILE]
                case PruneRules.ALL:
                    return [rule.model for rule in others]

        return await self._change(lambda _: checked, RuleSource.FILE, by=by, drop=drop)

    async def seed(self, wishes: Sequence[SchedulingWish]) -> None:
        """Write the rules that settings name. Others stay as they are."""
        if not wishes:
            return
        changed = await self._change(lambda _: list(wishes), RuleSource.SETTING, by=_BY_SETTING)
        shown = {"event": "scheduling.seeded", "rules": len(wishes), "written": len(changed.write)}
        log.info("rules of scheduling taken from the settings", extra=shown)

    async def nodes_named(self, references: Iterable[str]) -> tuple[NodeId, ...]:
        """The nodes that these ids, or names that only one node has, stand for; each once."""
        wanted = list(dict.fromkeys(references))
        if not wanted:
            return ()
        nodes = [seen.node for seen in await self._fleet.all()]
        chosen: dict[NodeId, None] = {}
        for reference in wanted:
            ids = [node.id for node in nodes if node.id == reference]
            ids = ids or [node.id for node in nodes if node.name == reference]
            if not ids:
                raise InvalidInput("pinned_nodes", f"no node has the id or name {reference[:100]!r}")
            if len(ids) > 1:
                raise InvalidInput("pinned_nodes", f"{reference[:100]!r} may mean {listed(ids)}; name one by its id")
            chosen[ids[0]] = None
        return tuple(chosen)

    async def _change(
        self,
        wishes: Callable[[Sequence[SchedulingRule]], Sequence[SchedulingWish]],
        source: RuleSource,
        *,
        by: str,
        drop: Callable[[Sequence[SchedulingRule]], Collection[str]] = lambda _: (),
    ) -> RulesUpdate:
        stamp = RuleStamp(source=source, by=by, at=self._clock.now())

        def decide(current: Sequence[SchedulingRule]) -> tuple[RulesUpdate, list[Event]]:
            written = wishes(current)
            ids = {wish.model: str(uuid.uuid4()) for wish in written}
            changed = update(current, written, stamp, ids=ids, drop=drop(current))
            if len(current) + len(changed.added) > MOST_RULES:
                raise InvalidInput("rules", f"there would be more than {MOST_RULES} rules")
            return changed, [] if changed.is_nothing else [_event(changed, stamp)]

        changed = await self._store.change(decide)
        if not changed.is_nothing:
            await self._feed.announce()
        return changed


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
    return replace(wish, **{name: value for name, value in fields.items() if value is not None})  # type: ignore[arg-type]
