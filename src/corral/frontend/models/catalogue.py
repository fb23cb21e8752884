"""The models as this frontend knows them: a copy of the database in memory, for callers that need it many times a
second.

Nothing here waits for a disk. `watch.py` passes in what lies in the models directory.
"""

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from corral.base.errors import NotFound
from corral.base.tasks import Poke
from corral.base.words import near_names
from corral.frontend.models.decide.model import Catalogue, ModelProblem, ModelSpec, collect, weights_path
from corral.frontend.models.decide.needs import ModelNeeds, is_part, needs_of
from corral.frontend.models.decide.reading import ReadModel, read_stored
from corral.frontend.models.decide.removal import paths_of
from corral.frontend.models.decide.stored import StoredModel, WeightFile
from corral.frontend.models.store.models import StoredModels

log = logging.getLogger(__name__)

_MOST_TOLD: Final = 100
"""Problems that one look may write into the log; the API shows all of them."""
_SHOWN_NAME: Final = 100
_MANY: Final = 20
"""Configurations that are read in a thread when they come together."""
_A_PART: Final = re.compile(r"mmproj|-(?!00001-)\d{5}-of-\d{5}", re.IGNORECASE)
"""In the name of a file that is no model by itself: a projector, or a later part of a model in several files."""
_LONG_AGO: Final = datetime.fromtimestamp(0, UTC)


class Models:
    """Owns nothing: people change models through `ModelChanges` and files, and `ModelRemoval` removes them."""

    def __init__(self, directory: Path, store: StoredModels) -> None:
        self.directory = directory
        self.catalogue = Catalogue()
        self.rows: Mapping[str, StoredModel] = {}
        """All models, also those that are disabled or cannot be used."""
        self.offered: Sequence[WeightFile] = ()
        """Weights in the directory that no model speaks of."""
        self.is_readable = True
        """Whether models that are not here are nowhere. Not so while a directory that was never read cannot be."""
        self.poke = Poke()
        """Rings when files may have changed."""
        self._store = store
        self._specs: Mapping[str, ModelSpec | ModelProblem] = {}
        self._read: Mapping[tuple[str, str], ReadModel] = {}
        self._problems: Sequence[ModelProblem] = ()
        self._local_files: Mapping[str, WeightFile] = {}
        """What lies in the directory of what models are loaded from, by path."""
        self._needs: dict[tuple[str, str], ModelNeeds] = {}
        """By name and revision; forgotten with every change."""
        self._refreshing = asyncio.Lock()

    # Lookups.

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
        near = near_names(name[:_SHOWN_NAME], self.catalogue.models)
        hint = f"did you mean {' or '.join(near)}?" if near else "`corral models list` shows all"
        return NotFound(f"the model {name[:_SHOWN_NAME]!r} does not exist; {hint}")

    def time_of(self, spec: ModelSpec) -> datetime:
        """When it came to be as it is."""
        row = self.rows.get(spec.name)
        return _LONG_AGO if row is None else row.changed_at

    def file_of(self, spec: ModelSpec) -> str:
        """Where its weights are; empty when they are not below the directory."""
        path = weights_path(spec)
        return str(self.directory.absolute() / path) if path and path in self._local_files else ""

    def weights_of(self, spec: ModelSpec) -> list[WeightFile]:
        """The files that the model is loaded from: measured ones of the local directory, and the stored facts of all
        others."""
        row = self.rows.get(spec.name)
        stored = {} if row is None else {file.path: file for file in row.files}
        local_files = {
            path: _with_shape(self._local_files[path], stored.get(path))
            for path in paths_of(spec, ())
            if path in self._local_files
        }
        inside = tuple(f"{path}/" for path in local_files)
        stored_files = [
            file for path, file in stored.items() if path not in local_files and not path.startswith(inside)
        ]
        return [*local_files.values(), *stored_files]

    def size_of(self, spec: ModelSpec) -> int:
        """Bytes of its weights, all parts together; 0 when nobody has seen them."""
        return sum(file.size for file in self.weights_of(spec) if is_part(file.path, weights_path(spec)))

    def needs_of(self, spec: ModelSpec) -> ModelNeeds:
        """What one replica takes from its machine."""
        key = (spec.name, spec.revision)
        if (needs := self._needs.get(key)) is None:
            needs = self._needs[key] = needs_of(spec, self.weights_of(spec))
        return needs

    def spec_of(self, row: StoredModel) -> ModelSpec | ModelProblem:
        """What a model's configuration says, also of one that is disabled."""
        earlier = self._specs.get(row.name)
        return _read_row(row) if earlier is None else earlier

    # For those who keep it up to date.

    async def refresh(self) -> bool:
        """Read what changed in the database; whether anything did."""
        async with self._refreshing:
            marks = await self._store.marks()
            old = self.rows
            unchanged = {name: row for name, row in old.items() if marks.get(name) == (row.number, row.files)}
            if len(unchanged) == len(old) == len(marks):
                return False
            loaded = await self._store.load([name for name in marks if name not in unchanged])
            read = await asyncio.to_thread(self._read_rows, loaded) if len(loaded) > _MANY else self._read_rows(loaded)
            self.rows = {**unchanged, **{row.name: row for row in loaded}}
            specs = {name: self._specs[name] for name in unchanged}
            self._specs = {**specs, **read}
            self._needs = {}
            self._collect()
            return True

    def hear(self, read: Mapping[tuple[str, str], ReadModel]) -> None:
        """What the files of the directory say, by model and file: what the database says alike is not read again."""
        self._read = read

    def see(self, read: Mapping[tuple[str, str], ReadModel], problems: Sequence[ModelProblem]) -> None:
        """What the files of the directory say, by model and file, and what is wrong with them."""
        self._read, self._problems = read, problems
        self._specs = {name: self._with_lines(self.rows[name], spec) for name, spec in self._specs.items()}
        self._collect()

    def measured(self, local_files: Mapping[str, WeightFile], lone: Mapping[str, int]) -> None:
        """What of models lies in the directory, by path, and the sizes of weights there that none is loaded from."""
        self._local_files, self._needs = local_files, {}
        self.offered = [
            WeightFile(path=path, size=size) for path, size in sorted(lone.items()) if not _A_PART.search(path)
        ]

    def _read_rows(self, rows: Sequence[StoredModel]) -> dict[str, ModelSpec | ModelProblem]:
        return {row.name: self._with_lines(row, None) for row in rows}

    def _with_lines(self, row: StoredModel, from_file: ModelSpec | ModelProblem | None) -> ModelSpec | ModelProblem:
        """What a row says; in the words of its file, whose lines people see, where that says the same."""
        read = self._read.get((row.name, row.file))
        if read is not None and read.text == row.text:
            return read.spec
        return _read_row(row) if from_file is None else from_file

    def _collect(self) -> None:
        specs = [spec for name, spec in self._specs.items() if not self.rows[name].is_disabled]
        unusable = [spec for spec in specs if isinstance(spec, ModelProblem)]
        usable = [spec for spec in specs if isinstance(spec, ModelSpec)]
        catalogue = collect(usable, [*self._problems, *unusable])
        if catalogue != self.catalogue:
            before, self.catalogue = self.catalogue, catalogue
            _log_news(before, catalogue)


def _with_shape(local: WeightFile, stored: WeightFile | None) -> WeightFile:
    """A file of the directory; until it is read, what somebody else has read of the same file holds."""
    is_same = stored is not None and stored.size == local.size
    return stored if stored is not None and is_same and local.shape is None else local


def _read_row(row: StoredModel) -> ModelSpec | ModelProblem:
    spec = read_stored(row.text, source=row.file)
    if isinstance(spec, ModelProblem):
        return ModelProblem(source=row.file or row.name, name=row.name, problem=spec.problem)
    return spec


def _log_news(before: Catalogue, catalogue: Catalogue) -> None:
    """Log the problems and warnings that were not there before."""
    earlier_problems = frozenset(before.problems)
    new = [problem for problem in catalogue.problems if problem not in earlier_problems]
    for problem in new[:_MOST_TOLD]:
        details = {"event": "model.skipped", "file": problem.source, "model": problem.name}
        log.warning("passed over: %s: %s", problem.source, problem.problem, extra=details)
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
        details = {"event": "model.odd", "file": spec.source, "model": spec.name}
        log.warning("%s: %s", spec.source or spec.name, warning, extra=details)
    log.info("models read", extra={"event": "models.read", "models": len(catalogue.models)})
