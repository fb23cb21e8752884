"""Rules of scheduling: how many replicas a model should have, and where they may be. Values and checks, pure.

A rule has one of three forms:

| form | what it says |
|---|---|
| neither counts nor `spread_all` | loaded when somebody asks, one replica; the rule says where it may be |
| `min_replicas`, `max_replicas`  | at least, and at most so many (0: no limit); between them, as many as are busy |
| `spread_all`                    | one on every node that it may be on |
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from corral.base.errors import InvalidInput
from corral.base.ids import NodeId
from corral.base.words import format_duration, listed
from corral.frontend.models.decide.model import Catalogue
from corral.frontend.nodes.decide.node import Node
from corral.wire.labels import has_labels, label_problem
from corral.wire.plans import plan_hash

T = TypeVar("T", str, int, bool)

MOST_REPLICAS: Final = 10_000
MOST_IDLE_SECONDS: Final = 366 * 24 * 3600
MOST_PINNED: Final = 1000
_LONGEST_NAME: Final = 200
_LARGEST_THRESHOLD: Final = 1_000_000
PREFIX_CACHE: Final = "prefix_cache"
ROUTE_POLICIES: Final = ("", "round_robin", PREFIX_CACHE)
"""How requests are spread over replicas: as the setting says, in turns, or to who knows the beginning of the prompt."""


class RuleSource(StrEnum):
    """Where a rule came from; the last writer owns it."""

    API = "api"
    FILE = "fleet file"
    SETTING = "setting"
    """Written again at every start of a frontend that has the setting."""


class SchedulingWish(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody wants for one model."""

    model: str
    """Its name, or an alias: then the rule follows the alias. It need not exist yet."""
    node_selector: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Labels that a node must have."""
    pinned_nodes: tuple[NodeId, ...] = ()
    """Only these nodes; none mean any."""
    min_replicas: int = 0
    max_replicas: int = 0
    spread_all: bool = False
    route_policy: str = ""
    balance_abs_threshold: int = 0
    balance_rel_threshold: float = 0.0
    min_prefix_match: float = 0.0
    idle_seconds: int | None = None
    """How long a replica may be idle before it is unloaded, as far as the minimum allows. 0: for ever; None: as the
    settings say."""

    @property
    def has_counts(self) -> bool:
        """Whether replicas come and go with the load."""
        return self.min_replicas > 0 or self.max_replicas > 0

    def allows(self, node: Node) -> bool:
        """Whether replicas may be on this node."""
        is_pinned = not self.pinned_nodes or node.id in self.pinned_nodes
        return is_pinned and has_labels(node.labels.effective, self.node_selector)


class SchedulingRule(msgspec.Struct, frozen=True, kw_only=True):
    """A wish that is stored."""

    id: str
    wish: SchedulingWish
    source: RuleSource
    created_at: datetime
    updated_at: datetime
    updated_by: str

    @property
    def model(self) -> str:
        return self.wish.model


def check(wish: SchedulingWish) -> SchedulingWish:
    """The wish, if it can be stored. InvalidInput names the field, in the words that LocalAI has for it."""
    if not wish.model:
        raise InvalidInput("model_name", "is required")
    if len(wish.model) > _LONGEST_NAME or not wish.model.isprintable() or wish.model != wish.model.strip():
        raise InvalidInput("model_name", f"must be one line of up to {_LONGEST_NAME} characters")
    if wish.spread_all and (wish.min_replicas or wish.max_replicas):
        raise InvalidInput("spread_all", "and min_replicas/max_replicas are mutually exclusive")
    for name, count in (("min_replicas", wish.min_replicas), ("max_replicas", wish.max_replicas)):
        if count < 0:
            raise InvalidInput(name, "must be >= 0")
        if count > MOST_REPLICAS:
            raise InvalidInput(name, f"must be <= {MOST_REPLICAS}, got {count}")
    if 0 < wish.max_replicas < wish.min_replicas:
        raise InvalidInput("min_replicas", "must be <= max_replicas")
    _check_places(wish)
    _check_routing(wish)
    return wish


def _check_places(wish: SchedulingWish) -> None:
    if (problem := label_problem(wish.node_selector)) is not None:
        raise InvalidInput("node_selector", problem)
    if len(wish.pinned_nodes) > MOST_PINNED:
        raise InvalidInput("pinned_nodes", f"names {len(wish.pinned_nodes)} nodes, and {MOST_PINNED} are the most")
    idle = wish.idle_seconds
    if idle is None:
        return
    if not 0 <= idle <= MOST_IDLE_SECONDS:
        raise InvalidInput("idle_seconds", f"must be from 0 (never) to {MOST_IDLE_SECONDS}, got {idle}")
    if wish.spread_all and idle:
        raise InvalidInput("idle_seconds", "and spread_all are mutually exclusive: every node keeps its replica")


def _check_routing(wish: SchedulingWish) -> None:
    if wish.route_policy not in ROUTE_POLICIES:
        words = ", ".join(f'"{policy}"' for policy in ROUTE_POLICIES)
        raise InvalidInput("route_policy", f"must be one of {words}, got {wish.route_policy[:50]!r}")
    if not 0 <= wish.min_prefix_match <= 1:
        raise InvalidInput("min_prefix_match", f"must be in [0,1], got {wish.min_prefix_match}")
    if not 0 <= wish.balance_abs_threshold <= _LARGEST_THRESHOLD:
        got = wish.balance_abs_threshold
        raise InvalidInput("balance_abs_threshold", f"must be >= 0 and <= {_LARGEST_THRESHOLD}, got {got}")
    relative = wish.balance_rel_threshold
    if relative != 0 and not 1 <= relative <= _LARGEST_THRESHOLD:
        raise InvalidInput(
            "balance_rel_threshold", f"must be 0 (inherit) or >= 1 and <= {_LARGEST_THRESHOLD}, got {relative}"
        )


def in_words(wish: SchedulingWish) -> str:
    """What a rule says, for people."""
    if wish.spread_all:
        count = "one replica on every node"
    elif not wish.has_counts:
        count = "loaded when somebody asks"
    elif wish.min_replicas == wish.max_replicas:
        count = f"exactly {wish.min_replicas}"
    elif not wish.max_replicas:
        count = f"at least {wish.min_replicas}"
    else:
        count = f"{wish.min_replicas} to {wish.max_replicas}"
    labels = ", ".join(f"{key}={value}" for key, value in sorted(wish.node_selector.items()))
    where = f", on nodes with {labels}" if labels else ""
    pinned = f", only on {listed(list(wish.pinned_nodes))}" if wish.pinned_nodes else ""
    idle = "" if wish.idle_seconds is None else ", never unloaded when idle"
    if wish.idle_seconds:
        idle = f", unloaded after {format_duration(timedelta(seconds=wish.idle_seconds))} without requests"
    return f"{count}{where}{pinned}{idle}"


# Sets of rules.


class RulesUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of all rules when some are written."""

    write: tuple[SchedulingRule, ...] = ()
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    @property
    def is_nothing(self) -> bool:
        return not (self.write or self.removed)


class RuleStamp(msgspec.Struct, frozen=True, kw_only=True):
    """Who writes rules, from where, and when."""

    source: RuleSource
    by: str
    at: datetime


def update(
    current: Iterable[SchedulingRule],
    wishes: Iterable[SchedulingWish],
    stamp: RuleStamp,
    *,
    ids: Mapping[str, str],
    drop: Iterable[str] = (),
) -> RulesUpdate:
    """What it means to write these wishes and to delete the rules of the models in `drop`.

    A rule that says the same, and came from the same source, is not written again. `ids` has one for every new rule.
    """
    before = {rule.model: rule for rule in current}
    write, added, changed = list[SchedulingRule](), list[str](), list[str]()
    for wish in {wish.model: wish for wish in wishes}.values():
        rule = before.get(wish.model)
        fields = {"wish": wish, "source": stamp.source, "updated_at": stamp.at, "updated_by": stamp.by}
        if rule is None:
            added.append(wish.model)
            write.append(SchedulingRule(id=ids[wish.model], created_at=stamp.at, **fields))  # type: ignore[arg-type]
        elif (rule.wish, rule.source) != (wish, stamp.source):
            write.append(replace(rule, **fields))
            if rule.wish != wish:
                changed.append(wish.model)
    removed = sorted(before.keys() & set(drop))
    return RulesUpdate(
        write=tuple(write), added=tuple(sorted(added)), changed=tuple(sorted(changed)), removed=tuple(removed)
    )


def rules_mark(current: Iterable[SchedulingRule], models: Collection[str]) -> str:
    """A hash of the rules of these models, which changes whenever one of them is written."""
    rules = sorted((rule for rule in current if rule.model in models), key=lambda rule: rule.model)
    return plan_hash([[rule.model, in_words(rule.wish), rule.updated_at.isoformat()] for rule in rules])


def rules_after(current: Iterable[SchedulingRule], changed: RulesUpdate) -> list[SchedulingRule]:
    """All rules after an update."""
    after = {rule.model: rule for rule in current if rule.model not in changed.removed}
    after |= {rule.model: rule for rule in changed.write}
    return [after[model] for model in sorted(after)]


def rules_in_force(rules: Iterable[SchedulingRule], catalogue: Catalogue) -> dict[str, SchedulingRule]:
    """The rule of each model that has one, by the model that serves. A model's own rule wins over that of an alias."""
    in_force: dict[str, SchedulingRule] = {}
    for rule in sorted(rules, key=lambda rule: rule.model):
        spec = catalogue.models.get(rule.model)
        if spec is None:
            continue
        serving = catalogue.serving(rule.model)
        if serving is not None and (spec is serving or serving.name not in in_force):
            in_force[serving.name] = rule
    return in_force


# Rules that settings name: LocalAI's grammar.

_SEED_FIELDS: Final = (
    "model_name",
    "node_selector",
    "min_replicas",
    "max_replicas",
    "replicas",
    "spread_all",
    "route_policy",
    "balance_abs_threshold",
    "balance_rel_threshold",
    "min_prefix_match",
    "idle_seconds",
)


def read_seeds(text: str) -> tuple[SchedulingWish, ...]:
    """Rules in a setting: a JSON list as LocalAI's variable `LOCALAI_MODEL_SCHEDULING` has it. InvalidInput says what
    is wrong with which entry."""
    if not text.strip():
        return ()
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput("", f"is no JSON: {error}") from error
    return seeds_of(document)


def seeds_of(document: object) -> tuple[SchedulingWish, ...]:
    """The rules in a list that was read from JSON or YAML; null means none."""
    if document is None:
        return ()
    if not isinstance(document, Sequence) or isinstance(document, str | bytes):
        raise InvalidInput("", "must be a list of rules, each with a model_name")
    return tuple(_seed(entry, place) for place, entry in enumerate(document))


def _seed(entry: object, place: int) -> SchedulingWish:
    where = f"[{place}]"
    if not isinstance(entry, Mapping):
        raise InvalidInput(where, "must be a mapping with a model_name")
    name = entry.get("model_name")
    where = f"{where} ({name})" if isinstance(name, str) and name else where
    unknown = sorted(str(key)[:50] for key in entry.keys() - set(_SEED_FIELDS))
    if unknown:
        raise InvalidInput(where, f"has no field {unknown[0]!r}; it may have {', '.join(_SEED_FIELDS)}")
    try:
        return check(
            SchedulingWish(
                model=_read(entry, "model_name", str, ""),
                node_selector=_read_labels(entry),
                min_replicas=_read(entry, "min_replicas", int, 0),
                max_replicas=_read(entry, "max_replicas", int, 0),
                spread_all=_read(entry, "spread_all", bool, False) or _spreads(entry.get("replicas")),
                route_policy=_read(entry, "route_policy", str, ""),
                balance_abs_threshold=_read(entry, "balance_abs_threshold", int, 0),
                balance_rel_threshold=_read_number(entry, "balance_rel_threshold"),
                min_prefix_match=_read_number(entry, "min_prefix_match"),
                idle_seconds=None if entry.get("idle_seconds") is None else _read(entry, "idle_seconds", int, 0),
            )
        )
    except InvalidInput as error:
        raise InvalidInput(f"{where}.{error.field}", error.problem) from error


def _spreads(value: object) -> bool:
    """What the field `replicas` says: LocalAI's word for `spread_all`, and no number."""
    if value is None or isinstance(value, bool):
        return bool(value)
    word = value.strip().lower() if isinstance(value, str) else None
    if word in ("all", "", "auto"):
        return word == "all"
    if word is None:
        raise InvalidInput("replicas", 'is no text; use min_replicas/max_replicas for counts, or "all" to spread')
    raise InvalidInput("replicas", f'is {word[:50]!r}; it may be "all" or "auto"')


def _read(entry: Mapping[str, object], name: str, kind: type[T], default: T) -> T:
    value = entry.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        words = {str: "a text", int: "a whole number", bool: "true or false"}
        raise InvalidInput(name, f"must be {words[kind]}, got {str(value)[:50]!r}")
    return value


def _read_number(entry: Mapping[str, object], name: str) -> float:
    value = entry.get(name)
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(name, f"must be a number, got {str(value)[:50]!r}")
    return float(value) if abs(value) <= _LARGEST_THRESHOLD else float("inf")


def _read_labels(entry: Mapping[str, object]) -> dict[str, str]:
    labels = entry.get("node_selector")
    if labels is None:
        return {}
    if not isinstance(labels, Mapping):
        raise InvalidInput("node_selector", "must be a mapping of labels to values")
    for key, value in labels.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidInput("node_selector", f"has {str(key)[:50]}: {str(value)[:50]}, and both must be texts")
    return dict(labels)
