"""Breaks Corral on this machine in random ways, for some minutes, and prints a table; ends with 1 when something gave.

Every round has a seed of its own, and what it did is told when it fails, together with the command that does it again.
Nothing leaves loopback, and everything that was started is gone at the end.
"""

import argparse
import asyncio
import logging
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from chaos import (
    absence,
    deaths,
    first_requests,
    fleet,
    installs,
    kills,
    operations,
    outages,
    processes,
    pulls,
    registry,
    strangers,
    upgrades,
)
from chaos.round import Outcome, Scenario, Story, Workshop, run_round
from tests.kit.databases import DatabaseSource
from tests.kit.leaks import ChildWatch, Snapshot, tasks_left

SCENARIOS: Final[Mapping[str, tuple[Scenario, int]]] = {
    "registry": (registry.against_its_model, 300),
    "sqlite": (fleet.on_sqlite, 40),
    "postgres": (fleet.on_postgres, 40),
    "processes": (processes.killed, 12),
    "cold": (first_requests.at_once, 1),
    "outage": (outages.one_after_another, 4),
    "death": (deaths.of_the_worker_that_serves, 2),
    "kills": (kills.one_after_another, 60),
    "installs": (installs.killed_at_every_step, 400),
    "pulls": (pulls.killed_at_every_step, 400),
    "operations": (operations.killed, 100),
    "absence": (absence.of_one_among_five, 1),
    "strangers": (strangers.without_keys, 3000),
    "upgrade": (upgrades.one_by_one, 1),
}
"""Each with the number of steps of a round: a minute or less, but for installs, pulls and operations, where each is a
kill. Of strangers each is a connection that they hold."""
_SHOWN_LINES: Final = 60


def main(words: Sequence[str]) -> int:
    options = _parser().parse_args(words)
    names = options.only or list(SCENARIOS)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1_000_000)
    logging.disable(logging.CRITICAL)  # faults are what we make here; what they lead to is judged by invariants
    print(f"seed {seed}; {', '.join(names)}; {options.minutes:g} minutes", flush=True)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="corral-chaos-") as folder:
        for name, number in _turns(names, seed, minutes=options.minutes, rounds=options.rounds):
            outcomes.append(_run(name, number, Path(folder), options))
            _tell(outcomes[-1], steps=options.steps)
    print("\n" + table(outcomes))
    return 1 if any(outcome.failure for outcome in outcomes) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--seed", type=int, metavar="N", help="of the first round; the next one has the next number")
    parser.add_argument("--minutes", type=float, default=10.0, metavar="M", help="begin no round after this (10)")
    parser.add_argument("--rounds", type=int, metavar="N", help="at most so many rounds of each scenario")
    parser.add_argument("--steps", type=int, metavar="N", help="steps of a round, instead of each scenario's own")
    parser.add_argument("--seconds", type=float, default=5.0, metavar="S", help="length of an outage, or of abuse (5)")
    parser.add_argument(
        "--only", action="append", metavar="NAME", choices=sorted(SCENARIOS), help=f"of {', '.join(SCENARIOS)}"
    )
    return parser


def _turns(names: Sequence[str], seed: int, *, minutes: float, rounds: int | None) -> Iterator[tuple[str, int]]:
    """Scenario by scenario, then again with the next seed, until the time is over."""
    deadline = time.monotonic() + minutes * 60
    number = seed
    while rounds is None or number < seed + rounds:
        for name in names:
            if time.monotonic() > deadline and number > seed:
                return
            yield name, number
        number += 1


def _run(name: str, seed: int, folder: Path, options: argparse.Namespace) -> Outcome:
    scenario, usual_steps = SCENARIOS[name]
    directory = folder / f"{name}-{seed}"
    directory.mkdir()
    databases = directory / "databases"
    databases.mkdir()
    with DatabaseSource(databases) as source:
        workshop = Workshop(
            directory=directory,
            databases=source,
            random=random.Random(seed),
            story=Story(),
            steps=options.steps or usual_steps,
            seconds=options.seconds,
        )
        return asyncio.run(_checked_round(name, scenario, workshop, seed=seed))


async def _checked_round(name: str, scenario: Scenario, workshop: Workshop, *, seed: int) -> Outcome:
    """A round that leaves something behind has failed."""

    async def leaving_nothing(given: Workshop) -> None:
        before = Snapshot.take(WATCH)
        await scenario(given)
        leaks = [*await tasks_left(), *await before.leaks_beside_tasks()]
        if leaks:
            raise AssertionError("left behind: " + "; ".join(leaks))

    return await run_round(name, leaving_nothing, workshop, seed=seed)


def _tell(outcome: Outcome, *, steps: int | None) -> None:
    verdict = "failed" if outcome.failure else "held"
    print(f"{outcome.scenario} {outcome.seed}: {verdict}, {outcome.steps} steps, {outcome.seconds:.1f} s", flush=True)
    print(*(f"    {line}" for line in outcome.figures), sep="\n", end="\n" if outcome.figures else "")
    if outcome.failure:
        print(*(f"    {line}" for line in outcome.story[-_SHOWN_LINES:]), sep="\n")
        print(outcome.failure)
        same_steps = f" --steps {steps}" if steps is not None else ""
        again = f"--only {outcome.scenario} --seed {outcome.seed} --rounds 1{same_steps}"
        print(f"again: python -m chaos {again}", flush=True)


def table(outcomes: Sequence[Outcome]) -> str:
    """What held and what did not, by scenario."""
    lines = [f"{'scenario':<12}{'rounds':>8}{'steps':>8}{'seconds':>9}{'failed':>8}  failing seeds"]
    for name in dict.fromkeys(outcome.scenario for outcome in outcomes):
        of_name = [outcome for outcome in outcomes if outcome.scenario == name]
        failing = [str(outcome.seed) for outcome in of_name if outcome.failure]
        steps = sum(outcome.steps for outcome in of_name)
        seconds = sum(outcome.seconds for outcome in of_name)
        lines.append(
            f"{name:<12}{len(of_name):>8}{steps:>8}{seconds:>9.1f}{len(failing):>8}  {' '.join(failing)}".rstrip()
        )
    return "\n".join(lines)


WATCH: Final = ChildWatch()

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
