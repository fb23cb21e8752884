"""The hub: computes each topic once for all who read it, and only while somebody does.

There is one in a control process. It is rung by the feed and by progress, looks at least once a second while it has
readers, and at most four times. A reader takes what it finds when it gets round to it, so a slow one skips what it
missed: nothing is kept for it but its place.
"""

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Final

import msgspec

from corral.base.clock import Clock
from corral.base.errors import DatabaseUnavailable
from corral.base.ids import FrontendId
from corral.base.tasks import Listeners, Poke
from corral.frontend.live.decide.attention import attention
from corral.frontend.live.decide.board import Board, BoardChange, BoardEntry, since, take
from corral.frontend.live.decide.frames import change_frames, event_frame, last_with_id, snapshot_frames
from corral.frontend.live.decide.summary import summarise
from corral.frontend.live.decide.topics import ReaderPlace, Topic, TopicKind
from corral.frontend.live.event_log import EventLog, LoggedEvent
from corral.frontend.live.pictures import EVERY_PART, PicturePart, Pictures
from corral.frontend.live.topic_rows import TopicRows, TopicState
from corral.frontend.operations.progress import ALL, ProgressBoard
from corral.frontend.record.feed import Feed
from corral.wire.go_json import format_time
from corral.wire.live import FleetSummaryAnswer, LiveReady

log = logging.getLogger(__name__)

PERIOD: Final = timedelta(seconds=1)
"""Between looks at what nobody announces: heartbeats, and what gateways have under way."""
IDLE_PERIOD: Final = timedelta(minutes=1)
"""Without readers nothing is done at all."""
MOVING_PERIOD: Final = timedelta(milliseconds=500)
"""While operations are under way: what another frontend stores of them, nobody rings for."""
SPACING: Final = timedelta(milliseconds=250)
"""From one look to the next, however often it is rung: at most four changes of a topic in a second."""
LONGEST_SPACING: Final = timedelta(seconds=1)
_SHARE: Final = 4
"""The pause after a look is this many times as long as the look took, so that a large fleet does not keep control
busy."""
MOST_BOARDS: Final = 500
"""Topics about one node or operation that are kept; those that were not read for the longest time go first."""

PARTS: Final[Mapping[TopicKind, frozenset[PicturePart]]] = {
    TopicKind.SUMMARY: EVERY_PART,
    TopicKind.ATTENTION: EVERY_PART,
    TopicKind.NODES: frozenset({PicturePart.REPLICAS}),
    TopicKind.REPLICAS: frozenset({PicturePart.REPLICAS}),
    TopicKind.OPERATIONS: frozenset({PicturePart.OPERATIONS}),
    TopicKind.LOADS: frozenset({PicturePart.JOBS}),
    TopicKind.OPERATION: frozenset(),
    TopicKind.NODE: frozenset({PicturePart.REPLICAS, PicturePart.OPERATIONS}),
    TopicKind.EVENTS: frozenset(),
}
"""What has to be read for a topic, beside the nodes."""


class _ProgressPoke(Poke):
    """Counts what operations and loads tell, and passes it on to the hub."""

    def __init__(self, hub: Poke) -> None:
        super().__init__()
        self._hub = hub
        self.count = 0

    def ring(self) -> None:
        self.count += 1
        self._hub.ring()


class Hub:
    def __init__(  # noqa: PLR0913 - each is a collaborator
        self,
        pictures: Pictures,
        rows: TopicRows,
        log: EventLog,
        feed: Feed,
        progress: ProgressBoard,
        clock: Clock,
        *,
        id: str,
        frontend: FrontendId,
    ) -> None:
        """`id` is another one at every start: versions are this process's own."""
        self.id = id
        self.frontend = frontend
        self.version = 1
        self.poke = Poke()
        self.log = log
        self._pictures = pictures
        self._rows = rows
        self._feed = feed
        self._progress = progress
        self._clock = clock
        self._boards: OrderedDict[Topic, Board] = OrderedDict()
        self._frames: dict[tuple[Topic, int], list[bytes]] = {}
        """Changes since a version, as frames: readers that are at the same version share them."""
        self._reading: Counter[Topic] = Counter()
        self._readers = Listeners()
        self._ears = ExitStack()
        self._moves = _ProgressPoke(self.poke)
        self._looking = asyncio.Lock()
        self._is_blind = False
        self._computed: dict[Topic, tuple[float, Hashable]] = {}
        """When each topic was last computed, and the announcements that it includes."""
        self._encode: Callable[[object], bytes] = msgspec.json.Encoder().encode

    # For readers.

    @contextmanager
    def reading(self, topics: Iterable[Topic]) -> Iterator[Poke]:
        """While inside, these topics are kept up to date; the poke is rung when something on any of them changed."""
        topic_counts = Counter(topics)
        if not self._reading:
            self._ears.enter_context(self._feed.listener(self.poke))
            self._ears.enter_context(self._progress.rings(self._moves, ALL))
        self._reading.update(topic_counts)
        self.poke.ring()
        try:
            with self._readers.listener() as rung:
                yield rung
        finally:
            self._reading -= topic_counts
            if not self._reading:
                self._ears.close()

    @property
    def read_topics(self) -> frozenset[Topic]:
        """What somebody reads at the moment."""
        return frozenset(self._reading)

    def ring(self) -> None:
        """Wake all readers of the live stream."""
        self._readers.ring()

    def board(self, topic: Topic) -> Board | None:
        """None while nobody has looked at the topic, and when it was not read for long."""
        return self._boards.get(topic)

    def changes(self, topic: Topic, board: Board, version: int) -> Sequence[bytes] | None:
        """What changed on a board of the present since a version, as frames. None: the reader needs a snapshot."""
        key = (topic, version)
        if (cached := self._frames.get(key)) is not None:
            return cached
        change = since(board, version)
        if change is None:
            return None
        frames = list(change_frames(topic.name, change)) if change.items or change.gone else []
        self._frames[key] = frames
        return frames

    # Looking.

    async def look(self) -> timedelta:
        """One step of the loop: refresh all that is read. Returns when to look again, even if nobody rings."""
        if not self._reading:
            return IDLE_PERIOD
        began = self._clock.monotonic()
        try:
            await self.refresh(self._reading)
            took = timedelta(seconds=self._clock.monotonic() - began)
            await self._refresh_slow(self._reading)
            self._is_blind = False
        except DatabaseUnavailable as error:
            took = timedelta(0)
            self._show_impaired(error)
        await self._clock.sleep(min(max(SPACING, took * _SHARE), LONGEST_SPACING).total_seconds())
        passed = timedelta(seconds=self._clock.monotonic() - began)
        return max((MOVING_PERIOD if self._pictures.is_moving else PERIOD) - passed, timedelta(0))

    async def begin(self, topics: Iterable[Topic]) -> None:
        """Compute those of these topics that nobody has for a moment: many readers may come at once."""
        await self.refresh(topics, max_age=SPACING)

    async def refresh(self, topics: Iterable[Topic], *, max_age: timedelta = timedelta(0)) -> None:
        """Bring these topics up to date, apart from what takes long. Readers are notified if one changed.

        A topic counts as up to date if it was computed within `max_age` and after the last announcement.
        """
        async with self._looking:  # across the reads on purpose: waiting callers share them
            stale = [topic for topic in topics if not self._is_fresh(topic, max_age)]
            has_news = any(topic.kind is TopicKind.EVENTS for topic in stale) and await self.log.catch_up()
            boards = [topic for topic in stale if topic.kind is not TopicKind.EVENTS]
            if boards:
                parts = frozenset(part for topic in boards for part in PARTS[topic.kind])
                held_parts = frozenset({PicturePart.SLOW}) if self._pictures.has_slow else frozenset()
                mark = self._mark()
                picture = await self._pictures.take(parts - held_parts, moved=self._moves.count)
                self._computed |= dict.fromkeys(boards, (self._clock.monotonic(), mark))
                states = [(topic, await self._rows.of(topic, picture, self.board(topic))) for topic in boards]
                has_news |= self._take(states)
        if has_news:
            self.ring()

    def _is_fresh(self, topic: Topic, max_age: timedelta) -> bool:
        at, mark = self._computed.get(topic, (0.0, None))
        return mark == self._mark() and self._clock.monotonic() - at < max_age.total_seconds()

    def _mark(self) -> Hashable:
        """A value that differs after every announcement."""
        return self._feed.rings, self._moves.count

    async def _refresh_slow(self, topics: Iterable[Topic]) -> None:
        """Refresh the slow parts after all others are sent: only the summary and the attention items show them."""
        fleet = [topic for topic in topics if PicturePart.SLOW in PARTS[topic.kind]]
        if not fleet or not self._pictures.is_slow_due:
            return
        async with self._looking:
            picture = await self._pictures.take_slow()
            has_news = self._take([(topic, self._rows.of_fleet(topic, picture)) for topic in fleet])
        if has_news:
            self.ring()

    async def summary(self) -> FleetSummaryAnswer:
        """The fleet in numbers, and what needs attention, now."""
        async with self._looking:
            picture = await self._pictures.take(EVERY_PART, moved=self._moves.count)
        items = attention(picture)
        at = format_time(self._clock.now())
        return FleetSummaryAnswer(summary=summarise(picture, items), attention=items, at=at, frontend=self.frontend)

    def _show_impaired(self, error: DatabaseUnavailable) -> None:
        """Without the database all stays as it was, but for what control says of itself."""
        if not self._is_blind:
            log.warning("readers are shown what was read last: %s", error, extra={"event": "live.blind"})
        self._is_blind = True
        fleet = [topic for topic in map(Topic, (TopicKind.SUMMARY, TopicKind.ATTENTION)) if topic in self._boards]
        picture = self._pictures.picture()
        if self._take([(topic, self._rows.of_fleet(topic, picture)) for topic in fleet]):
            self.ring()

    def _take(self, states: Iterable[tuple[Topic, TopicState]]) -> bool:
        version, has_news = self.version + 1, False
        for topic, state in states:
            # A reader with an earlier version has never seen this new board.
            before = self._boards.get(topic) or Board(floor=version, version=version)
            after = take(before, state.rows, version=version, encode=self._encode, is_missing=state.is_missing)
            has_news |= after.version == version
            self._boards[topic] = after
            self._boards.move_to_end(topic)
        if has_news:
            self.version = version
            self._frames.clear()
        self._forget()
        return has_news

    def _forget(self) -> None:
        unread = [topic for topic in self._boards if topic.kind.is_about_one and topic not in self._reading]
        for topic in unread[: max(len(self._boards) - MOST_BOARDS, 0)]:
            del self._boards[topic]
            self._computed.pop(topic, None)


class LiveReader:
    def __init__(self, hub: Hub, topics: tuple[Topic, ...], place: ReaderPlace) -> None:
        self.topics = topics
        self._hub = hub
        self._seen = {topic: place.version for topic in topics if place.covers(topic, hub.id)}
        """The reader's version of each topic; a topic that is missing here is sent as a whole."""
        has_events = Topic(TopicKind.EVENTS).mark in place.marks
        self._sequence = place.sequence if has_events else None
        self._is_ready = False

    async def begin(self) -> None:
        """Have the topics computed that had no reader until now."""
        await self._hub.begin(self.topics)
        current = self._hub.version
        self._seen = {topic: version for topic, version in self._seen.items() if version <= current}

    async def news(self, at: str) -> Iterator[bytes]:
        """Frames that lead from what the reader has seen to how things are now; the last one has its place."""
        version, frames = self._hub.version, list[Iterable[bytes]]()
        for topic in self.topics:
            if topic.kind is TopicKind.EVENTS:
                frames.append(await self._events(topic))
            elif (board := self._hub.board(topic)) is not None:
                frames.append(self._frames(topic, board))
                self._seen[topic] = version
        return last_with_id(self._in_order(frames, at), self._place(version))

    def _in_order(self, frames: Iterable[Iterable[bytes]], at: str) -> Iterator[bytes]:
        """Made one by one, as the connection takes them: of a large fleet they would be a megabyte for each reader."""
        for of_topic in frames:
            yield from of_topic
        if not self._is_ready:
            self._is_ready = True
            names = [topic.name for topic in self.topics]
            yield event_frame("ready", LiveReady(at=at, frontend=self._hub.frontend, topics=names))

    def _frames(self, topic: Topic, board: Board) -> Iterable[bytes]:
        seen = self._seen.get(topic)
        if seen is None:
            return snapshot_frames(topic.name, board)
        if board.version <= seen:
            return ()
        changes = self._hub.changes(topic, board, seen)
        return snapshot_frames(topic.name, board) if changes is None else changes

    async def _events(self, topic: Topic) -> Iterable[bytes]:
        log = self._hub.log
        if log.last is None or self._sequence == log.last:
            return ()
        entries = None if self._sequence is None else await log.after(self._sequence)
        self._sequence = log.last
        if entries is None:
            return snapshot_frames(topic.name, _board_of(log.newest()))
        items = {str(entry.sequence): entry.encoded for entry in entries}
        return change_frames(topic.name, BoardChange(items=items)) if items else ()

    def _place(self, version: int) -> str:
        marks = frozenset(topic.mark for topic in self.topics)
        return str(ReaderPlace(hub=self._hub.id, version=version, sequence=self._sequence, marks=marks))


def _board_of(entries: Iterable[LoggedEvent]) -> Board:
    return Board(entries={str(entry.sequence): BoardEntry(None, entry.encoded, 0) for entry in entries})
