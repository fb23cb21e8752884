"""How nodes are contacted: whether one may be, at which addresses, with which token, and with or without TLS."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from yarl import URL

from corral.base.errors import CorralError, InvalidInput
from corral.base.ids import NodeId
from corral.base.queues import Batches
from corral.base.tls import TlsPeer
from corral.frontend.access.fleet_tls import FleetTls
from corral.frontend.nodes.decide.node import Node
from corral.frontend.nodes.decide.reports import NodeContact, contact_of
from corral.frontend.nodes.store.nodes import Nodes
from corral.frontend.store.secrets import Secrets, node_secret_name

_CONTACT_KEPT_SECONDS: Final = 3.0
"""An operation on a thousand nodes takes less, so it reads each contact once."""


class WorkerUnreachable(CorralError):
    """The worker's HTTP server could not be asked."""

    code = "worker_unreachable"
    retryable = True


class NodeUnreachable(CorralError):
    """Nobody answers for the node."""

    code = "node_unreachable"
    retryable = True


class NodeGone(NodeUnreachable):
    """The fleet has no such node."""

    code = "node_gone"


class NodePending(NodeUnreachable):
    """The node waits for a person's approval, and is not contacted before."""

    code = "node_pending"


class NodeContacts:
    """Decides, for all code that dials nodes, whether a node may be contacted. Code that is about to dial a node asks
    here first.

    An operation asks several times for each of its nodes, so an answer is kept for three seconds. What this process
    changes counts at once; what another frontend changes, within that time.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._reads = Batches(self._read, spacing_seconds=0)
        self._cache: dict[NodeId, tuple[NodeContact, float]] = {}
        self._kept_since_writes = nodes.writes

    async def of(self, node_id: NodeId) -> NodeContact:
        """The node's registered addresses. NodePending while nobody approved it; NodeGone when there is none."""
        now = asyncio.get_running_loop().time()
        if self._kept_since_writes == self._nodes.writes:
            contact, read_at = self._cache.get(node_id, (None, 0.0))
            if contact is not None and now - read_at < _CONTACT_KEPT_SECONDS:
                return contact
        contact = await self._reads.store(node_id)
        if contact is None:
            raise NodeGone(node_id=node_id)
        if not contact.is_approved:
            raise NodePending(f"node {contact.name} waits for approval; until then it is not contacted")
        return contact

    async def load(self, ids: Iterable[NodeId]) -> dict[NodeId, Node]:
        """Return those of the nodes that exist, and keep their addresses for the calls that follow."""
        read_at, writes = asyncio.get_running_loop().time(), self._nodes.writes
        nodes = await self._nodes.load_many(ids)
        self._keep({id: contact_of(node) for id, node in nodes.items()}, read_at, writes)
        return nodes

    async def _read(self, ids: Sequence[NodeId]) -> list[NodeContact | None]:
        read_at, writes = asyncio.get_running_loop().time(), self._nodes.writes
        contacts = await self._nodes.contacts(ids)
        self._keep(contacts, read_at, writes)
        return [contacts.get(id) for id in ids]

    def _keep(self, contacts: Mapping[NodeId, NodeContact], read_at: float, writes: int) -> None:
        """Keep what was read then. What is kept from before other writes of this process is not believed any more."""
        if self._kept_since_writes != writes:
            self._cache.clear()
            self._kept_since_writes = writes
        self._cache.update((id, (contact, read_at)) for id, contact in contacts.items() if contact.is_approved)


class NodeTokens:
    """The bearer that a node's servers accept from control: the node's own secret, or the token that it joined with.

    Of a node without secret that registered before that was kept, it is taken for the shared one.
    """

    def __init__(self, secrets: Secrets, registration_token: str) -> None:
        self._secrets = secrets
        self._shared = registration_token

    async def of(self, node_id: NodeId) -> str:
        return await self._secrets.get(node_secret_name(node_id)) or self._shared


class WorkerUrl(NamedTuple):
    """A URL of a worker's own HTTP server, and how its certificate is checked where it has one."""

    url: URL
    tls: TlsPeer | None


class NodeDoors:
    """Says how nodes are dialled: in plain text, or through the TLS door of a worker that has one. It knows only nodes
    that `contacts` permits."""

    def __init__(self, contacts: NodeContacts, tls: FleetTls) -> None:
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
