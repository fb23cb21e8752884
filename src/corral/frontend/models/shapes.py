"""Answers about models, made of values."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec import structs

from corral.frontend.models.decide.keys import DEFAULT_CONTEXT
from corral.frontend.models.decide.needs import ModelNeeds, needs_by_size, needs_of_config
from corral.frontend.models.decide.offers import is_installed
from corral.frontend.models.measures import MeasuredModel
from corral.frontend.models.offers import TakenEntry, facts_of
from corral.galleries.model_catalogue import ModelCatalogue, uses_of_entry
from corral.galleries.model_entries import GalleryModel
from corral.galleries.model_key_checks import unknown_keys, unknown_words, wrong_values
from corral.galleries.model_sizes import size_of_entry
from corral.galleries.model_variants import BuildFacts, MachineFacts, choose_variant, fit_of_build, stated_facts
from corral.hubs.gguf import GgufFacts
from corral.templates.prompts import refusals
from corral.wire.gallery_models import (
    GalleryBuildView,
    GalleryEstimate,
    GalleryFitView,
    GalleryModelDetail,
    GalleryModelFile,
    GalleryModelView,
)


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


def gallery_detail(taken: TakenEntry, installed: Collection[str]) -> GalleryModelDetail:
    plan = taken.plan
    return GalleryModelDetail(
        entry=gallery_model(taken.asked, installed),
        builds=list(_builds(taken)),
        build=taken.entry.name,
        name=plan.name,
        license=plan.license,
        config=dict(plan.config),
        files=[GalleryModelFile(path=file.filename, uri=file.uri, sha256=file.sha256) for file in plan.files],
        problems=list(_problems(plan.config)),
    )


def with_measures(
    detail: GalleryModelDetail, taken: TakenEntry, measured: MeasuredModel, disk_free: int | None
) -> GalleryModelDetail:
    """The same with what hubs say about its files."""
    guess, facts = taken.facts.get(taken.entry.name, BuildFacts()), measured.facts
    size = measured.bytes
    context = context_of(taken.plan.config, facts)
    is_guessed = size is None and guess.size_bytes is not None
    total = guess.size_bytes if size is None else size
    estimate = GalleryEstimate(
        bytes=total,
        is_size_guessed=is_guessed and guess.is_size_guessed,
        memory_bytes=gallery_needs(taken, measured, taken.plan.config).ram or None,
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


def gallery_needs(taken: TakenEntry, measured: MeasuredModel, config: Mapping[str, object]) -> ModelNeeds:
    """What the model of an entry would take with this configuration."""
    if measured.bytes is None:
        return needs_by_size(taken.facts.get(taken.entry.name, BuildFacts()).size_bytes or 0)
    return needs_of_config(config, measured.weights, name=taken.plan.name)


def context_of(config: Mapping[str, object], facts: GgufFacts | None) -> int:
    """Return the tokens that a model is loaded for; -1 in a configuration means all that it was made for."""
    stated = config.get("context_size")
    longest = 0 if facts is None else facts.context_length
    if isinstance(stated, int) and not isinstance(stated, bool) and stated != 0:
        return stated if stated > 0 else longest
    return min(DEFAULT_CONTEXT, longest) if longest else DEFAULT_CONTEXT


def _builds(taken: TakenEntry) -> Iterator[GalleryBuildView]:
    for verdict in taken.choice.verdicts:
        facts = taken.facts.get(verdict.name, BuildFacts())
        yield GalleryBuildView(
            name=verdict.name,
            is_usable=verdict.is_usable,
            is_chosen=verdict.name == taken.entry.name,
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
