"""The view that this gateway got from control (models, replicas and keys at one version), and the choice of a
replica."""

import itertools
import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Final, Protocol, TypeVar

from msgspec.structs import replace

from corral.base.errors import InvalidInput
from corral.base.own_network import plain_host
from corral.base.words import near_names
from corral.gateway.answers import GatewayRefusal
from corral.gateway.head import own_lines
from corral.gateway.upstream import Origin
from corral.wire.models import ASSUMED_ROUTES
from corral.wire.view import (
    AffinityEntry,
    ControlState,
    EngineEntry,
    KeyEntry,
    ModelEntry,
    ReplicaEntry,
    View,
    ViewMessage,
    apply,
    keys_digest,
    models_digest,
)

log = logging.getLogger(__name__)

LOADED: Final = "loaded"
_DEMOTION: Final = 1000
"""Added to the rank of a replica that just failed, so that it is picked last until it answers again."""
_SHOWN_NAME: Final = 100
_SHOWN_MODELS: Final = 10
_COMPARED: Final = 40
"""Names that a misspelled one is compared with: each comparison blocks the loop for some 50 µs."""
_REMEMBERED: Final = 256
"""Misspelled names whose suggestions are cached: programs repeat their mistakes."""
_UNKNOWN_CONTROL: Final = ControlState()
_LATEST: Final = ":latest"
_ASSUMED: Final = frozenset(map(str.encode, ASSUMED_ROUTES))


class RoutableReplica(Protocol):
    """A replica as routing sees it."""

    id: str
    rank: int
    """Lower is better; any rank is better than none."""
    limit: int
    """How many requests at once; 0 is without limit."""
    weight: int
    """How many requests it gets for one that a replica of weight 1 gets."""
    in_flight: int


C = TypeVar("C", bound=RoutableReplica)


def pick(candidates: Iterable[C], *, turn: int, exclude: Container[str] = ()) -> C | None:
    """Return the replica to ask, or None when all are full or excluded: then the request waits.

    A replica of a worse rank is chosen only when all better ones are full. `turn` is any number that grows from
    request to request: equally loaded replicas are taken in turn, each as often as its weight says.
    """
    best: list[C] = []
    best_key: tuple[int, int] | None = None
    is_weighted = False
    for candidate in candidates:
        in_flight = candidate.in_flight
        if candidate.id in exclude or (candidate.limit and in_flight >= candidate.limit):
            continue
        if candidate.weight != 1:
            is_weighted = True
            in_flight //= candidate.weight
        key = (candidate.rank, in_flight)
        if best_key is None or key < best_key:
            best, best_key = [candidate], key
        elif key == best_key:
            best.append(candidate)
    if is_weighted and best:
        return _in_turn(best, turn)
    return best[turn % len(best)] if best else None


def _in_turn(replicas: Sequence[C], turn: int) -> C:
    turn %= sum(replica.weight for replica in replicas)
    for replica in replicas:
        turn -= replica.weight
        if turn < 0:
            return replica
    return replicas[-1]


class UpstreamReplica:
    """A replica with the exact number of this gateway's requests in flight. The object survives updates of the view."""

    __slots__ = (
        "_own_rank",
        "engine",
        "front",
        "id",
        "in_flight",
        "is_demoted",
        "limit",
        "lines",
        "model",
        "node",
        "node_id",
        "origin",
        "rank",
        "routes",
        "wakes_fleet",
        "weight",
    )

    def __init__(self, entry: ReplicaEntry) -> None:
        self.id = entry.id
        self.in_flight = 0
        self._own_rank = entry.rank
        self.learn(entry)

    def learn(self, entry: ReplicaEntry) -> None:
        """Take over the entry's values. Raise InvalidInput when its URL is unusable."""
        self.origin = Origin.of(entry.url)
        if entry.door:
            Origin.of(f"https://{entry.door}")
            self.origin = replace(self.origin, door=entry.door, node=entry.node_id)
        self.engine = entry.engine
        self.weight = 1
        self.wakes_fleet = False
        self.front = replace(self.origin, port=entry.front_port) if entry.front_port else None
        host = self.origin.host_header if entry.engine is None else self.origin.public_host
        self.lines = own_lines(host, f"Bearer {entry.key}".encode() if entry.key else None)
        """Header lines that it gets with every request."""
        self.model = entry.model
        self.node = entry.node_name or entry.node_id
        self.node_id = entry.node_id
        self.limit = entry.limit
        self.rank = self._own_rank = entry.rank
        self.is_demoted = False
        self.routes = _ASSUMED if entry.routes is None else frozenset(map(str.encode, entry.routes))
        if entry.engine is not None:
            self._learn_engine(entry.engine)

    def _learn_engine(self, engine: EngineEntry) -> None:
        self.origin = replace(self.origin, engine_ca=engine.ca)
        self.weight = max(engine.weight, 1)
        self.wakes_fleet = engine.is_fallback and engine.has_fleet
        """Whether the fleet should load the model while this answers for it."""

    def demote(self) -> None:
        self.rank = self._own_rank + _DEMOTION
        self.is_demoted = True

    def restore(self) -> None:
        self.rank = self._own_rank
        self.is_demoted = False


class Directory:
    """The current view. Empty until the first contact with control; kept while control is away."""

    def __init__(self, *, now: float = 0.0) -> None:
        self._view: View | None = None
        self.revision = 0
        """Grows with every change of the view; 0 before the first one."""
        self.keys_digest = ""
        self.models_digest = ""
        self._heard_at = now
        self.away_since: float | None = now
        """Since when the connection to control is broken; None while it works."""
        self._replicas: dict[str, UpstreamReplica] = {}
        self._serving: dict[str, list[UpstreamReplica]] = {}
        self.affinities: dict[str, AffinityEntry] = {}
        """The affinity settings of models with several replicas, one of which may have the beginning of a prompt in its
        cache."""
        self._turn = itertools.count()
        self._near_names = NearNames(())
        self._near_of: View | None = None
        """The view that `_near_names` was built from."""
        self.on_change: list[Callable[[], None]] = []
        """Called when the view has changed."""
        self.on_keys: list[Callable[[], None]] = []
        """Called when the keys have changed."""
        self.on_names: list[Callable[[], None]] = []
        """Called when other models may be asked for than before."""

    @property
    def version(self) -> int | None:
        return None if self._view is None else self._view.version

    def age(self, now: float) -> float:
        """Seconds since the last message from control."""
        return now - self._heard_at

    def hear(self, message: ViewMessage, *, now: float) -> None:
        """Apply a message of the view stream. Raise VersionGap when a full view is needed first."""
        view = apply(self._view, message)
        self._heard_at = now
        self.away_since = None
        if view is self._view:
            return
        has_other_keys = self._view is None or view.keys != self._view.keys
        has_other_models = self._view is None or view.models != self._view.models
        self._view = view
        self.revision += 1
        self._arrange(view)
        if has_other_keys:
            self.keys_digest = keys_digest(view.keys)
            for listener in self.on_keys:
                listener()
        if has_other_models and (digest := models_digest(view.models)) != self.models_digest:
            self.models_digest = digest
            for listener in self.on_names:
                listener()
        for listener in self.on_change:
            listener()

    def lost(self, *, now: float) -> None:
        """The connection to control broke. The view stays."""
        if self.away_since is None:
            self.away_since = now

    def _arrange(self, view: View) -> None:
        serving: dict[str, list[UpstreamReplica]] = {}
        current: dict[str, UpstreamReplica] = {}
        for entry in view.replicas.values():
            replica = self._replicas.get(entry.id)
            try:
                if replica is None:
                    replica = UpstreamReplica(entry)
                else:
                    replica.learn(entry)
            except InvalidInput as error:
                log.warning("a replica cannot be used: %s", error, extra={"event": "gateway.bad_replica"})
                continue
            current[entry.id] = replica
            if entry.state == LOADED or entry.engine is not None:
                serving.setdefault(entry.model, []).append(replica)
        leaving = {id: replica for id, replica in self._replicas.items() if replica.in_flight and id not in current}
        self._replicas = {**current, **leaving}
        self._serving = serving
        several = [
            view.models[model]
            for model, model_replicas in serving.items()
            if len(model_replicas) > 1 and model in view.models
        ]
        self.affinities = {model.name: model.affinity for model in several if model.affinity is not None}

    # Lookups for requests.

    def find_model(self, name: str) -> ModelEntry:
        """Return the model with this name or alias. Raise `GatewayRefusal` when it does not exist."""
        view = self._view
        if view is None:
            raise GatewayRefusal.busy(503, "the gateway has not heard from control yet", code="no_view")
        entry = view.models.get(name)
        if entry is not None and entry.alias_of:
            entry = view.models.get(entry.alias_of)
        if entry is None:
            if self._near_of is not view:
                self._near_of = view
                if self._near_names.names != view.models.keys():  # the index is rebuilt only for other names
                    self._near_names = NearNames(view.models)
            near = self._near_names.find(name)
            short = name if len(name) <= _SHOWN_NAME else name[:_SHOWN_NAME] + "…"
            hint = f"did you mean {' or '.join(near)}?" if near else "/v1/models lists those that do"
            text = f"the model {short!r} does not exist; {hint}"
            raise GatewayRefusal(404, text, code="model_not_found", param="model")
        return entry

    def plain_name(self, name: str) -> str:
        """Return the name without the tag `:latest`, which Ollama's clients add to names that have no tag."""
        is_known = self._view is not None and name in self._view.models
        return name if is_known else name.removesuffix(_LATEST)

    def find_allowed(self, name: str, only: frozenset[str]) -> ModelEntry:
        """Return the model for a key that is limited to these names. Raise `GatewayRefusal`, which tells nothing about
        other models."""
        models = {} if self._view is None else self._view.models
        entry = models.get(name)
        if entry is not None and entry.alias_of:
            entry = models.get(entry.alias_of)
        if name not in only and (entry is None or entry.name not in only):
            listed = ", ".join(sorted(only)[:_SHOWN_MODELS]) + (" …" if len(only) > _SHOWN_MODELS else "")
            text = f"this API key may not ask the model {name[:_SHOWN_NAME]!r}; it is limited to {listed}"
            raise GatewayRefusal(403, text, code="model_not_allowed", param="model")
        if entry is None:
            text = f"the model {name[:_SHOWN_NAME]!r} does not exist; /v1/models lists those that do"
            raise GatewayRefusal(404, text, code="model_not_found", param="model")
        return entry

    @property
    def control(self) -> ControlState:
        """What control last reported about itself."""
        return _UNKNOWN_CONTROL if self._view is None else self._view.control

    def find_key(self, hash: str) -> KeyEntry | None:
        return None if self._view is None else self._view.keys.get(hash)

    def models(self, only: frozenset[str] | None = None) -> list[ModelEntry]:
        """Return all models by name, or those that a key which is limited to some names may ask."""
        entries = [] if self._view is None else sorted(self._view.models.values(), key=lambda entry: entry.name)
        return [entry for entry in entries if only is None or entry.name in only or entry.alias_of in only]

    def origin_of(self, id: str) -> Origin | None:
        """Where a replica is; None for one that is gone."""
        replica = self._replicas.get(id)
        return None if replica is None else replica.origin

    def serves(self, model: str, exclude: Container[str] = ()) -> bool:
        """Whether any replica could answer, now or when it has room."""
        return any(replica.id not in exclude for replica in self._serving.get(model, ()))

    def has_fleet_replica(self, model: str) -> bool:
        """Whether a replica of the fleet's own could answer, now or when it has room."""
        return any(replica.engine is None for replica in self._serving.get(model, ()))

    def is_fleet_address(self, host: str, port: int) -> bool:
        """Whether a replica of the fleet's own listens there."""
        places = ((origin.host, origin.port) for origin in self.origins() if origin.engine_ca is None)
        return any(place[1] == port and plain_host(place[0]) == plain_host(host) for place in places)

    def pick(self, model: str, exclude: Container[str] = ()) -> UpstreamReplica | None:
        candidates = self._serving.get(model)
        if candidates is None:
            return None
        if len(candidates) > 1:
            return pick(candidates, turn=next(self._turn), exclude=exclude)
        only = candidates[0]  # as `pick` would, which takes longer
        is_full = only.limit and only.in_flight >= only.limit
        return None if is_full or only.id in exclude else only

    def pick_known(self, model: str, replica_id: str, exclude: Container[str]) -> UpstreamReplica | None:
        """The replica of this id, unless it is excluded, full, worse than others, or much busier."""
        candidates = [
            replica
            for replica in self._serving.get(model, ())
            if replica.id not in exclude and not (replica.limit and replica.in_flight >= replica.limit)
        ]
        chosen = next((replica for replica in candidates if replica.id == replica_id), None)
        if chosen is None or chosen.rank > min(replica.rank for replica in candidates):
            return None
        # As in `pick`: a replica of twice the weight may have twice as many.
        least = min(replica.in_flight // replica.weight for replica in candidates)
        busy, affinity = chosen.in_flight // chosen.weight, self.affinities[model]
        is_busier = busy > least + affinity.most_ahead
        return None if is_busier or busy > least * affinity.most_times + 1 else chosen

    def origins(self) -> set[Origin]:
        """Return the addresses of all replicas, including the ports in front of engines."""
        replicas = self._replicas.values()
        return {origin for each in replicas for origin in (each.origin, each.front) if origin is not None}

    def has_doors(self) -> bool:
        """Whether some replica is behind a worker's TLS door."""
        return any(replica.origin.door for replica in self._replicas.values())

    def in_flight(self) -> dict[str, int]:
        return {replica.id: replica.in_flight for replica in self._replicas.values() if replica.in_flight}

    def in_flight_by_model(self) -> Counter[str]:
        """Requests in flight for every model that has a replica, including 0."""
        total: Counter[str] = Counter()
        for replica in self._replicas.values():
            total[replica.model] += replica.in_flight
        return total


class NearNames:
    """Suggests existing model names for a misspelled one.

    The cost hardly depends on the number of models: only names that begin or end similarly are compared.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = frozenset(names)
        self._forward: list[str] = []
        self._backward: list[str] = []
        """Names reversed and sorted, to find those with a similar end."""
        self._spelled: dict[str, str] = {}
        """Names as they are written; the others here have no capitals."""
        self._cached: dict[str, list[str]] = {}
        if len(self.names) > _COMPARED:
            self._spelled = {name.casefold(): name for name in self.names}
            self._forward = sorted(self._spelled)
            self._backward = sorted(name[::-1] for name in self._spelled)

    def find(self, name: str) -> list[str]:
        name = name[:_SHOWN_NAME]
        near = self._cached.get(name)
        if near is None:
            candidates: Iterable[str] = self.names
            if len(self.names) > _COMPARED:
                asked = name.casefold()
                backward = (each[::-1] for each in _around(self._backward, asked[::-1]))
                candidates = {self._spelled[each] for each in (*_around(self._forward, asked), *backward)}
            near = near_names(name, sorted(candidates))
            if len(self._cached) >= _REMEMBERED:
                del self._cached[next(iter(self._cached))]
            self._cached[name] = near
        return near


def _around(ordered: Sequence[str], name: str) -> Sequence[str]:
    at = bisect_left(ordered, name)
    return ordered[max(at - _COMPARED // 4, 0) : at + _COMPARED // 4]
