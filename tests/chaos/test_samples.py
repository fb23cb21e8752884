"""Short rounds of `make chaos`, always the same ones, and what it tells when something gives."""

import random
from pathlib import Path

import pytest

from chaos import deaths, fleet, installs, operations, outages, processes, pulls, strangers
from chaos.__main__ import main, table
from chaos.round import Outcome, Scenario, Story, Workshop, run_round
from tests.kit.databases import DatabaseSource

OUTAGE_SECONDS = 4.0
"""Longer than the silence after which a node would be offline."""


@pytest.mark.postgres
@pytest.mark.timeout(600)  # one of them takes most of a minute on a machine that does nothing else
@pytest.mark.parametrize(
    ("scenario", "seed", "steps"),
    [
        (fleet.on_sqlite, 1, 14),
        (fleet.on_postgres, 5, 12),
        (processes.killed, 1, 4),
        (outages.one_after_another, 1, 3),
        (deaths.of_the_worker_that_serves, 1, 2),
        (installs.killed_at_every_step, 1, 2),
        (pulls.killed_at_every_step, 1, 1),
        (operations.killed_calmly, 1, 3),
        (strangers.without_keys, 1, 300),
    ],
    ids=["sqlite", "postgres", "processes", "outage", "death", "installs", "pulls", "operations", "strangers"],
)
async def test_a_short_round_holds(
    scenario: Scenario, seed: int, steps: int, tmp_path: Path, database_source: DatabaseSource
) -> None:
    workshop = Workshop(
        directory=tmp_path,
        databases=database_source,
        random=random.Random(seed),
        story=Story(),
        steps=steps,
        seconds=OUTAGE_SECONDS,
    )
    outcome = await run_round("sample", scenario, workshop, seed=seed)
    assert not outcome.failure, "\n".join([*outcome.story, outcome.failure])


def test_what_gave_is_told_with_its_story_and_how_to_do_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def gives(workshop: Workshop) -> None:
        workshop.story.tell("somebody trips over the cable")
        raise AssertionError("it is dark")

    monkeypatch.setattr("chaos.__main__.SCENARIOS", {"registry": (gives, 1)})
    monkeypatch.setattr("logging.disable", lambda _: None)

    assert main(["--only", "registry", "--seed", "7", "--rounds", "2"]) == 1

    told = capsys.readouterr().out
    assert "somebody trips over the cable" in told
    assert "it is dark" in told
    assert "again: python -m chaos --only registry --seed 8 --rounds 1\n" in told
    scenario, rounds, steps, _seconds, *rest = told.splitlines()[-1].split()
    assert [scenario, rounds, steps, *rest] == ["registry", "2", "2", "2", "7", "8"]


def test_a_round_of_so_many_steps_is_done_again_with_as_many(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def gives(workshop: Workshop) -> None:
        raise AssertionError("it is dark")

    monkeypatch.setattr("chaos.__main__.SCENARIOS", {"registry": (gives, 1)})
    monkeypatch.setattr("logging.disable", lambda _: None)

    assert main(["--only", "registry", "--seed", "7", "--rounds", "1", "--steps", "24"]) == 1
    assert "again: python -m chaos --only registry --seed 7 --rounds 1 --steps 24\n" in capsys.readouterr().out


def test_what_was_measured_is_told_also_when_it_held(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def measures(workshop: Workshop) -> None:
        workshop.story.measure(f"{workshop.seconds:g} s without light")

    monkeypatch.setattr("chaos.__main__.SCENARIOS", {"outage": (measures, 1)})
    monkeypatch.setattr("logging.disable", lambda _: None)

    assert main(["--only", "outage", "--rounds", "1", "--seconds", "60"]) == 0

    assert "    60 s without light\n" in capsys.readouterr().out


def test_the_table_counts_by_scenario() -> None:
    held = Outcome(scenario="sqlite", seed=1, steps=40, seconds=1.25, story=[])
    gave = Outcome(scenario="sqlite", seed=2, steps=7, seconds=0.5, story=[], failure="Traceback")
    header, row = table([held, gave]).splitlines()
    assert header.split()[:5] == ["scenario", "rounds", "steps", "seconds", "failed"]
    assert row.split() == ["sqlite", "2", "47", "1.8", "1", "2"]
