"""Runs whole benches of this tree and of another one by turns, and compares each figure.

For benches that cannot serve both trees at the same time, as `bench/against.py` does it. Each run is a process with
the Python and the bench of its own tree, so the other tree needs its `.venv` (`make setup`) and `--json`.
"""

import asyncio
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from bench.report import Row, Table
from bench.say import say

HERE: Final = Path(__file__).parent.parent
ROUNDS: Final = 5


class Measured(msgspec.Struct, frozen=True):
    """One number of a table: where it stands, without its value."""

    table: str
    what: str
    column: str


Figures = Mapping[Measured, float]


class _Table(msgspec.Struct):
    title: str
    rows: list[dict[str, object]]


class _Report(msgspec.Struct):
    tables: list[_Table]


async def by_turns(name: str, tree: Path, rounds: int = ROUNDS) -> list[Table]:
    """Run the bench in both trees, `rounds` times each; who begins changes."""
    runs = []
    for number in range(rounds):
        trees = (HERE, tree) if number % 2 else (tree, HERE)
        say(f"{name}: round {number + 1} of {rounds}")
        first, second = [figures_of(await _run(name, place)) for place in trees]
        runs.append((first, second) if number % 2 else (second, first))
    return compared(name, runs)


async def _run(name: str, tree: Path) -> bytes:
    """A missed goal ends a bench with 1, and its figures count all the same."""
    words = [str(tree / ".venv" / "bin" / "python"), "-m", "bench", name, "--json"]
    process = await asyncio.create_subprocess_exec(*words, cwd=tree, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    if process.returncode not in (0, 1) or not output:
        raise RuntimeError(f"the bench {name!r} of {tree} ended with {process.returncode}; was `make setup` run there?")
    return output


def figures_of(output: bytes) -> Figures:
    """All numbers of the tables that a bench printed as JSON."""
    return {
        place: value for table in msgspec.json.decode(output, type=_Report).tables for place, value in _cells(table)
    }


def _cells(table: _Table) -> Iterator[tuple[Measured, float]]:
    for row in table.rows:
        what = str(next(iter(row.values())))
        for column, cell in row.items():
            if isinstance(cell, int | float) and not isinstance(cell, bool):
                yield Measured(table.title, what, column), cell


def compared(name: str, runs: Sequence[tuple[Figures, Figures]]) -> list[Table]:
    """One table for each of the bench's tables: the middle of both trees, and of the ratios of all rounds.

    What only one of the trees measures is left out, and what is 0 in the other has no ratio.
    """
    common = [place for place in runs[0][0] if all(place in here and place in there for here, there in runs)]
    note = f"The middle of {len(runs)} rounds by turns, and in brackets the least and the most."
    return [
        Table(
            title=f"{name}, {title}: this tree, as a multiple of the other",
            rows=[
                _row(place, [(here[place], there[place]) for here, there in runs])
                for place in common
                if place.table == title
            ],
            notes=[note],
        )
        for title in dict.fromkeys(place.table for place in common)
    ]


def _row(place: Measured, pairs: Sequence[tuple[float, float]]) -> Row:
    ratios = sorted(here / there for here, there in pairs if there)
    return {
        "what": place.what,
        "figure": place.column,
        "this tree": statistics.median(here for here, _ in pairs),
        "the other": statistics.median(there for _, there in pairs),
        "ratio": f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})" if ratios else None,
    }
