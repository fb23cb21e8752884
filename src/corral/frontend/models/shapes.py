"""Answers about models, made of values: in Corral's own form, and in LocalAI's."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import UNSET, structs

from corral.base.words import format_size
from corral.frontend.backends.shapes import PageQuery, paged, repositories
from corral.frontend.models.decide.keys import DEFAULT_CONTEXT, usecases_of
from corral.frontend.models.decide.model import ModelSpec
from corral.frontend.models.decide.needs import ModelNeeds, needs_by_size, needs_of_config
from corral.frontend.models.decide.offers import is_installed
from corral.frontend.models.decide.uses import BACKEND_USES, uses_of
from corral.frontend.models.measures import MeasuredModel
from corral.frontend.models.offers import TakenEntry, facts_of
from corral.frontend.nodes.decide.node import Node, ram_per_machine
from corral.frontend.operations.decide.intent import Verb
from corral.frontend.operations.decide.operation import Operation
from corral.galleries.gallery import GallerySource
from corral.galleries.model_catalogue import ModelCatalogue, ModelQuery, uses_of_entry
from corral.galleries.model_entries import GalleryModel
from corral.galleries.model_galleries import ModelReadings
from corral.galleries.model_key_checks import unknown_keys, unknown_words, wrong_values
from corral.galleries.model_sizes import quantisation_of, size_of_entry
from corral.galleries.model_variants import (
    FEATURES,
    BuildFacts,
    MachineFacts,
    choose_variant,
    fit_of_build,
    stated_facts,
)
from corral.hubs.gguf import GgufFacts
from corral.templates.prompts import refusals
from corral.wire.backends import Gallery
from corral.wire.gallery_models import (
    GalleryBuildView,
    GalleryEstimate,
    GalleryFitView,
    GalleryModelDetail,
    GalleryModelFile,
    GalleryModelView,
)
from corral.wire.localai_models import (
    AvailableModel,
    GalleryState,
    MemoryAt,
    ModelEstimate,
    ModelItem,
    ModelPageView,
    OfferedFile,
    VariantItem,
    VariantList,
)
from corral.wire.models import ModelUse


def gallery_model(entry: GalleryModel, installed: Collection[str]) -> GalleryModelView:
    """`installed` are the names and origins of the fleet's models."""
    size = size_of_entry(entry)
    return GalleryModelView(
        id=entry.id,
        name=entry.name,
        gallery=entry.gallery,
        description=entry.description.strip(),
        license=entry.license,
        icon=entry.icon,
        tags=list(entry.tags),
        urls=list(entry.urls),
        uses=sorted(uses_of_entry(entry)),
        backend=stated_facts(entry).backend,
        bytes=None if size is None else size.bytes,
        is_size_guessed=size is not None and size.is_guess,
        variants=list(entry.variants),
        is_installed=is_installed(entry, installed),
    )


def gallery_item(
    entry: GalleryModel, installed: Collection[str], catalogue: ModelCatalogue, machines: Sequence[MachineFacts]
) -> GalleryModelView:
    """An entry with how well its best build suits these machines."""

    def stated(build: GalleryModel) -> BuildFacts:
        return facts_of(build, None)

    siblings = catalogue.siblings(entry) if entry.variants else {}
    build = choose_variant(entry, siblings, machines, facts_of=stated).entry
    fit = fit_of_build(build, stated(build), machines)
    view = GalleryFitView(
        verdict=fit.verdict, build=build.name, reason=fit.reason, fitting=fit.fitting, nodes=fit.machines
    )
    return structs.replace(gallery_model(entry, installed), fit=view)


def gallery_detail(chosen: TakenEntry, installed: Collection[str]) -> GalleryModelDetail:
    plan = chosen.plan
    return GalleryModelDetail(
        entry=gallery_model(chosen.asked, installed),
        builds=list(_builds(chosen)),
        build=chosen.entry.name,
        name=plan.name,
        license=plan.license,
        config=dict(plan.config),
        files=[GalleryModelFile(path=file.filename, uri=file.uri, sha256=file.sha256) for file in plan.files],
        problems=list(_problems(plan.config)),
    )


def with_measures(
    detail: GalleryModelDetail, chosen: TakenEntry, measured: MeasuredModel, disk_free: int | None
) -> GalleryModelDetail:
    """The details of a gallery's model with the sizes that hubs report for its files."""
    guess, facts = chosen.facts.get(chosen.entry.name, BuildFacts()), measured.facts
    size = measured.bytes
    context = context_of(chosen.plan.config, facts)
    is_guessed = size is None and guess.size_bytes is not None
    total = guess.size_bytes if size is None else size
    estimate = GalleryEstimate(
        bytes=total,
        is_size_guessed=is_guessed and guess.is_size_guessed,
        memory_bytes=gallery_needs(chosen, measured, chosen.plan.config).ram or None,
        context=context,
        max_context=0 if facts is None else facts.context_length,
        architecture="" if facts is None else facts.architecture,
        parameters=0 if facts is None else facts.parameters,
        quantisation="" if facts is None else facts.quantisation,
        disk_free_bytes=disk_free,
        problems=list(measured.problems),
    )
    files = [structs.replace(file, bytes=measured.files[file.path].size) for file in detail.files]
    return structs.replace(detail, files=files, estimate=estimate)


def gallery_needs(chosen: TakenEntry, measured: MeasuredModel, config: Mapping[str, object]) -> ModelNeeds:
    """What the model of an entry would take with this configuration."""
    if measured.bytes is None:
        return needs_by_size(chosen.facts.get(chosen.entry.name, BuildFacts()).size_bytes or 0)
    return needs_of_config(config, measured.weights, name=chosen.plan.name)


def context_of(config: Mapping[str, object], facts: GgufFacts | None) -> int:
    """Return the tokens that a model is loaded for; -1 in a configuration means all that it was made for."""
    stated = config.get("context_size")
    longest = 0 if facts is None else facts.context_length
    if isinstance(stated, int) and not isinstance(stated, bool) and stated != 0:
        return stated if stated > 0 else longest
    return min(DEFAULT_CONTEXT, longest) if longest else DEFAULT_CONTEXT


def _builds(chosen: TakenEntry) -> Iterator[GalleryBuildView]:
    for verdict in chosen.choice.verdicts:
        facts = chosen.facts.get(verdict.name, BuildFacts())
        yield GalleryBuildView(
            name=verdict.name,
            is_usable=verdict.is_usable,
            is_chosen=verdict.name == chosen.entry.name,
            reason=verdict.reason,
            backend=facts.backend,
            bytes=facts.size_bytes,
            is_size_guessed=facts.is_size_guessed,
        )


def _problems(config: Mapping[str, object]) -> Iterator[str]:
    for wrong in wrong_values(config):
        yield wrong.sentence
    for refusal in refusals(config):
        yield refusal.message
    for key in unknown_keys(config):
        yield key.sentence
    for _, sentence in unknown_words(config):
        yield sentence


USE_WORDS: Final[Mapping[ModelUse, str]] = {
    ModelUse.CHAT: "chat",
    ModelUse.COMPLETION: "completion",
    ModelUse.EMBEDDINGS: "embeddings",
    ModelUse.RERANK: "rerank",
    ModelUse.SPEECH: "tts",
    ModelUse.TRANSCRIPTION: "transcript",
    ModelUse.VOICE_ACTIVITY: "vad",
}
"""LocalAI's words for uses."""
_FILTERS: Final = frozenset(
    {"chat", "image", "video", "vision", "tts", "transcript", "sound_generation", "embeddings", "rerank", "detection"}
    | {"vad", "audio_transform", "diarization", "sound_classification", "realtime_audio", "token_classify"}
)
"""Uses that LocalAI's page of models has a button for."""
_MULTIMODAL: Final = "multimodal"


class ModelPageQuery(PageQuery, frozen=True, kw_only=True):
    """Which page of the galleries of models a browser asks for."""

    backend: str = ""
    collapse_variants: str = ""


def available_model(
    entry: GalleryModel, galleries: Mapping[str, Gallery], installed: Collection[str]
) -> AvailableModel:
    return AvailableModel(
        url=entry.url,
        name=entry.name,
        description=entry.description,
        license=entry.license,
        urls=list(entry.urls),
        icon=entry.icon,
        tags=list(entry.tags),
        size=entry.size,
        backend=stated_facts(entry).backend,
        files=_files(entry),
        gallery=galleries.get(entry.gallery, Gallery(name=entry.gallery)),
        installed=is_installed(entry, installed),
    )


def galleries_by_name(sources: Iterable[GallerySource]) -> dict[str, Gallery]:
    return {gallery.name: gallery for gallery in repositories(sources)}


def _files(entry: GalleryModel) -> list[OfferedFile]:
    return [OfferedFile(filename=file.filename, sha256=file.sha256, uri=file.uri) for file in entry.files]


def model_page(
    readings: ModelReadings,
    query: ModelPageQuery,
    installed: Collection[str],
    moving: Mapping[str, Operation],
    nodes: Sequence[Node],
    *,
    installed_models: int,
) -> ModelPageView:
    """`moving` are the operations about models that are under way, by what they are about."""
    catalogue = readings.catalogue
    page = paged(_found(catalogue, query), query, lambda entry: is_installed(entry, installed))
    machines = ram_per_machine(nodes)
    total, free = sum(total for total, _ in machines), sum(free for _, free in machines)
    return ModelPageView(
        models=[_item(entry, installed, moving) for entry in page.entries],
        repositories=repositories(reading.source for reading in readings.readings),
        all_tags=sorted({tag for entry in catalogue.entries for tag in entry.tags}),
        all_backends=sorted({facts.backend for facts in map(stated_facts, catalogue.entries)} - {""}),
        processing_models={name: operation.id for name, operation in moving.items()},
        task_types={name: _task(operation) for name, operation in moving.items()},
        available_models=page.matching,
        installed_models=installed_models,
        ram_total=total,
        ram_used=max(total - free, 0),
        ram_usage_percent=round(100 * max(total - free, 0) / total, 2) if total else 0.0,
        current_page=page.number,
        total_pages=page.pages,
        prev_page=page.previous,
        next_page=page.next,
        corral=GalleryState(failures=list(readings.failures)),
    )


def _found(catalogue: ModelCatalogue, query: ModelPageQuery) -> list[GalleryModel]:
    entries = catalogue.search(ModelQuery(term=query.term.strip(), backend=query.backend))
    for word in filter(None, map(str.strip, query.tag.lower().split(","))):
        entries = [entry for entry in entries if _has(entry, word)]
    if query.collapse_variants == "true" and not query.term.strip():
        covered = {(entry.gallery, name.lower()) for entry in catalogue.entries for name in entry.variants}
        entries = [entry for entry in entries if (entry.gallery, entry.name.lower()) not in covered]
    return entries


def _has(entry: GalleryModel, word: str) -> bool:
    """Whether an entry is for a use, or has a tag, of this name."""
    if word in _FILTERS or word == _MULTIMODAL:
        return ("vision" if word == _MULTIMODAL else word) in uses_of_entry(entry)
    return word in (tag.lower() for tag in entry.tags)


def _item(entry: GalleryModel, installed: Collection[str], moving: Mapping[str, Operation]) -> ModelItem:
    operation = moving.get(entry.name, moving.get(entry.id))
    return ModelItem(
        id=entry.id,
        name=entry.name,
        description=entry.description,
        icon=entry.icon,
        license=entry.license,
        urls=list(entry.urls) or None,
        tags=list(entry.tags) or None,
        gallery=entry.gallery,
        installed=is_installed(entry, installed),
        processing=operation is not None,
        job_id="" if operation is None else operation.id,
        is_deletion=operation is not None and operation.verb is Verb.REMOVE,
        trust_remote_code="trust_remote_code" in entry.overrides,
        additional_files=_files(entry) or None,
        backend=stated_facts(entry).backend,
        has_variants=True if entry.variants else UNSET,
    )


def _task(operation: Operation) -> str:
    return "Deletion" if operation.verb is Verb.REMOVE else "Installation"


def capabilities_of(spec: ModelSpec) -> list[str]:
    """What a model is for, as LocalAI writes it."""
    words = {USE_WORDS[use] for use in uses_of(spec.config)} | set(usecases_of(spec.config))
    return sorted(f"FLAG_{word.upper()}" for word in words)


def backend_uses(readings: Iterable[ModelReadings]) -> dict[str, list[str]]:
    """What backends are for, by their names: as Corral knows, and as galleries use them."""
    uses_by_backend = {name: {USE_WORDS[use] for use in uses} for name, uses in BACKEND_USES.items()}
    for reading in readings:
        for entry in reading.catalogue.entries:
            if backend := stated_facts(entry).backend:
                uses_by_backend.setdefault(backend, set()).update(uses_of_entry(entry))
    return {name: sorted(words & _FILTERS) for name, words in sorted(uses_by_backend.items())}


def variant_list(chosen: TakenEntry, entries: Mapping[str, GalleryModel]) -> VariantList:
    """`entries` are those of its gallery by name in lower case. One that has no variants has no list either."""
    if not chosen.asked.variants:
        return VariantList(variants=[], auto_selected="")
    items = []
    for verdict in chosen.choice.verdicts:
        entry = chosen.asked if verdict.name == chosen.asked.name else entries.get(verdict.name.lower())
        if entry is not None:
            facts = chosen.facts.get(entry.name, BuildFacts())
            items.append(
                VariantItem(
                    model=entry.name,
                    backend=facts.backend,
                    memory_bytes=facts.size_bytes or 0,
                    fits=verdict.is_usable,
                    is_base=entry is chosen.asked,
                    quantization=next(filter(None, (quantisation_of(file.filename) for file in entry.files)), ""),
                    features=[word for word in FEATURES if word in map(str.lower, entry.tags)],
                )
            )
    return VariantList(variants=items, auto_selected=chosen.entry.name)


def estimate_view(chosen: TakenEntry, measured: MeasuredModel, contexts: Sequence[int]) -> ModelEstimate:
    """The estimate of an entry: its size, and its memory for each length of the context."""
    size = measured.bytes or chosen.facts.get(chosen.entry.name, BuildFacts()).size_bytes
    if not size:
        return ModelEstimate()
    config = chosen.plan.config
    needs = {context: gallery_needs(chosen, measured, {**config, "context_size": context}) for context in contexts}
    return ModelEstimate(
        size_bytes=size,
        size_display=format_size(size),
        estimates={
            str(context): MemoryAt(context_length=context, vram_bytes=need.vram, vram_display=format_size(need.vram))
            for context, need in needs.items()
        },
        model_max_context=0 if measured.facts is None else measured.facts.context_length,
    )
