"""What gateways report, how load is shared among them, and whether they have the latest keys."""

import asyncio
import contextlib
import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import msgspec

from corral.base.clock import Clock
from corral.base.errors import CorralError
from corral.base.ids import FrontendId, NodeId
from corral.base.tasks import Listeners
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.bus.port import Bus, Message
from corral.frontend.nodes.decide.node import NodeLoad
from corral.frontend.serving.decide.replica import SERVING, ReplicaState
from corral.frontend.serving.replica_health import ReplicaHealth
from corral.frontend.serving.store.replicas import ReplicaPlace
from corral.frontend.serving.view import ViewKeeper
from corral.wire.metrics import GatewayCounts
from corral.wire.subjects import GATEWAY_SHARES
from corral.wire.view import MODEL_GONE, GatewayReport, GatewayShare, keys_digest

SILENT_AFTER: Final = timedelta(seconds=5)
"""What a gateway said longer ago counts as unknown."""
GONE_AFTER: Final = timedelta(minutes=1)
"""Who was silent for so long is taken for dead: nobody waits for its share any more."""
FORGOTTEN_AFTER: Final = timedelta(minutes=10)
_MOST_GATEWAYS: Final = 1000
"""Whoever has a key for gateways could invent them; the longest silent go first."""
_MOST_REPLICAS: Final = 20_000


@dataclass(slots=True, kw_only=True)
class _Gateway:
    heard_at: datetime
    sequence: int = 0
    in_flight: Mapping[str, int] = field(default_factory=dict)
    counts: GatewayCounts | None = None
    keys_digest: str = ""
    is_ours: bool = True
    """It reports here, and not to another frontend."""
    has_left: bool = False
    """It said that it ends. Known only so that a batch of its that comes again does not count again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenGateway:
    """A gateway as it is at one moment."""

    id: str
    age: timedelta
    """Since its last report."""
    is_silent: bool
    counts: GatewayCounts | None


class GatewayReports:
    def __init__(self, health: ReplicaHealth, clock: Clock) -> None:
        self._health = health
        self._clock = clock
        self._gateways: dict[str, _Gateway] = {}
        self._last_used: dict[str, datetime] = {}
        self.key_changes = Listeners()
        """Rung when a gateway knows other keys than before."""

    def take(self, report: GatewayReport) -> None:
        """A report that came before is acknowledged again, and its news are not told again."""
        now = self._clock.now()
        known = self._gateways.setdefault(report.gateway, _Gateway(heard_at=now))
        known.heard_at, known.in_flight, known.counts = now, report.in_flight, report.counts
        known.has_left, known.is_ours = report.is_last, True
        self._learn_keys(known, report.keys_digest)
        self._last_used.update(dict.fromkeys(report.in_flight, now))
        if report.sequence > known.sequence:
            known.sequence = report.sequence
            self._last_used.update((finished.replica, now) for finished in report.finished)
            self._health.suspect(failure.replica for failure in report.failures)
            self._health.empty(failure.replica for failure in report.failures if failure.reason == MODEL_GONE)
        self._forget_silent(now)

    def hear_of(self, share: GatewayShare) -> None:
        """Another frontend tells of a gateway of its own."""
        now = self._clock.now()
        known = self._gateways.setdefault(share.gateway, _Gateway(heard_at=now))
        known.heard_at, known.in_flight = now, share.in_flight
        known.has_left, known.is_ours = share.is_last, False
        self._learn_keys(known, share.keys_digest)
        self._last_used.update(dict.fromkeys(share.in_flight, now))
        self._forget_silent(now)

    def in_flight(self) -> Counter[str]:
        """Requests under way by replica, as far as gateways were heard lately."""
        now = self._clock.now()
        total: Counter[str] = Counter()
        for gateway in self._gateways.values():
            if now - gateway.heard_at <= SILENT_AFTER:
                total.update(gateway.in_flight)
        return total

    def silent(self) -> int:
        """How many gateways' share is unknown."""
        now = self._clock.now()
        return sum(SILENT_AFTER < now - one.heard_at <= GONE_AFTER for one in self._present())

    def silent_ids(self) -> list[str]:
        """Those whose last word is some seconds old, and who may still be there."""
        now = self._clock.now()
        return [
            id
            for id, gateway in self._gateways.items()
            if not gateway.has_left and SILENT_AFTER < now - gateway.heard_at <= GONE_AFTER
        ]

    def node_loads(self, places: Iterable[ReplicaPlace]) -> Mapping[NodeId, NodeLoad]:
        """How much each node has to do, given where the living replicas are."""
        all_heard = self.silent() == 0
        reported = self.in_flight()
        loads: defaultdict[NodeId, NodeLoad] = defaultdict(NodeLoad)
        for place in places:
            load = loads[place.node_id]
            loads[place.node_id] = NodeLoad(
                loaded=load.loaded + (place.state is ReplicaState.LOADED),
                in_flight=load.in_flight + reported[place.id],
                is_known=load.is_known and (all_heard or place.state not in SERVING),
            )
        return loads

    def connected(self, *, other_than: str | None = None) -> list[str]:
        """Gateways of any frontend that were heard lately; with a digest only those that know other keys."""
        now = self._clock.now()
        return [
            id
            for id, gateway in self._gateways.items()
            if not gateway.has_left and now - gateway.heard_at <= SILENT_AFTER and gateway.keys_digest != other_than
        ]

    def _learn_keys(self, gateway: _Gateway, digest: str) -> None:
        if gateway.keys_digest != digest:
            gateway.keys_digest = digest
            self.key_changes.ring()

    def last_used(self, replica: str) -> datetime | None:
        """When a request was last under way there, as far as this process heard."""
        return self._last_used.get(replica)

    def seen(self) -> list[SeenGateway]:
        """All that report here and did not leave in good order, the silent ones too."""
        now = self._clock.now()
        return [
            SeenGateway(
                id=id,
                age=now - gateway.heard_at,
                is_silent=now - gateway.heard_at > SILENT_AFTER,
                counts=gateway.counts,
            )
            for id, gateway in sorted(self._gateways.items())
            if gateway.is_ours and not gateway.has_left
        ]

    def _present(self) -> list[_Gateway]:
        return [gateway for gateway in self._gateways.values() if not gateway.has_left]

    def _forget_silent(self, now: datetime) -> None:
        gone = [name for name, gateway in self._gateways.items() if now - gateway.heard_at > FORGOTTEN_AFTER]
        by_age = sorted(self._gateways, key=lambda name: self._gateways[name].heard_at)
        for name in {*gone, *by_age[: max(len(by_age) - _MOST_GATEWAYS, 0)]}:
            del self._gateways[name]
        if len(self._last_used) > _MOST_REPLICAS:
            newest = sorted(self._last_used.items(), key=lambda used: used[1])[-_MOST_REPLICAS // 2 :]
            self._last_used = dict(newest)


log = logging.getLogger(__name__)

_REPEATED_AFTER: Final = timedelta(seconds=1.5)
"""Less than two reports, which come every second."""
_FORGOTTEN_SECONDS: Final = 60.0


class GatewayShares:
    def __init__(self, bus: Bus, reports: GatewayReports, frontend_id: FrontendId, clock: Clock) -> None:
        self._bus = bus
        self._reports = reports
        self._frontend_id = frontend_id
        self._clock = clock
        self._told: dict[str, tuple[GatewayShare, float]] = {}

    async def tell(self, report: GatewayReport) -> None:
        share = GatewayShare(
            frontend=self._frontend_id,
            gateway=report.gateway,
            keys_digest=report.keys_digest,
            in_flight=report.in_flight,
            is_last=report.is_last,
        )
        now = self._clock.monotonic()
        known, at = self._told.get(report.gateway, (None, 0.0))
        if share == known and now - at < _REPEATED_AFTER.total_seconds():
            return
        self._told = {gateway: told for gateway, told in self._told.items() if now - told[1] < _FORGOTTEN_SECONDS}
        self._told[report.gateway] = share, now
        try:
            await self._bus.publish(GATEWAY_SHARES, msgspec.json.encode(share))
        except CorralError as error:
            log.debug("other frontends were not told", extra={"event": "gateway.share_unheard", "reason": str(error)})

    async def on_message(self, message: Message) -> None:
        try:
            share = msgspec.json.decode(message.data, type=GatewayShare)
        except UNREADABLE_JSON as error:
            log.warning("a share was not understood: %s", error, extra={"event": "gateway.share_invalid"})
            return
        if share.frontend != self._frontend_id:
            self._reports.hear_of(share)


_BOUND_SECONDS: Final = 2.0
_LOOK: Final = timedelta(milliseconds=200)


class KeySpread:
    """Gateways report at once when their keys change, and with a digest of them: also those of other frontends."""

    def __init__(self, view: ViewKeeper, reports: GatewayReports, clock: Clock) -> None:
        self._view = view
        self._reports = reports
        self._clock = clock

    async def reach(self, hash: str, *, is_valid: bool) -> tuple[str, ...]:
        """The gateways that did not confirm in time that a key is valid, or is not any more. Call after `announce`."""
        if self._reports.connected():
            with contextlib.suppress(TimeoutError), self._reports.key_changes.listener() as poke:
                async with asyncio.timeout(_BOUND_SECONDS):
                    while self._unaware(hash, is_valid=is_valid):
                        await poke.wait(self._clock, _LOOK)
        return tuple(sorted({*self._unaware(hash, is_valid=is_valid), *self._reports.silent_ids()}))

    def _unaware(self, hash: str, *, is_valid: bool) -> list[str]:
        current = self._view.current
        if current is None or (hash in current.keys) != is_valid:
            return self._reports.connected()
        return self._reports.connected(other_than=keys_digest(current.keys))
