"""How large the files of a gallery's model are, and what they say about themselves: asked of hubs before a download.

Only the heads of files are read. What was learned is kept for a while. A hub that is away costs a moment, and then a
sentence.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Final

import msgspec

from corral.base.clock import Clock
from corral.base.config_fields import value_at
from corral.base.errors import CorralError
from corral.base.tasks import task_group
from corral.frontend.models.decide.stored import WeightFile
from corral.galleries.model_entries import ModelFile, ModelPlan
from corral.hubs.access import HubAccess
from corral.hubs.gguf import GgufFacts
from corral.hubs.remote_files import look_into_gguf
from corral.hubs.resolve import plan_file

_PATIENCE: Final = timedelta(seconds=10)
_KEPT: Final = timedelta(hours=1)
_KEPT_FAILURE: Final = timedelta(minutes=1)
_MOST_KEPT: Final = 512
_AT_ONCE: Final = 8
_GGUF: Final = ".gguf"
_PROJECTOR: Final = "mmproj"


class MeasuredFile(msgspec.Struct, frozen=True, kw_only=True):
    size: int | None = None
    facts: GgufFacts | None = None
    """What a GGUF file says about itself; None for other files."""
    problem: str = ""


class MeasuredModel(msgspec.Struct, frozen=True, kw_only=True):
    """All files of a model."""

    files: Mapping[str, MeasuredFile]
    """By their paths."""
    facts: GgufFacts | None = None

    @property
    def bytes(self) -> int | None:
        """The size of all files; None if that of one is not known."""
        sizes = [file.size for file in self.files.values()]
        return None if not sizes or None in sizes else sum(size or 0 for size in sizes)

    @property
    def weights(self) -> list[WeightFile]:
        """Its files, as they would be stored."""
        return [
            WeightFile(path=path, size=file.size or 0, shape=None if file.facts is None else file.facts.shape)
            for path, file in self.files.items()
        ]

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(file.problem for file in self.files.values() if file.problem))


class _KeptMeasure(msgspec.Struct, frozen=True):
    file: MeasuredFile
    until: float


class FileMeasures:
    """Without a hub it knows no sizes."""

    def __init__(self, hub: HubAccess | None, clock: Clock, *, patience: timedelta = _PATIENCE) -> None:
        self._hub = hub
        self._clock = clock
        self._patience = patience.total_seconds()
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._cache: dict[tuple[str, str, bool], _KeptMeasure] = {}

    async def measure(self, plan: ModelPlan) -> MeasuredModel:
        """Never fails: what could not be learned in time has a problem."""
        inside = weights_of(plan)
        files: dict[str, MeasuredFile] = {}

        async def look(file: ModelFile) -> None:
            files[file.filename] = await self._look(file, inside=file.filename in inside)

        async with task_group() as group:
            for file in plan.files:
                group.create_task(look(file), name=f"measure {file.filename}")
        facts = next((files[name].facts for name in inside if files[name].facts is not None), None)
        return MeasuredModel(files=files, facts=facts)

    async def _look(self, file: ModelFile, *, inside: bool) -> MeasuredFile:
        if self._hub is None:
            return MeasuredFile(problem="this frontend asks no hubs")
        key, now = (file.uri, file.sha256, inside), self._clock.monotonic()
        cached = self._cache.get(key)
        if cached is not None and cached.until > now:
            return cached.file
        try:
            async with asyncio.timeout(self._patience), self._slots:
                measured = await self._ask(self._hub, file, inside=inside)
        except TimeoutError:
            measured = MeasuredFile(problem=f"{file.filename}: no answer within {self._patience:.0f} s")
        except CorralError as error:
            measured = MeasuredFile(problem=f"{file.filename}: {error.message}")
        if len(self._cache) >= _MOST_KEPT:
            self._cache.clear()
        self._cache[key] = _KeptMeasure(measured, now + (_KEPT_FAILURE if measured.problem else _KEPT).total_seconds())
        return measured

    async def _ask(self, hub: HubAccess, file: ModelFile, *, inside: bool) -> MeasuredFile:
        planned = await plan_file(file.uri, file.filename, file.sha256, hub)
        facts = await look_into_gguf(hub, planned) if inside else None
        return MeasuredFile(size=planned.size, facts=facts)


def weights_of(plan: ModelPlan) -> Sequence[str]:
    """Return the GGUF files that hold the weights of a model, the one that its configuration names first."""
    named = value_at(plan.config, "parameters.model")
    names = [file.filename for file in plan.files if _is_gguf(file.filename)]
    if isinstance(named, str) and named in names:
        return [named]
    auxiliary: Collection[object] = (value_at(plan.config, "mmproj"), value_at(plan.config, "draft_model"))
    return [name for name in names if name not in auxiliary and _PROJECTOR not in name.lower()][:1]


def _is_gguf(name: str) -> bool:
    return name.lower().endswith(_GGUF)
