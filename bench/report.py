"""What a measurement says: rows of named cells, printed as a table for people or as JSON for machines."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

Cell: TypeAlias = str | float | None
Row: TypeAlias = Mapping[str, Cell]

REACHED: Final = "ok"
MISSED: Final = "missed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """All rows have the same cells, in the same order."""

    title: str
    rows: Sequence[Row]
    notes: Sequence[str] = ()

    @property
    def missed(self) -> list[str]:
        """What did not reach its goal."""
        return [str(next(iter(row.values()))) for row in self.rows if row.get("verdict") == MISSED]


def figure(what: str, measured: float, unit: str, *, at_most: float | None = None) -> Row:
    """One measured number, held against its goal where there is one."""
    verdict = "" if at_most is None else REACHED if measured <= at_most else MISSED
    goal = "" if at_most is None else f"≤ {_text(at_most)}"
    return {"what": what, "measured": measured, "unit": unit, "goal": goal, "verdict": verdict}


def at_least(what: str, measured: float, goal: float) -> Row:
    """A ratio that must not be smaller than its goal."""
    verdict = REACHED if measured >= goal else MISSED
    return {"what": what, "measured": measured, "unit": "×", "goal": f"≥ {_text(goal)}", "verdict": verdict}


def as_text(table: Table) -> str:
    """Columns side by side, numbers to the right."""
    columns = list(table.rows[0]) if table.rows else []
    lines = [[_text(row[column]) for column in columns] for row in table.rows]
    widths = [max(len(cell) for cell in cells) for cells in zip(columns, *lines, strict=True)]
    numeric = [any(isinstance(row[column], int | float) for row in table.rows) for column in columns]

    def aligned(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(cells, widths, numeric, strict=True)
        )
        return "  " + "  ".join(padded).rstrip()

    rule = "  " + "  ".join("─" * width for width in widths)
    notes = [f"  {note}" for note in table.notes]
    return "\n".join([table.title, aligned(columns), rule, *map(aligned, lines), *notes])


def as_document(table: Table) -> dict[str, object]:
    return {"title": table.title, "rows": [dict(row) for row in table.rows], "notes": list(table.notes)}


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least this share of all values does not exceed; NaN of nothing."""
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)), 1) - 1] if ordered else math.nan


def _text(cell: Cell) -> str:
    """Three digits say all that a measurement on a shared machine can."""
    if cell is None:
        return "–"
    if isinstance(cell, str):
        return cell
    if math.isnan(cell):
        return "–"
    if isinstance(cell, int) or float(cell).is_integer() or abs(cell) >= 100:
        return f"{cell:,.0f}"
    return f"{cell:.1f}" if abs(cell) >= 10 else f"{cell:.2f}"
