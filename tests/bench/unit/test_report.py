"""Figures, their goals, and how they are printed."""

import json
import math
from collections.abc import Sequence

import pytest

from bench import __main__ as command
from bench.report import Table, as_text, figure, percentile


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([3.0, 1.0, 2.0], 0.5, 2.0),
        ([1.0, 2.0, 3.0, 4.0], 0.5, 2.0),
        (range(1, 101), 0.99, 99),
        (range(1, 1001), 0.99, 990),
        ([7.0], 0.99, 7.0),
        ([1.0, 2.0], 0.0, 1.0),
    ],
)
def test_a_percentile_is_a_value_that_was_measured(values: Sequence[float], share: float, expected: float) -> None:
    assert percentile(values, share) == expected


def test_nothing_measured_misses_every_goal() -> None:
    nothing = percentile([], 0.99)

    assert math.isnan(nothing)
    assert figure("lists: p99", nothing, "ms", at_most=1000)["verdict"] == "missed"


def test_a_table_names_what_missed_its_goal() -> None:
    rows = [
        figure("memory", 97.63, "MB", at_most=130),
        figure("p99", 1234.5, "ms", at_most=1000),
        figure("share of one core", 9.876, "%"),
    ]
    table = Table(title="A thousand nodes", rows=rows, notes=["MB are 1,000,000 bytes."])

    assert table.missed == ["p99"]
    assert as_text(table).splitlines() == [
        "A thousand nodes",
        "  what               measured  unit  goal     verdict",
        "  ─────────────────  ────────  ────  ───────  ───────",
        "  memory                 97.6  MB    ≤ 130    ok",
        "  p99                   1,234  ms    ≤ 1,000  missed",
        "  share of one core      9.88  %",
        "  MB are 1,000,000 bytes.",
    ]


async def one_table(seconds: float | None) -> list[Table]:
    return [Table(title="One", rows=[figure("p99", seconds or 5.0, "ms", at_most=10)])]


@pytest.fixture
def only_one_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "BENCHES", {"one": one_table})
    monkeypatch.setattr(command, "UNNAMED", ("one",))


@pytest.mark.usefixtures("only_one_bench")
def test_machines_get_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--json"]) == 0

    told = json.loads(capsys.readouterr().out)
    assert told["machine"]["cores"] >= 1
    assert told["tables"][0]["rows"] == [
        {"what": "p99", "measured": 5.0, "unit": "ms", "goal": "≤ 10", "verdict": "ok"}
    ]


@pytest.mark.usefixtures("only_one_bench")
def test_a_missed_goal_is_an_exit_code() -> None:
    assert command.main(["one", "--seconds", "11"]) == 1


@pytest.mark.usefixtures("only_one_bench")
def test_an_unknown_bench_is_named_with_those_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["two"])

    assert ended.value.code == 2
    assert "there is no bench 'two'; there are one" in capsys.readouterr().err
