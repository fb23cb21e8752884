"""The models: YAML files of one directory, read again when they change. What cannot be read is kept with its reason."""

import logging
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Final, NamedTuple

import yaml

from corral.base.errors import InvalidInput, NotFound
from corral.domain.model import Catalogue, ModelProblem, ModelSpec, collect, read_model

log = logging.getLogger(__name__)

PERIOD: Final = timedelta(seconds=2)
SUFFIXES: Final = frozenset({".yaml", ".yml"})
_LARGEST_FILE: Final = 1024 * 1024

Found = ModelSpec | ModelProblem


class _Read(NamedTuple):
    """What a file held when it had this time and size."""

    mark: tuple[int, int]
    found: list[Found]


class Models:
    """Owns nothing on the disk: people and programs write the files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.catalogue = Catalogue()
        self.is_readable = True
        """Whether the last look found the directory. Without it, nothing can be said of what is not in it."""
        self._known: dict[str, _Read] = {}

    def revision_of(self, name: str) -> str:
        """Empty for a model that there is not."""
        spec = self.catalogue.models.get(name)
        return "" if spec is None else spec.revision

    def find(self, name: str) -> ModelSpec:
        """The model that answers for a name."""
        spec = self.catalogue.serving(name)
        if spec is None:
            raise NotFound(f"the model {name[:100]!r} does not exist")
        return spec

    async def look(self) -> None:
        """Read what changed. Files are small and few, and unchanged ones are not opened."""
        self.scan()

    def scan(self) -> None:
        """A directory that cannot be read takes no model away."""
        files = self._files()
        self.is_readable = files is not None
        if files is None:
            return
        self._known = {path.name: self._read(path) for path in files}
        catalogue = collect(one for read in self._known.values() for one in read.found)
        if catalogue == self.catalogue:
            return
        for problem in set(catalogue.problems) - set(self.catalogue.problems):
            shown = {"event": "model.skipped", "file": problem.source, "model": problem.name}
            log.warning("a model was passed over: %s", problem.problem, extra=shown)
        self.catalogue = catalogue
        log.info("models read", extra={"event": "models.read", "models": len(catalogue.models)})

    def size_of(self, spec: ModelSpec) -> int:
        """Bytes of its weights; 0 when they are not below the directory."""
        path = self.directory / spec.model
        try:
            if path.is_dir():
                return sum(part.stat().st_size for part in path.rglob("*") if part.is_file())
            return path.stat().st_size
        except OSError:
            return 0

    def _files(self) -> list[Path] | None:
        """None when the directory cannot be read. That is said once, and not at all where there never was one."""
        try:
            found = list(self.directory.iterdir())
        except OSError as error:
            if self.is_readable and (self._known or not isinstance(error, FileNotFoundError)):
                log.warning("models cannot be read: %s", error.strerror, extra={"event": "models.unreadable"})
            return None
        return sorted(path for path in found if path.suffix in SUFFIXES and not path.name.startswith("."))

    def _read(self, path: Path) -> _Read:
        try:
            status = path.stat()
            mark = (status.st_mtime_ns, status.st_size)
            known = self._known.get(path.name)
            if known is not None and known.mark == mark:
                return known
            if status.st_size > _LARGEST_FILE:
                return _Read(mark, [_problem(path, "is too large for a model file")])
            return _Read(mark, list(_models_in(path, path.read_bytes())))
        except OSError as error:
            return _Read((0, 0), [_problem(path, f"cannot be read: {error.strerror}")])


def _models_in(path: Path, content: bytes) -> Iterator[Found]:
    """One model, or a list of them."""
    try:
        document = yaml.safe_load(content)
    except (yaml.YAMLError, UnicodeError, ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        yield _problem(path, f"is no YAML: {reason}")
        return
    for config in document if isinstance(document, list) else [document]:
        name = config.get("name") if isinstance(config, dict) else None
        known_as = name if isinstance(name, str) else ""
        try:
            yield read_model(config, source=path.name)
        except InvalidInput as error:
            yield ModelProblem(source=path.name, name=known_as, problem=error.message)
        except (TypeError, ValueError, RecursionError):  # keys that are no text, or a part that contains itself
            yield ModelProblem(source=path.name, name=known_as, problem="cannot be written as JSON")


def _problem(path: Path, problem: str) -> ModelProblem:
    return ModelProblem(source=path.name, problem=problem)
