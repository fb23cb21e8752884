"""The models: YAML files of one directory, read without trust, and again when they change.

Whatever is wrong with a file is a sentence about it that is kept, and never an exception.
"""

import asyncio
import difflib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

import yaml

from corral.base.careful_yaml import LOADER, UNREADABLE, KeyLines, KeyPath, YamlLimits, checked_events, why
from corral.base.errors import InvalidInput, NotFound
from corral.base.private_files import read_bounded
from corral.base.tasks import Poke
from corral.frontend.models.decide.model import (
    Catalogue,
    ModelProblem,
    ModelReading,
    ModelSpec,
    collect,
    read_model,
    with_last_good,
)
from corral.galleries.model_key_checks import ConfigPath, unknown_keys, unknown_words, wrong_values

log = logging.getLogger(__name__)

PERIOD: Final = timedelta(seconds=2)
SUFFIXES: Final = frozenset({".yaml", ".yml"})
MOST_FILES: Final = 10_000
LARGEST_FILE: Final = 256 * 1024
DEEPEST: Final = 32
LARGEST_DOCUMENT: Final = 20_000
"""Values after all aliases are written out. A model file has a hundred."""
_LIMITS: Final = YamlLimits(deepest=DEEPEST, most_values=LARGEST_DOCUMENT, things="models")
_MOST_TOLD: Final = 100
"""Problems that one look may write into the log; all are shown to whoever asks."""
_SHOWN_NAME: Final = 100


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
    readings: list[ModelReading]


class Models:
    """Owns nothing on the disk: people and programs write the files, and `ModelRemoval` deletes them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.catalogue = Catalogue()
        self.is_readable = True
        """Whether the last look found the directory. Without it, nothing can be said of what is not in it."""
        self.poke = Poke()
        self._files: Mapping[str, ReadFile] = {}
        self._removed: Mapping[str, datetime] = {}

    def revision_of(self, name: str) -> str:
        """Empty for a model that does not exist."""
        spec = self.catalogue.models.get(name)
        return "" if spec is None else spec.revision

    def find(self, name: str) -> ModelSpec:
        """The model that answers for a name."""
        spec = self.catalogue.serving(name)
        if spec is None:
            raise self.unknown(name)
        return spec

    def unknown(self, name: str) -> NotFound:
        """What to say of a name that no model has."""
        near = difflib.get_close_matches(name[:_SHOWN_NAME], list(self.catalogue.models), n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        return NotFound(f"the model {name[:_SHOWN_NAME]!r} does not exist{hint}")

    async def look(self) -> None:
        """Read what changed, beside the loop: a thousand new files, or a slow disk, hold nobody up."""
        self._take(await asyncio.to_thread(_read_directory, self.directory, self._files))

    def scan(self) -> None:
        """Read what changed without a thread: before the event loop serves anybody."""
        self._take(_read_directory(self.directory, self._files))

    def _take(self, read: Mapping[str, ReadFile] | ModelProblem | None) -> None:
        """A directory that cannot be read takes no model away."""
        self.is_readable = isinstance(read, Mapping)
        if isinstance(read, Mapping):
            self._files = read
        self._collect([read] if isinstance(read, ModelProblem) else [])

    def hide(self, removed: Mapping[str, datetime]) -> bool:
        """These models were removed: what older files say of them is not true any more. False: nothing new."""
        if removed == self._removed:
            return False
        self._removed = removed
        self._collect([problem for problem in self.catalogue.problems if problem.source == str(self.directory)])
        return True

    def leftovers(self, name: str) -> list[tuple[Path, ReadFile]]:
        """Files that hold a model which was removed, as they were when they were read."""
        return [
            (self.directory / source, file)
            for source, file in self._files.items()
            if any(reading.name == name and self._is_removed(reading) for reading in file.readings)
        ]

    def time_of(self, spec: ModelSpec) -> datetime:
        """When its file came to be as it is."""
        file = self._files.get(spec.source)
        return datetime.fromtimestamp(0 if file is None else file.mark.changed / 1e9, UTC)

    def _is_removed(self, reading: ModelReading) -> bool:
        removed_at = self._removed.get(reading.name)
        return isinstance(reading, ModelSpec) and removed_at is not None and self.time_of(reading) <= removed_at

    def _collect(self, problems: Sequence[ModelProblem]) -> None:
        """Make the catalogue of what the files hold, and of problems with the directory itself."""
        readings = [reading for file in self._files.values() for reading in file.readings]
        kept = [reading for reading in with_last_good(readings, self.catalogue) if not self._is_removed(reading)]
        catalogue = collect([*kept, *problems], before=self.catalogue, since=self.time_of)
        if catalogue == self.catalogue:
            return
        before, self.catalogue = self.catalogue, catalogue
        _log_news(before, catalogue)

    def file_of(self, spec: ModelSpec) -> str:
        """Where its weights are; empty when they are not below the directory."""
        path = self.directory.absolute() / spec.model
        return str(path) if spec.model and path.exists() else ""

    def size_of(self, spec: ModelSpec) -> int:
        """Bytes of its weights; 0 when they are not below the directory."""
        if not spec.model:
            return 0
        path = self.directory / spec.model
        try:
            if path.is_dir():
                return sum(part.stat().st_size for part in path.rglob("*") if part.is_file())
            return path.stat().st_size
        except OSError:
            return 0


def _log_news(before: Catalogue, catalogue: Catalogue) -> None:
    """Log the problems and warnings that were not there before."""
    known = frozenset(before.problems)
    new = [problem for problem in catalogue.problems if problem not in known]
    for problem in new[:_MOST_TOLD]:
        shown = {"event": "model.skipped", "file": problem.source, "model": problem.name}
        log.warning("passed over: %s: %s", problem.source, problem.problem, extra=shown)
    if len(new) > _MOST_TOLD:
        log.warning("%d more were passed over", len(new) - _MOST_TOLD, extra={"event": "models.skipped"})
    warned = {name: spec.warnings for name, spec in before.models.items()}
    warnings = [
        (spec, warning)
        for spec in catalogue.models.values()
        for warning in spec.warnings
        if warning not in warned.get(spec.name, ())
    ]
    for spec, warning in warnings[:_MOST_TOLD]:
        shown = {"event": "model.odd", "file": spec.source, "model": spec.name}
        log.warning("%s: %s", spec.source, warning, extra=shown)
    log.info("models read", extra={"event": "models.read", "models": len(catalogue.models)})


# Reading files.


def _read_directory(directory: Path, known: Mapping[str, ReadFile]) -> Mapping[str, ReadFile] | ModelProblem | None:
    """What every file holds, by its name; unchanged ones are not opened.

    A problem when the directory cannot be read, and None where there never was one.
    """
    try:
        entries = list(directory.iterdir())
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not known:
            return None
        return ModelProblem(source=str(directory), problem=f"cannot be read: {error.strerror}")
    paths = sorted(path for path in entries if path.suffix in SUFFIXES and not path.name.startswith("."))
    files = {path.name: _read_file(path, known.get(path.name)) for path in paths[:MOST_FILES]}
    if len(paths) > MOST_FILES:
        problem = f"holds {len(paths)} files, of which the first {MOST_FILES} are read"
        files[""] = ReadFile(ModelFileMark(), [ModelProblem(source=str(directory), problem=problem)])
    return files


class _Unusable(Exception):
    """Why a file cannot be used."""


def _read_file(path: Path, known: ReadFile | None) -> ReadFile:
    """The models in a file; what is known already unless the file is another one by now."""
    mark = ModelFileMark()
    try:
        mark = ModelFileMark.of(path)
        if known is not None and known.mark == mark:
            return known
        lines = KeyLines()
        document = _parse(path, lines)
    except OSError as error:
        return ReadFile(mark, [_problem(path, f"cannot be read: {error.strerror or error}")])
    except (_Unusable, InvalidInput) as error:
        return ReadFile(mark, [_problem(path, str(error))])
    return ReadFile(mark, list(_models(path, document, lines)))


def _parse(path: Path, lines: KeyLines) -> object:
    """The document in a file; `lines` learns where its keys are."""
    content = read_bounded(path, LARGEST_FILE)
    if content is None:
        raise _Unusable(f"is larger than {LARGEST_FILE // 1024} KiB, which no model file needs")
    try:
        text = content.decode("utf-8-sig")
        for event in checked_events(text, _LIMITS):
            lines.take(event)
        return yaml.load(text, Loader=LOADER)  # noqa: S506 - one of the two safe loaders
    except UnicodeDecodeError as error:
        raise _Unusable(f"is not UTF-8 text: see byte {error.start}") from None
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
        above: tuple[int, ...] = (place,) if isinstance(document, list) else ()
        try:
            spec = read_model(config, source=path.name)
            yield replace(spec, warnings=tuple(_warnings(spec, lines, above)))
        except InvalidInput as error:
            yield _problem(path, _with_line(error, config, lines, above), name=known_as)
        except (TypeError, ValueError, RecursionError):
            yield _problem(path, "has keys of different kinds: write them all as text", name=known_as)


def _with_line(error: InvalidInput, config: object, lines: KeyLines, above: tuple[int, ...]) -> str:
    """Say where the key is that cannot be used."""
    wrong = wrong_values(config) if isinstance(config, Mapping) else []
    path: ConfigPath = wrong[0].path if wrong else tuple(error.field.split("."))
    line = lines.lines.get((*above, *path))
    return f"line {line}: {error.message}" if line else error.message


def _warnings(spec: ModelSpec, lines: KeyLines, above: tuple[int, ...]) -> Iterator[str]:
    """About keys and words that mean nothing; not those that hold what others refer to."""
    problems: list[tuple[ConfigPath, str]] = [(key.path, key.sentence) for key in unknown_keys(spec.config)]
    for path, sentence in (*problems, *unknown_words(spec.config)):
        place: KeyPath = (*above, *path)
        if place not in lines.anchored:
            line = lines.lines.get(place) or lines.lines.get(place[:-1])
            yield f"line {line}: {sentence}" if line else sentence


def _problem(path: Path, problem: str, *, name: str = "") -> ModelProblem:
    return ModelProblem(source=path.name, name=name, problem=problem)
