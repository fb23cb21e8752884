"""What galleries of models offer, and which build of it suits the fleet.

Nobody waits long for a gallery: a caller gets what is known after a few seconds, and the reading goes on for the next
caller. Galleries are asked only once somebody looked for a model; from then on they are kept fresh.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import PurePosixPath
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from corral.base.clock import Clock
from corral.base.errors import Conflict, CorralError, InvalidInput, NotFound
from corral.base.tasks import Poke, start_task, task_group
from corral.base.words import sentences
from corral.frontend.models.decide.offers import checked_addition, gallery_event, machines_of
from corral.frontend.models.measures import FileMeasures, MeasuredModel
from corral.frontend.models.store.galleries import AddedGalleries
from corral.frontend.nodes.decide.node import NodeStatus, NodeType
from corral.frontend.nodes.fleet import Fleet, NodeFilter
from corral.frontend.record.decide import EventKind
from corral.galleries.gallery import GallerySource, IndexContent
from corral.galleries.model_catalogue import ModelCatalogue
from corral.galleries.model_entries import NO_BASE, BaseDefinition, GalleryModel, ModelPlan, plan_model
from corral.galleries.model_galleries import ModelGalleries, ModelGalleryReading, ModelReadings, check_reachable
from corral.galleries.model_sizes import size_of_entry
from corral.galleries.model_variants import BuildFacts, MachineFacts, VariantChoice, choose_variant, stated_facts
from corral.galleries.places import read_place
from corral.oci.limits import names_loopback

PERIOD: Final = timedelta(minutes=10)
"""How often galleries are looked at; only copies that are too old are asked for again."""
_PATIENCE: Final = timedelta(seconds=3)
_PATIENCE_ASKED: Final = timedelta(seconds=20)
"""Less than clients wait for an answer."""
_LOCAL: Final = ("file:", "corral:", "/", "./", "../", "~")
"""How uris of files of this machine begin."""
_SHOWN: Final = 80
_REST: Final = timedelta(minutes=1)
"""How long a gallery that could not be read is left alone."""


class TakenEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a gallery as it would be pulled."""

    asked: GalleryModel
    choice: VariantChoice
    """Which build, and why."""
    plan: ModelPlan
    """Configuration and files of the chosen build."""
    facts: Mapping[str, BuildFacts]
    """What is known of each build, by its name."""

    @property
    def entry(self) -> GalleryModel:
        """The gallery's entry of the build that was chosen."""
        return self.choice.entry


class _Build(NamedTuple):
    entry: GalleryModel
    base: BaseDefinition | None
    """None if it cannot be had."""
    facts: BuildFacts


@dataclass(slots=True)
class _Flight:
    """One reading of a gallery, under way or over."""

    task: asyncio.Task[ModelReadings]
    started: float

    @property
    def reading(self) -> ModelGalleryReading | None:
        """None while it is under way."""
        return self.task.result().readings[0] if self.task.done() else None

    def is_over(self, now: float) -> bool:
        """Whether to read again: at once after a good reading, which costs nothing while it is fresh."""
        if self.task.done() and (self.task.cancelled() or self.task.exception() is not None):
            return True
        reading = self.reading
        return reading is not None and (reading.is_known or now - self.started >= _REST.total_seconds())


class ModelOffers:
    """Without galleries it knows no entries, and says nothing wrong."""

    def __init__(
        self,
        galleries: ModelGalleries | None,
        fleet: Fleet,
        clock: Clock,
        *,
        added: AddedGalleries | None = None,
        measures: FileMeasures | None = None,
        patience: timedelta = _PATIENCE,
    ) -> None:
        """`patience` is how long somebody waits for a gallery."""
        self._galleries = galleries
        self._added = added
        self._measures = measures or FileMeasures(None, clock)
        self._patience = patience
        self._fleet = fleet
        self._clock = clock
        self._flights: dict[tuple[str, str], _Flight] = {}
        self._last: dict[str, ModelGalleryReading] = {}
        self.poke = Poke()

    async def sources(self) -> Sequence[GallerySource]:
        """The galleries of the settings, and those that people added: the first one counts for a name."""
        if self._galleries is None:
            return ()
        return (*self._galleries.sources, *(() if self._added is None else await self._added.all()))

    @property
    def known(self) -> tuple[ModelGalleryReading, ...]:
        """The last readings; nothing of galleries that nobody asked for yet."""
        return tuple(self._last.values())

    async def add(self, source: GallerySource, *, by: str) -> Sequence[GallerySource]:
        """Add a gallery for all frontends, and return all. Conflict if there is one of its name."""
        if self._galleries is None or self._added is None:
            raise Conflict("this frontend reads no galleries")
        source = checked_addition(source, await self.sources())
        now = self._clock.now()
        event = gallery_event(EventKind.MODEL_GALLERY_ADDED, source.name, at=now, by=by)
        if not await self._added.add(source, at=now, by=by, event=event):
            raise Conflict(f"{source.name} already exists")
        return await self.sources()

    async def remove(self, name: str, *, by: str) -> Sequence[GallerySource]:
        """Remove a gallery that was added, and return the others. NotFound if there is none of this name, Conflict if
        the settings name it."""
        sources = () if self._galleries is None else self._galleries.sources
        if name.lower() in (source.name.lower() for source in sources):
            raise Conflict(f"{name[:_SHOWN]} is named by the setting gallery.model_galleries; take it out there")
        event = gallery_event(EventKind.MODEL_GALLERY_REMOVED, name, at=self._clock.now(), by=by)
        if self._added is None or not await self._added.remove(name, event=event):
            raise NotFound(f"{name[:_SHOWN]} is not currently registered")
        return await self.sources()

    async def look(self) -> None:
        """Keep fresh what somebody asked for."""
        if self._last:
            await self.readings()

    async def readings(self, *, newest: bool = False) -> ModelReadings:
        """Each gallery as it is known within some seconds. A gallery that is away fails nothing: it has a `problem`."""
        sources = await self.sources()
        async with task_group() as group:
            tasks = [
                group.create_task(self._read(source, newest=newest), name=f"offers of {source.name}")
                for source in sources
            ]
        readings = tuple(task.result() for task in tasks)
        self._last = {reading.source.name: reading for reading in readings}
        return ModelReadings(readings=readings)

    async def _read(self, source: GallerySource, *, newest: bool) -> ModelGalleryReading:
        assert self._galleries is not None  # noqa: S101 - it has no sources otherwise
        now = self._clock.monotonic()
        key = (source.name, source.url)
        flight = self._flights.get(key)
        patience = _PATIENCE_ASKED if newest else self._patience
        if newest or flight is None or flight.is_over(now):
            read = self._galleries.refresh if newest else self._galleries.read
            flight = _Flight(start_task(read([source]), name=f"read models of {source.name}"), now)
            self._flights[key] = flight
        elif now - flight.started >= patience.total_seconds():
            patience = timedelta(0)  # others waited for it already
        if not flight.task.done():
            await asyncio.wait([flight.task], timeout=patience.total_seconds())
        return flight.reading or self._unfinished(source, now - flight.started)

    def _unfinished(self, source: GallerySource, seconds: float) -> ModelGalleryReading:
        problem = f"has not answered for {max(seconds, self._patience.total_seconds()):.0f} s; it is still being read"
        last = self._last.get(source.name)
        if last is None or not last.is_known:
            return ModelGalleryReading(gallery=IndexContent(source=source), problem=problem)
        return replace(last, is_stale=True, problem=problem)

    async def find(self, name: str) -> GalleryModel:
        """Return the entry of this `name` or `gallery@name`. NotFound suggests near names, and says what could not be
        read."""
        return _required(await self.readings(), name)

    async def take(self, name: str, *, build: str = "", as_name: str = "") -> TakenEntry:
        """Return what pulling an entry means: the build that suits the fleet, or the one that is named, with its
        configuration and files. Hubs are asked how large the builds are where there is a choice.

        NotFound for an unknown entry, InvalidInput for an unknown build or a configuration that cannot be used,
        BaseUnread and Conflict as `base_of` says; Conflict also for files that a gallery must not name.
        """
        readings = await self.readings()
        named_entry = _required(readings, name)
        builds = await self._builds(named_entry, readings, measures=bool(named_entry.variants) and not build)
        facts = {each.entry.name: each.facts for each in builds.values()}
        choice = _choose(named_entry, readings.catalogue, await self.machines(), facts, build)
        base = builds[choice.entry.name].base
        if base is None:
            base = await self.base_of(choice.entry, readings)  # says why it is not there
        model_name = as_name or ("" if choice.entry is named_entry else named_entry.name)
        plan = plan_model(choice.entry, base, name=model_name)
        await self.check_files(choice.entry, plan, readings.url_of(choice.entry))
        return TakenEntry(asked=named_entry, choice=choice, plan=plan, facts=facts)

    async def take_itself(self, name: str) -> TakenEntry:
        """Plan the model of this entry itself: none of its variants is chosen instead."""
        entry = await self.find(name)
        return await self.take(entry.id, build=entry.name)

    async def take_definition(self, url: str, *, name: str = "") -> TakenEntry:
        """Plan the model of a base definition that is named by its URL, without a gallery. The name of the model is
        `name`, the one that the definition has, or that of its file."""
        if self._galleries is None:
            raise Conflict("this frontend reads no galleries")
        entry = GalleryModel(name=name or PurePosixPath(url.partition("@")[0]).stem, url=url)
        base = await self.base_of(entry, ModelReadings())
        own_name = base.config.get("name")
        plan = plan_model(entry, base, name=name or (own_name if isinstance(own_name, str) else ""))
        await self.check_files(entry, plan, read_place(url).url)
        if not names_loopback(url) and any(names_loopback(file.uri) for file in plan.files):
            raise Conflict(f"{url[:_SHOWN]!r} names a file of this machine, which a definition from elsewhere must not")
        choice = VariantChoice(entry=entry, reason="it was asked for", verdicts=())
        return TakenEntry(asked=entry, choice=choice, plan=plan, facts={entry.name: facts_of(entry, base)})

    async def measure(self, chosen: TakenEntry) -> MeasuredModel:
        """Return what hubs say about the files of an entry."""
        return await self._measures.measure(chosen.plan)

    async def check_files(self, entry: GalleryModel, plan: ModelPlan, index_url: str) -> None:
        """Conflict for files of this machine, or of the own network, that a gallery from elsewhere names."""
        if entry.index_path:
            return
        for file in plan.files:
            uri = file.uri.lower()
            if uri.startswith(_LOCAL):
                problem = "is a file of this machine, which a gallery from elsewhere must not name"
                raise Conflict(f"{file.filename} of {entry.id}: {file.uri[:_SHOWN]!r} {problem}")
            if _names_host(uri):
                try:
                    await check_reachable(uri, index_url)
                except InvalidInput as error:
                    raise Conflict(f"{file.filename} of {entry.id}: {file.uri[:_SHOWN]!r} {error.message}") from error

    async def base_of(self, entry: GalleryModel, readings: ModelReadings) -> BaseDefinition:
        """Return the base definition of an entry. BaseUnread if it is away, Conflict if it cannot be used."""
        if self._galleries is None or not entry.url:
            return NO_BASE
        try:
            async with asyncio.timeout(_PATIENCE_ASKED.total_seconds()):
                return await self._galleries.definition(entry, readings.url_of(entry))
        except TimeoutError:
            raise BaseUnread(entry.url, f"has not answered for {_PATIENCE_ASKED.total_seconds():.0f} s") from None
        except CorralError as error:
            if error.retryable:
                raise BaseUnread(entry.url, error.message) from error
            raise Conflict(f"the base definition {entry.url} {error.message}") from error

    async def _builds(
        self, named_entry: GalleryModel, readings: ModelReadings, *, measures: bool
    ) -> Mapping[str, _Build]:
        """Return an entry and its variants by their names, with what can be learned of them."""
        builds: dict[str, _Build] = {}

        async def look(entry: GalleryModel) -> None:
            try:
                base = await self.base_of(entry, readings)
            except CorralError:
                builds[entry.name] = _Build(entry, None, facts_of(entry, None))
                return
            facts = facts_of(entry, base)
            if measures and (facts.size_bytes is None or facts.is_size_guessed):
                facts = await self._measured(entry, base, facts, readings.url_of(entry))
            builds[entry.name] = _Build(entry, base, facts)

        async with task_group() as group:
            for entry in _builds_of(named_entry, readings.catalogue):
                group.create_task(look(entry), name=f"build {entry.name}")
        return builds

    async def _measured(
        self, entry: GalleryModel, base: BaseDefinition, facts: BuildFacts, index_url: str
    ) -> BuildFacts:
        try:
            plan = plan_model(entry, base)
            await self.check_files(entry, plan, index_url)
        except CorralError:
            return facts
        size = (await self._measures.measure(plan)).bytes
        return facts if size is None else replace(facts, size_bytes=size, is_size_guessed=False)

    async def machines(self) -> tuple[MachineFacts, ...]:
        """Return one machine of each kind that the fleet has."""
        nodes = await self._fleet.all(_WORKING)
        return machines_of(seen.node for seen in nodes)


class BaseUnread(CorralError):
    """The base definition of a gallery's entry cannot be had."""

    code = "galleries_unread"
    retryable = True

    def __init__(self, url: str, problem: str) -> None:
        super().__init__(f"the base definition {url} {problem}")


_WORKING: Final = NodeFilter(
    types=frozenset({NodeType.BACKEND}), statuses=frozenset({NodeStatus.HEALTHY, NodeStatus.UNHEALTHY})
)


def _names_host(uri: str) -> bool:
    """Whether a uri may name any host. Registries have names without one, such as `ollama://gemma:2b`."""
    scheme, _, address = uri.partition("://")
    host, slash, _ = address.partition("/")
    is_registry = scheme in ("oci", "ollama") and bool(slash) and (host == "localhost" or "." in host or ":" in host)
    return scheme in ("http", "https") or is_registry


def _builds_of(entry: GalleryModel, catalogue: ModelCatalogue) -> list[GalleryModel]:
    """Return the entry and its variants, as far as they exist."""
    siblings = catalogue.siblings(entry) if entry.variants else {}
    return [entry, *(siblings[name.lower()] for name in entry.variants if name.lower() in siblings)]


def facts_of(entry: GalleryModel, base: BaseDefinition | None) -> BuildFacts:
    """Return what decides which machine a build suits; its base may name the backend."""
    size = size_of_entry(entry)
    facts = stated_facts(entry)
    if size is not None:
        facts = replace(facts, size_bytes=size.bytes, is_size_guessed=size.is_guess)
    backend = None if base is None else base.config.get("backend")
    return replace(facts, backend=backend) if not facts.backend and isinstance(backend, str) else facts


def _choose(
    named_entry: GalleryModel,
    catalogue: ModelCatalogue,
    machines: Sequence[MachineFacts],
    facts: Mapping[str, BuildFacts],
    build: str,
) -> VariantChoice:
    """Choose a build, or take the named one. The verdicts on all builds are part of the answer in both cases."""
    siblings = catalogue.siblings(named_entry)
    choice = choose_variant(named_entry, siblings, machines, facts_of=lambda entry: facts[entry.name])
    if not build:
        return choice
    return replace(choose_variant(named_entry, siblings, machines, pin=build), verdicts=choice.verdicts)


def _required(readings: ModelReadings, name: str) -> GalleryModel:
    try:
        return readings.catalogue.required(name)
    except NotFound as error:
        raise NotFound(sentences([error.message, *readings.failures])) from None
