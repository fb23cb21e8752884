"""What backends wrote, line by line, for whoever asks later. The last lines of each process key, kept in memory."""

from collections import deque
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from corral.base.clock import Clock

MOST_LINES: Final = 1000
"""Of one process key: as many as LocalAI's worker keeps."""
TAIL_LINES: Final = 20
"""Of standard error in the answer to a start that failed: as many as LocalAI's worker sends."""
MOST_KEYS: Final = 1000
"""After which the log that was opened first is forgotten: names of models may change for ever."""
MOST_BYTES: Final = 4096
"""Of one line; the rest becomes the next line."""


class Stream(StrEnum):
    STDOUT = "stdout"
    STDERR = "stderr"


@dataclass(frozen=True, slots=True)
class Line:
    at: datetime
    stream: Stream
    text: str


class BackendLog:
    """The last lines of one process key, across restarts."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lines: deque[Line] = deque(maxlen=MOST_LINES)

    @property
    def lines(self) -> list[Line]:
        return list(self._lines)

    def add(self, stream: Stream, text: str) -> None:
        self._lines.append(Line(self._clock.now(), stream, text))


class LineWriter:
    """Makes lines of one stream of one process, and remembers the last ones of this process alone."""

    def __init__(self, log: BackendLog, stream: Stream) -> None:
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


class BackendLogs:
    """The logs of all process keys. They outlive their processes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logs: dict[str, BackendLog] = {}

    def of(self, key: str) -> BackendLog:
        if key not in self._logs:
            if len(self._logs) >= MOST_KEYS:
                del self._logs[next(iter(self._logs))]
            self._logs[key] = BackendLog(self._clock)
        return self._logs[key]
