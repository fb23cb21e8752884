"""Settings of the logs, which every process has."""

# ruff: noqa: RUF009 - `setting` declares a field, as `dataclasses.field` does

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from corral.base.logs import Format, LogOutput
from corral.processes.settings_kinds import PATH, SWITCH, TEXT, choice
from corral.processes.settings_sources import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """How every process writes its log."""

    section: ClassVar[str] = "log"
    title: ClassVar[str] = "Logs of every process"

    format: Format = setting(
        choice("text", "json"),
        """`text` for people, or `json` with one object per line for machines. Text, because the first reader is a
        person.""",
        flag="--log-format",
        env=("CORRAL_LOG_FORMAT",),
        default="text",
    )
    level: str = setting(
        choice("debug", "info", "warning", "error"),
        """The least important line that is written. At `info` there is one line per change of state and none per
        request.""",
        flag="--log-level",
        env=("CORRAL_LOG_LEVEL",),
        default="info",
    )
    name: str = setting(
        TEXT,
        """What a process calls itself in its log. By default what it is; `corral up` sets it to tell its workers
        apart.""",
        env=("CORRAL_LOG_NAME",),
        default="",
        default_text="`frontend`, `control`, `gateway`, `worker` or `up`",
    )
    directory: Path | None = setting(
        PATH,
        """Directory for log files, one per process, each renamed when it has 10 MiB, with three old ones kept. Standard
        error then gets only warnings and errors. By default everything goes to standard error, which a service manager
        keeps; `corral up` is mostly run by people, and has its files in `logs` in the data directory.""",
        flag="--log-directory",
        env=("CORRAL_LOG_DIRECTORY",),
        default=None,
        default_text="none; `logs` in the data directory for `corral up`",
    )
    verbose: bool = setting(
        SWITCH,
        """Write everything to standard error, also where there are log files. Off by default, so that a terminal shows
        what somebody should look at.""",
        flag="--verbose",
        env=("CORRAL_VERBOSE",),
        default=False,
    )

    @property
    def output(self) -> LogOutput:
        return LogOutput(format=self.format, level=self.level, directory=self.directory, is_verbose=self.verbose)
