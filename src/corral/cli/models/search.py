"""`corral models search`: what galleries of models offer, with sizes, uses and licences."""

from collections.abc import Sequence
from typing import Final

import click

from corral.base.words import format_size
from corral.cli.connection import connected, open_client
from corral.cli.options import CorralCommand, warn
from corral.cli.output import Column, json_option, plain, print_json, say, show, table
from corral.wire.gallery_models import GalleryModelList, GalleryModelView

_LONGEST_TEXT: Final = 70


@click.command(cls=CorralCommand)
@click.argument("words", nargs=-1, metavar="[TERM]...")
@click.option("--tag", default="", metavar="TAG", help="Only with this tag.")
@click.option("--use", default="", metavar="USE", help="Only for this use: chat, embeddings, rerank, vision, tts, …")
@click.option("--backend", default="", metavar="NAME", help="Only for this backend.")
@click.option("--max-size", default="", metavar="SIZE", help="Only up to this size, such as 4GB.")
@click.option("--limit", default=30, show_default=True, type=click.IntRange(1, 1000), help="How many to show.")
@json_option
@connected
def search(words: tuple[str, ...], tag: str, use: str, backend: str, max_size: str, limit: int, as_json: bool) -> None:
    """Find models in galleries by their names, tags and descriptions.

    What is found mentions all words; `corral models pull NAME` gets it. A size with a tilde is guessed from the names
    of files; entries of unknown size are not found by --max-size. FITS counts nodes with enough memory for its files.
    """
    term = " ".join(words)
    parameters = {"term": term, "tag": tag, "use": use, "backend": backend, "max_bytes": max_size}
    query = [(name, value) for name, value in parameters.items() if value]
    listing = open_client().get("/api/v1/gallery-models", GalleryModelList, [*query, ("per_page", str(limit))])
    if as_json:
        print_json(listing)
        return
    if listing.items:
        show(table(_COLUMNS, listing.items))
        if listing.total > len(listing.items):
            say(f"{len(listing.items)} of {listing.total}; more words find fewer, --limit shows more.")
    else:
        say(_nothing(term, listing.near))
    warn([f"{gallery.name}: {gallery.problem}" for gallery in listing.galleries if gallery.problem])


def _nothing(term: str, near: Sequence[str]) -> str:
    about = f"mentions {term!r}" if term else "is like that"
    hint = f"did you mean {' or '.join(near)}?" if near else "references such as hf://ORG/REPO need no gallery."
    return f"No model of the galleries {about}; {hint}"


def _size(entry: GalleryModelView) -> str:
    if entry.bytes is None:
        return "–"
    return f"{'~' if entry.is_size_guessed else ''}{format_size(entry.bytes)}"


def _fit(entry: GalleryModelView) -> str:
    """How many nodes have the memory for it; a dash when that is not known."""
    if entry.fit is None or entry.fit.verdict == "unknown":
        return "–"
    return f"{entry.fit.fitting} of {entry.fit.nodes}" if entry.fit.verdict == "fits" else "none"


def _about(entry: GalleryModelView) -> str:
    """The first line of the description."""
    line = entry.description.strip().partition("\n")[0]
    return line if len(line) <= _LONGEST_TEXT else line[: _LONGEST_TEXT - 1] + "…"


_COLUMNS: Final[Sequence[Column[GalleryModelView]]] = (
    Column(title="NAME", cell=lambda entry: plain(entry.name)),
    Column(title="SIZE", cell=_size, right=True),
    Column(title="FITS", cell=_fit, right=True, least_width=60),
    Column(title="USES", cell=lambda entry: plain(", ".join(entry.uses) or "–"), least_width=60),
    Column(title="BACKEND", cell=lambda entry: plain(entry.backend or "–"), least_width=80),
    Column(title="LICENCE", cell=lambda entry: plain(entry.license or "–"), least_width=100),
    Column(title="HERE", cell=lambda entry: "yes" if entry.is_installed else "", least_width=60),
    Column(title="ABOUT", cell=lambda entry: plain(_about(entry)), least_width=120),
)
