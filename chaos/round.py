"""One round of a scenario: a seed, the steps it led to, and how it ended."""

import random
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.kit.databases import DatabaseSource


@dataclass(slots=True, kw_only=True)
class Story:
    """What happened so far, for people who have to understand a failure."""

    lines: list[str] = field(default_factory=list)
    figures: list[str] = field(default_factory=list)

    def tell(self, line: str) -> None:
        self.lines.append(line)

    def measure(self, line: str) -> None:
        """Print a measurement; measurements are printed even when everything held."""
        self.tell(line)
        self.figures.append(line)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """What a round works with. Everything in the directory is thrown away after it."""

    directory: Path
    databases: DatabaseSource
    random: random.Random
    story: Story
    steps: int
    """How many steps the round takes."""
    seconds: float = 5.0
    """How long an outage lasts, where time is real and a server is kept down."""


Scenario = Callable[[Workshop], Awaitable[None]]
"""Raises AssertionError when something does not hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    scenario: str
    seed: int
    steps: int
    seconds: float
    story: list[str]
    figures: list[str] = field(default_factory=list)
    failure: str = ""
    """The traceback; empty when everything held."""


async def run_round(name: str, scenario: Scenario, workshop: Workshop, *, seed: int) -> Outcome:
    """Run to the end, whatever happens: the other rounds want their turn."""
    began = time.monotonic()
    failure = ""
    try:
        await scenario(workshop)
    except Exception:  # noqa: BLE001 - the rim: every kind of failure is a finding, and is shown in full
        failure = traceback.format_exc()
    story = workshop.story
    return Outcome(
        scenario=name,
        seed=seed,
        steps=len(story.lines),
        seconds=time.monotonic() - began,
        story=story.lines,
        figures=story.figures,
        failure=failure,
    )
