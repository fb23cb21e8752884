"""What gateways report: load, speeds of answers and lost replicas; how frontends share it; who has the latest keys."""

import asyncio
import contextlib
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Protocol

import msgspec

from corral.base.clock import Clock
from corral.base.errors import CorralError
from corral.base.ids import FrontendId, NodeId
from corral.base.tasks import Listeners
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.bus.port import Bus, Message
from corral.frontend.nodes.decide.node import NodeLoad
from corral.frontend.serving.decide.replica import SERVING, ReplicaState
from corral.frontend.serving.gateways.view import ViewKeeper
from corral.frontend.serving.replica_health import ReplicaHealth
from corral.frontend.serving.store.replicas import ReplicaPlace
from corral.wire.metrics import GatewayCounts
from corral.wire.subjects import GATEWAY_SHARES
from corral.wire.view import MODEL_GONE, GatewayReport, GatewayShare, ReplicaFailure, keys_digest, models_digest

log = logging.getLogger(__name__)

SILENT_AFTER: Final = timedelta(seconds=5)
"""A report that is older counts as unknown."""
GONE_AFTER: Final = timedelta(minutes=1)
"""A gateway that is silent for longer is taken for dead: nobody waits for its share any more."""
FORGOTTEN_AFTER: Final = timedelta(minutes=10)
_MOST_GATEWAYS: Final = 1000
"""Anyone with a key for gateways could invent them; the longest silent go first."""
_MOST_REPLICAS: Final = 20_000
_REPEATED_AFTER: Final = timedelta(seconds=1.5)
"""An unchanged share is sent again after less than two reports, which come every second."""
_FORGOTTEN_SECONDS: Final = 60.0
_KEYS_WITHIN_SECONDS: Final = 2.0
_MODELS_WITHIN_SECONDS: Final = 2.0
_LOOK: Final = timedelta(milliseconds=200)
_ANSWERED: Final = "ok"
"""The value of `Finished.outcome` for a request that succeeded."""


@dataclass(slots=True, kw_only=True)
class _Gateway:
    heard_at: datetime
    sequence: int = 0
    in_flight: Mapping[str, int] = field(default_factory=dict)
    waiting: Mapping[str, int] = field(default_factory=dict)
    counts: GatewayCounts | None = None
    keys_digest: str = ""
    models_digest: str = ""
    address: str = ""
    trusted_proxies: tuple[str, ...] | None = None
    is_ours: bool = True
    """Whether the gateway reports to this frontend."""
    has_left: bool = False
    """Whether the gateway announced its end. It is kept so that a repeated report does not count twice."""


class SeenGateway(msgspec.Struct, frozen=True, kw_only=True):
    """A gateway as it is at one moment."""

    id: str
    age: timedelta
    """Time since the gateway's last report."""
    is_silent: bool
    counts: GatewayCounts | None
    address: str
    """Where it calls from through another gateway; empty for one of this frontend's own."""
    trusted_proxies: tuple[str, ...] | None
    """Networks whose `X-Forwarded-For` it believes; None when it does not tell."""


class SuspectsEngines(Protocol):
    """What has to be asked to look at an external engine again."""

    def suspect(self, failures: Iterable[ReplicaFailure]) -> None:
        """Gateways got no answer from these; some may be engines."""


class GatewayReports:
    """What gateways have under way, as their last reports tell, here or to other frontends."""

    def __init__(self, health: ReplicaHealth, clock: Clock, *, engines: SuspectsEngines) -> None:
        self._health = health
        self._engines = engines
        self._clock = clock
        self._gateways: dict[str, _Gateway] = {}
        self._last_used: dict[str, datetime] = {}
        self.speeds = AnswerSpeeds(clock)
        self.counting_since = clock.now()
        """What was used before is not known here."""
        self.on_news: list[Callable[[GatewayReport], None]] = []
        """Called with each report to this frontend that was not taken before."""
        self.key_changes = Listeners()
        """Rung when a gateway knows other keys than before."""
        self.model_changes = Listeners()
        """Rung when a gateway knows other models than before."""

    def take(self, report: GatewayReport, *, address: str = "") -> None:
        """Take a report to this frontend. One that came before is taken again, but its news count once."""
        gateway = self._noted(report)
        gateway.counts, gateway.is_ours, gateway.address = report.counts, True, address
        gateway.trusted_proxies = None if report.trusted_proxies is None else tuple(report.trusted_proxies)
        if report.sequence > gateway.sequence:
            gateway.sequence, now = report.sequence, self._clock.now()
            self._last_used.update((finished.replica, now) for finished in report.finished)
            for replica, (tokens, seconds) in answered_in(report).items():
                self.speeds.add(replica, tokens, seconds)
            self._health.suspect(failure.replica for failure in report.failures)
            self._engines.suspect(report.failures)
            self._health.empty(failure.replica for failure in report.failures if failure.reason == MODEL_GONE)
            for tell in self.on_news:
                tell(report)

    def hear_of(self, share: GatewayShare) -> None:
        """Take what another frontend tells of a gateway that reports to it."""
        self._noted(share).is_ours = False
        for replica, (tokens, seconds) in share.answered.items():
            self.speeds.add(replica, tokens, seconds)
        self._last_used.update(dict.fromkeys(share.used, self._clock.now()))

    def _noted(self, news: GatewayReport | GatewayShare) -> _Gateway:
        now = self._clock.now()
        gateway = self._gateways.setdefault(news.gateway, _Gateway(heard_at=now))
        gateway.heard_at, gateway.in_flight, gateway.has_left = now, news.in_flight, news.is_last
        gateway.waiting = news.waiting
        self._last_used.update(dict.fromkeys(news.in_flight, now))
        if gateway.keys_digest != news.keys_digest:
            gateway.keys_digest = news.keys_digest
            self.key_changes.ring()
        if gateway.models_digest != news.models_digest:
            gateway.models_digest = news.models_digest
            self.model_changes.ring()
        self._forget_silent(now)
        return gateway

    def in_flight(self) -> Counter[str]:
        """Requests under way by replica, as far as gateways were heard lately."""
        now = self._clock.now()
        total: Counter[str] = Counter()
        for gateway in self._gateways.values():
            if now - gateway.heard_at <= SILENT_AFTER:
                total.update(gateway.in_flight)
        return total

    def waiting(self) -> Counter[str]:
        """Requests that wait for a replica, by model, as far as gateways were heard lately."""
        now = self._clock.now()
        total: Counter[str] = Counter()
        for gateway in self._gateways.values():
            if now - gateway.heard_at <= SILENT_AFTER:
                total.update(gateway.waiting)
        return +total

    def silent(self) -> int:
        """How many gateways' share is unknown."""
        return len(self.silent_ids())

    def silent_ids(self) -> list[str]:
        """Gateways whose last report is some seconds old, and that may still be there."""
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

    def elsewhere(self, *, other_than: str) -> list[str]:
        """Gateways of other frontends that were heard lately, and tell that they know other models than those with this
        digest."""
        now = self._clock.now()
        return [
            id
            for id, gateway in self._gateways.items()
            if not (gateway.is_ours or gateway.has_left)
            and now - gateway.heard_at <= SILENT_AFTER
            and gateway.models_digest not in ("", other_than)
        ]

    def last_used(self, replica: str) -> datetime | None:
        """When a request was last under way there, as far as this process heard."""
        return self._last_used.get(replica)

    @property
    def has_answered(self) -> bool:
        """Whether a request was ever under way at a replica, as far as this process heard."""
        counted = (gateway.counts for gateway in self._gateways.values() if gateway.counts is not None)
        return bool(self._last_used) or any(
            count.outcome == _ANSWERED and count.requests > 0
            for counts in counted
            for model in counts.models.values()
            for count in model.requests
        )

    def seen(self) -> list[SeenGateway]:
        """Gateways that report here and did not leave in good order, the silent ones too."""
        now = self._clock.now()
        return [
            SeenGateway(
                id=id,
                age=now - gateway.heard_at,
                is_silent=now - gateway.heard_at > SILENT_AFTER,
                counts=gateway.counts,
                address=gateway.address,
                trusted_proxies=gateway.trusted_proxies,
            )
            for id, gateway in sorted(self._gateways.items())
            if gateway.is_ours and not gateway.has_left
        ]

    def _forget_silent(self, now: datetime) -> None:
        silent = [name for name, gateway in self._gateways.items() if now - gateway.heard_at > FORGOTTEN_AFTER]
        by_age = sorted(self._gateways, key=lambda name: self._gateways[name].heard_at)
        for name in {*silent, *by_age[: max(len(by_age) - _MOST_GATEWAYS, 0)]}:
            del self._gateways[name]
        if len(self._last_used) > _MOST_REPLICAS:
            newest = sorted(self._last_used.items(), key=lambda used: used[1])[-_MOST_REPLICAS // 2 :]
            self._last_used = dict(newest)


def answered_in(report: GatewayReport) -> dict[str, tuple[int, float]]:
    """Tokens of the answers that a report tells the end of, and the seconds that they took, by replica."""
    answered: dict[str, tuple[int, float]] = {}
    for finished in report.finished:
        if finished.answer_seconds > 0:
            tokens, seconds = answered.get(finished.replica, (0, 0.0))
            answered[finished.replica] = tokens + finished.completion_tokens, seconds + finished.answer_seconds
    return answered


class GatewayShares:
    """Tells other frontends what the gateways here have under way, and listens to what they tell."""

    def __init__(self, bus: Bus, reports: GatewayReports, frontend_id: FrontendId, clock: Clock) -> None:
        self._bus = bus
        self._reports = reports
        self._frontend_id = frontend_id
        self._clock = clock
        self._last: dict[str, tuple[GatewayShare, float]] = {}
        """The last share that was sent for each gateway, and when."""

    async def tell(self, report: GatewayReport) -> None:
        share = GatewayShare(
            frontend=self._frontend_id,
            gateway=report.gateway,
            keys_digest=report.keys_digest,
            models_digest=report.models_digest,
            in_flight=report.in_flight,
            answered=answered_in(report),
            waiting=report.waiting,
            used=sorted({finished.replica for finished in report.finished}),
            is_last=report.is_last,
        )
        now = self._clock.monotonic()
        last, at = self._last.get(report.gateway, (None, 0.0))
        if share == last and now - at < _REPEATED_AFTER.total_seconds():
            return
        self._last = {gateway: last for gateway, last in self._last.items() if now - last[1] < _FORGOTTEN_SECONDS}
        self._last[report.gateway] = share, now
        try:
            await self._bus.publish(GATEWAY_SHARES, msgspec.json.encode(share))
        except CorralError as error:
            log.debug(
                "other frontends could not be notified", extra={"event": "gateway.share_unheard", "reason": str(error)}
            )

    async def on_message(self, message: Message) -> None:
        try:
            share = msgspec.json.decode(message.data, type=GatewayShare)
        except UNREADABLE_JSON as error:
            log.warning("a share was not understood: %s", error, extra={"event": "gateway.share_invalid"})
            return
        if share.frontend != self._frontend_id:
            self._reports.hear_of(share)


class KeySpread:
    """Waits until gateways know that a key is valid, or is not any more.

    They report at once when their keys change, with a digest of them: also those of other frontends.
    """

    def __init__(self, view: ViewKeeper, reports: GatewayReports, clock: Clock) -> None:
        self._view = view
        self._reports = reports
        self._clock = clock

    async def reach(self, hash: str, *, is_valid: bool) -> tuple[str, ...]:
        """The gateways that did not confirm in time that a key is valid, or is not any more. Call after `announce`."""
        if self._reports.connected():
            with contextlib.suppress(TimeoutError), self._reports.key_changes.listener() as poke:
                async with asyncio.timeout(_KEYS_WITHIN_SECONDS):
                    while self._unaware(hash, is_valid=is_valid):
                        await poke.wait(self._clock, _LOOK)
        return tuple(sorted({*self._unaware(hash, is_valid=is_valid), *self._reports.silent_ids()}))

    def _unaware(self, hash: str, *, is_valid: bool) -> list[str]:
        current = self._view.current
        if current is None or (hash in current.keys) != is_valid:
            return self._reports.connected()
        return self._reports.connected(other_than=keys_digest(current.keys))


class ModelSpread:
    """Waits until gateways know a changed model: those that follow here, and those of other frontends, which report at
    once when other models may be asked for."""

    def __init__(self, view: ViewKeeper, reports: GatewayReports, clock: Clock) -> None:
        self._view = view
        self._reports = reports
        self._clock = clock

    async def reach(self, name: str) -> None:
        """Call after `announce`. The wait is bounded: whoever does not know the model then is only named in the log."""
        with contextlib.suppress(TimeoutError), self._reports.model_changes.listener() as poke:
            async with asyncio.timeout(_MODELS_WITHIN_SECONDS):
                await self._view.spread_model(name)
                while self._unaware():
                    await poke.wait(self._clock, _LOOK)
        if unaware := self._unaware():
            log.info(
                "gateways of other frontends do not know a change of a model yet",
                extra={"event": "gateway.model_unconfirmed", "model": name, "gateways": unaware},
            )

    def _unaware(self) -> list[str]:
        current = self._view.current
        return [] if current is None else self._reports.elsewhere(other_than=models_digest(current.models))


_HALVED_AFTER: Final = 30.0
"""Seconds after which an answer counts half."""
_FORGOTTEN_AFTER: Final = 300.0
_MOST: Final = 20_000
"""Replicas; the longest silent go first."""


@dataclass(slots=True)
class _Answers:
    at: float
    tokens: float = 0.0
    seconds: float = 0.0


class AnswerSpeeds:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._answers: dict[str, _Answers] = {}
        """By replica, the one that answered last at the end."""

    def add(self, replica: str, tokens: int, seconds: float) -> None:
        """Answers of a replica ended, with so many tokens after so many seconds, together."""
        if tokens <= 0 or seconds <= 0:
            return
        now = self._clock.monotonic()
        answers = self._answers.pop(replica, None) or _Answers(now)
        share = 0.5 ** ((now - answers.at) / _HALVED_AFTER)
        self._answers[replica] = _Answers(now, answers.tokens * share + tokens, answers.seconds * share + seconds)
        if len(self._answers) > _MOST:
            del self._answers[next(iter(self._answers))]

    def of(self, replica: str) -> float | None:
        """Tokens per second of one answer; None when no recent answer stated its tokens."""
        answers = self._answers.get(replica)
        if answers is None or self._clock.monotonic() - answers.at > _FORGOTTEN_AFTER:
            return None
        return round(answers.tokens / answers.seconds, 1)
