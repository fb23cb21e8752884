"""Builds values of YAML from untrusted sources: in one pass, in linear time, with the line of every key.

Aliases share what they refer to instead of copying it. Merges are followed; a mapping's own keys take precedence. In a
list of entries, an error inside one entry affects only that entry.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec
import yaml
from yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, Event, MappingStartEvent, ScalarEvent
from yaml.scanner import ScannerError

from corral.base.careful_yaml import (
    LOADER,
    SHOWN,
    UNREADABLE,
    Weigher,
    YamlLimits,
    YamlRefused,
    YamlUnusable,
    line_of,
    one_document,
    why,
)

_TAG: Final = "tag:yaml.org,2002:"
_MERGE: Final = f"{_TAG}merge"
_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_SWITCHES: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_WHOLE: Final = re.compile(r"[-+]?(0x[0-9a-fA-F_]{1,40}|0o[0-7_]{1,40}|0b[01_]{1,80}|[0-9][0-9_]{0,39})")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITE: Final = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_INT64: Final = 2**63
_MOST_APOSTROPHES: Final = 20
_MOST_BROKEN: Final = 1000
"""Broken entries among good ones. A document with more is something else."""
_ITEM: Final = re.compile(r"^( *)-(?=[ \t\r\n]|\Z)", re.MULTILINE)


class YamlMapping(dict[str, object]):
    """A mapping of a document, with lines. Not to be changed: aliases share it."""

    __slots__ = ("anchored", "key_lines", "line")

    def __init__(self, line: int = 0) -> None:
        super().__init__()
        self.line = line
        self.key_lines: dict[str, int] = {}
        self.anchored: frozenset[str] = frozenset()
        """Keys whose values have an anchor."""


class YamlItem(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a list."""

    line: int
    value: object = None
    problem: str = ""
    """Why it cannot be used; empty if it can."""


ScalarReader = Callable[[ScalarEvent], object]


def as_text(scalar: ScalarEvent) -> object:
    """Return a scalar as it is written; None for an empty or null one."""
    is_plain = not scalar.style and scalar.tag is None
    return None if scalar.tag == f"{_TAG}null" or (is_plain and scalar.value in _NULLS) else scalar.value


def as_value(scalar: ScalarEvent) -> object:
    """Return a scalar as YAML 1.2 reads it: `on`, `yes` and dates are text."""
    text = scalar.value
    is_plain = (not scalar.style and scalar.tag is None) or scalar.tag in _RESOLVED
    if not is_plain:
        return text
    if text in _NULLS:
        return None
    if text in _SWITCHES:
        return _SWITCHES[text]
    return _number(text) if text[0] in "+-.0123456789" else text


_RESOLVED: Final = frozenset(f"{_TAG}{name}" for name in ("null", "bool", "int", "float"))


def _number(text: str) -> object:
    """Return the number that a text stands for; the text if it stands for none. A leading zero means octal digits."""
    if _WHOLE.fullmatch(text):
        digits = text.replace("_", "")
        is_octal = digits.lstrip("+-").startswith("0") and digits.lstrip("+-0123456789") == ""
        try:
            value = int(digits, 8 if is_octal else 0)
        except ValueError:
            return float(digits) if digits.lstrip("+-").isdigit() else text
        return value if -_INT64 <= value < 2 * _INT64 else float(value)
    if _FLOAT.fullmatch(text):
        return float(text)
    return float(text.replace(".", "", 1)) if _INFINITE.fullmatch(text) else text


def read_document(text: str, limits: YamlLimits, *, lines_before: int = 0) -> object:
    """Return the value of a document; None if it is empty. Raise one of UNREADABLE, also for a key given twice.

    An escaped apostrophe within double quotes is read as LocalAI reads it, though it is no YAML. `lines_before` are
    those of the file that the text is a part of.
    """
    for _ in range(_MOST_APOSTROPHES):
        try:
            return _built_document(text, limits, lines_before)
        except ScannerError as error:
            repaired = _with_plain_apostrophe(text, error)
            if repaired is None:
                raise
            text = repaired
    return _built_document(text, limits, lines_before)


def _with_plain_apostrophe(text: str, error: ScannerError) -> str | None:
    """Return the text without the backslash that the scanner stopped at; None where it stopped at something else."""
    mark = error.problem_mark
    if mark is None or error.problem != "found unknown escape character":
        return None
    lines = text.split("\n")
    line = lines[mark.line] if mark.line < len(lines) else ""
    place = line.find("\\'", max(mark.column - 1, 0))
    if place not in (mark.column - 1, mark.column):
        return None
    lines[mark.line] = line[:place] + line[place + 1 :]
    return "\n".join(lines)


def _built_document(text: str, limits: YamlLimits, lines_before: int) -> object:
    weigher, builder = Weigher(limits), _ValueBuilder(as_value)
    weigher.lines_before = builder.lines_before = lines_before
    value: object = None
    for event in one_document(yaml.parse(text, Loader=LOADER), limits):
        weigher.take(event)
        if builder.take(event):
            value = builder.value
    if isinstance(value, _Broken):
        raise YamlUnusable(value.problem)
    return value


def read_items(text: str, limits: YamlLimits, scalar: ScalarReader = as_value) -> list[YamlItem] | None:
    """Return the entries of a list; None if the document is not a list.

    Raise one of UNREADABLE if it is no YAML at all, or too large. Where one entry is broken, the others are read.
    """
    reader = _ItemReader(limits, scalar)
    try:
        return reader.read(text)
    except YamlRefused:
        raise
    except UNREADABLE as error:
        items = list(_ItemReader(limits, scalar).recovered(text))
        if all(item.problem for item in items):
            raise error from None
        return items


class _ItemReader:
    def __init__(self, limits: YamlLimits, scalar: ScalarReader) -> None:
        self._limits = limits
        self._weigher = Weigher(limits)
        self._builder = _ValueBuilder(scalar)

    def read(self, text: str) -> list[YamlItem] | None:
        is_list, items = False, list[YamlItem]()
        depth, line = 0, 0
        for event in one_document(yaml.parse(text, Loader=LOADER), self._limits):
            self._weigher.take(event)
            depth -= isinstance(event, CollectionEndEvent)
            if depth == 0 and isinstance(event, CollectionStartEvent):
                is_list = not isinstance(event, MappingStartEvent)
            elif depth > 0:
                line = line_of(event) if depth == 1 and not isinstance(event, CollectionEndEvent) else line
                if self._builder.take(event):
                    items.append(_item(line, self._builder.value))
            depth += isinstance(event, CollectionStartEvent)
        return items if is_list else None

    def recovered(self, text: str) -> Iterator[YamlItem]:
        """Read the entries of a block list one by one. Raise YamlRefused if they are too large together."""
        broken = 0
        for first_line, part in _parts(text):
            self._weigher.lines_before = self._builder.lines_before = first_line - 1
            try:
                items = self.read(part) or []
                yield from (YamlItem(line=first_line, value=item.value, problem=item.problem) for item in items)
            except YamlRefused:
                raise
            except UNREADABLE as error:
                broken += 1
                if broken > _MOST_BROKEN:
                    raise YamlRefused(f"has more than {_MOST_BROKEN} {self._limits.things} that are not YAML") from None
                self._weigher.forget_open()
                self._builder.forget_open()
                yield YamlItem(line=first_line, problem=why(error, first_line=first_line))


def _item(line: int, value: object) -> YamlItem:
    return (
        YamlItem(line=line, problem=value.problem) if isinstance(value, _Broken) else YamlItem(line=line, value=value)
    )


def _parts(text: str) -> Iterator[tuple[int, str]]:
    """Yield the entries of a block list with their lines. Whatever they hold is indented further than their dashes."""
    first = _ITEM.search(text)
    if first is None:
        return
    line, position = 1 + text.count("\n", 0, first.start()), first.start()
    for following in _ITEM.finditer(text, first.end()):
        if following[1] == first[1]:
            yield line, text[position : following.start()]
            line += text.count("\n", position, following.start())
            position = following.start()
    yield line, text[position:]


class _Broken(msgspec.Struct, frozen=True):
    """Stands for a value that cannot be used, and for all that holds it."""

    problem: str


@dataclass(slots=True)
class _Open:
    """A list or a mapping that is being built."""

    anchor: str | None
    line: int
    is_mapping: bool
    items: list[object] = field(default_factory=list)
    own: dict[str, object] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    merged: list[object] = field(default_factory=list)
    anchored: set[str] = field(default_factory=set)
    key: str | None = None
    """The key whose value is next; None when a key is next."""
    is_merge: bool = False
    problem: str = ""

    def take_key(self, key: object, event: Event, line: int) -> None:
        self.is_merge = isinstance(event, ScalarEvent) and _is_merge(event)
        if isinstance(event, ScalarEvent):
            self.key = event.value
        elif isinstance(key, str | int | float):
            self.key = str(key)
        else:
            self.key = ""
            self.problem = self.problem or f"has a key that is not text, in line {line}"
        if self.key in self.own and not self.is_merge:
            self.problem = self.problem or f"has the key {self.key[:SHOWN]!r} twice, again in line {line}"
        if not self.is_merge:
            self.lines[self.key] = line

    def take_value(self, value: object) -> None:
        if isinstance(value, _Broken):
            self.problem = self.problem or value.problem
        if not self.is_mapping:
            self.items.append(value)
            return
        if self.is_merge:
            self.merged.extend(value if isinstance(value, list) else [value])
        elif self.key is not None:
            self.own[self.key] = value
        self.key = None

    def built(self) -> object:
        if not self.is_mapping or self.problem:
            return _Broken(self.problem) if self.problem else self.items
        mapping = YamlMapping(self.line)
        for source in reversed(self.merged):  # the first one takes precedence
            if not isinstance(source, YamlMapping):
                return _Broken(f"merges something that is not a mapping, in line {self.line}")
            mapping.update(source)
            mapping.key_lines.update(source.key_lines)
        mapping.update(self.own)
        mapping.key_lines.update(self.lines)
        mapping.anchored = frozenset(self.anchored)
        return mapping


def _is_merge(event: ScalarEvent) -> bool:
    return bool(event.tag == _MERGE or (event.value == "<<" and event.tag is None and not event.style))


class _ValueBuilder:
    """Makes values of events that a weigher has checked."""

    def __init__(self, scalar: ScalarReader) -> None:
        self._scalar = scalar
        self.lines_before = 0
        """Lines of the document before the text that events are of."""
        self._open: list[_Open] = []
        self._anchors: dict[str, object] = {}
        self.value: object = None
        """The last value that is complete."""

    def take(self, event: Event) -> bool:
        """Process an event. Return whether a value outside of any list and mapping is complete."""
        match event:
            case CollectionStartEvent():
                line = line_of(event) + self.lines_before
                self._open.append(_Open(event.anchor, line, isinstance(event, MappingStartEvent)))
            case CollectionEndEvent():
                done = self._open.pop()
                return self._place(done.built(), event, done.anchor)
            case ScalarEvent():
                return self._place(self._scalar(event), event, event.anchor)
            case AliasEvent():
                return self._place(self._anchors[event.anchor or ""], event, None)
        return False

    def forget_open(self) -> None:
        """Drop what is incomplete. What anchors refer to is kept."""
        self._open.clear()

    def _place(self, value: object, event: Event, anchor: str | None) -> bool:
        if anchor is not None:
            self._anchors[anchor] = value
        if not self._open:
            self.value = value
            return True
        parent = self._open[-1]
        if parent.is_mapping and parent.key is None:
            parent.take_key(value, event, line_of(event) + self.lines_before)
        else:
            if parent.key is not None and anchor is not None:
                parent.anchored.add(parent.key)
            parent.take_value(value)
        return False


class _YamlWriter(yaml.SafeDumper):
    """Writes lists indented, and long texts as they are."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: object) -> bool:
        return True


def _written_text(writer: _YamlWriter, text: str) -> yaml.ScalarNode:
    """A text that would be read as something else is quoted; one of several lines is written line by line."""
    is_odd = any(not character.isprintable() and character != "\n" for character in text)
    is_plain = isinstance(as_value(ScalarEvent(None, None, (True, False), text)), str)
    style = '"' if is_odd or not is_plain else "|" if "\n" in text else None
    return writer.represent_scalar(f"{_TAG}str", text, style=style)


_YamlWriter.add_representer(str, _written_text)
_YamlWriter.add_multi_representer(str, _written_text)
_YamlWriter.add_multi_representer(dict, yaml.SafeDumper.represent_dict)


def write_document(value: object) -> str:
    """Write a value of mappings, lists, texts, numbers and switches as YAML that `read_document` reads as the same."""
    return yaml.dump(value, Dumper=_YamlWriter, sort_keys=False, allow_unicode=True, width=120)
