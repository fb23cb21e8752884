"""Keeps the last lines of output of each process key in memory."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from corral.base.clock import Clock

MOST_LINES: Final = 1000
"""Lines kept for one process key: as many as LocalAI's worker keeps."""
TAIL_LINES: Final = 20
"""Lines of standard error in the answer to a failed start: as many as LocalAI's worker sends."""
MOST_KEYS: Final = 1000
"""Logs that are kept. Beyond it the oldest is forgotten, because names of models may change for ever."""
MOST_BYTES: Final = 4096
"""Maximum length of a line; the rest becomes the next line."""
MOST_WAITING: Final = 100
"""Lines that a slow reader may be behind; more are dropped, as LocalAI's worker does."""


class OutputStream(StrEnum):
    STDOUT = "stdout"
    STDERR = "stderr"


@dataclass(frozen=True, slots=True)
class Line:
    at: datetime
    stream: OutputStream
    text: str


class BackendLog:
    """The last lines of one process key, across restarts."""

    def __init__(self, clock: Clock, tell: Callable[[Line], None] = lambda _: None) -> None:
        self._clock = clock
        self._tell = tell
        self._lines: deque[Line] = deque(maxlen=MOST_LINES)

    @property
    def lines(self) -> list[Line]:
        return list(self._lines)

    def add(self, stream: OutputStream, text: str) -> None:
        line = Line(self._clock.now(), stream, text)
        self._lines.append(line)
        self._tell(line)


class LineWriter:
    """Makes lines of one stream of one process, and remembers the last ones of this process alone."""

    def __init__(self, log: BackendLog, stream: OutputStream) -> None:
        self._log = log
        self._stream = stream
        self._rest = b""
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)

    @property
    def tail(self) -> list[str]:
        return list(self._tail)

    def feed(self, data: bytes) -> None:
        *whole, self._rest = (self._rest + data).split(b"\n")
        for line in whole[-MOST_LINES:]:
            self._add(line)
        while len(self._rest) >= MOST_BYTES:
            self._add(self._rest)
            self._rest = self._rest[MOST_BYTES:]

    def end(self) -> None:
        """The process is gone: what it began is a line, too."""
        if self._rest:
            self._add(self._rest)
            self._rest = b""

    def _add(self, line: bytes) -> None:
        text = line[:MOST_BYTES].decode(errors="replace").removesuffix("\r")
        self._tail.append(text)
        self._log.add(self._stream, text)


class Watch:
    """Lines of one model as they come. A reader that is too slow misses some."""

    def __init__(self, name: str, before: list[Line]) -> None:
        self.before = before
        """What was there when the watch began."""
        self._name = name
        self._new: asyncio.Queue[Line] = asyncio.Queue(MOST_WAITING)

    async def next(self) -> Line:
        return await self._new.get()

    def hear(self, key: str, line: Line) -> None:
        if _is_meant(key, self._name) and not self._new.full():
            self._new.put_nowait(line)


class BackendLogs:
    """The logs of all process keys. They outlive their processes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logs: dict[str, BackendLog] = {}
        self._watches: set[Watch] = set()

    def of(self, key: str) -> BackendLog:
        if key not in self._logs:
            if len(self._logs) >= MOST_KEYS:
                del self._logs[next(iter(self._logs))]
            self._logs[key] = BackendLog(self._clock, lambda line: self._tell(key, line))
        return self._logs[key]

    def models(self) -> list[str]:
        """Names that have logs: process keys without their replicas."""
        return sorted({key.partition("#")[0] for key in self._logs})

    def lines(self, name: str) -> list[Line]:
        """Return the lines of one process key, or of all replicas of a model in the order of time."""
        found = (log.lines for key, log in self._logs.items() if _is_meant(key, name))
        return sorted((line for lines in found for line in lines), key=lambda line: line.at)

    @contextmanager
    def watch(self, name: str) -> Iterator[Watch]:
        """Follow a process key or a model, including replicas that start later. No line is sent twice."""
        watch = Watch(name, self.lines(name))
        self._watches.add(watch)
        try:
            yield watch
        finally:
            self._watches.discard(watch)

    def _tell(self, key: str, line: Line) -> None:
        for watch in self._watches:
            watch.hear(key, line)


def _is_meant(key: str, name: str) -> bool:
    return key == name if "#" in name else key.partition("#")[0] == name
