"""One reader of the live stream: what it has seen, and what it is told next. The hub knows nothing of it."""

from collections.abc import Iterable, Iterator

from corral.frontend.live.decide.board import Board, BoardChange, BoardEntry
from corral.frontend.live.decide.frames import change_frames, event_frame, last_with_id, snapshot_frames
from corral.frontend.live.decide.topics import ReaderPlace, Topic, TopicKind
from corral.frontend.live.event_log import LoggedEvent
from corral.frontend.live.hub import Hub
from corral.wire.live import LiveReady


class LiveReader:
    def __init__(self, hub: Hub, topics: tuple[Topic, ...], place: ReaderPlace) -> None:
        self.topics = topics
        self._hub = hub
        self._seen = {topic: place.version for topic in topics if place.covers(topic, hub.id)}
        """By topic; one that is missing is told whole."""
        has_events = Topic(TopicKind.EVENTS).mark in place.marks
        self._sequence = place.sequence if has_events else None
        self._is_ready = False

    async def begin(self) -> None:
        """Have everything computed that nobody read until now."""
        await self._hub.begin(self.topics)
        known = self._hub.version
        self._seen = {topic: version for topic, version in self._seen.items() if version <= known}

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
