"""Invitations of machines: made, listed, revoked, and found by their code. A code is shown once and never stored.

Wrong codes are counted for each source address, so that guessing is reported and slowed down; to guess one is hopeless
in any case. Machines behind one router are one source, so a code that is known passes whatever others there did.
"""

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from corral.base.clock import Clock
from corral.base.errors import Conflict, CorralError, InvalidInput, NotFound
from corral.base.ids import InvitationId, new_invitation_id
from corral.base.values import PartlyPrinted
from corral.frontend.nodes.decide.invitations import Invitation, InvitationRefused
from corral.frontend.nodes.store.invitations import InvitationStore
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.feed import Feed
from corral.wire.joining import hash_code, new_code, read_code

log = logging.getLogger(__name__)

MAX_OPEN: Final = 1000
"""Open invitations at a time: more than anybody hands out, and few enough to list."""
_KEPT: Final = timedelta(days=30)
_WRONG_CODES: Final = 10
_WINDOW: Final = timedelta(minutes=1)
_MAX_SOURCES: Final = 10_000


class TooManyCalls(CorralError):
    """This source address calls too often."""

    code = "too_many_calls"
    retryable = True


class SourceLimit:
    """Counts calls of each source address within a window. A frontend counts for itself.

    Of more sources than are kept apart, those that called least recently are forgotten.
    """

    def __init__(self, clock: Clock, *, most: int) -> None:
        self._clock = clock
        self._most = most
        self._calls: dict[str, tuple[datetime, int]] = {}
        """Since when each source was counted, and its calls; the one that called last is at the end."""

    def take(self, source: str, calls: str) -> int:
        """Count one call; returns how many there were in this window. TooManyCalls when that is too many of `calls`."""
        now = self._clock.now()
        began, before = self._calls.pop(source, (now, 0))
        if not began <= now < began + _WINDOW:
            began, before = now, 0
        self._calls[source] = (began, before + 1)
        if len(self._calls) > _MAX_SOURCES:
            del self._calls[next(iter(self._calls))]
        if before >= self._most:
            seconds = _WINDOW.total_seconds()
            raise TooManyCalls(f"{calls} from {source or 'this address'}: {self._most} in {seconds:.0f} s are allowed")
        return before + 1


class NewInvitation(PartlyPrinted, frozen=True, kw_only=True):
    """An invitation together with its code; the only moment at which both exist."""

    unprinted = ("code",)

    code: str
    invitation: Invitation


class Invitations:
    """Each act of a person is on the record."""

    def __init__(self, store: InvitationStore, feed: Feed, clock: Clock) -> None:
        self._store = store
        self._feed = feed
        self._clock = clock
        self._wrong = SourceLimit(clock, most=_WRONG_CODES)

    async def create(
        self, *, by: str, lifetime: timedelta, uses: int, labels: Mapping[str, str], auto_approve: bool
    ) -> NewInvitation:
        now, code = self._clock.now(), new_code()
        await self._store.forget(expired_before=now - _KEPT)
        if await self._store.count_open(now) >= MAX_OPEN:
            raise Conflict(f"{MAX_OPEN} invitations are open already; revoke some (corral nodes uninvite)")
        invitation = Invitation(
            id=new_invitation_id(),
            hash=hash_code(code),
            labels=labels,
            auto_approve=auto_approve,
            max_uses=uses,
            created_at=now,
            created_by=by,
            expires_at=now + lifetime,
        )
        facts = {"uses": uses, "expires_at": invitation.expires_at.isoformat(), "approve": auto_approve}
        event = _event(EventKind.INVITATION_CREATED, invitation, now, by, labels=dict(labels), **facts)
        await self._store.insert(invitation, events=[event])
        await self._feed.announce()
        return NewInvitation(code=code, invitation=invitation)

    async def list(self) -> list[Invitation]:
        """Newest first; those that expired more than a month ago are forgotten."""
        return await self._store.list()

    async def revoke(self, id: InvitationId, *, by: str) -> None:
        """Machines that came with it stay."""
        invitation = await self._store.get(id)
        if invitation is None:
            raise NotFound(f"no invitation has the id {id}")
        now = self._clock.now()
        event = _event(EventKind.INVITATION_REVOKED, invitation, now, by, uses=invitation.uses)
        if not await self._store.revoke(id, at=now, events=[event]):
            raise Conflict(f"invitation {id} is already revoked")
        await self._feed.announce()

    async def find(self, presented: str, *, source: str) -> Invitation | None:
        """Return the invitation of a code, ended or not; None for text that is no join code.

        InvitationRefused for a code that nobody made, TooManyCalls after too many of those.
        """
        try:
            code = read_code(presented)
        except InvalidInput:
            return None
        invitation = await self._store.find_by_hash(hash_code(code))
        if invitation is not None:
            return invitation
        if self._wrong.take(source, "too many wrong join codes") == _WRONG_CODES:
            extra = {"event": "invitation.guessed", "source": source}
            log.warning("too many wrong join codes from %s", source, extra=extra)
        raise InvitationRefused("no invitation of this fleet has this join code; is the URL that of the right fleet?")


def _event(kind: EventKind, invitation: Invitation, at: datetime, by: str, **data: object) -> Event:
    return Event(kind=kind, at=at, actor=by, data={"id": invitation.id, **data})
