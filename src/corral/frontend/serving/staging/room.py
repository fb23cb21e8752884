"""Builds what brings files to nodes: the ways there, the sources, and the record of what is where."""

from functools import partial
from typing import Self

import msgspec

from corral.base.ids import NodeId
from corral.files.file_peer import FilePeer
from corral.files.storage import SharedStorage
from corral.frontend.models.decide.pulling import plan_of
from corral.frontend.models.local_files import LocalFiles
from corral.frontend.models.room import ModelsRoom
from corral.frontend.nodes.node_storage import NodeStorage
from corral.frontend.nodes.room import NodesRoom
from corral.frontend.operations.decide.intent import IntentKind
from corral.frontend.operations.store.intents import Intents
from corral.frontend.record.room import Foundation, RecordRoom
from corral.frontend.serving.loading.placing import LoadStores
from corral.frontend.serving.staging.broadcasts import StagingNews
from corral.frontend.serving.staging.decide.sources import StagingPolicy, public_url
from corral.frontend.serving.staging.http_carrier import HttpCarrier
from corral.frontend.serving.staging.object_carrier import ObjectCarrier
from corral.frontend.serving.staging.service import FileCarrier, Staging
from corral.frontend.serving.staging.shared_directories import SharedDirectories
from corral.frontend.serving.staging.sources import FileSources, PeerDirectory
from corral.frontend.serving.staging.staged_files import NodeListings, StagedFiles, StagedStores
from corral.frontend.serving.staging.store import StagedModels
from corral.wire.registration import Feature


class _NodeFiles(msgspec.Struct, frozen=True):
    """What staging needs to know of the nodes that files are brought to."""

    nodes: NodesRoom

    async def has(self, node_id: NodeId, feature: Feature) -> bool:
        return feature in await self._features(node_id)

    async def server(self, node_id: NodeId) -> FilePeer | None:
        """The node's file server; None when it has none."""
        address = (await self.nodes.contacts.of(node_id)).http_address
        if not address:
            return None
        features = await self._features(node_id)
        return FilePeer(
            address=address,
            token=await self.nodes.tokens.of(node_id),
            tls=await self.nodes.doors.file_server(node_id),
            can_fetch=Feature.FILE_FETCHES in features,
            takes_late_digests=Feature.LATE_DIGESTS in features,
        )

    async def name(self, node_id: NodeId) -> str:
        return (await self.nodes.contacts.of(node_id)).name

    async def _features(self, node_id: NodeId) -> frozenset[str]:
        node = await self.nodes.store.get(node_id)
        return frozenset() if node is None or node.peer is None else node.peer.features


class StagingPart(msgspec.Struct, frozen=True, kw_only=True):
    staging: Staging
    staged: StagedFiles
    store: StagedModels
    shared: SharedDirectories

    @classmethod
    def build(  # noqa: PLR0913 - each is a collaborator
        cls,
        foundation: Foundation,
        record: RecordRoom,
        nodes: NodesRoom,
        models: ModelsRoom,
        intents: Intents,
        loading: LoadStores,
        *,
        policy: StagingPolicy,
        storage: SharedStorage | None,
    ) -> Self:
        """An object storage comes first: it is there so that the frontend need not send a file to every node."""
        clock, directory = foundation.clock, models.catalogue.directory
        files, staged = LocalFiles(directory), StagedModels(foundation.database)
        stores = StagedStores(
            staged=staged,
            replicas=loading.replicas,
            jobs=loading.jobs,
            intents=intents,
            nodes=nodes.store,
            events=record.events,
        )
        listings = NodeListings(nodes.contacts, nodes.tokens, nodes.doors)
        keeper = StagedFiles(stores, models.catalogue, files, nodes.client, listings, clock, policy=policy)
        peers = PeerDirectory(staged=staged, fleet=nodes.fleet, contacts=nodes.contacts, tokens=nodes.tokens)
        of_nodes = _NodeFiles(nodes)

        async def origin(model: str, path: str, digest: str) -> str:
            """The public URL of a model's file, from the plan of its pull; empty when no plan has it."""
            plans = [plan_of(intent.payload) for intent in await intents.of_subject(IntentKind.PULL, model)]
            return public_url([file for plan in plans for file in plan.files], path, digest)

        sources = FileSources(peers, clock, policy, origin)
        carriers: list[FileCarrier] = [HttpCarrier(files, of_nodes.server, sources, keeper.keeping)]
        if storage is not None:
            asked = NodeStorage(foundation.bus, nodes.contacts.of)
            by_digest = partial(of_nodes.has, feature=Feature.OBJECT_DIGESTS)
            carriers.insert(0, ObjectCarrier(files, storage, asked, by_digest, clock, keeper.keeping))
        news = StagingNews(foundation.bus, clock, of_nodes.name)
        staging = Staging(directory, files, carriers, news.told, keeper.found)
        shared = SharedDirectories(staging.is_shared_with, nodes.fleet, models.catalogue, clock)
        return cls(staging=staging, staged=keeper, store=staged, shared=shared)
