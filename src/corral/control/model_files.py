"""Model files: read without trust. Whatever is wrong with one is a sentence about it, and never an exception.

A file is looked at twice. First as a row of events, which costs no more than its size: there it is refused for what
would cost more than its size later. Only then is it built.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml
from yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    Event,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
)

from corral.base.errors import InvalidInput
from corral.domain.model import ModelProblem, ModelSpec, read_model

LARGEST_FILE: Final = 256 * 1024
DEEPEST: Final = 32
LARGEST_DOCUMENT: Final = 20_000
"""Values after all aliases are written out. A model file has a hundred."""
_SHOWN: Final = 80
_Loader: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The one in C is twenty times as fast; both understand the same."""

Found = ModelSpec | ModelProblem
Mark = tuple[int, int, int]


class ReadFile(NamedTuple):
    """What a file held when it had this time, size and inode."""

    mark: Mark
    found: list[Found]


class _Unusable(Exception):
    """Why a file cannot be used."""


def read_file(path: Path, known: ReadFile | None) -> ReadFile:
    """The models in a file; what is known already unless the file is another one by now."""
    mark = (0, 0, 0)
    try:
        status = path.stat()
        mark = (status.st_mtime_ns, status.st_size, status.st_ino)
        if known is not None and known.mark == mark:
            return known
        document = _document(_content(path))
    except OSError as error:
        return ReadFile(mark, [_problem(path, f"cannot be read: {error.strerror or error}")])
    except _Unusable as error:
        return ReadFile(mark, [_problem(path, str(error))])
    return ReadFile(mark, list(_models(path, document)))


def _content(path: Path) -> str:
    """Opened so that nothing but a file can make us wait."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise _Unusable("is not a file")
        content = file.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise _Unusable(f"is larger than {LARGEST_FILE // 1024} KiB, which no model file needs")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _Unusable(f"is not UTF-8 text: see byte {error.start}") from None


def _document(text: str) -> object:
    try:
        check_events(text)
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - one of the two safe loaders
    except _Unusable:
        raise
    except yaml.YAMLError as error:
        raise _Unusable(f"is not YAML: {_reason(error)}") from None
    except (ValueError, RecursionError, OverflowError) as error:  # a date or a number that there is not
        raise _Unusable(f"holds a value that cannot be read: {str(error)[:_SHOWN]}") from None


def _reason(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f" in line {mark.line + 1}" if mark is not None else ""
    problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
    return f"{problem[:_SHOWN]}{where}"


class _Frame:
    """A list or a mapping that is being read."""

    __slots__ = ("anchor", "is_key", "is_mapping", "keys", "size")

    def __init__(self, event: CollectionStartEvent | None) -> None:
        self.anchor = None if event is None else event.anchor
        self.is_mapping = isinstance(event, MappingStartEvent)
        self.is_key = True
        self.keys: set[str] = set()
        self.size = 1

    def add(self, size: int) -> None:
        self.size += size
        self.is_key = not self.is_key
        if self.size > LARGEST_DOCUMENT:
            raise _Unusable(f"stands for more than {LARGEST_DOCUMENT} values: do its aliases repeat each other?")


class _Weigher:
    """How much a document would be with its aliases written out, found without writing them out."""

    def __init__(self) -> None:
        self._frames = [_Frame(None)]
        self._weights: dict[str, int] = {}

    def take(self, event: Event) -> None:
        match event:
            case CollectionStartEvent():
                if len(self._frames) > DEEPEST:
                    raise _Unusable(f"is nested more than {DEEPEST} levels deep, in line {_line(event)}")
                self._frames.append(_Frame(event))
            case CollectionEndEvent():
                done = self._frames.pop()
                self._finish(done.anchor, done.size)
            case ScalarEvent():
                self._check_key(event)
                self._finish(event.anchor, 1)
            case AliasEvent():
                self._finish(None, self._weight(event))

    def _finish(self, anchor: str | None, size: int) -> None:
        if anchor is not None:
            self._weights[anchor] = size
        self._frames[-1].add(size)

    def _weight(self, event: NodeEvent) -> int:
        name = event.anchor or ""
        if name not in self._weights:
            within = any(frame.anchor == name for frame in self._frames)
            told = "contains itself" if within else "is not there"
            raise _Unusable(f"has an alias *{name[:_SHOWN]} to what {told}, in line {_line(event)}")
        return self._weights[name]

    def _check_key(self, event: ScalarEvent) -> None:
        frame = self._frames[-1]
        if not frame.is_mapping or not frame.is_key:
            return
        if event.value in frame.keys:
            raise _Unusable(f"has the key {event.value[:_SHOWN]!r} twice, again in line {_line(event)}")
        frame.keys.add(event.value)


def check_events(text: str) -> None:
    """Refuse what would take more than its size to build, or would silently lose a part of what it says."""
    weigher = _Weigher()
    documents = 0
    for event in yaml.parse(text, Loader=_Loader):
        documents += isinstance(event, DocumentStartEvent)
        if documents > 1:
            raise _Unusable("holds more than one document; write several models as a list")
        weigher.take(event)


def _line(event: Event) -> int:
    return 0 if event.start_mark is None else int(event.start_mark.line) + 1


def _models(path: Path, document: object) -> Iterator[Found]:
    """One model, or a list of them."""
    if document is None or document == []:
        yield _problem(path, "is empty")
        return
    for config in document if isinstance(document, list) else [document]:
        name = config.get("name") if isinstance(config, dict) else None
        known_as = name if isinstance(name, str) else ""
        try:
            yield read_model(config, source=path.name)
        except InvalidInput as error:
            yield _problem(path, error.message, name=known_as)
        except (TypeError, ValueError, RecursionError):
            yield _problem(path, "has keys of different kinds: write them all as text", name=known_as)


def _problem(path: Path, problem: str, *, name: str = "") -> ModelProblem:
    return ModelProblem(source=path.name, name=name, problem=problem)
