"""Settings of the commands that ask a frontend."""

# ruff: noqa: RUF009 - `setting` declares a field, as `dataclasses.field` does

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

from corral.processes.settings_kinds import HTTP_URL, PATH, SECRET, duration
from corral.processes.settings_sources import setting
from corral.processes.settings_table.defaults import DATA_DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """How commands such as `corral nodes` find their frontend."""

    section: ClassVar[str] = "client"
    title: ClassVar[str] = "Commands that talk to a frontend"

    url: str = setting(
        HTTP_URL,
        "URL of the frontend. By default the one that `corral up` wrote into `up.json` in the data directory.",
        flag="--url",
        env=("CORRAL_URL",),
        default="",
        default_text="from `up.json`",
    )
    key: str = setting(
        SECRET,
        "API key to present. By default the one in the key file, or in `up.json`.",
        env=("CORRAL_KEY",),
        default="",
        default_text="from `up.json`",
        secret=True,
    )
    key_file: Path | None = setting(
        PATH,
        "File that holds the API key, mode 0600. A key is never a flag: others could read it in the process list.",
        flag="--key-file",
        env=("CORRAL_KEY_FILE",),
        default=None,
    )
    data: Path = setting(
        PATH,
        "Data directory of a running `corral up`, whose `up.json` tells the URL and the key.",
        flag="--data",
        env=("CORRAL_DATA",),
        default=DATA_DEFAULT,
    )
    timeout: timedelta = setting(
        duration(timedelta(milliseconds=100), timedelta(hours=1), bounds="from 100ms to 1h"),
        "How long to wait for an answer. 30 s: longer than any answer takes that is still on its way.",
        flag="--timeout",
        env=("CORRAL_TIMEOUT",),
        default=timedelta(seconds=30),
        default_text="30s",
    )
