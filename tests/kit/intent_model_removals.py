"""A model in the model of a fleet: written, loaded on nodes, removed and written again; frontends learn that late.

All frontends share one models directory. Loads leave files on nodes, which no report tells and only a removal deletes.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from corral.base.ids import OperationId
from corral.frontend.backends.decide.backend import Artefact, Wish
from corral.frontend.operations.decide.intent import IntentState, Verb
from corral.frontend.serving.decide.load_job import LoadNeed, needed_by_load
from tests.kit.intent_model import FleetModel

NAME: Final = "small"


@dataclass(frozen=True, kw_only=True)
class Removed:
    """A stored removal: what was written until then is gone."""

    at: datetime
    operation: OperationId


class ModelStore:
    """The file of one model, and what each frontend knows of its removals."""

    def __init__(self, fleet: FleetModel) -> None:
        self.fleet = fleet
        self.written_at: datetime | None = fleet.now
        self.removed: Removed | None = None
        self._known: dict[int, Removed | None] = {frontend.number: None for frontend in fleet.frontends}
        """What each frontend found at its last sweep."""

    def is_seen_by(self, number: int) -> bool:
        removal = self._known[number]
        return self.written_at is not None and (removal is None or removal.at < self.written_at)

    def write(self) -> None:
        """Somebody adds the model, or adds it again. Clocks of disks tick between two things that people do."""
        self.fleet.pass_time(timedelta(milliseconds=10))
        self.written_at = self.fleet.now

    def remove(self, number: int) -> bool:
        """Remove the model in one transaction. False: this frontend has no such model."""
        if not self.is_seen_by(number):
            return False
        wish = Wish(verb=Verb.REMOVE, key=NAME, artefact=Artefact(backend=NAME))
        operation = self.fleet.start(wish, list(self.fleet.workers))
        self.removed = Removed(at=self.fleet.now, operation=operation)
        return True

    def sweep(self, number: int, *, crash_before_forgetting: bool = False) -> None:
        """Hide what was removed, delete what is left of it, or take back the removal of what was added again."""
        removed = self._known[number] = self.removed
        if removed is None:
            return
        if not self.is_seen_by(number):
            self.written_at = None
            return
        for place, intent in list(self.fleet.stored.items()):
            if intent.operation_id == removed.operation:
                self.fleet.take_back(place)
        if crash_before_forgetting:
            self.fleet.crash(number)
        else:
            self.removed = self._known[number] = None

    def load(self, number: int, node: str) -> bool:
        """Load the model on a node, if this frontend knows it. Whether files are there then."""
        fleet, worker = self.fleet, self.fleet.workers[node]
        if not worker.up or self.written_at is None or not self.is_seen_by(number):
            return False
        need = needed_by_load(fleet.stored.get((node, NAME)), since=self.written_at, now=fleet.now)
        if need is LoadNeed.FREE:
            worker.files[NAME] = self.written_at
        return need is LoadNeed.FREE

    def check_rest(self) -> None:
        """When all is done, no node has files of what was removed, unless it lied or somebody took it back."""
        if self.removed is None:
            return
        for node, worker in self.fleet.workers.items():
            intent = self.fleet.stored[node, NAME]
            assert intent.operation_id == self.removed.operation, "a removal was lost"
            excused = intent.state is IntentState.CANCELLED or (node, NAME) in self.fleet.deceived
            assert excused or NAME not in worker.files, f"{node} has files of a model that was removed: {intent}"
