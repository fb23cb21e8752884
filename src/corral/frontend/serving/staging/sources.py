"""Files to nodes from the nearest source: each large file comes from the frontend, from a node that has it, or from the
server that it was downloaded from.

Who serves whom at the moment is kept in memory, by each frontend for itself. A node that another one does not serve
after all, whatever the reason, gets the file from the next source, and at last from the frontend.
"""

import logging
from collections import Counter, OrderedDict, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

import msgspec

from corral.base.clock import Clock
from corral.base.errors import CorralError
from corral.base.ids import NodeId
from corral.base.tasks import Listeners
from corral.files.fetch_orders import FetchRefused, order_fetch
from corral.files.file_peer import FilePeer
from corral.files.sending import PeerDiskFull
from corral.frontend.nodes.contacts import NodeContacts, NodeTokens
from corral.frontend.nodes.decide.node import NodeStatus
from corral.frontend.nodes.fleet import Fleet
from corral.frontend.serving.staging.decide.paths import own_key
from corral.frontend.serving.staging.decide.sources import (
    FRONTEND,
    FileSource,
    SourceKind,
    StagingPolicy,
    WantedFile,
    choose_source,
)
from corral.frontend.serving.staging.store import StagedModels
from corral.wire.files import FetchAsk
from corral.wire.fleet_tls import file_server_name
from corral.wire.registration import Feature
from corral.wire.tickets import LASTS_SECONDS, FileTicket, issue

log = logging.getLogger(__name__)

_LOOK_PERIOD: Final = timedelta(seconds=2)
"""How often a node that waits looks for sources that other frontends have made."""
_MOST_KNOWN: Final = 1000
_SERVING: Final = frozenset({NodeStatus.HEALTHY, NodeStatus.DRAINING})

Origins = Callable[[str, str, str], Awaitable[str]]
"""The public URL of a file, by its model, its path and its SHA-256; empty: there is none."""


class PeerDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """How nodes are found that may serve others."""

    staged: StagedModels
    fleet: Fleet
    contacts: NodeContacts
    tokens: NodeTokens


class FileSources:
    def __init__(self, peers: PeerDirectory, clock: Clock, policy: StagingPolicy, origins: Origins) -> None:
        self._peers = peers
        self._clock = clock
        self._policy = policy
        self._origins = origins
        self._serving: defaultdict[str, Counter[FileSource]] = defaultdict(Counter)
        """By digest: to how many nodes each source sends the file."""
        self._have: OrderedDict[str, dict[NodeId, str]] = OrderedDict()
        """By digest: the nodes that got the file from here, and its key there."""
        self._changed = Listeners()

    def is_shared_out(self, size: int) -> bool:
        """Whether a file of this size may come from elsewhere."""
        return size >= max(self._policy.least_bytes, 1)

    async def deliver(
        self, file: WantedFile, node: FilePeer, *, send: Callable[[], Awaitable[str]], heard: Callable[[int], None]
    ) -> str:
        """Have the file on the node; returns where it is there. `send` is how the frontend sends it itself.

        PeerDiskFull when the node has no room for it; otherwise this fails only as `send` does.
        """
        failed: set[FileSource] = set()
        url = await self._origin(file)
        while True:
            async with self._turn(file, frozenset(failed), has_origin=bool(url)) as (source, key):
                if source == FRONTEND:
                    path = await send()
                    self._note(file)
                    return path
                try:
                    ask = await self._ask(file, source, key, url)
                    path = await order_fetch(node, ask, heard)
                    self._note(file)
                    return path
                except FetchRefused as error:
                    if error.is_full:
                        raise PeerDiskFull(f"{file.key}: {error.message}") from error
                    self._log(file, source, error)
                except CorralError as error:
                    self._log(file, source, error)
                failed.add(source)

    def has_now(self, file: WantedFile) -> None:
        """A node got the file without `deliver`, and others may get it from there."""
        self._note(file)
        self._changed.ring()

    @asynccontextmanager
    async def _turn(
        self, file: WantedFile, failed: frozenset[FileSource], *, has_origin: bool
    ) -> AsyncIterator[tuple[FileSource, str]]:
        """Wait until a source is free, and take it; the key is what the file is called there."""
        deadline = self._clock.monotonic() + self._policy.patience.total_seconds()
        with self._changed.listener() as changed:
            while True:
                holders = await self._holders(file)
                serving = self._serving[file.digest]  # who waited may find another one than before
                source = choose_source(file, holders, serving, self._policy, failed, has_origin=has_origin)
                if source is None and self._clock.monotonic() >= deadline:
                    source = FRONTEND
                if source is not None:
                    break
                await changed.wait(self._clock, _LOOK_PERIOD)
        serving[source] += 1
        try:
            yield source, holders.get(source.node_id, "")
        finally:
            serving[source] -= 1
            if not serving.total() and self._serving.get(file.digest) is serving:
                del self._serving[file.digest]
            self._changed.ring()

    async def _holders(self, file: WantedFile) -> dict[NodeId, str]:
        """The nodes that have the file and may be asked for it now, with its key there; none while nobody can tell."""
        try:
            return await self._known_holders(file)
        except CorralError as error:
            details = {"event": "staging.holders_unknown", "model": file.model}
            log.info("nobody tells which nodes have a file: %s", error, extra=details)
            return {}

    async def _known_holders(self, file: WantedFile) -> dict[NodeId, str]:
        keys = dict(self._have.get(file.digest, {}))
        for staged in await self._peers.staged.of_model(file.model):
            for staged_file in staged.files:
                if staged_file.digest == f"sha256:{file.digest}" and staged_file.size == file.size:
                    keys.setdefault(staged.node_id, own_key(staged.model, staged_file.path))
        seen = await self._peers.fleet.some([id for id in keys if id != file.node_id])
        return {
            id: keys[id]
            for id, node in seen.items()
            if node.status in _SERVING
            and node.node.http_address
            and node.node.peer is not None
            and Feature.FILE_FETCHES in node.node.peer.features
        }

    async def _origin(self, file: WantedFile) -> str:
        if SourceKind.ORIGIN not in self._policy.order:
            return ""
        try:
            return await self._origins(file.model, file.path, file.digest)
        except CorralError as error:
            log.info("nobody tells where a file came from: %s", error, extra={"event": "staging.origin_unknown"})
            return ""

    async def _ask(self, file: WantedFile, source: FileSource, key: str, url: str) -> FetchAsk:
        ask = FetchAsk(key=file.key, size=file.size, digest=file.digest)
        if source.kind is SourceKind.ORIGIN:
            ask.url = url
            return ask
        ticket = FileTicket(
            key=key,
            digest=file.digest,
            size=file.size,
            server=source.node_id,
            fetcher=file.node_id,
            expires=int(self._clock.now().timestamp()) + LASTS_SECONDS,
        )
        contact = await self._peers.contacts.of(source.node_id)
        ask.peer = contact.http_address
        ask.peer_name = file_server_name(source.node_id) if contact.has_tls else ""
        ask.peer_key = key
        ask.ticket = issue(ticket, await self._peers.tokens.of(source.node_id))
        return ask

    def _note(self, file: WantedFile) -> None:
        self._have.setdefault(file.digest, {})[file.node_id] = file.key
        self._have.move_to_end(file.digest)
        while len(self._have) > _MOST_KNOWN:
            self._have.popitem(last=False)

    def _log(self, file: WantedFile, source: FileSource, error: CorralError) -> None:
        details = {
            "event": "staging.source_failed",
            "model": file.model,
            "node": file.node_id,
            "source": source.node_id or source.kind.value,
        }
        log.info("a node did not get a file from this source, and tries the next: %s", error.message, extra=details)
