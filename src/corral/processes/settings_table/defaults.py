"""Defaults that several groups share."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from corral.processes.settings_sources import Derived

MIB: Final = 1024 * 1024
CREDENTIALS_FILE: Final = "credentials.json"
"""In the data directory: where the first keys are written when nobody named another file."""


def default_data(environment: Mapping[str, str]) -> Path:
    """Where a user's programs keep their data, by the XDG rules: a relative XDG_DATA_HOME does not count."""
    stated = environment.get("XDG_DATA_HOME", "")
    if stated and os.path.isabs(stated):
        return Path(stated) / "corral"
    home = environment.get("HOME") or os.path.expanduser("~")
    return Path(home) / ".local" / "share" / "corral"


def default_gallery_cache(environment: Mapping[str, str]) -> Path:
    """Where a user's programs keep what they can fetch again."""
    stated = environment.get("XDG_CACHE_HOME", "")
    home = environment.get("HOME") or os.path.expanduser("~")
    return (Path(stated) if stated and os.path.isabs(stated) else Path(home) / ".cache") / "corral" / "galleries"


DATA_DEFAULT: Final = Derived("`$XDG_DATA_HOME/corral`, or `~/.local/share/corral`", default_data)
WORKER_DATA_DEFAULT: Final = Derived(
    "`worker` inside the default data directory", lambda env: default_data(env) / "worker"
)
