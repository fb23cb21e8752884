"""How nodes are dialled: in plain text, or through the TLS door of a worker that has one."""

from typing import NamedTuple, Protocol

from yarl import URL

from corral.base.errors import InvalidInput
from corral.base.ids import NodeId
from corral.base.tls import TlsPeer
from corral.frontend.access.fleet_tls import FleetTls
from corral.frontend.nodes.decide.reports import NodeContact


class Contacts(Protocol):
    """Says how a node is reached, and whether it may be."""

    async def of(self, node_id: NodeId) -> NodeContact: ...


class WorkerUrl(NamedTuple):
    """A URL of a worker's own HTTP server, and how its certificate is checked where it has one."""

    url: URL
    tls: TlsPeer | None


class NodeDoors:
    """Nothing here dials a node that `contacts` does not tell of."""

    def __init__(self, contacts: Contacts, tls: FleetTls) -> None:
        self._contacts = contacts
        self._tls = tls

    async def file_server(self, node_id: NodeId) -> TlsPeer | None:
        """How the worker's HTTP server is dialled with TLS; None: in plain text."""
        return self.file_server_of(node_id, await self._contacts.of(node_id))

    def file_server_of(self, node_id: NodeId, contact: NodeContact) -> TlsPeer | None:
        return self._tls.file_server(node_id, contact.http_address) if contact.has_tls else None

    def url(self, node_id: NodeId, contact: NodeContact, path: str) -> WorkerUrl:
        """A URL of the worker's HTTP server for an encoded path. ValueError when the stored address is not usable."""
        tls = self.file_server_of(node_id, contact)
        scheme = "http" if tls is None else "https"
        return WorkerUrl(URL(f"{scheme}://{contact.http_address}{path}", encoded=True), tls)

    async def replica(self, node_id: NodeId, address: str) -> TlsPeer | None:
        """How what listens at this address of a node is dialled with TLS; None: in plain text, at the address."""
        contact = await self._contacts.of(node_id)
        if not contact.has_tls:
            return None
        port = address.rpartition(":")[2]
        if not (port.isascii() and port.isdecimal()):
            raise InvalidInput("address", f"{address[:200]!r} has no port")
        return self._tls.replica(node_id, contact.http_address, int(port))
