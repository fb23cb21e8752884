"""Figures of whole benches in two trees, and what becomes of those that cannot be compared."""

import json

from bench.report import Table, as_document, figure
from bench.turns import Figures, compared, figures_of


def _figures(proven: float, *, lost: int = 0, **more: float) -> Figures:
    rows = [{"what": "install", "proven": proven, "verdict": "ok"}, figure("lost", lost, "")]
    others = [Table(title=title, rows=[{"what": "install", "proven": value}]) for title, value in more.items()]
    tables = [Table(title="operations", rows=rows[:1]), Table(title="figures", rows=rows[1:]), *others]
    return figures_of(json.dumps({"machine": {}, "tables": [as_document(table) for table in tables]}).encode())


def test_the_middle_of_the_ratios_counts_and_not_the_ratio_of_the_middles() -> None:
    (operations, _) = compared(
        "fanout", [(_figures(1.0), _figures(2.0)), (_figures(3.0), _figures(3.0)), (_figures(8.0), _figures(4.0))]
    )

    (row,) = operations.rows
    assert row == {
        "what": "install",
        "figure": "proven",
        "this tree": 3.0,
        "the other": 3.0,
        "ratio": "1.00 (0.50 to 2.00)",
    }
    assert operations.title.startswith("fanout, operations")


def test_what_is_zero_in_the_other_tree_has_no_ratio() -> None:
    (_, figures) = compared("fanout", [(_figures(1.0, lost=3), _figures(1.0))])

    (row,) = figures.rows
    assert (row["this tree"], row["the other"], row["ratio"]) == (3, 0, None)


def test_a_figure_that_one_tree_does_not_have_is_left_out() -> None:
    tables = compared("fanout", [(_figures(1.0, new=1.0), _figures(1.0))])

    assert [table.title.split(":")[0] for table in tables] == ["fanout, operations", "fanout, figures"]
