"""From what somebody types to the plan of a pull: an entry of a gallery, or a reference that a hub is asked about."""

import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

import msgspec

from corral.base.config_fields import Config
from corral.base.errors import Conflict, CorralError, InvalidInput, NotFound
from corral.base.tasks import first_failure, in_thread, task_group
from corral.base.yaml_values import write_document
from corral.frontend.models.decide.changing import merged
from corral.frontend.models.decide.needs import needs_by_size, needs_of
from corral.frontend.models.decide.pulling import PullAsk, check_files
from corral.frontend.models.decide.reading import read_one
from corral.frontend.models.decide.stored import WeightFile
from corral.frontend.models.decide.trust import check_trust
from corral.frontend.models.measures import weights_of
from corral.frontend.models.offers import ModelOffers, TakenEntry
from corral.galleries.model_artifacts import read_artifacts, snapshot_path, with_resolved
from corral.galleries.model_entries import ModelFile
from corral.galleries.model_variants import BuildFacts
from corral.hubs.access import HubAccess
from corral.hubs.archives import split_member
from corral.hubs.choose import MachineMemory, PullWish
from corral.hubs.huggingface import list_repository
from corral.hubs.listings import HubModelMissing
from corral.hubs.plans import BuildChoice, ModelOrigin, PlannedFile, PullPlan
from corral.hubs.references import (
    GalleryReference,
    HuggingFaceReference,
    ModelReference,
    likely_reference,
    parse_reference,
)
from corral.hubs.remote_files import local_path, look_into_gguf
from corral.hubs.resolve import plan_file, plan_reference

log = logging.getLogger(__name__)

_AT_ONCE: Final = 8
_SHOWN: Final = 200
_OF_OTHERS: Final = 0o077
"""Bits of a file's mode; secrets are stored without any of them."""
_DATABASE: Final = "corral.db"
"""The file of SQLite, and how the names of those beside it begin."""
_PATIENCE: Final = timedelta(seconds=10)
"""With a hub that is asked for the head of a file."""


class ReferencePlanner:
    """Makes the plan of a pull, from what galleries and hubs answer."""

    def __init__(self, offers: ModelOffers, hub: HubAccess | None, *, directory: Path, private: Path) -> None:
        """`hub` is None where settings name no hubs; `directory` is that of the models, and `private` that of this
        frontend's own secrets and database, of which nobody may make a model."""
        self._directory = directory.absolute()
        self._private = private.absolute()
        self._offers = offers
        self._hub = hub

    async def plan(self, ask: PullAsk) -> PullPlan:
        """InvalidInput for a configuration that could not be added: nothing is downloaded in vain. AccessDenied for
        code that comes from no gallery, unless the caller may trust it."""
        plan = await self._plan(ask)
        trusted = read_one(plan.config).spec.config if plan.origin.gallery and not ask.files else None
        if ask.overrides or ask.files:
            plan = await self._with_changes(plan, ask)
        await in_thread(lambda: self._check_private(plan))
        check_files(plan)
        spec = read_one(plan.config).spec
        check_trust(spec.config, trusted, may_trust=ask.may_trust)
        needed = needs_of(
            spec, [WeightFile(path=file.path, size=file.size or 0, shape=file.shape) for file in plan.files]
        )
        return msgspec.structs.replace(
            plan,
            name=spec.name,
            memory_bytes=needed.ram,
            choices=tuple(
                msgspec.structs.replace(choice, needed_bytes=needed.ram) if choice.is_chosen else choice
                for choice in plan.choices
            ),
            notes=(*plan.notes, *spec.warnings),
        )

    async def _with_changes(self, plan: PullPlan, ask: PullAsk) -> PullPlan:
        config = merged(read_one(plan.config).spec.config, ask.overrides)
        more = {file.path: file for file in await self._files(ask.files, is_local=True)}
        unchanged = tuple(file for file in plan.files if file.path not in more)
        return msgspec.structs.replace(plan, config=write_document(config), files=(*unchanged, *more.values()))

    async def _plan(self, ask: PullAsk) -> PullPlan:
        if ask.definition:
            return await self._plan_taken(await self._offers.take_definition(ask.definition, name=ask.name), ask)
        reference = parse_reference(ask.reference)
        if not isinstance(reference, GalleryReference):
            return await self._plan_reference(reference, ask)
        name = f"{reference.gallery}@{reference.name}" if reference.gallery else reference.name
        try:
            chosen = await self._offers.take(name, build=ask.build, as_name=ask.name)
        except NotFound as error:
            if (file := await in_thread(lambda: _file_within(self._directory, name))) is not None:
                return await self._plan_reference(parse_reference(str(file)), ask)
            likely = likely_reference(name)
            raise NotFound(f"{error.message}; is it {likely}?" if likely else error.message) from error
        return await self._plan_taken(chosen, ask)

    async def _plan_reference(self, reference: ModelReference, ask: PullAsk) -> PullPlan:
        machines = tuple(
            MachineMemory(ram_bytes=machine.ram_bytes, vram_bytes=machine.vram_bytes)
            for machine in await self._offers.machines()
        )
        text = ask.reference.strip()
        wish = PullWish(text=text, name=ask.name, build=ask.build, machines=machines, directory=self._directory)
        return await plan_reference(reference, wish, self._access())

    async def _plan_taken(self, chosen: TakenEntry, ask: PullAsk) -> PullPlan:
        entry, config = chosen.entry, chosen.plan.config
        files = await self._files(chosen.plan.files, is_local=bool(entry.index_path))
        if not files:
            config, files = await self._with_artifacts(config)
        inside = weights_of(chosen.plan)
        return PullPlan(
            name=chosen.plan.name,
            config=write_document(config),
            files=tuple([await self._with_shape(file) if file.path in inside else file for file in files]),
            origin=ModelOrigin(
                reference=ask.reference.strip(),
                resolved=entry.id if entry.gallery else entry.url,
                gallery=chosen.asked.id if chosen.asked.gallery else "",
                licence=chosen.plan.license,
            ),
            choices=_choices(chosen),
            notes=_notes(chosen),
        )

    async def _with_artifacts(self, config: Config) -> tuple[Config, list[PlannedFile]]:
        """Plan the repositories that a configuration names, and note in it what was found. Unchanged without any."""
        resolved: list[dict[str, str]] = []
        files: list[PlannedFile] = []
        for artifact in read_artifacts(config):
            reference = HuggingFaceReference(repository=artifact.repository, revision=artifact.revision)
            listing = await list_repository(reference, self._access())
            selected = [file for file in listing.files if artifact.wants(file.path)]
            if not selected:
                raise HubModelMissing(f"{listing.resolved} has no file that the entry's artifacts allow")
            endpoint, commit = self._access().config.hf_url, listing.resolved.rpartition("@")[2]
            key = artifact.cache_key(endpoint, commit)
            primary = {"primary_file": selected[0].path} if len(selected) == 1 else {}
            resolved.append({"endpoint": endpoint, "revision": commit, "cache_key": key, **primary})
            files += [file.planned(snapshot_path(key, file.path)) for file in selected]
        return (with_resolved(config, resolved) if resolved else config), files

    def _check_private(self, plan: PullPlan) -> None:
        """InvalidInput for the frontend's own secrets and database, wherever links lead."""
        private, models = self._private.resolve(), self._directory.resolve()
        for file in plan.files:
            path = local_path(split_member(file.url).url)
            real = None if path is None else path.resolve()
            if real is None or not real.is_relative_to(private) or real.is_relative_to(models):
                continue
            if not real.stat().st_mode & _OF_OTHERS or real.name.startswith(_DATABASE):
                raise InvalidInput("reference", f"{str(path)[:_SHOWN]!r} belongs to this frontend, and to no model")

    async def _files(self, files: Sequence[ModelFile], *, is_local: bool) -> list[PlannedFile]:
        """Ask for the sizes of all files. A gallery from elsewhere must not name files of this machine."""
        slots = asyncio.Semaphore(_AT_ONCE)

        async def planned(file: ModelFile) -> PlannedFile:
            if not is_local and file.uri.lower().startswith(("file:", "/", ".", "~")):
                problem = "is a file of this machine, which a gallery from elsewhere must not name"
                raise InvalidInput("files", f"{file.uri[:80]!r} {problem}")
            async with slots:
                return await plan_file(file.uri, file.filename, file.sha256, self._access())

        with first_failure(Exception):
            async with task_group() as group:
                tasks = [group.create_task(planned(file), name=f"plan {file.filename}") for file in files]
        return [task.result() for task in tasks]

    async def _with_shape(self, file: PlannedFile) -> PlannedFile:
        """Look into a file to know how much memory it takes; what cannot be read is known by its size alone."""
        try:
            async with asyncio.timeout(_PATIENCE.total_seconds()):
                facts = await look_into_gguf(self._access(), file)
        except (TimeoutError, CorralError) as error:
            log.debug("%s could not be looked into: %s", file.path, error, extra={"event": "pull.not_looked_into"})
            return file
        return msgspec.structs.replace(file, shape=facts.shape)

    def _access(self) -> HubAccess:
        if self._hub is None:
            raise Conflict("this frontend asks no hubs of models: it was started without settings for them")
        return self._hub


def _file_within(directory: Path, name: str) -> Path | None:
    """The file of this name in the models directory, as lists of models offer it; None if there is none. Blocks."""
    try:
        file = directory / name
        is_inside = file.resolve().is_relative_to(directory.resolve())
        return file if is_inside and file.is_file() else None
    except (OSError, ValueError):
        return None


def _choices(chosen: TakenEntry) -> tuple[BuildChoice, ...]:
    if len(chosen.choice.verdicts) <= 1:
        return ()
    sizes = {
        verdict.name: chosen.facts.get(verdict.name, BuildFacts()).size_bytes or 0 for verdict in chosen.choice.verdicts
    }
    choices = [
        BuildChoice(
            name=verdict.name,
            bytes=sizes[verdict.name],
            needed_bytes=needs_by_size(sizes[verdict.name]).ram,
            fits=verdict.is_usable,
            is_chosen=verdict.name == chosen.entry.name,
        )
        for verdict in chosen.choice.verdicts
    ]
    return tuple(sorted(choices, key=lambda choice: -choice.bytes))


def _notes(chosen: TakenEntry) -> tuple[str, ...]:
    notes = [f"{chosen.entry.name} was chosen: {chosen.choice.reason}"] if chosen.entry is not chosen.asked else []
    if chosen.plan.is_backend_assumed:
        notes.append(f"the entry names no backend; {chosen.plan.backend} was taken for its GGUF file")
    return tuple(notes)
