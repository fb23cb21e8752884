"""One look at operations for all who watch them, and a number for each change: what streams are made of.

Nothing is kept for any reader. What it gets follows from the number that it had last and from how things are now.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from corral.base.clock import Clock
from corral.base.errors import NotFound
from corral.base.ids import FrontendId, OperationId
from corral.frontend.operations.decide.operation import Operation, OperationState, is_over
from corral.frontend.operations.progress import ALL, ProgressBoard
from corral.frontend.operations.shapes import operation_view
from corral.frontend.operations.store.operations import OperationStore
from corral.wire.operation_views import OperationUpdate, OperationView

_GAP: Final = 0.2
"""Seconds that one look serves everybody, however often the bell is rung."""
_MOST_KEPT: Final = 1000
_MISSED: Final = 100
"""How many of the newest operations are searched for ends that a reader of another frontend did not see."""
_SKEW: Final = timedelta(seconds=10)


class WatchCursor(msgspec.Struct, frozen=True, kw_only=True):
    """How far a reader is."""

    version: int = 0
    """0: it has seen nothing, or only updates of another process, which has versions of its own."""
    at: datetime | None = None


class WatchedOperation(msgspec.Struct, frozen=True, kw_only=True):
    """An operation as it was when it was last looked at."""

    operation: Operation
    view: OperationView
    version: int
    targets: dict[str, int]
    """Since which version each is as it is, by its node."""

    def since(self, version: int) -> OperationUpdate:
        changed = [target for target in self.view.targets if self.targets[target.node_id] > version]
        is_whole = len(changed) == len(self.view.targets)
        return OperationUpdate(is_whole=is_whole, operation=msgspec.structs.replace(self.view, targets=changed))


class OperationWatch:
    def __init__(
        self, operations: OperationStore, progress: ProgressBoard, clock: Clock, *, frontend: FrontendId
    ) -> None:
        self._operations = operations
        self._progress = progress
        self._clock = clock
        self._frontend = frontend
        self._seen: OrderedDict[OperationId, WatchedOperation] = OrderedDict()
        self._looked: dict[OperationId | None, float] = {}
        self._current: list[OperationId] = []
        self._looking = asyncio.Lock()
        self._version = 1

    # Places.

    @property
    def here(self) -> WatchCursor:
        """Where somebody is who has seen everything until now."""
        return WatchCursor(version=self._version, at=self._clock.now())

    def name_of(self, place: WatchCursor) -> str:
        milliseconds = int(place.at.timestamp() * 1000) if place.at is not None else 0
        return f"{self._frontend}:{place.version}:{milliseconds}"

    def place_of(self, name: str) -> WatchCursor:
        """What a reader calls its place; one that makes no sense is the beginning."""
        frontend, _, numbers = name.partition(":")
        version, _, milliseconds = numbers.partition(":")
        if not all(text.isascii() and text.isdigit() and len(text) < 15 for text in (version, milliseconds)):
            return WatchCursor()
        at = datetime.fromtimestamp(int(milliseconds) / 1000, UTC)
        return WatchCursor(version=min(int(version), self._version) if frontend == self._frontend else 0, at=at)

    # Looks.

    async def one(self, id: OperationId, place: WatchCursor) -> list[OperationUpdate]:
        """The updates of an operation after a place; all of them for a reader at the beginning. NotFound if it does not
        exist."""
        async with self._looking:  # across the read on purpose: those who wait share it
            if self._is_due(id) or id not in self._seen:
                operation = await self._operations.get(id)
                if operation is None:
                    raise NotFound(f"no operation has the id {id}")
                self._take(operation)
            return self._news([id], place.version)

    async def all(self, place: WatchCursor) -> list[OperationUpdate]:
        """What is new of all operations that are not over, and the end of those that were not at the reader's place."""
        async with self._looking:
            if self._is_due(ALL):
                await self._look_at_all()
            if place.version:
                return self._news(list(self._seen), place.version)
            if place.at is None:
                return self._news(self._current, 0)
            newest, since = await self._operations.newest(limit=_MISSED), place.at - _SKEW
            missed = [operation for operation in newest if operation.changed_at > since]
            missed = [operation for operation in missed if operation.id not in self._current]
            for operation in missed:
                self._take(operation)
            return self._news([*self._current, *(operation.id for operation in missed)], 0)

    async def current(self) -> list[WatchedOperation]:
        """All operations that are not over, the oldest first."""
        async with self._looking:
            if self._is_due(ALL):
                await self._look_at_all()
            return [self._seen[id] for id in self._current if id in self._seen]

    async def look_at(self, id: OperationId) -> WatchedOperation | None:
        """One operation; None when there is none."""
        try:
            await self.one(id, WatchCursor())
        except NotFound:
            return None
        return self._seen.get(id)

    async def look_at_some(self, ids: Sequence[OperationId]) -> list[WatchedOperation]:
        """Return the operations that exist, in the order of `ids`. A finished one is read only once."""
        async with self._looking:
            unseen = [id for id in ids if id not in self._seen or not is_over(self._seen[id].operation)]
            for operation in await self._operations.some(unseen) if unseen else ():
                self._take(operation)
            return [self._seen[id] for id in ids if id in self._seen]

    def is_under_way(self, id: OperationId | None) -> bool:
        """Whether the operation, or any, moves by itself, as far as was seen."""
        ids = self._current if id is ALL else [id]
        return any(
            seen.view.state == OperationState.RUNNING for operation_id in ids if (seen := self._seen.get(operation_id))
        )

    async def _look_at_all(self) -> None:
        current = await self._operations.current()
        for operation in current:
            self._take(operation)
        before, self._current = self._current, [operation.id for operation in current]
        for id in before:
            if id in self._current:
                continue
            ended = await self._operations.get(id)
            if ended is None:
                self._seen.pop(id, None)
            else:
                self._take(ended)

    def _is_due(self, operation_id: OperationId | None) -> bool:
        now = self._clock.monotonic()
        if now - self._looked.get(operation_id, -_GAP) < _GAP:
            return False
        if len(self._looked) > _MOST_KEPT:
            self._looked.clear()
        self._looked[operation_id] = now
        return True

    def _news(self, ids: list[OperationId], version: int) -> list[OperationUpdate]:
        seen = [self._seen[id] for id in ids if id in self._seen]
        return [operation.since(version) for operation in seen if operation.version > version]

    def _take(self, operation: Operation) -> None:
        """Compare with the look before, and number what is new."""
        view = operation_view(operation, self._progress.look(operation), self._clock.monotonic())
        earlier = self._seen.get(operation.id)
        if earlier is not None and earlier.view == view:
            return
        self._version += 1
        before = {} if earlier is None else {target.node_id: target for target in earlier.view.targets}
        since = {} if earlier is None else earlier.targets
        targets = {
            target.node_id: since[target.node_id] if before.get(target.node_id) == target else self._version
            for target in view.targets
        }
        self._seen[operation.id] = WatchedOperation(
            operation=operation, view=view, version=self._version, targets=targets
        )
        self._seen.move_to_end(operation.id)
        while len(self._seen) > _MOST_KEPT:
            self._seen.popitem(last=False)
