"""The gateways' view: models, replicas and keys at one version, with the change from one version to the next.

Made again whenever something is announced, or changes in this process. A lost message costs a second: see `feed.py`. A
database that is away changes nothing: the last view stays what it is.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Hashable, Mapping, Sequence
from datetime import timedelta
from typing import Final

import msgspec

from corral.base.clock import Clock
from corral.base.errors import DatabaseUnavailable
from corral.base.tasks import Listeners
from corral.frontend.access.proofs import Proofs
from corral.frontend.engines.entries import entries_of
from corral.frontend.engines.room import EnginesRoom
from corral.frontend.models.catalogue import Models
from corral.frontend.models.decide.model import ModelSpec
from corral.frontend.models.decide.uses import uses_of
from corral.frontend.nodes.decide.node import Node, NodeStatus
from corral.frontend.nodes.fleet import Fleet
from corral.frontend.nodes.liveness import Brake
from corral.frontend.nodes.store.nodes import Nodes
from corral.frontend.serving.decide.replica import Replica, ReplicaState
from corral.frontend.serving.decide.scheduling import PREFIX_CACHE, SchedulingWish
from corral.frontend.serving.gateways.adapted import AdaptedReplicas, AdaptedUrl
from corral.frontend.serving.store.replicas import ReplicaStore
from corral.frontend.serving.store.scheduling import SchedulingStore
from corral.wire.models import ADAPTED_ROUTES
from corral.wire.registration import Feature
from corral.wire.view import (
    AffinityEntry,
    Beat,
    ControlState,
    ModelEntry,
    ReplicaEntry,
    View,
    ViewMessage,
    change_between,
)

PERIOD: Final = timedelta(seconds=1)
BEAT: Final = timedelta(seconds=5)
"""A gateway takes a silent stream for dead after three of them."""
_MODELS_WITHIN_SECONDS: Final = 2.0
_LOOK: Final = timedelta(milliseconds=200)
_ADAPTED: Final = tuple(sorted(ADAPTED_ROUTES))
_RANKS: Final = {NodeStatus.HEALTHY: 0, NodeStatus.DRAINING: 10, NodeStatus.UNHEALTHY: 100}
"""Silence alone only makes a replica the last choice."""
_BRAKED_RANK: Final = 200
"""For a node that is silent for so long that it counts as gone, while the brake says that it may well be there."""


class ViewSources(msgspec.Struct, frozen=True, kw_only=True):
    """What a view is made of."""

    models: Models
    replicas: ReplicaStore
    adapted: AdaptedReplicas
    engines: EnginesRoom
    nodes: Nodes
    proofs: Proofs
    fleet: Fleet
    problems: Callable[[], Sequence[str]]
    """What control lacks at the moment, as far as it is known without asking."""
    brake: Brake
    gateways: Callable[[], int]
    """How many gateways there are, which share what engines elsewhere take at once."""
    metrics_public: bool = False
    rules: SchedulingStore
    affinity: AffinityEntry | None
    """How replicas are chosen by prompts where no rule says otherwise; None: they take turns."""


def affinity_of(wish: SchedulingWish | None, usual: AffinityEntry | None) -> AffinityEntry | None:
    """How replicas of a model are chosen by prompts. Numbers of a rule replace the usual ones where they are given."""
    if wish is None or not wish.route_policy:
        policy = usual
    else:
        policy = (usual or AffinityEntry()) if wish.route_policy == PREFIX_CACHE else None
    if wish is None or policy is None:
        return policy
    return msgspec.structs.replace(
        policy,
        min_match=wish.min_prefix_match or policy.min_match,
        most_ahead=wish.balance_abs_threshold or policy.most_ahead,
        most_times=wish.balance_rel_threshold or policy.most_times,
    )


class ViewKeeper:
    def __init__(self, sources: ViewSources, clock: Clock) -> None:
        self._sources = sources
        self._clock = clock
        self._current: View | None = None
        self._followers = Listeners()
        self._models: Mapping[str, ModelEntry] = {}
        """The fleet's own models, as the current view was made of them."""
        self._sent: dict[object, int] = {}
        """The version that each gateway which follows here was sent last; 0 before the first."""
        self._deliveries = Listeners()

    @property
    def current(self) -> View | None:
        """None until the first one could be made."""
        return self._current

    def mark(self) -> Hashable:
        """Changes with what no event tells: what this process lacks, whether its brake holds, and which engines
        answer."""
        sources = self._sources
        gateways = sources.gateways() if sources.engines.service.current else 0
        return (*sources.problems(), sources.brake.holds, sources.engines.watch.mark(), gateways)

    async def refresh(self) -> bool:
        """Make the view again, and notify its followers when it changed.

        What control lacks is sent in any case. Without the database everything else stays as it was. Returns False,
        because nothing is left under way.
        """
        version = 1 if self._current is None else self._current.version
        try:
            models, view = await self._make(version)
        except DatabaseUnavailable:
            if self._current is not None:
                self._replace(msgspec.structs.replace(self._current, control=self._control_state()))
            raise
        self._models = models
        self._replace(view)
        return False

    def _control_state(self) -> ControlState:
        return ControlState(problems=tuple(self._sources.problems()), metrics_public=self._sources.metrics_public)

    def _replace(self, view: View) -> None:
        if view == self._current:
            return
        self._current = view if self._current is None else msgspec.structs.replace(view, version=view.version + 1)
        self.ring()

    async def _make(self, version: int) -> tuple[Mapping[str, ModelEntry], View]:
        """The fleet's own models, and the view with them."""
        sources = self._sources
        living = await sources.replicas.living()
        nodes = await sources.nodes.load_many(replica.node_id for replica in living) if living else {}
        now = self._clock.now()
        keys = await sources.proofs.entries(now)
        rules = {rule.wish.model: rule.wish for rule in await sources.rules.all()}
        adapted = await sources.adapted.urls_of(living, nodes)
        entries = [
            self._replica_entry(replica, nodes.get(replica.node_id), adapted.get(replica.id)) for replica in living
        ]
        models = {
            spec.name: msgspec.structs.replace(
                self._model_entry(spec), affinity=affinity_of(rules.get(spec.name), sources.affinity)
            )
            for spec in sources.models.catalogue.models.values()
        }
        engine_entries = entries_of(
            await sources.engines.service.load(),
            sources.engines.watch.of,
            models,
            hidden={row.name for row in sources.models.rows.values() if row.is_disabled},
            gateways=sources.gateways(),
        )
        return models, View(
            version=version,
            models=dict(engine_entries.models),
            replicas={entry.id: entry for entry in (*entries, *engine_entries.replicas) if entry is not None},
            keys=keys,
            control=self._control_state(),
        )

    def ring(self) -> None:
        """Wake all gateways that wait for a newer view."""
        self._followers.ring()

    async def follow(self) -> AsyncGenerator[ViewMessage, None]:
        """The full view, then every change, and a beat when there is none. It never ends by itself."""
        follower = object()
        with self._followers.listener() as poke:
            last: View | None = None
            self._sent[follower] = 0
            try:
                while True:
                    current = self._current
                    if current is not None and last is not None:
                        yield Beat(version=current.version) if last is current else change_between(last, current)
                    elif current is not None:
                        yield current
                    last = current
                    self._sent[follower] = 0 if current is None else current.version
                    self._deliveries.ring()
                    await poke.wait(self._clock, BEAT)
            finally:
                del self._sent[follower]

    async def spread_model(self, name: str) -> None:
        """Wait until the gateways that follow here were sent a model as it is now. Call after `announce`.

        The wait is bounded: a gateway that takes nothing must not hold up whoever changes models.
        """
        with contextlib.suppress(TimeoutError), self._deliveries.listener() as poke:
            async with asyncio.timeout(_MODELS_WITHIN_SECONDS):
                while self._sent and not self._shows(name):
                    await poke.wait(self._clock, _LOOK)
                version = 0 if self._current is None else self._current.version
                while any(sent < version for sent in self._sent.values()):
                    await poke.wait(self._clock, _LOOK)

    def _shows(self, name: str) -> bool:
        """Whether the current view was made of the model as it is now, or made without it if it is gone."""
        spec = self._sources.models.catalogue.models.get(name)
        entry = self._models.get(name)
        if spec is None or entry is None:
            return spec is None and entry is None
        return msgspec.structs.replace(entry, affinity=None) == self._model_entry(spec)

    def _model_entry(self, spec: ModelSpec) -> ModelEntry:
        """What gateways are told of a model, but for how its replicas are chosen."""
        row = self._sources.models.rows.get(spec.name)
        created = 0 if row is None else int(row.changed_at.timestamp())
        uses = tuple(sorted(uses_of(spec.config)))
        return ModelEntry(name=spec.name, alias_of=spec.alias_of, created=created, uses=uses)

    def _replica_entry(self, replica: Replica, node: Node | None, adapted: AdaptedUrl | None) -> ReplicaEntry | None:
        """None for what no request can be sent to."""
        url, key = adapted or (replica.url, replica.key)
        if node is None or replica.state is not ReplicaState.LOADED or not url:
            return None
        status = self._sources.fleet.see(node).status
        spec = self._sources.models.catalogue.models.get(replica.model)
        rank = _RANKS.get(status)
        if status is NodeStatus.OFFLINE and self._sources.brake.holds and node.facts.deregistered_at is None:
            rank = _BRAKED_RANK
        if rank is None or spec is None:
            return None
        return ReplicaEntry(
            id=replica.id,
            model=replica.model,
            node_id=node.id,
            node_name=node.name,
            url=url,
            key=key,
            limit=spec.max_concurrent,
            state=replica.state.value,
            rank=rank,
            routes=replica.routes if adapted is None else _ADAPTED,
            front_port=replica.front_port,
            door=_door_of(node) if adapted is None else "",
        )


def _door_of(node: Node) -> str:
    """Where a node with TLS is dialled; empty for others."""
    has_tls = node.peer is not None and Feature.FLEET_TLS in node.peer.features
    return node.http_address if has_tls else ""
