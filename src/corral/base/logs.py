"""Logs: one line per state change, as JSON for machines or as text for a terminal.

Every line has a stable `event` name. Ids of the node and the request at hand come from context variables. Values
under names that smell of secrets are never written.
"""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Literal, TextIO

Format = Literal["text", "json"]

_context: ContextVar[dict[str, str]] = ContextVar("log_context", default={})  # noqa: B039 - replaced, never changed
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "color_message"}
_SECRET_WORDS = ("token", "secret", "password", "authorization", "api_key", "seed", "jwt")


@contextmanager
def log_context(**ids: str) -> Iterator[None]:
    """Add ids (node, request, …) to every line logged inside."""
    marker = _context.set({**_context.get(), **ids})
    try:
        yield
    finally:
        _context.reset(marker)


def record_fields(record: logging.LogRecord) -> dict[str, object]:
    """What a record carries beyond its text, with secrets blotted out."""
    fields: dict[str, object] = dict(_context.get())
    fields.update((name, value) for name, value in record.__dict__.items() if name not in _STANDARD)
    return {name: "***" if _is_secret(name) else value for name, value in fields.items()}


def _is_secret(name: str) -> bool:
    lowered = name.lower()
    return any(word in lowered for word in _SECRET_WORDS)


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
            **record_fields(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """A line for people: time, process, message, then the fields."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        fields = " ".join(f"{name}={value}" for name, value in record_fields(record).items() if name != "event")
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        line = f"{time} {self._process:<9} {level}{record.getMessage()}" + (f"  {fields}" if fields else "")
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def set_up_logs(process: str, *, format: Format = "text", level: str = "info", stream: TextIO | None = None) -> None:
    """Send all logs of this process to standard error."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(process) if format == "json" else TextFormatter(process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("nats", "uvicorn.error", "uvicorn.access", "aiosqlite", "asyncio", "alembic", "hpack"):
        logging.getLogger(noisy).setLevel("WARNING")
