"""The plan of a pull in words: the same for the command line and for the API. Pure."""

from typing import Final

from corral.base.words import aligned, format_size, printable
from corral.wire.model_files import PullPlanView

_FITS: Final = {True: "yes", False: "no", None: "unknown"}
_MOST_FILES: Final = 20
_TITLES: Final = ("", "BUILD", "SIZE", "MEMORY", "FITS")


def build_cells(plan: PullPlanView) -> list[tuple[str, ...]]:
    """A line for each build that there is to choose from; none where there is no choice."""
    if len(plan.choices) < 2:
        return []
    return [
        (
            "→" if choice.is_chosen else "",
            choice.name,
            format_size(choice.bytes),
            format_size(choice.needed_bytes) if choice.needed_bytes else "–",
            _FITS[choice.fits],
        )
        for choice in plan.choices
    ]


def facts_of(plan: PullPlanView) -> list[tuple[str, str]]:
    """What would be downloaded from where, by name."""
    files = [f"{file.path} ({'unknown size' if file.size is None else format_size(file.size)})" for file in plan.files]
    hidden = len(files) - _MOST_FILES
    facts = [
        ("Model", plan.name),
        ("From", plan.resolved or plan.reference),
        ("Licence", plan.licence or "not stated"),
        *(("File", text) for text in files[:_MOST_FILES]),
        ("", f"{hidden} more files" if hidden > 0 else ""),
        ("Download", _download(plan)),
        ("Memory", f"about {format_size(plan.memory_bytes)}" if plan.memory_bytes else ""),
        ("Refused", plan.refusal),
    ]
    return [(name, text) for name, text in facts if text]


def pull_plan_text(plan: PullPlanView) -> str:
    """The whole plan, as the command line prints it where no terminal is."""
    builds = build_cells(plan)
    rows = [[printable(cell) for cell in row] for row in ([_TITLES, *builds] if builds else [])]
    facts = [[name, printable(text)] for name, text in facts_of(plan)]
    notes = [printable(f"Note: {note}") for note in plan.notes]
    return "\n".join([*aligned(rows), *aligned(facts), *notes])


def _download(plan: PullPlanView) -> str:
    unknown = sum(file.size is None for file in plan.files)
    more = f" and {unknown} {'file' if unknown == 1 else 'files'} of unknown size" if unknown else ""
    present_bytes = plan.bytes - plan.needed_bytes
    present = f", of which {format_size(present_bytes)} are there already" if present_bytes > 0 else ""
    free = f"; {format_size(plan.free_bytes)} are free in {plan.store}" if plan.store else ""
    return f"{format_size(plan.bytes)}{more}{present}{free}"
