"""Reads a models directory without trust: what threads do on disk, so that the event loop never waits for one.

Whatever is wrong with a file is a sentence about it, and never an exception.
"""

import hashlib
import os
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from corral.base.errors import InvalidInput
from corral.base.private_files import read_bounded
from corral.frontend.models import stores
from corral.frontend.models.decide.imports import ModelFileContent
from corral.frontend.models.decide.model import ModelProblem
from corral.frontend.models.decide.reading import LARGEST_FILE, NotReadable, ReadModel, read_models, read_text
from corral.frontend.models.stores import StoreUnusable
from corral.hubs.gguf import GgufProblem, read_gguf_file
from corral.hubs.weight_shape import WeightShape

SUFFIXES: Final = frozenset({".yaml", ".yml"})
MOST_FILES: Final = 10_000
_MOST_OFFERED: Final = 1000
_GGUF: Final = ".gguf"
_MOST_READ: Final = 16
"""Files of weights that one look reads the head of, so that a directory full of new ones keeps nobody waiting."""


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
    content: ModelFileContent
    problems: tuple[ModelProblem, ...] = ()
    templates: Mapping[str, ModelFileMark | None] = {}
    """The template files that it names or may name; None for those that are not there."""


class StoreFacts(NamedTuple):
    """The directory as a place for files."""

    id: str
    name: str
    total_bytes: int
    free_bytes: int


class DirectoryReading(NamedTuple):
    """What a directory held at one moment."""

    files: Mapping[str, ReadFile] = {}
    problem: ModelProblem | None = None
    """Why it could not be read, or not whole."""
    is_whole: bool = False
    """Whether all files were read: only then can something be missing."""
    store: StoreFacts | None = None
    """None: it is not there."""
    weights: Mapping[str, int] = {}
    """Files of weights that lie in it, with their sizes."""


def read_directory(directory: Path, earlier: Mapping[str, ReadFile]) -> DirectoryReading:
    """Read what changed; files that are as `earlier` are not opened."""
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
        store = store_facts(directory)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not earlier:
            return DirectoryReading()
        return DirectoryReading(problem=_problem(str(directory), f"cannot be read: {error.strerror}"))
    names = [file.name for file in entries if Path(file.name).suffix in SUFFIXES and not file.name.startswith(".")]
    files = {name: read_file(directory / name, earlier.get(name)) for name in names[:MOST_FILES]}
    too_many = f"holds {len(names)} files, of which the first {MOST_FILES} are read"
    is_whole = len(names) <= MOST_FILES
    return DirectoryReading(
        files=files,
        problem=None if is_whole else _problem(str(directory), too_many),
        is_whole=is_whole,
        store=store,
        weights=dict(_weights(entries)),
    )


def _weights(entries: list["os.DirEntry[str]"]) -> list[tuple[str, int]]:
    weights: list[tuple[str, int]] = []
    for entry in entries:
        if entry.name.lower().endswith(_GGUF) and not entry.name.startswith(".") and len(weights) < _MOST_OFFERED:
            try:
                if entry.is_file():
                    weights.append((entry.name, entry.stat().st_size))
            except OSError:
                continue
    return weights


def read_file(path: Path, earlier: ReadFile | None) -> ReadFile:
    """The models in a file; what is known already unless the file, or a template of it, is another one by now."""
    mark = ModelFileMark()
    try:
        mark = ModelFileMark.of(path)
        if earlier is not None and earlier.mark == mark and _templates_are(path.parent, earlier.templates):
            return earlier
        content = read_bounded(path, LARGEST_FILE)
        if content is None:
            raise NotReadable(f"is larger than {LARGEST_FILE // 1024} KiB, which no model file needs")
        text = read_text(content)
    except OSError as error:
        return _unusable(path, mark, f"cannot be read: {error.strerror or error}")
    except (NotReadable, InvalidInput, ValueError) as error:
        return _unusable(path, mark, str(error))
    templates = _TemplateFiles(path.parent)
    readings = read_models(text, source=path.name, named_template=templates.read)
    digest = hashlib.sha256(content)
    for name, template in sorted(templates.contents.items()):
        digest.update(f"\0{name}\0{template}".encode("utf-8", "surrogatepass"))
    problems = tuple(reading for reading in readings if isinstance(reading, ModelProblem))
    parsed = ModelFileContent(
        digest=digest.hexdigest(),
        models=tuple(reading for reading in readings if isinstance(reading, ReadModel)),
        is_whole=not problems,
        age=mark.changed,
    )
    return ReadFile(mark, parsed, problems, templates.marks)


def _unusable(path: Path, mark: ModelFileMark, problem: str) -> ReadFile:
    content = ModelFileContent(digest=f"unreadable:{mark.changed}", is_whole=False, age=mark.changed)
    return ReadFile(mark, content, (_problem(path.name, problem),))


def _problem(source: str, problem: str) -> ModelProblem:
    return ModelProblem(source=source, problem=problem)


# Templates beside models.


class _TemplateFiles:
    """Finds the files of templates that a model names."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.marks: dict[str, ModelFileMark | None] = {}
        self.contents: dict[str, str] = {}

    def read(self, name: str) -> str | None:
        self.marks[name] = mark = _template_mark(self._directory, name)
        if mark is None:
            return None
        try:
            content = read_bounded(self._directory / f"{name}.tmpl", LARGEST_FILE)
            text = None if content is None else content.decode()
        except (OSError, ValueError):
            return None
        if text is not None:
            self.contents[name] = text
        return text


def _template_mark(directory: Path, name: str) -> ModelFileMark | None:
    """None when there is no such file, or not below the directory."""
    path = directory / f"{name}.tmpl"
    try:
        if not path.resolve(strict=True).is_relative_to(directory.resolve(strict=True)):
            return None
        return ModelFileMark.of(path)
    except (OSError, ValueError, RuntimeError):
        return None


def _templates_are(directory: Path, marks: Mapping[str, ModelFileMark | None]) -> bool:
    return all(_template_mark(directory, name) == mark for name, mark in marks.items())


# The store.


def store_facts(directory: Path, *, make: bool = True) -> StoreFacts:
    """Which store the directory is. One that cannot be written to is known by where it is. OSError if it is not there.

    With `make`, a directory that is no store becomes one.
    """
    where = f"{socket.gethostname()}:{directory.absolute()}"
    try:
        room = stores.measure(directory, make=make)
    except StoreUnusable:
        usage = shutil.disk_usage(directory)
        return StoreFacts(f"at-{hashlib.sha256(where.encode()).hexdigest()[:24]}", where, usage.total, usage.free)
    return StoreFacts(room.id, where, room.total_bytes, room.free_bytes)


# Weights.


class MeasuredPath(NamedTuple):
    """What a model is loaded from, when it had this mark."""

    mark: ModelFileMark
    size: int
    is_read: bool = False
    """Whether it was looked into; only GGUF files are."""
    shape: WeightShape | None = None


def measure(directory: Path, paths: list[str], earlier: Mapping[str, MeasuredPath]) -> dict[str, MeasuredPath]:
    """Sizes of files and directories, and what files say about themselves; without those that are not there.

    What has the mark that it had is not measured again. Of new files, a few are read; the others the next time.
    """
    measured: dict[str, MeasuredPath] = {}
    remaining_reads = _MOST_READ
    for path in paths:
        try:
            mark, before = ModelFileMark.of(directory / path), earlier.get(path)
            if before is None or before.mark != mark:
                before = MeasuredPath(mark, _size(directory / path, mark))
        except (OSError, ValueError):
            continue
        if remaining_reads > 0 and not before.is_read and path.lower().endswith(_GGUF):
            remaining_reads -= 1
            before = before._replace(is_read=True, shape=_shape(directory / path))
        measured[path] = before
    return measured


def _size(path: Path, mark: ModelFileMark) -> int:
    if not path.is_dir():
        return mark.size
    return sum(part.stat().st_size for part in path.rglob("*") if part.is_file())


def _shape(path: Path) -> WeightShape | None:
    """None of what cannot be read: then its size has to do."""
    try:
        return read_gguf_file(path).shape if path.is_file() else None  # a pipe would keep us waiting
    except (OSError, GgufProblem):
        return None
