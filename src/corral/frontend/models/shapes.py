"""Answers about models, made of values."""

from collections.abc import Collection, Iterator, Mapping

from corral.frontend.models.offers import TakenEntry
from corral.galleries.model_catalogue import uses_of_entry
from corral.galleries.model_entries import GalleryModel
from corral.galleries.model_key_checks import unknown_keys, unknown_words, wrong_values
from corral.galleries.model_sizes import size_of_entry
from corral.galleries.model_variants import BuildFacts, stated_facts
from corral.templates.prompts import refusals
from corral.wire.gallery_models import GalleryBuildView, GalleryModelDetail, GalleryModelFile, GalleryModelView


def gallery_model(entry: GalleryModel, installed: Collection[str]) -> GalleryModelView:
    """`installed` are the names of the fleet's models."""
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
        is_installed=entry.name in installed,
    )


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
