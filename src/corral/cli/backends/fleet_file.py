"""Reads a file of fleet rules strictly: every error names the line.

rules:
  - name: llama-on-gpus
    backend: llama-cpp
    labels:
      gpu.vendor: nvidia
"""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NoReturn

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from corral.base.careful_yaml import LOADER, SHOWN, UNREADABLE, YamlLimits, check_events, why
from corral.base.errors import InvalidInput
from corral.base.private_files import read_bounded
from corral.frontend.rules.decide import FleetRule, demanded, rule_problem, set_problem
from corral.wire.operation_views import RuleAsk

STANDARD_INPUT: Final = "-"
_LARGEST: Final = 1024 * 1024
_LIMITS: Final = YamlLimits(most_values=50_000, things="rules")
_TEXT: Final = "tag:yaml.org,2002:str"
_NOTHING: Final = "tag:yaml.org,2002:null"
_FIELDS: Final = ("name", "backend", "uri", "alias", "labels")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def read_fleet_file(path: str) -> list[RuleAsk]:
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
        return FleetFile(path, content.decode("utf-8-sig")).rules()
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

    def rules(self) -> list[RuleAsk]:
        if self._root is None:
            raise InvalidInput(self._name, "is empty; write `rules: []` if the fleet shall have none")
        fields = self._fields(self._root, "the document", ("rules",))
        if "rules" not in fields:
            self._refuse(self._root, "rules", "is missing")
        node = fields["rules"]
        if not isinstance(node, SequenceNode):
            self._refuse(node, "rules", f"is {_kind(node)}, not a list")
        rules = [(self._rule(item, f"rules[{place}]"), item) for place, item in enumerate(node.value)]
        self._check_together(rules)
        return [rule for rule, _ in rules]

    def _rule(self, node: Node, where: str) -> RuleAsk:
        fields = self._fields(node, where, _FIELDS)
        texts = {name: self._text(value, f"{where}.{name}") for name, value in fields.items() if name != "labels"}
        if "backend" not in texts:
            self._refuse(node, f"{where}.backend", "is missing")
        texts.setdefault("name", texts["backend"].rpartition("@")[2])
        labels = {
            key: self._text(value, f"{where}.labels.{key}")
            for key, _, value in (self._pairs(fields["labels"], f"{where}.labels") if "labels" in fields else ())
        }
        rule = RuleAsk(**texts, labels=labels)
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
