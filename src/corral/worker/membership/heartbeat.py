"""Signs of life: one per interval, with what is measured then, over HTTP whether NATS is up or not."""

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Final, Protocol

from msgspec import UNSET

from corral.base.clock import Clock
from corral.base.errors import PeerRefused, PeerUnavailable
from corral.base.ids import Incarnation, NodeId
from corral.wire.registration import PENDING, CorralBeat, CorralStatus, Feature, HeartbeatRequest, HeartbeatResponse
from corral.worker.hardware.machine import Gauge, Measurement
from corral.worker.membership.registration import NO_ROUTE, AcceptedRegistration, Outage, card_reports

log = logging.getLogger(__name__)

FORGOTTEN_STATUSES: Final = frozenset({401, 404})
"""The frontend knows neither this id nor, with 401, this secret: an administrator removed the node, or a backup was
restored."""
_UNKNOWN: Final = 404
MOST_AHEAD: Final = 1.0
"""Seconds before a beat at which measuring begins, or a quarter of a short interval: a busy disk or driver must not
make the beat late."""


class BeatResult(StrEnum):
    """What became of a heartbeat."""

    HEARD = "heard"
    UNHEARD = "unheard"
    """No answer; the next heartbeat tries again."""
    FORGOTTEN = "forgotten"
    """The worker must register again."""


class HeartbeatApi(Protocol):
    async def heartbeat(self, member: AcceptedRegistration, body: HeartbeatRequest) -> HeartbeatResponse: ...

    async def in_flight(self, member: AcceptedRegistration) -> int: ...


def heartbeat_body(measured: Measurement, member: AcceptedRegistration, corral: CorralBeat) -> HeartbeatRequest:
    """The body in the form of LocalAI's worker. What is left out keeps its last value at the frontend.

    A frontend of ours also hears what only it understands, and which GPUs there are: a driver may start after the
    worker did.
    """
    gpus = measured.gpus
    return HeartbeatRequest(
        available_vram=gpus.available_vram if gpus.total_vram and gpus.available_vram is not None else UNSET,
        total_vram=gpus.total_vram if gpus.total_vram and member.is_corral else UNSET,
        gpu_vendor=gpus.vendor if gpus.vendor and member.is_corral else UNSET,
        available_ram=measured.ram.available if measured.ram else UNSET,
        total_disk=measured.disk.total if measured.disk else UNSET,
        available_disk=measured.disk.available if measured.disk else UNSET,
        corral=corral if member.is_corral else UNSET,
    )


def next_beat(due: float, now: float, interval: float) -> float:
    """When to beat after the beat that was due at `due`.

    Always a whole number of intervals later, so that the schedule does not drift; after a pause the latest missed
    beat is made up for at once, and only that one.
    """
    missed = int((now - due) / interval)
    return due + interval * max(missed, 1)


class HeartbeatLoop:
    """Sends heartbeats for one membership until the frontend no longer knows it."""

    def __init__(  # noqa: PLR0913 - each is a collaborator
        self,
        *,
        frontend: HeartbeatApi,
        gauge: Gauge,
        clock: Clock,
        interval: timedelta,
        incarnation: Incarnation,
        inventory: Callable[[], str],
        problems: Callable[[], Sequence[str]] = tuple,
        on_status: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`inventory` returns a fingerprint of the installed backends, and triggers a new look at the disk. `problems`
        are what the worker found wrong with itself. `on_status` gets the status that each answer tells."""
        self._frontend = frontend
        self._gauge = gauge
        self._clock = clock
        self._interval = interval.total_seconds()
        self._incarnation = incarnation
        self._inventory = inventory
        self._problems = problems
        self._on_status = on_status
        self._outage = Outage(log, clock, event="heartbeat", subject="heartbeat")
        self._last_status: tuple[NodeId | None, str] = (None, "")

    async def until_forgotten(self, member: AcceptedRegistration) -> None:
        """Beat once per interval; the registration counts as the first sign of life."""
        self._note_status(member, member.status)
        self._inventory()  # this frontend does not have it yet
        due = self._clock.monotonic()
        while True:
            due = next_beat(due, self._clock.monotonic(), self._interval)
            await self._sleep_until(due - min(self._interval / 4, MOST_AHEAD))
            measured = await self._gauge.measure()
            await self._sleep_until(due)
            if await self.beat(member, measured) is BeatResult.FORGOTTEN:
                return

    async def _sleep_until(self, moment: float) -> None:
        await self._clock.sleep(max(moment - self._clock.monotonic(), 0))

    async def beat(self, member: AcceptedRegistration, measured: Measurement) -> BeatResult:
        """Send one heartbeat with current measurements."""
        inventory = self._inventory() if Feature.INVENTORY in member.features else ""
        cards = card_reports(measured.cards) if Feature.CARDS in member.features else None
        problems = list(self._problems())
        corral = CorralBeat(incarnation=self._incarnation, inventory=inventory, cards=cards, problems=problems)
        body = heartbeat_body(measured, member, corral)
        try:
            answer = await self._frontend.heartbeat(member, body)
        except PeerUnavailable as error:
            self._outage.failed(error.message)
            return BeatResult.UNHEARD
        except PeerRefused as error:
            doubt = await self._doubt(member, error) if error.status in FORGOTTEN_STATUSES else ""
            self._outage.failed(doubt or error.message)
            is_forgotten = error.status in FORGOTTEN_STATUSES and not doubt
            return BeatResult.FORGOTTEN if is_forgotten else BeatResult.UNHEARD
        self._outage.worked()
        if isinstance(answer.corral, CorralStatus):
            if answer.corral.deregistered:
                log.info("the frontend counts this node as gone", extra={"event": "node.deregistered"})
                return BeatResult.FORGOTTEN
            self._note_status(member, answer.corral.status)
            self._on_status(answer.corral.status)
        return BeatResult.HEARD

    async def _doubt(self, member: AcceptedRegistration, refusal: PeerRefused) -> str:
        """Why the frontend cannot know who its nodes are; empty when it can.

        LocalAI's says 404 for a database that is down, too, as a proxy does whose frontend is down. Whoever registers
        again then loses what that frontend knows of loaded models. A question about the node's models is answered for
        nodes that it does not know, and fails then.
        """
        if member.is_corral or refusal.status != _UNKNOWN:
            return ""
        try:
            await self._frontend.in_flight(member)
        except PeerUnavailable as error:
            return f"{refusal.message}, but it may only be without its database: {error.message}"
        except PeerRefused as error:
            if error.status in NO_ROUTE:
                return f"{refusal.message}, but that may be a proxy without its frontend: {error.message}"
        return ""

    def _note_status(self, member: AcceptedRegistration, status: str) -> None:
        """Log once what changed in how the frontend sees this node; a new id is a new node."""
        if not status or self._last_status == (member.node_id, status):
            return
        before, self._last_status = self._last_status, (member.node_id, status)
        if status == PENDING:
            how = (
                f"run `corral nodes approve {member.node_id}`" if member.is_corral else "an administrator must give it"
            )
            log.warning("waiting for approval: %s", how, extra={"event": "node.pending"})
        elif before == (member.node_id, PENDING):
            log.info("approved; now %s", status, extra={"event": "node.approved"})
        elif before[0] == member.node_id:
            log.info("the frontend sees this node as %s", status, extra={"event": "node.status"})
