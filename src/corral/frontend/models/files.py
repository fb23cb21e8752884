"""Model files: read without trust. Whatever is wrong with one is a sentence about it, and never an exception."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import yaml

from corral.base.careful_yaml import LOADER, UNREADABLE, DoubleKeys, KeyLines, KeyPath, YamlLimits, checked_events, why
from corral.base.errors import InvalidInput
from corral.base.private_files import read_bounded
from corral.frontend.models.decide.keys import unknown_keys
from corral.frontend.models.decide.model import ModelProblem, ModelSpec, read_model

LARGEST_FILE: Final = 256 * 1024
DEEPEST: Final = 32
LARGEST_DOCUMENT: Final = 20_000
"""Values after all aliases are written out. A model file has a hundred."""

_LIMITS: Final = YamlLimits(deepest=DEEPEST, most_values=LARGEST_DOCUMENT, things="models")

ModelReading = ModelSpec | ModelProblem


class ModelFileMark(NamedTuple):
    """What tells a file from another one under its name, or the same one with another content."""

    modified: int = 0
    changed: int = 0
    """When it came to be here, or was changed in any way, in nanoseconds; nobody can set it back."""
    size: int = 0
    inode: int = 0

    @classmethod
    def of(cls, path: Path) -> "ModelFileMark":
        status = path.stat()
        return cls(status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)


class ReadFile(NamedTuple):
    """What a file held when it had this mark."""

    mark: ModelFileMark
    found: list[ModelReading]


class _Unusable(Exception):
    """Why a file cannot be used."""


def read_file(path: Path, known: ReadFile | None) -> ReadFile:
    """The models in a file; what is known already unless the file is another one by now."""
    mark = ModelFileMark()
    try:
        mark = ModelFileMark.of(path)
        if known is not None and known.mark == mark:
            return known
        lines = KeyLines()
        document = _document(_content(path), lines)
    except OSError as error:
        return ReadFile(mark, [_problem(path, f"cannot be read: {error.strerror or error}")])
    except (_Unusable, InvalidInput) as error:
        return ReadFile(mark, [_problem(path, str(error))])
    return ReadFile(mark, list(_models(path, document, lines)))


def _content(path: Path) -> str:
    content = read_bounded(path, LARGEST_FILE)
    if content is None:
        raise _Unusable(f"is larger than {LARGEST_FILE // 1024} KiB, which no model file needs")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _Unusable(f"is not UTF-8 text: see byte {error.start}") from None


def _document(text: str, lines: KeyLines) -> object:
    try:
        keys = DoubleKeys()
        for event in checked_events(text, _LIMITS):
            keys.take(event)
            lines.take(event)
        return yaml.load(text, Loader=LOADER)  # noqa: S506 - one of the two safe loaders
    except UNREADABLE as error:
        raise _Unusable(why(error)) from None


def _models(path: Path, document: object, lines: KeyLines) -> Iterator[ModelReading]:
    """One model, or a list of them, without those that are switched off."""
    if document is None or document == []:
        yield _problem(path, "is empty")
        return
    for place, config in enumerate(document if isinstance(document, list) else [document]):
        name = config.get("name") if isinstance(config, dict) else None
        known_as = name if isinstance(name, str) else ""
        if isinstance(config, dict) and config.get("disabled") is True:
            continue
        try:
            spec = read_model(config, source=path.name)
            above = (place,) if isinstance(document, list) else ()
            yield replace(spec, warnings=tuple(_warnings(spec, lines, above)))
        except InvalidInput as error:
            yield _problem(path, error.message, name=known_as)
        except (TypeError, ValueError, RecursionError):
            yield _problem(path, "has keys of different kinds: write them all as text", name=known_as)


def _warnings(spec: ModelSpec, lines: KeyLines, above: tuple[int, ...]) -> Iterator[str]:
    """About keys that mean nothing; not those that hold what others refer to."""
    for key in unknown_keys(spec.config):
        place: KeyPath = (*above, *key.path)
        if place not in lines.anchored:
            line = lines.lines.get(place)
            yield f"line {line}: {key.sentence}" if line else key.sentence


def _problem(path: Path, problem: str, *, name: str = "") -> ModelProblem:
    return ModelProblem(source=path.name, name=name, problem=problem)
