"""Can the data directory be used, and does it keep its secrets?"""

import os

from corral.cli.doctor.examination import OK, PROBLEM, WARNING, Examination, finding
from corral.wire.node_views import Finding


def check(seen: Examination) -> Finding:
    path = seen.settings.data
    if not path.exists():
        return finding("data directory", OK, f"{path} is not there yet; `corral up` makes it")
    if not path.is_dir():
        return finding("data directory", PROBLEM, f"{path} is not a directory", "Choose another one with --data.")
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        return finding(
            "data directory",
            PROBLEM,
            f"{path} cannot be read and written by this user",
            f"Run as its owner, run `chown -R $USER {path}`, or choose another one with --data.",
        )
    if path.stat().st_mode & 0o077:
        return finding("data directory", WARNING, f"{path} is open to other users", f"Run: chmod 700 {path}")
    return finding("data directory", OK, f"{path} is writable and private")
