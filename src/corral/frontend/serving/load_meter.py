"""What loads of this process cost, for metrics: how long each step took, and how much was sent to nodes."""

from collections.abc import Mapping
from typing import Final

from corral.frontend.serving.decide.load_job import LoadStepName
from corral.wire.metrics import HistogramCounts

STEP_BOUNDS: Final = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0)
"""Seconds of a step."""


class LoadMeter:
    """Counts since the start of the process."""

    def __init__(self) -> None:
        self.steps = {step: HistogramCounts() for step in LoadStepName}
        """Of loads that succeeded here."""
        self.staged_bytes = 0
        self.staging_seconds = 0.0

    def loaded(self, seconds: Mapping[str, float]) -> None:
        """A load succeeded, and its steps took so long."""
        for name, took in seconds.items():
            self.steps[LoadStepName(name)].add(took, STEP_BOUNDS)

    def staged(self, count: int, seconds: float) -> None:
        """So many bytes were sent to a node in so many seconds; also when the staging failed later."""
        self.staged_bytes += count
        self.staging_seconds += seconds
