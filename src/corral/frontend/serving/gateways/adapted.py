"""URLs for replicas whose workers give them none, as LocalAI's never do: through the adapter of this frontend.

Each frontend has an adapter of its own, so such a URL holds for the gateways of one frontend and is stored nowhere. It
is given when their view is made.
"""

import asyncio
import hashlib
import hmac
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path, PurePath
from typing import Final, NamedTuple

from corral.base.clock import Clock
from corral.base.errors import ChildFailed
from corral.base.ids import NodeId, ReplicaId
from corral.frontend.models.catalogue import Models
from corral.frontend.models.decide.model import ModelSpec, weights_path, with_answer_limit
from corral.frontend.nodes.contacts import NodeTokens
from corral.frontend.nodes.decide.node import Node
from corral.frontend.nodes.decide.reports import with_host
from corral.frontend.record.feed import Feed
from corral.frontend.serving.decide.replica import Replica
from corral.frontend.serving.gateways.request_files import RequestFiles
from corral.frontend.serving.loading.model_loader import UsualLimits, adapter_model
from corral.rpc.adapter_keeper import ADAPTER, AdapterConfig, Adapters, LiveAdapter, within
from corral.rpc.adapter_link import AdapterLink, PassFile
from corral.wire.adapter import AdapterReplica, FilePassed, FileWish

NO_ADAPTER: Final = "this control was started without an adapter, which `corral frontend` gives it"
_CONFIG: Final = AdapterConfig()


class LaunchedAdapter:
    """The adapter that the launcher of this frontend starts as soon as somebody connects to its socket."""

    def __init__(self, path: Path, *, ready_within: timedelta, on_file: PassFile) -> None:
        self._path = path
        self._on_file = on_file
        self._ready_within = ready_within

    async def open(self, stack: AsyncExitStack) -> LiveAdapter:
        link = await stack.enter_async_context(AdapterLink.dial(self._path, self._on_file))
        place = await within(link.listening(), self._ready_within, "did not listen")

        async def end() -> None:
            await link.ended()
            raise ChildFailed("the adapter of this frontend ended", child=ADAPTER)

        async def dismiss() -> None:
            """Nothing to do: the adapter ends with its link, since it has no replica any more."""

        return LiveAdapter(link=link, place=place, end=end, dismiss=dismiss)

    def rest(self) -> None:
        """Nothing is held while nobody needs it."""


class AdaptedUrl(NamedTuple):
    """How the gateways of this frontend reach a replica."""

    url: str
    key: str


class AdaptedReplicas:
    """Has the adapter serve what needs it. Keys come from `secret`, so that they outlive this process.

    Requests under way through an adapter that outlives control must find their keys again.
    """

    def __init__(  # noqa: PLR0913 - each is a collaborator
        self,
        path: Path | None,
        models: Models,
        tokens: NodeTokens,
        usual: UsualLimits,
        feed: Feed,
        clock: Clock,
        *,
        secret: bytes,
        files: RequestFiles,
    ) -> None:
        self._files = files
        self._nodes: dict[str, NodeId] = {}
        """On which node the replica of a key is."""
        self._models = models
        self._tokens = tokens
        self._usual = usual
        self._secret = secret
        self._adapters: Adapters | None = None
        if path is not None:
            source = LaunchedAdapter(path, ready_within=_CONFIG.ready_within, on_file=self._pass)
            self._adapters = Adapters(source, clock, _CONFIG, on_change=feed.ring)
        self._ordered: dict[ReplicaId, AdapterReplica] = {}

    async def run(self) -> None:
        """Keep an adapter whenever one is needed, until cancelled."""
        for_ever = asyncio.get_running_loop().create_future()
        if self._adapters is None:
            await for_ever
            return
        async with self._adapters:
            await for_ever

    @property
    def problem(self) -> str:
        """Why replicas that need the adapter cannot be asked; empty when they can, or soon will."""
        return NO_ADAPTER if self._adapters is None else self._adapters.problem

    async def urls_of(self, living: Iterable[Replica], nodes: Mapping[NodeId, Node]) -> Mapping[ReplicaId, AdaptedUrl]:
        """Have those served that need it, and no others; return the URLs of those that are served by now."""
        if self._adapters is None:
            return {}
        needy = [replica for replica in living if replica.needs_adapter]
        orders = {replica.id: await self._told_of(replica, nodes.get(replica.node_id)) for replica in needy}
        self._ordered = {id: adapted for id, adapted in orders.items() if adapted is not None}
        self._nodes = {self._ordered[each.id].key: each.node_id for each in needy if each.id in self._ordered}
        self._adapters.retain([adapted.key for adapted in self._ordered.values()])
        urls = {}
        for id, adapted in self._ordered.items():
            self._adapters.want(adapted)
            if (place := self._adapters.place_of(adapted.key)) is not None:
                host = f"[{place.host}]" if ":" in place.host else place.host
                urls[id] = AdaptedUrl(f"http://{host}:{place.port}", adapted.key)
        return urls

    async def _pass(self, wish: FileWish) -> FilePassed:
        return await self._files.passed(self._nodes.get(wish.key), wish)

    async def _told_of(self, replica: Replica, node: Node | None) -> AdapterReplica | None:
        """The order for the adapter. It changes only when the node moved: the process behind the address stays the
        same.

        None for a replica that another control loaded with an earlier configuration: it is about to be ended.
        """
        if (before := self._ordered.get(replica.id)) is not None and before.address == replica.address:
            return before
        spec = self._models.catalogue.models.get(replica.model)
        if node is None or spec is None or spec.revision != replica.revision:
            return None
        limited = with_answer_limit(spec, self._usual.most_tokens)
        bearer = await self._tokens.of(node.id)
        return AdapterReplica(
            key=hmac.digest(self._secret, f"adapter/{replica.id}".encode(), hashlib.sha256).hex(),
            address=replica.address,
            token=replica.token or bearer,
            files_token=bearer if node.http_address else "",
            files_url=f"http://{with_host(node.http_address)}" if node.http_address else "",
            files_by_parent=not node.http_address,
            model=adapter_model(limited, file=self._file_of(spec, replica), threads=self._usual.threads),
        )

    def _file_of(self, spec: ModelSpec, replica: Replica) -> str:
        """Where the node has the weights; where that is not known, where they are here."""
        if replica.models_path and (path := weights_path(spec)):
            return str(PurePath(replica.models_path) / path)
        return self._models.file_of(spec)
