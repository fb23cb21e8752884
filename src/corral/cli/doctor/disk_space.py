"""Is there room where the data directory is, or will be?"""

import shutil
from pathlib import Path
from typing import Final

from corral.cli.doctor.examination import OK, PROBLEM, WARNING, Examination, finding
from corral.cli.humane import size
from corral.wire.node_views import Finding

LITTLE: Final = 1024**3
"""Less than any model is large."""
TOO_LITTLE: Final = 100 * 1024**2
"""The database itself may soon fail to grow."""


def check(seen: Examination) -> Finding:
    path = _existing(seen.settings.data)
    try:
        free = shutil.disk_usage(path).free
    except OSError as error:
        return finding("disk space", WARNING, f"the disk of {path} cannot be looked at: {error.strerror}")
    return judge(free, path)


def judge(free: int, path: Path) -> Finding:
    summary = f"{size(free)} are free on the disk of {path}"
    if free >= LITTLE:
        return finding("disk space", OK, summary)
    level = PROBLEM if free < TOO_LITTLE else WARNING
    return finding("disk space", level, summary, "Free some space, or choose another disk with --data.")


def _existing(path: Path) -> Path:
    return next((place for place in (path, *path.absolute().parents) if place.exists()), Path("/"))
