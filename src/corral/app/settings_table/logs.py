"""Settings of the logs, which every process has."""

# ruff: noqa: RUF009 - `setting` declares a field, as `dataclasses.field` does

from dataclasses import dataclass
from typing import ClassVar

from corral.app.settings_kinds import (
    TEXT,
    choice,
)
from corral.app.settings_sources import setting
from corral.base.logs import Format


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """How every process writes its log, which goes to standard error."""

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
