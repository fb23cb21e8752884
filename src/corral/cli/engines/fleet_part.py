"""`corral engines apply`: the part `engines` of the fleet's file. Keys are not in it: it says where they are.

engines:
  - model: llama
    name: desk
    url: http://10.0.0.9:8000/v1
    key_env: DESK_KEY
    fallback_order: 1
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from msgspec import UNSET, structs
from yaml.nodes import Node, ScalarNode, SequenceNode

from corral.base.errors import InvalidInput
from corral.base.private_files import read_bounded
from corral.cli.backends.fleet_file import STANDARD_INPUT, FleetFile
from corral.cli.client import ApiClient, api_path
from corral.cli.connection import connected, open_client
from corral.cli.engines.commands import PATH, ask_of, put_engine, read_text
from corral.cli.options import CorralCommand, command_sources
from corral.cli.output import json_option, print_json, say
from corral.wire.engines import ENGINE_USES, EngineAsk, ExternalEngineView

_LARGEST: Final = 1024 * 1024
_SECTIONS: Final = ("rules", "models", "engines")
"""All parts of the file; the others are for other commands."""
_TEXTS: Final = ("model", "name", "url", "remote_model", "health_path")
_NUMBERS: Final = ("max_concurrent", "weight", "fallback_order")
_FIELDS: Final = (*_TEXTS, "uses", "key_env", "key_file", "ca_file", *_NUMBERS, "enabled")
_NEEDED: Final = ("model", "name", "url")
_WHOLE: Final = "tag:yaml.org,2002:int"
_SWITCH: Final = "tag:yaml.org,2002:bool"
_LONGEST_NUMBER: Final = 12


class EngineChanges(msgspec.Struct, frozen=True, kw_only=True):
    """What it takes to make the engines those of a file."""

    added: tuple[EngineAsk, ...]
    changed: tuple[tuple[ExternalEngineView, EngineAsk], ...]
    """Engines that differ from the file, and every engine whose key the file names: only the frontend can tell whether
    that key is another one."""
    removed: tuple[ExternalEngineView, ...]

    def lines(self) -> list[str]:
        return [
            *(f"+ {ask.model}/{ask.name}: {ask.url}" for ask in self.added),
            *(f"~ {ask.model}/{ask.name}: {ask.url}" for before, ask in self.changed if _without_key(ask, before)),
            *(f"- {view.model}/{view.name}" for view in self.removed),
        ]


def changes_between(stored: Sequence[ExternalEngineView], asks: Sequence[EngineAsk], *, prune: bool) -> EngineChanges:
    """What differs; engines that the file does not name are removed only with `prune`."""
    by_name = {(view.model, view.name): view for view in stored}
    declared = {(ask.model, ask.name): ask for ask in asks}
    both = [(by_name[name], ask) for name, ask in declared.items() if name in by_name]
    return EngineChanges(
        added=tuple(ask for name, ask in declared.items() if name not in by_name),
        changed=tuple((view, ask) for view, ask in both if ask.key is not UNSET or _without_key(ask, view)),
        removed=tuple(view for name, view in by_name.items() if prune and name not in declared),
    )


def _without_key(ask: EngineAsk, view: ExternalEngineView) -> bool:
    """Whether an engine differs from what is asked, as far as that can be seen."""
    plain = structs.replace(ask, key=UNSET, remote_model=ask.remote_model or ask.model)
    return plain != structs.replace(ask_of(view), url=ask.url) or not _is_same_url(ask.url, view.url)


def _is_same_url(written: str, stored: str) -> bool:
    plain = written.rstrip("/")
    return stored in (plain, f"{plain}/v1")


@click.command(cls=CorralCommand)
@click.option("-f", "--file", "path", required=True, metavar="FILE", help="The fleet's file; - for standard input.")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@click.option("--prune", is_flag=True, help="Also remove engines that are not in the file.")
@json_option
@connected
def apply(path: str, dry_run: bool, prune: bool, as_json: bool) -> None:
    """Make the engines in a file those of the fleet.

    The part `engines` is read, and others are left to `corral backends apply`. A key is named by the variable of the
    environment (key_env) or the file (key_file) that holds it here. Applying a file again changes nothing.
    """
    asks = read_engines(path, command_sources().environment)
    client = open_client()
    changes = changes_between(client.get(PATH, list[ExternalEngineView]), asks, prune=prune)
    if not dry_run:
        _carry_out(client, changes)
    lines = changes.lines()
    if as_json:
        print_json({"changes": lines, "dry_run": dry_run})
        return
    for line in lines or ["The engines are as they were."]:
        say(line)
    if dry_run:
        say("Nothing was changed.")


def _carry_out(client: ApiClient, changes: EngineChanges) -> None:
    for ask in changes.added:
        client.post(PATH, ExternalEngineView, structs.replace(ask, key="" if ask.key is UNSET else ask.key))
    for before, ask in changes.changed:
        put_engine(client, before, ask)
    for view in changes.removed:
        client.delete(api_path("external-engines", view.id))


def read_engines(path: str, environment: Mapping[str, str]) -> list[EngineAsk]:
    """The engines in a file or standard input, with their keys; InvalidInput names file, line and field."""
    try:
        content = sys.stdin.buffer.read(_LARGEST + 1) if path == STANDARD_INPUT else read_bounded(Path(path), _LARGEST)
        if content is None or len(content) > _LARGEST:
            raise InvalidInput(path, f"is missing, or larger than {_LARGEST // 1024} KiB")
        text = content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from error
    folder = Path() if path == STANDARD_INPUT else Path(path).parent
    return EnginesFile(path, text, folder, environment).engines()


class EnginesFile(FleetFile):
    """The part of the fleet's file that names engines which somebody else runs."""

    def __init__(self, name: str, text: str, folder: Path, environment: Mapping[str, str]) -> None:
        super().__init__(name, text)
        self._folder = folder
        self._environment = environment

    def engines(self) -> list[EngineAsk]:
        if self._root is None:
            raise InvalidInput(self._name, "is empty; write `engines: []` if the fleet shall have none")
        fields = self._fields(self._root, "the document", _SECTIONS)
        if "engines" not in fields:
            self._refuse(self._root, "engines", "is missing")
        asks: dict[tuple[str, str], EngineAsk] = {}
        for place, node in enumerate(self._listed(fields["engines"], "engines")):
            ask = self._engine(node, f"engines[{place}]")
            if (ask.model, ask.name) in asks:
                self._refuse(node, f"engines[{place}].name", f"{ask.model}/{ask.name} is there twice")
            asks[ask.model, ask.name] = ask
        return list(asks.values())

    def _engine(self, node: Node, where: str) -> EngineAsk:
        fields = self._fields(node, where, _FIELDS)
        for name in _NEEDED:
            if name not in fields:
                self._refuse(node, f"{where}.{name}", "is missing")
        values: dict[str, Any] = {
            name: self._text(fields[name], f"{where}.{name}") for name in _TEXTS if name in fields
        }
        values |= {name: self._number(fields[name], f"{where}.{name}") for name in _NUMBERS if name in fields}
        if "uses" in fields:
            values["uses"] = [
                self._use(item, f"{where}.uses") for item in self._listed(fields["uses"], f"{where}.uses")
            ]
        if "enabled" in fields:
            values["is_enabled"] = self._is_on(fields["enabled"], f"{where}.enabled")
        if "ca_file" in fields:
            values["ca"] = self._file(fields["ca_file"], f"{where}.ca_file")
        return EngineAsk(**values, key=self._key(fields, where))

    def _key(self, fields: Mapping[str, Node], where: str) -> Any:
        """The key that the file refers to, which is never in it."""
        if "key_env" in fields and "key_file" in fields:
            self._refuse(fields["key_file"], f"{where}.key_file", "stands beside key_env; one of them is enough")
        if "key_file" in fields:
            return self._file(fields["key_file"], f"{where}.key_file").strip()
        if "key_env" not in fields:
            return UNSET
        name = self._text(fields["key_env"], f"{where}.key_env")
        if not self._environment.get(name):
            self._refuse(fields["key_env"], f"{where}.key_env", f"the variable {name[:80]} is not set")
        return self._environment[name].strip()

    def _file(self, node: Node, where: str) -> str:
        return read_text(str(self._folder / self._text(node, where)), where)

    def _listed(self, node: Node, where: str) -> list[Node]:
        if not isinstance(node, SequenceNode):
            self._refuse(node, where, "is not a list")
        return list(node.value)

    def _use(self, node: Node, where: str) -> str:
        use = self._text(node, where)
        if use not in ENGINE_USES:
            self._refuse(node, where, f"{use[:40]!r} is none of {', '.join(ENGINE_USES)}")
        return use

    def _number(self, node: Node, where: str) -> int:
        if not isinstance(node, ScalarNode) or node.tag != _WHOLE or not node.value.isdecimal():
            self._refuse(node, where, "is not a whole number")
        return int(node.value[:_LONGEST_NUMBER])

    def _is_on(self, node: Node, where: str) -> bool:
        if not isinstance(node, ScalarNode) or node.tag != _SWITCH:
            self._refuse(node, where, "must be true or false")
        return node.value.lower() in ("true", "yes", "on")
