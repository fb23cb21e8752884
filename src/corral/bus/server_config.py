"""What the embedded nats-server is told: who may connect, and who may say and hear what.

nats-server reads JSON as well as its own format, so the configuration is plain data.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

MAX_PAYLOAD: Final = 8 * 1024 * 1024
FRONTEND: Final = "frontend"
WORKER: Final = "worker"
WORKER_INBOX: Final = "_WORKER_INBOX"
"""The inbox prefix of workers that ask something themselves. They may not listen to `_INBOX.>`: there the frontends
get their answers, other nodes' secrets among them."""

_FRONTEND_SUBJECTS: Final = (
    "nodes.>",
    "gallery.>",
    "agent.>",
    "staging.>",
    "state.>",
    "jobs.>",
    "mcp.>",
    "cache.>",
    "prefixcache.>",
    "finetune.>",
    "responses.>",
    "corral.>",
    "_INBOX.>",
)

# A worker answers by publishing to the inbox of whoever asked. The server could grant that per request
# (allow_responses), but forgets it with the connection, and an install outlives many connections.
PERMISSIONS: Final[Mapping[str, Mapping[str, list[str]]]] = {
    FRONTEND: {
        "publish": [*_FRONTEND_SUBJECTS, f"{WORKER_INBOX}.>"],
        "subscribe": [*_FRONTEND_SUBJECTS],
    },
    WORKER: {
        "publish": [
            "nodes.*.backend.install.*.progress",
            "nodes.*.files.>",
            "nodes.*.corral.replica.>",
            "nodes.*.corral.inventory",
            "_INBOX.>",
        ],
        "subscribe": ["nodes.>", f"{WORKER_INBOX}.>"],
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Passwords:
    """One for each kind of user, and one that the servers of a cluster show each other."""

    frontend: str = field(repr=False)
    worker: str = field(repr=False)
    route: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMember:
    """Where this server listens for its peers, and where those are."""

    port: int
    peers: tuple[int, ...]


def config_text(
    *,
    name: str,
    listen: tuple[str, int],
    passwords: Passwords,
    pid_file: Path,
    cluster: ClusterMember | None,
    extra: Mapping[str, object],
) -> bytes:
    """The whole configuration file. `extra` is for what tests need, TLS for example."""
    host, port = listen
    config: dict[str, object] = {
        "server_name": name,
        "host": host,
        "port": port,
        "pid_file": str(pid_file),
        "max_payload": MAX_PAYLOAD,
        "ping_interval": "20s",  # so that the interest of a dead client is soon forgotten
        "authorization": {
            "users": [_user(FRONTEND, passwords.frontend), _user(WORKER, passwords.worker)],
        },
        **_cluster(host, cluster, passwords),
        **extra,
    }
    return json.dumps(config, indent=2, ensure_ascii=False).encode()


def _user(name: str, password: str) -> dict[str, object]:
    return {"user": name, "password": password, "permissions": PERMISSIONS[name]}


def _cluster(host: str, member: ClusterMember | None, passwords: Passwords) -> dict[str, object]:
    if member is None:
        return {}
    return {
        "cluster": {
            "name": "corral",
            "host": host,
            "port": member.port,
            "authorization": {"user": "route", "password": passwords.route},
            "routes": [f"nats://route:{passwords.route}@{host}:{port}" for port in member.peers],
            "pool_size": -1,  # one route to each peer is enough, and is up sooner
        }
    }
