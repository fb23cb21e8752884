"""Log output: one line per state change, as JSON for machines or as text for a terminal.

Lines go to standard error, or to a file per process in a directory; then standard error gets only warnings and errors.
Every line has a stable `event` name. The ids of the current request, node and operation come from a context variable.
Values under names that look like secrets are never written.
"""

import io
import json
import logging
import os
import sys
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import ClassVar, Final, Literal, TextIO

from corral.base.errors import PathNotUsable
from corral.base.private_files import make_private_directory
from corral.base.setting_kinds import PATH, SWITCH, TEXT, choice
from corral.base.settings import setting
from corral.base.words import printable_lines

Format = Literal["text", "json"]

FILE_BYTES: Final = 10 * 1024 * 1024
KEPT_FILES: Final = 3
"""Number of full log files that are kept in addition to the current one."""

_context: ContextVar[dict[str, str]] = ContextVar("log_context", default={})  # noqa: B039 - replaced, never changed
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "color_message"}
_SECRET_WORDS = ("token", "secret", "password", "authorization", "api_key", "seed", "jwt")


class log_context:  # noqa: N801 - it is used as a function
    """Adds ids (node, request_id, …) to every line that is logged inside, also by tasks that are started inside.

    A class and not a generator: every request and every target goes through one.
    """

    __slots__ = ("_ids", "_marker")

    def __init__(self, **ids: str) -> None:
        self._ids = ids

    def __enter__(self) -> None:
        self._marker = _context.set({**_context.get(), **self._ids})

    def __exit__(self, *_: object) -> None:
        _context.reset(self._marker)


@lru_cache(maxsize=1024)
def names_secret(name: str) -> bool:
    """Whether what has this name is probably a secret."""
    return any(word in name.lower() for word in _SECRET_WORDS)


def record_fields(record: logging.LogRecord) -> dict[str, object]:
    """Return the extra fields of a record, with secrets removed."""
    fields: dict[str, object] = dict(_context.get())
    fields.update((name, value) for name, value in record.__dict__.items() if name not in _STANDARD)
    return {name: "***" if names_secret(name) else value for name, value in fields.items()}


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object per line."""

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
    """Formats a record for people: time, process, message, then the fields.

    They may quote what strangers sent. It is read on terminals, so control characters are replaced, and only the first
    line of a record begins at the left.
    """

    def __init__(self, process: str, *, time_format: str = "%H:%M:%S") -> None:
        super().__init__()
        self._process = process
        self._time_format = time_format

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).astimezone().strftime(self._time_format)
        fields = " ".join(f"{name}={value}" for name, value in record_fields(record).items() if name != "event")
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        line = f"{time} {self._process:<9} {level}{record.getMessage()}" + (f"  {fields}" if fields else "")
        line = printable_lines(line, indent="  ")
        if record.exc_info:
            line += "\n" + printable_lines(self.formatException(record.exc_info).expandtabs())
        return line


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOutput:
    """How every process writes its log."""

    section: ClassVar[str] = "log"
    title: ClassVar[str] = "Logs of every process"

    format: Format = setting(
        choice("text", "json"),
        """`text` for people, or `json` with one object per line for machines. Text, because the first reader is a
        person.""",
        flag="--log-format",
        env="CORRAL_LOG_FORMAT",
        default="text",
    )
    level: str = setting(
        choice("debug", "info", "warning", "error"),
        """The least important line that is written. At `info` there is one line per change of state and none per
        request.""",
        flag="--log-level",
        env="CORRAL_LOG_LEVEL",
        default="info",
    )
    name: str = setting(
        TEXT,
        """What a process calls itself in its log. By default what it is; `corral up` sets it to tell its workers
        apart.""",
        flag="",
        env="CORRAL_LOG_NAME",
        default="",
        default_text="`frontend`, `control`, `gateway`, `worker` or `up`",
    )
    directory: Path | None = setting(
        PATH,
        """Directory for log files, one per process, each renamed when it has 10 MiB, with three old ones kept. Standard
        error then gets only warnings and errors. By default everything goes to standard error, which a service manager
        keeps; `corral up` is mostly run by people, and has its files in `logs` in the data directory.""",
        flag="--log-directory",
        env="CORRAL_LOG_DIRECTORY",
        default=None,
        default_text="none; `logs` in the data directory for `corral up`",
    )
    is_verbose: bool = setting(
        SWITCH,
        """Write everything to standard error, also where there are log files. Off by default, so that a terminal shows
        what somebody should look at.""",
        name="verbose",
        default=False,
    )


_TO_STANDARD_ERROR: Final = LogOutput()


class LogFile(RotatingFileHandler):
    """A private log file that is rotated when it is full; the oldest one is deleted.

    Failing to write, for example because the disk is full, never stops the process.
    """

    def __init__(self, path: Path) -> None:
        self._has_complained = False
        super().__init__(path, maxBytes=FILE_BYTES, backupCount=KEPT_FILES, encoding="utf-8")

    def _open(self) -> io.TextIOWrapper:
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        return io.TextIOWrapper(io.FileIO(descriptor, "a"), encoding="utf-8", errors="replace", write_through=True)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the base class names it
        error = sys.exc_info()[1]
        if not self._has_complained:
            self._has_complained = True
            with suppress(OSError, ValueError):  # neither does a closed terminal
                sys.stderr.write(f"warning: lines are missing from the log {self.baseFilename}: {error}\n")


def set_up_logs(process: str, output: LogOutput = _TO_STANDARD_ERROR, *, stream: TextIO | None = None) -> None:
    """Send all logs of this process to standard error, or to a file and only warnings and errors to standard error."""
    terminal = logging.StreamHandler(stream or sys.stderr)
    terminal.setFormatter(JsonFormatter(process) if output.format == "json" else TextFormatter(process))
    handlers: list[logging.Handler] = [terminal]
    if output.directory is not None:
        path = make_private_directory(output.directory) / f"{process.replace('/', '_')}.log"
        try:
            file = LogFile(path)
        except OSError as error:
            raise PathNotUsable(f"cannot write the log {path}: {error.strerror}") from error
        dated = TextFormatter(process, time_format="%Y-%m-%d %H:%M:%S")
        file.setFormatter(JsonFormatter(process) if output.format == "json" else dated)
        handlers.append(file)
        if not output.is_verbose:
            terminal.setLevel(logging.WARNING)
    root = logging.getLogger()
    root.handlers[:] = handlers
    root.setLevel(output.level.upper())
    for noisy in ("nats", "uvicorn.error", "uvicorn.access", "aiosqlite", "asyncio", "alembic", "hpack"):
        logging.getLogger(noisy).setLevel("WARNING")
