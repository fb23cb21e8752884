"""Reads a file of fleet rules strictly: every error names the line.

rules:
  - name: llama-on-gpus
    backend: llama-cpp
    labels:
      gpu.vendor: nvidia
models:
  - model: llama
    min: 1
    max: 4
    labels:
      gpu.vendor: nvidia
    idle: 10m
"""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NoReturn

import msgspec
import yaml
from msgspec import UNSET
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from corral.base.careful_yaml import LOADER, SHOWN, UNREADABLE, YamlLimits, check_events, why
from corral.base.errors import InvalidInput
from corral.base.private_files import read_bounded
from corral.base.words import parse_duration
from corral.frontend.rules.decide import FleetRule, demanded, rule_problem, set_problem
from corral.frontend.serving.decide.scheduling import SchedulingWish, check
from corral.wire.fleet_rules import RuleAsk
from corral.wire.scheduling import NamedScheduling

STANDARD_INPUT: Final = "-"
_LARGEST: Final = 1024 * 1024
_LIMITS: Final = YamlLimits(most_values=50_000, things="rules")
_TEXT: Final = "tag:yaml.org,2002:str"
_NOTHING: Final = "tag:yaml.org,2002:null"
_WHOLE: Final = "tag:yaml.org,2002:int"
_SWITCH: Final = "tag:yaml.org,2002:bool"
_FIELDS: Final = ("name", "backend", "uri", "alias", "labels")
_MODEL_FIELDS: Final = ("model", "min", "max", "spread", "labels", "nodes", "idle")
_FIELD_OF: Final = {
    "model_name": "model",
    "min_replicas": "min",
    "max_replicas": "max",
    "spread_all": "spread",
    "node_selector": "labels",
    "idle_seconds": "idle",
}
"""What the file calls the fields of a rule of scheduling."""
_LONGEST_NUMBER: Final = 18
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class DeclaredFleet(msgspec.Struct, frozen=True, kw_only=True):
    """What a file declares; None for what it does not speak of."""

    rules: list[RuleAsk] | None = None
    models: list[NamedScheduling] | None = None


def read_fleet_file(path: str) -> DeclaredFleet:
    """Read the rules in a file or standard input; InvalidInput names file, line and field."""
    try:
        content = sys.stdin.buffer.read(_LARGEST + 1) if path == STANDARD_INPUT else read_bounded(Path(path), _LARGEST)
    except OSError as error:
        raise InvalidInput(path, f"cannot be read: {error.strerror or error}") from error
    except InvalidInput as error:
        raise InvalidInput(path, error.problem) from error
    if content is None or len(content) > _LARGEST:
        raise InvalidInput(path, f"is larger than {_LARGEST // 1024} KiB, which no list of rules needs")
    try:
        return FleetFile(path, content.decode("utf-8-sig")).declared()
    except UnicodeDecodeError as error:
        raise InvalidInput(path, f"is not UTF-8 text: see byte {error.start}") from error


class FleetFile:
    """One YAML document. Every error begins with its place."""

    def __init__(self, name: str, text: str) -> None:
        self._name = "standard input" if name == STANDARD_INPUT else name
        try:
            check_events(text, _LIMITS)
            self._root: Node | None = yaml.compose(text, Loader=LOADER)
        except UNREADABLE as error:
            raise InvalidInput(self._name, why(error)) from None

    def declared(self) -> DeclaredFleet:
        if self._root is None:
            raise InvalidInput(self._name, "is empty; write `rules: []` if the fleet shall have none")
        fields = self._fields(self._root, "the document", ("rules", "models", "engines"))
        if not fields.keys() & {"rules", "models"}:
            self._refuse(self._root, "rules", "is missing, and so is models; one of them is needed")
        return DeclaredFleet(
            rules=self._rules(fields["rules"]) if "rules" in fields else None,
            models=self._models(fields["models"]) if "models" in fields else None,
        )

    def _items(self, node: Node, where: str) -> list[Node]:
        if not isinstance(node, SequenceNode):
            self._refuse(node, where, f"is {_kind(node)}, not a list")
        return list(node.value)

    def _rules(self, node: Node) -> list[RuleAsk]:
        rules = [(self._rule(item, f"rules[{place}]"), item) for place, item in enumerate(self._items(node, "rules"))]
        self._check_together(rules)
        return [rule for rule, _ in rules]

    def _models(self, node: Node) -> list[NamedScheduling]:
        models: dict[str, NamedScheduling] = {}
        for place, item in enumerate(self._items(node, "models")):
            model = self._model(item, f"models[{place}]")
            if model.model in models:
                self._refuse(item, f"models[{place}].model", f"{model.model[:SHOWN]!r} is there twice")
            models[model.model] = model
        return list(models.values())

    def _model(self, node: Node, where: str) -> NamedScheduling:
        fields = self._fields(node, where, _MODEL_FIELDS)
        if "model" not in fields:
            self._refuse(node, f"{where}.model", "is missing")
        nodes = self._items(fields["nodes"], f"{where}.nodes") if "nodes" in fields else []
        rule = NamedScheduling(
            model=self._text(fields["model"], f"{where}.model"),
            node_selector=self._labels(fields, where),
            pinned_nodes=[self._text(item, f"{where}.nodes[{place}]") for place, item in enumerate(nodes)],
            min_replicas=self._whole(fields["min"], f"{where}.min") if "min" in fields else 0,
            max_replicas=self._whole(fields["max"], f"{where}.max") if "max" in fields else 0,
            spread_all=self._switch(fields["spread"], f"{where}.spread") if "spread" in fields else False,
            idle_seconds=self._idle(fields["idle"], f"{where}.idle") if "idle" in fields else None,
        )
        try:
            check(_as_wish(rule))
        except InvalidInput as error:
            field = _FIELD_OF.get(error.field, error.field)
            self._refuse(fields.get(field, node), f"{where}.{field}", error.problem)
        return rule

    def _whole(self, node: Node, where: str) -> int:
        if not isinstance(node, ScalarNode) or node.tag != _WHOLE or not node.value.isdecimal():
            self._refuse(node, where, f"is {_kind(node)}, not a whole number")
        return int(node.value[:_LONGEST_NUMBER])

    def _switch(self, node: Node, where: str) -> bool:
        if not isinstance(node, ScalarNode) or node.tag != _SWITCH:
            self._refuse(node, where, f"is {_kind(node)}; write true or false")
        return node.value.lower() in ("true", "yes", "on")

    def _idle(self, node: Node, where: str) -> int:
        """Read a duration as seconds; `never` is 0."""
        text = node.value if isinstance(node, ScalarNode) else ""
        if text == "never":
            return 0
        try:
            seconds = round(parse_duration(text).total_seconds())
        except (ValueError, OverflowError):
            seconds = 0
        if not seconds:
            self._refuse(node, where, f"is {_kind(node)}; write for example 10m, or never")
        return seconds

    def _labels(self, fields: dict[str, Node], where: str) -> dict[str, str]:
        pairs = self._pairs(fields["labels"], f"{where}.labels") if "labels" in fields else ()
        return {key: self._text(value, f"{where}.labels.{key}") for key, _, value in pairs}

    def _rule(self, node: Node, where: str) -> RuleAsk:
        fields = self._fields(node, where, _FIELDS)
        texts = {name: self._text(value, f"{where}.{name}") for name, value in fields.items() if name != "labels"}
        if "backend" not in texts:
            self._refuse(node, f"{where}.backend", "is missing")
        texts.setdefault("name", texts["backend"].rpartition("@")[2])
        rule = RuleAsk(**texts, labels=self._labels(fields, where))
        if rule.alias and not rule.uri:
            self._refuse(fields["alias"], f"{where}.alias", "is for uris; a gallery's backend has its own")
        if (problem := rule_problem(_as_rule(rule))) is not None:
            field, text = problem
            self._refuse(fields.get(field, node), f"{where}.{field}", text)
        return rule

    def _check_together(self, rules: list[tuple[RuleAsk, Node]]) -> None:
        first: dict[str, Node] = {}
        for place, (rule, node) in enumerate(rules):
            other = first.setdefault(rule.name, node)
            if other is not node:
                problem = f"{rule.name!r} is the name of the rule in line {_line(other)} already"
                self._refuse(node, f"rules[{place}].name", problem)
        if (clash := set_problem([_as_rule(rule) for rule, _ in rules])) is not None:
            raise InvalidInput(self._name, clash)

    def _fields(self, node: Node, where: str, allowed: tuple[str, ...]) -> dict[str, Node]:
        fields = {}
        for key, key_node, value in self._pairs(node, where):
            if key not in allowed:
                self._refuse(key_node, where, f"has no field {key[:SHOWN]!r}; it may have {', '.join(allowed)}")
            fields[key] = value
        return fields

    def _pairs(self, node: Node, where: str) -> Iterator[tuple[str, Node, Node]]:
        if not isinstance(node, MappingNode):
            self._refuse(node, where, f"is {_kind(node)}, not a mapping")
        keys = set()
        for key_node, value in node.value:
            key = self._text(key_node, f"a key of {where}")
            if key in keys:
                self._refuse(key_node, where, f"has {key[:SHOWN]!r} twice")
            keys.add(key)
            yield key, key_node, value

    def _text(self, node: Node, where: str) -> str:
        if not isinstance(node, ScalarNode) or node.tag == _NOTHING:
            self._refuse(node, where, f"is {_kind(node)}, not a text")
        if node.tag != _TEXT:
            self._refuse(
                node, where, f'is {node.value[:SHOWN]}, which YAML takes for no text; write "{node.value[:SHOWN]}"'
            )
        if not node.value.strip():
            self._refuse(node, where, "is empty")
        return str(node.value)

    def _refuse(self, node: Node, where: str, problem: str) -> NoReturn:
        raise InvalidInput(f"{self._name}, line {_line(node)}", f"{where}: {problem}")


def _line(node: Node) -> int:
    return 0 if node.start_mark is None else int(node.start_mark.line) + 1


def _kind(node: Node) -> str:
    if isinstance(node, SequenceNode):
        return "a list"
    if isinstance(node, MappingNode):
        return "a mapping"
    return "empty" if node.tag == _NOTHING else repr(str(node.value)[:SHOWN])


def _as_rule(rule: RuleAsk) -> FleetRule:
    artefact = demanded(backend=rule.backend, uri=rule.uri, alias=rule.alias)
    return FleetRule(name=rule.name, artefact=artefact, selector=rule.labels, made_by="", made_at=_EPOCH)


def _as_wish(rule: NamedScheduling) -> SchedulingWish:
    """The rule without its nodes, whose ids only the frontend knows."""
    fields = {name: getattr(rule, name) for name in rule.__struct_fields__}
    del fields["pinned_nodes"]
    return SchedulingWish(**{name: value for name, value in fields.items() if value is not UNSET})
