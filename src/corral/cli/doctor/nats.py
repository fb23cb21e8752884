"""Can NATS be reached from here?"""

import socket
from typing import Final
from urllib.parse import urlsplit

from corral.cli.doctor.examination import OK, PROBLEM, Examination, finding
from corral.wire.node_views import Finding

_TIMEOUT_SECONDS: Final = 3.0
_DEFAULT_PORT: Final = 4222


def check(seen: Examination) -> Finding | None:
    """Only `up.json` says where NATS is; of other fleets the frontend tells."""
    if seen.up is None:
        return None
    parts = urlsplit(seen.up.nats_url)
    host, port = parts.hostname or "", parts.port or _DEFAULT_PORT
    if greets(host, port):
        return finding("nats", OK, f"{host}:{port} answers")
    return finding("nats", PROBLEM, f"{host}:{port} does not answer", "`corral up` starts it again; see its log.")


def greets(host: str, port: int) -> bool:
    """A NATS server speaks first."""
    try:
        with socket.create_connection((host, port), timeout=_TIMEOUT_SECONDS) as connection:
            connection.settimeout(_TIMEOUT_SECONDS)
            return connection.recv(5).startswith(b"INFO ")
    except OSError:
        return False
