"""The models: YAML files of one directory, read again when they change. What cannot be read is kept with its reason."""

import asyncio
import difflib
import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from corral.base.errors import NotFound
from corral.base.tasks import Poke
from corral.frontend.models.decide.model import Catalogue, ModelProblem, ModelSpec, collect, with_last_good
from corral.frontend.models.files import ModelFileMark, ReadFile, read_file

log = logging.getLogger(__name__)

PERIOD: Final = timedelta(seconds=2)
SUFFIXES: Final = frozenset({".yaml", ".yml"})
MOST_FILES: Final = 10_000
_MOST_TOLD: Final = 100
"""Problems that one look may write into the log; all are shown to whoever asks."""
_SHOWN_NAME: Final = 100


class Models:
    """Owns nothing on the disk: people and programs write the files, and `ModelRemoval` deletes them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.catalogue = Catalogue()
        self.is_readable = True
        """Whether the last look found the directory. Without it, nothing can be said of what is not in it."""
        self.poke = Poke()
        self._known: Mapping[str, ReadFile] = {}
        self._removed: Mapping[str, datetime] = {}

    def revision_of(self, name: str) -> str:
        """Empty for a model that there is not."""
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
        self._take(await asyncio.to_thread(_read_directory, self.directory, self._known))

    def scan(self) -> None:
        """Read what changed without a thread: before the event loop serves anybody."""
        self._take(_read_directory(self.directory, self._known))

    def _take(self, read: Mapping[str, ReadFile] | ModelProblem | None) -> None:
        """A directory that cannot be read takes no model away."""
        self.is_readable = isinstance(read, Mapping)
        if isinstance(read, Mapping):
            self._known = read
        self._collect([read] if isinstance(read, ModelProblem) else [])

    def hide(self, removed: Mapping[str, datetime]) -> bool:
        """These models were removed: what older files say of them is not true any more. False: that is known."""
        if removed == self._removed:
            return False
        self._removed = removed
        self._collect([one for one in self.catalogue.problems if one.source == str(self.directory)])
        return True

    def leftovers(self, name: str) -> list[tuple[Path, ReadFile]]:
        """Files that hold a model which was removed, as they were when they were read."""
        return [
            (self.directory / source, file)
            for source, file in self._known.items()
            if any(isinstance(one, ModelSpec) and one.name == name and self._is_removed(one) for one in file.found)
        ]

    def time_of(self, spec: ModelSpec) -> datetime:
        """When its file came to be as it is."""
        file = self._known.get(spec.source)
        return datetime.fromtimestamp(0 if file is None else file.mark.changed / 1e9, UTC)

    def _is_removed(self, one: ModelSpec | ModelProblem) -> bool:
        removed_at = self._removed.get(one.name)
        return isinstance(one, ModelSpec) and removed_at is not None and self.time_of(one) <= removed_at

    def _collect(self, problems: Sequence[ModelProblem]) -> None:
        found = with_last_good([one for file in self._known.values() for one in file.found], self.catalogue)
        kept = [*(one for one in found if not self._is_removed(one)), *problems]
        catalogue = collect(kept, before=self.catalogue, since=self.time_of)
        if catalogue == self.catalogue:
            return
        self._tell(catalogue.problems)
        self._warn(catalogue.models.values())
        self.catalogue = catalogue
        log.info("models read", extra={"event": "models.read", "models": len(catalogue.models)})

    def _tell(self, problems: Iterable[ModelProblem]) -> None:
        known = frozenset(self.catalogue.problems)
        new = [problem for problem in problems if problem not in known]
        for problem in new[:_MOST_TOLD]:
            shown = {"event": "model.skipped", "file": problem.source, "model": problem.name}
            log.warning("passed over: %s: %s", problem.source, problem.problem, extra=shown)
        if len(new) > _MOST_TOLD:
            log.warning("%d more were passed over", len(new) - _MOST_TOLD, extra={"event": "models.skipped"})

    def _warn(self, specs: Iterable[ModelSpec]) -> None:
        known = self.catalogue.models
        told = {name: spec.warnings for name, spec in known.items()}
        new = [(spec, one) for spec in specs for one in spec.warnings if one not in told.get(spec.name, ())]
        for spec, warning in new[:_MOST_TOLD]:
            shown = {"event": "model.odd", "file": spec.source, "model": spec.name}
            log.warning("%s: %s", spec.source, warning, extra=shown)

    def file_of(self, spec: ModelSpec) -> str:
        """Where its weights are; empty when they are not below the directory."""
        path = self.directory.absolute() / spec.model
        return str(path) if path.exists() else ""

    def size_of(self, spec: ModelSpec) -> int:
        """Bytes of its weights; 0 when they are not below the directory."""
        path = self.directory / spec.model
        try:
            if path.is_dir():
                return sum(part.stat().st_size for part in path.rglob("*") if part.is_file())
            return path.stat().st_size
        except OSError:
            return 0


def _read_directory(directory: Path, known: Mapping[str, ReadFile]) -> Mapping[str, ReadFile] | ModelProblem | None:
    """What every file holds, by its name; unchanged ones are not opened.

    A problem when the directory cannot be read, and None where there never was one.
    """
    try:
        paths = sorted(path for path in directory.iterdir() if _is_meant(path))
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not known:
            return None
        return ModelProblem(source=str(directory), problem=f"cannot be read: {error.strerror}")
    found = {path.name: read_file(path, known.get(path.name)) for path in paths[:MOST_FILES]}
    if len(paths) > MOST_FILES:
        problem = f"holds {len(paths)} files, of which the first {MOST_FILES} are read"
        found[""] = ReadFile(ModelFileMark(), [ModelProblem(source=str(directory), problem=problem)])
    return found


def _is_meant(path: Path) -> bool:
    return path.suffix in SUFFIXES and not path.name.startswith(".")
