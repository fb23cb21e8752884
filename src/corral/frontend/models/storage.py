"""What is in a store, and removing what nobody needs."""

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from corral.base.errors import Conflict
from corral.base.open_directories import Confined, PathRefused
from corral.base.private_files import read_bounded
from corral.base.tasks import in_thread
from corral.frontend.models.decide.model import ModelSpec
from corral.frontend.models.decide.pulling import files_of_others, plan_of
from corral.frontend.models.decide.reading import LARGEST_FILE, read_stored
from corral.frontend.models.decide.removal import paths_of
from corral.frontend.models.decide.storage import FileVerdict, FoundFile, Needs, judge
from corral.frontend.models.decide.stored import StoredModel
from corral.frontend.models.directory import SUFFIXES
from corral.frontend.models.store.models import StoredModels
from corral.frontend.models.stores import FOLDER, StoreKeeper
from corral.frontend.operations.decide.intent import IntentKind
from corral.frontend.operations.store.intents import Intents
from corral.hubs.downloads.partial_files import MEMBER, PartialFolder, key_of
from corral.hubs.downloads.receipts import Receipts
from corral.hubs.plans import PullPlan

_MOST_FILES: Final = 200_000
_FRESH_SECONDS: Final = 3600.0
"""How long the receipt of a file that is not there is left alone: the file may be about to get its name."""


class StoreSurvey(msgspec.Struct, frozen=True, kw_only=True):
    """All that is in a store."""

    files: tuple[FoundFile, ...]
    texts: dict[str, str]
    """The configurations that lie in it, by the names of their files."""
    partial: dict[str, int]
    """Bytes of downloads that are not whole, by their keys."""

    @property
    def used_bytes(self) -> int:
        return sum(file.bytes for file in self.files) + sum(self.partial.values())


def survey(directory: Path) -> StoreSurvey:
    """Look at everything in a store. Links are not followed. Blocks."""
    receipts = Receipts(directory)
    files = [
        FoundFile(path=path, bytes=status.st_blocks * 512, is_ours=receipts.find(path) is not None)
        for path, status in _walk(directory)
    ]
    texts = {}
    for path in (file.path for file in files if Path(file.path).suffix in SUFFIXES and "/" not in file.path):
        with contextlib.suppress(OSError):
            texts[path] = (read_bounded(directory / path, LARGEST_FILE) or b"").decode("utf-8", "replace")
    weights = tuple(file for file in files if file.path not in texts)
    return StoreSurvey(files=weights, texts=texts, partial=_partial(directory))


def used_bytes(directory: Path) -> int:
    """What all files of a store take, downloads that are not whole included. Blocks."""
    return sum(status.st_blocks * 512 for _, status in _walk(directory)) + sum(_partial(directory).values())


def _walk(directory: Path) -> Iterator[tuple[str, os.stat_result]]:
    count = 0
    for folder, folders, names in os.walk(directory):
        folders[:] = sorted(name for name in folders if name != FOLDER)
        for name in sorted(names):
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError):
                status = os.lstat(path)
                count += 1
                yield os.path.relpath(path, directory), status
            if count >= _MOST_FILES:
                return


def _partial(directory: Path) -> dict[str, int]:
    with contextlib.suppress(OSError, PathRefused):
        if not directory.joinpath(FOLDER).is_dir():
            return {}
        with PartialFolder(directory) as folder:
            return folder.sizes()
    return {}


class StorageReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a store holds, for whom, and what nobody needs."""

    used_bytes: int
    by_model: dict[str, int]
    unneeded: list[FileVerdict]
    partial_bytes: int
    """Bytes of downloads that no pull will continue."""


class ModelStorage:
    """The store of this frontend."""

    def __init__(self, stores: StoreKeeper, models: StoredModels, intents: Intents) -> None:
        self.stores = stores
        self._models = models
        self._intents = intents

    async def report(self) -> StorageReport:
        contents = await in_thread(lambda: survey(self.stores.directory))
        return self._report(contents, await self._needs(contents))

    async def prune(self, *, dry_run: bool) -> StorageReport:
        """Delete what nobody needs. Conflict where there is no store."""
        await self.stores.measure(make=True)
        if self.stores.own is None:
            raise Conflict(f"there is nothing to prune: {self.stores.problem}")
        contents = await in_thread(lambda: survey(self.stores.directory))
        needs = await self._needs(contents)
        report = self._report(contents, needs)
        if not dry_run:
            going = [verdict.path for verdict in report.unneeded if not verdict.kept]
            needed_keys = _keys(needs)
            await in_thread(lambda: _delete(self.stores.directory, going, needed_keys))
        return report

    async def _needs(self, contents: StoreSurvey) -> Needs:
        models = await self._models.load(list(await self._models.marks()))
        paths = await in_thread(lambda: needed_paths(models))
        return Needs(models=models, pulls=await pulls_under_way(self._intents), texts=contents.texts, paths=paths)

    def _report(self, contents: StoreSurvey, needs: Needs) -> StorageReport:
        by_model: dict[str, int] = {}
        for file in contents.files:
            for name in needs.owners(file.path):
                by_model[name] = by_model.get(name, 0) + file.bytes
        needed_keys = _keys(needs)
        return StorageReport(
            used_bytes=contents.used_bytes,
            by_model=by_model,
            unneeded=judge(contents.files, needs),
            partial_bytes=sum(count for key, count in contents.partial.items() if key not in needed_keys),
        )


def needed_paths(models: Iterable[StoredModel]) -> dict[str, list[str]]:
    """What each model needs below the models directory, by its name. Reads all configurations."""
    needed = {}
    for model in models:
        spec = read_stored(model.text, source="")
        needed[model.name] = paths_of(spec if isinstance(spec, ModelSpec) else ModelSpec(name=model.name), model.files)
    return needed


async def pulls_under_way(intents: Intents) -> list[PullPlan]:
    """What is being pulled, wherever."""
    return [plan_of(intent.payload) for intent in await intents.open(IntentKind.PULL)]


def _keys(needs: Needs) -> frozenset[str]:
    """The keys of partial files that pulls go on with; of a file inside of an archive there are two."""
    paths = [file.path for plan in needs.pulls for file in plan.files]
    return frozenset(key_of(path) for path in (*paths, *(f"{path}{MEMBER}" for path in paths)))


def _delete(directory: Path, paths: list[str], needed_keys: frozenset[str]) -> None:
    """Remove these files, empty directories above them, and partial downloads but those that are wanted. Blocks."""
    models = Confined(directory)
    for path in paths:
        parts = tuple(path.split("/"))
        with contextlib.suppress(OSError, PathRefused):
            with models.reach_unlinked(parts, directory / path) as place:
                os.unlink(place.name, dir_fd=place.directory)
            for count in range(len(parts) - 1, 0, -1):
                with models.reach_unlinked(parts[:count], directory) as place:
                    os.rmdir(place.name, dir_fd=place.directory)
    with contextlib.suppress(OSError, PathRefused), PartialFolder(directory) as folder:
        folder.sweep(time.time(), keep=needed_keys)
    Receipts(directory).sweep(time.time() - _FRESH_SECONDS)


# Files that several models have.


async def files_of_other_models(stored: StoredModels, plan: PullPlan) -> dict[str, str]:
    """The paths of a plan where other models may need what is there, with the names of those."""
    models = await stored.load(list(await stored.marks()))
    return await in_thread(lambda: files_of_others(plan, models, needed_paths(models)))


def check_others(directory: Path, plan: PullPlan, other_files: Mapping[str, str]) -> None:
    """Conflict when a file is there that another model needs, and is not the one of the plan. A file of the same size
    is allowed: the downloader compares the digests. Blocks."""
    receipts = Receipts(directory)
    for file in plan.files:
        size = size_of(directory / file.path) if file.path in other_files else None
        if size is None or file.url == (directory.absolute() / file.path).as_uri():
            continue
        receipt = receipts.find(file.path)
        is_other = receipt is not None and not receipt.proves(file.digest, file.size, "")
        if is_other or not file.digest or file.size not in (None, size):
            raise Conflict(
                f"the model {other_files[file.path]} needs another file as {file.path}; remove it first, or give "
                "this model another name with `name`"
            )


def size_of(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
