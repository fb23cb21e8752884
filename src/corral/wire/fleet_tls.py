"""TLS inside the fleet: names of what a worker serves behind its one TLS port, roles of callers, and certificates.

A worker has one port for TLS, its door. The name that a caller asks for in the handshake says what is behind it: the
worker's file server, or the local port of a replica. All names end with the node's id, and the certificate of a node is
good for exactly those.
"""

import re
from enum import StrEnum
from typing import Final

import msgspec

DOMAIN: Final = "node.corral.internal"
"""Nobody resolves it: callers dial the registered address, and expect a certificate for the name."""
FILE_SERVER: Final = "http"
"""The first label of the name of a worker's own HTTP server."""
_NODE_ID: Final = re.compile(r"[0-9a-z](?:[0-9a-z-]{0,61}[0-9a-z])?")
_NAME: Final = re.compile(rf"(?:{FILE_SERVER}|p(?P<port>[1-9][0-9]{{0,4}}))\.(?P<node>[^.]+)\.{re.escape(DOMAIN)}")
_LARGEST_PORT: Final = 65535
LARGEST_REQUEST: Final = 16 * 1024
"""Bytes of a body that asks for a certificate; a usual one has 500."""


class FleetRole(StrEnum):
    """Who a certificate of the fleet belongs to."""

    CONTROL = "control"
    GATEWAY = "gateway"
    NODE = "node"


def role_uri(role: FleetRole, id: str = "") -> str:
    """How a certificate names its role; for nodes with their id."""
    return f"corral://{role.value}/{id}" if id else f"corral://{role.value}"


def role_of_uri(uri: str) -> FleetRole | None:
    """The role that `role_uri` wrote; None for anything else."""
    scheme, _, rest = uri.partition("://")
    word = rest.partition("/")[0]
    return FleetRole(word) if scheme == "corral" and word in FleetRole.__members__.values() else None


def can_be_named(node_id: str) -> bool:
    """Whether the id can be part of a host name."""
    return _NODE_ID.fullmatch(node_id) is not None


def node_domain(node_id: str) -> str:
    """What all names of one node end with."""
    return f"{node_id}.{DOMAIN}"


def file_server_name(node_id: str) -> str:
    """The name of a worker's own HTTP server."""
    return f"{FILE_SERVER}.{node_domain(node_id)}"


def port_name(node_id: str, port: int) -> str:
    """The name of what listens on a local port of a worker's machine."""
    return f"p{port}.{node_domain(node_id)}"


def target_of(name: str) -> str | int | None:
    """What a name leads to: `FILE_SERVER`, or a port. None for a name that leads nowhere."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    if match["port"] is None:
        return FILE_SERVER
    port = int(match["port"])
    return port if port <= _LARGEST_PORT else None


class CertificateAsk(msgspec.Struct, kw_only=True):
    """Body of a request for a certificate. Names and dates in the CSR are ignored: only its key counts."""

    csr: str
    """A certificate signing request in PEM form, for a P-256 key."""


class IssuedCertificate(msgspec.Struct, kw_only=True, frozen=True):
    """A certificate for the key of the request."""

    certificate: str
    authority: str
    """The certificate of the fleet's authority; both in PEM form."""
    expires_at: float
    """Unix seconds by the frontend's clock."""
    renew_after: float
    """Seconds from now, after which the next one shall be asked for."""


class DoorState(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The complete state that the worker sends its door after every change, as one JSON document per line."""

    certificate: str = ""
    key: str = ""
    authority: str = ""
    """PEM of the fleet's authority. Empty until the first certificate arrives; until then every handshake is
    refused."""
    file_server: int = 0
    """Local port of the worker's HTTP server."""
    health: int = 0
    """Local port that is asked by callers without TLS: it serves health and readiness, and nothing else."""
    ports: tuple[int, ...] = ()
    """Local ports of replicas and of the adapter."""
