"""Is the port free that `corral up` would take?"""

from typing import Final

from corral.cli.doctor.examination import OK, WARNING, Examination, finding
from corral.processes.probe import is_free
from corral.wire.node_views import Finding

HOST: Final = "127.0.0.1"
PORT: Final = 8080


def check(seen: Examination) -> Finding | None:
    """Of no interest while a fleet runs: then the port is taken, and rightly so."""
    if seen.up is not None or seen.frontend.is_there:
        return None
    if is_free(HOST, PORT):
        return finding("ports", OK, f"port {PORT} is free for `corral up`")
    return finding(
        "ports", WARNING, f"port {PORT} is taken by another program", "Start with another one: corral up --port 8090"
    )
