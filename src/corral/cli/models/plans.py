"""What would be pulled, for people: builds with their sizes and what fits, licence, bytes, disk, notes."""

from collections.abc import Sequence
from typing import Final

from corral.base.words import format_size
from corral.cli.output import Column, facts, plain, say, show, table
from corral.frontend.models.decide.pull_words import facts_of
from corral.wire.pulls import BuildChoiceView, PullPlanView

_FITS: Final = {True: "yes", False: "no", None: "unknown"}

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
    show(facts([(name, plain(text)) for name, text in facts_of(plan)]))
    for note in plan.notes:
        say(f"Note: {note}")


def doubts(plan: PullPlanView) -> list[str]:
    """Reasons to ask before anything is downloaded."""
    chosen = next((choice for choice in plan.choices if choice.is_chosen), None)
    return [f"no machine of the fleet has the memory for {plan.name}"] if chosen and chosen.fits is False else []
