"""What would be pulled, for people: builds with their sizes and what fits, licence, bytes, disk, notes."""

from collections.abc import Sequence
from typing import Final

from corral.base.words import format_size
from corral.cli.output import Column, facts, plain, say, show, table
from corral.wire.pulls import BuildChoiceView, PullPlanView

_FITS: Final = {True: "yes", False: "no", None: "unknown"}
_MOST_FILES: Final = 20

_COLUMNS: Final[Sequence[Column[BuildChoiceView]]] = (
    Column(title="", cell=lambda choice: "→" if choice.is_chosen else ""),
    Column(title="BUILD", cell=lambda choice: plain(choice.name)),
    Column(title="SIZE", cell=lambda choice: format_size(choice.bytes), right=True),
    Column(
        title="MEMORY",
        cell=lambda choice: format_size(choice.needed_bytes) if choice.needed_bytes else "–",
        right=True,
    ),
    Column(title="FITS", cell=lambda choice: _FITS[choice.fits]),
)


def show_plan(plan: PullPlanView) -> None:
    """Print what would be downloaded, and all there is to choose from."""
    if len(plan.choices) > 1:
        show(table(_COLUMNS, plan.choices))
        say("The build with the arrow is taken; --build NAME takes another.")
    show(facts([(name, plain(text)) for name, text in _pairs(plan) if text]))
    for note in plan.notes:
        say(f"Note: {note}")


def _pairs(plan: PullPlanView) -> list[tuple[str, str]]:
    files = [f"{file.path} ({'unknown size' if file.size is None else format_size(file.size)})" for file in plan.files]
    hidden = len(files) - _MOST_FILES
    return [
        ("Model", plan.name),
        ("From", plan.resolved or plan.reference),
        ("Licence", plan.licence or "not stated"),
        *(("File", text) for text in files[:_MOST_FILES]),
        ("", f"{hidden} more files" if hidden > 0 else ""),
        ("Download", _download(plan)),
        ("Memory", f"about {format_size(plan.memory_bytes)}" if plan.memory_bytes else ""),
        ("Refused", plan.refusal),
    ]


def _download(plan: PullPlanView) -> str:
    unknown = sum(file.size is None for file in plan.files)
    more = f" and {unknown} {'file' if unknown == 1 else 'files'} of unknown size" if unknown else ""
    there = plan.bytes - plan.needed_bytes
    known = f", of which {format_size(there)} are there already" if there > 0 else ""
    free = f"; {format_size(plan.free_bytes)} are free in {plan.store}" if plan.store else ""
    return f"{format_size(plan.bytes)}{more}{known}{free}"


def doubts(plan: PullPlanView) -> list[str]:
    """Reasons to ask before anything is downloaded."""
    chosen = next((choice for choice in plan.choices if choice.is_chosen), None)
    return [f"no machine of the fleet has the memory for {plan.name}"] if chosen and chosen.fits is False else []
