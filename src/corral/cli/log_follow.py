"""Follows the logs of several processes at once, as their frontend streams them."""

import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final
from urllib.parse import urlencode

import msgspec

from corral.base.errors import AccessDenied, CorralError, NotFound, PeerRefused, PeerUnavailable
from corral.base.retry import Backoff
from corral.cli.client import ApiClient, api_path
from corral.cli.options import warn
from corral.wire.nodes import LogGap, LogLineView

_SOURCES_EVERY: Final = 5.0
"""Seconds between two looks for processes that are new."""
_RECONNECT: Final = Backoff(first=timedelta(seconds=1), cap=timedelta(seconds=5))
_TOO_MANY: Final = 429


@dataclass(frozen=True, slots=True)
class LogSource:
    """One process, or all processes of a model, on one node."""

    node_id: str
    node: str
    process: str

    @property
    def path(self) -> str:
        return api_path("nodes", self.node_id, "logs", self.process)


SourcedLine = tuple[LogSource, LogLineView]


@dataclass(slots=True)
class LogFollower:
    """Each log has a thread of its own, which waits for its stream and ends with the command."""

    client: ApiClient
    query: Sequence[tuple[str, str]]
    _heard: "queue.SimpleQueue[SourcedLine | CorralError]" = field(default_factory=queue.SimpleQueue)
    _threads: dict[LogSource, threading.Thread] = field(default_factory=dict)
    _places: dict[LogSource, str] = field(default_factory=dict)
    _warned: set[str] = field(default_factory=set)
    _ended: threading.Event = field(default_factory=threading.Event)

    def follow(
        self, sources: Callable[[], Sequence[LogSource]], places: Mapping[LogSource, str]
    ) -> Generator[SourcedLine, None, None]:
        """Lines as they are written, for ever, also of processes that start meanwhile. `places` are the ids of the last
        lines that were seen. Whatever breaks is tried again; a key that is refused is not."""
        self._places.update(places)
        try:
            while True:
                for source in self._found(sources):
                    self._listen(source)
                until = time.monotonic() + _SOURCES_EVERY
                while (heard := self._next(until)) is not None:
                    if isinstance(heard, CorralError):
                        raise heard
                    yield heard
        finally:
            self._ended.set()

    def _found(self, sources: Callable[[], Sequence[LogSource]]) -> Sequence[LogSource]:
        try:
            return sources()
        except (PeerUnavailable, NotFound) as error:  # perhaps the model is gone, and comes back
            self._warn_once(f"{error.message}; trying again")
            return []

    def _next(self, until: float) -> SourcedLine | CorralError | None:
        try:
            return self._heard.get(timeout=max(until - time.monotonic(), 0))
        except queue.Empty:
            return None

    def _listen(self, source: LogSource) -> None:
        thread = self._threads.get(source)
        if thread is None or not thread.is_alive():
            name = f"log of {source.process} on {source.node}"
            self._threads[source] = threading.Thread(target=self._hear, args=(source,), name=name, daemon=True)
            self._threads[source].start()

    def _hear(self, source: LogSource) -> None:
        """Until the source cannot be followed at all: then it is tried again when sources are looked for."""
        failures = 0
        while not self._ended.is_set():
            try:
                for id, data in self._events(source):
                    failures = 0
                    self._take(source, id, data)
                    if self._ended.is_set():
                        return
            except AccessDenied as error:
                self._heard.put(error)
                return
            except PeerUnavailable as error:
                self._warn_once(f"{source.node} cannot be asked: {error.message}; trying again")
                failures += 1
            except (NotFound, PeerRefused) as error:  # the node is gone, or waits for approval
                self._warn_once(f"{source.node} cannot be asked: {error.message}")
                if getattr(error, "status", None) != _TOO_MANY:
                    return
                failures += 1
            self._ended.wait(_RECONNECT.delay(max(failures, 1)).total_seconds())

    def _events(self, source: LogSource) -> Iterator[tuple[str, str]]:
        query = urlencode([("follow", "true"), *self.query])
        return self.client.stream(f"{source.path}?{query}", last_event=self._places.get(source, ""))

    def _take(self, source: LogSource, id: str, data: str) -> None:
        if not data:  # only a sign of life
            return
        try:
            event = msgspec.json.decode(data)
            if "gap" in event:
                gap = msgspec.convert(event, LogGap)
                missed = "" if not gap.lost else f" ({gap.lost} lines)"
                warn([f"{source.node} {source.process}: {gap.gap}{missed}"])
                return
            line = msgspec.convert(event, LogLineView)
        except (msgspec.MsgspecError, TypeError) as error:
            raise PeerRefused(f"the frontend sends what is no log: {error}", status=200) from error
        self._places[source] = id
        self._heard.put((source, line))

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            warn([text])
