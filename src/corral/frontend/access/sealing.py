"""Changes of the secrets key: each frontend takes part in one that is under way, and a person's command carries it out.

The frontend keeps the next key in its key file by itself. One whose key comes from a setting cannot, and says so until
it is started with the next key: only then is the change finished, since it would not start again with the one before.
"""

import asyncio
import logging
import socket
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from corral.base.clock import Clock
from corral.base.errors import CorralError, PathNotUsable
from corral.base.ids import FrontendId
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.room import Foundation, Loop, RecordRoom
from corral.frontend.record.store import append
from corral.frontend.store.rotation import InTransaction, KeyHolder, KeyRotation
from corral.frontend.store.secrets import Secrets, SecretsKey

log = logging.getLogger(__name__)

PERIOD: Final = timedelta(seconds=20)
LASTS: Final = timedelta(seconds=60)
"""How long a frontend that says nothing more counts as running: that long a change waits for it."""
_LEFT: Final = timedelta(seconds=35)
"""What is written lasts at least so long after every look."""
_LEAVE_SECONDS: Final = 2
SETTLE: Final = timedelta(seconds=5)
"""Frontends look for events every second, and at a change when they find the event that tells of it."""
_AGAIN: Final = timedelta(seconds=1)


class SealingKeys:
    """What one frontend does for a change of the key."""

    def __init__(self, secrets: Secrets, rotation: KeyRotation, clock: Clock, *, id: FrontendId, file: Path | None):
        """`file` is where the key of this frontend is kept; None when it comes from a setting."""
        self._secrets = secrets
        self._rotation = rotation
        self._clock = clock
        self._id = id
        self._file = file
        self._last_reported: KeyHolder | None = None
        self._reported_at: datetime | None = None

    @classmethod
    def build(cls, foundation: Foundation, file: Path | None) -> "SealingKeys":
        rotation = KeyRotation(foundation.database, foundation.secrets)
        return cls(foundation.secrets, rotation, foundation.clock, id=foundation.frontend_id, file=file)

    def loops(self, record: RecordRoom) -> dict[str, Loop]:
        follow = record.follow(PERIOD, self.look, "secrets key")

        async def run() -> None:
            try:
                await follow()
            finally:
                await self.leave()

        return {"secrets key": run}

    async def look(self) -> None:
        """Take part in a change that is under way; leave one that is over. SecretsKeyMismatch: one went by unseen.

        It says that it runs before it looks for the first time, so that no change ends without it from then on.
        """
        if self._last_reported is None:
            await self._say(KeyHolder(host=socket.gethostname(), change="", has_next=False))
        key, change = await self._secrets.look_for_change(), self._secrets.change
        has_next = False
        if key is not None or not self._secrets.was_given_current:  # the change may have ended since the start
            has_next = await asyncio.to_thread(self._keep, self._secrets.current)
        await self._say(KeyHolder(host=socket.gethostname(), change=change, has_next=has_next and key is not None))

    async def _say(self, holder: KeyHolder) -> None:
        now, before = self._clock.now(), self._reported_at  # what is written ends by the wall clock, too
        if holder == self._last_reported and before is not None and before <= now <= before + LASTS - _LEFT:
            return
        await self._rotation.take_part(self._id, holder, at=now, until=now + LASTS)
        self._last_reported, self._reported_at = holder, now

    async def leave(self) -> None:
        """This frontend stops, and holds up nothing any more. If the database does not answer, it is known later."""
        try:
            async with asyncio.timeout(_LEAVE_SECONDS):
                await self._rotation.leave(self._id)
        except (CorralError, TimeoutError) as error:
            log.info("the end of this frontend was not noted: %s", error, extra={"event": "secrets_key.not_left"})

    async def frontends(self) -> int:
        """How many frontends run, this one included."""
        return max(await self._rotation.running(now=self._clock.now()), 1)

    async def behind(self) -> Sequence[str] | None:
        """The hosts of frontends that hold up a change of the key; None when there is no change under way."""
        if await self._secrets.look_for_change() is None:
            return None
        return _hosts(await self._rotation.behind(now=self._clock.now()))

    async def unreadable(self) -> list[str]:
        """The names of sealed values that no key opens."""
        return await self._rotation.unreadable()

    def _keep(self, key: SecretsKey) -> bool:
        """Whether this frontend would start with the next key."""
        if self._file is None:
            if not self._secrets.was_given_current:
                log.warning(
                    "the secrets key is being changed, and this frontend has the one before in its settings;"
                    " set CORRAL_SECRETS_KEY to the next one and start it again",
                    extra={"event": "secrets_key.old"},
                )
            return self._secrets.was_given_current
        try:
            key.keep(self._file)
        except PathNotUsable as error:
            log.warning("the next secrets key was not kept: %s", error, extra={"event": "secrets_key.not_kept"})
            return False
        return True


class RotationOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a change of the key."""

    sealed: int
    """Values that were sealed with the key before."""
    behind: Sequence[str]
    """The hosts of frontends that would still start with the key before. The change is finished without any."""
    unreadable: Sequence[str] = ()
    """The names of values that neither key opens. They do not hold up the change: the key before is no help to them."""


async def change_key(
    rotation: KeyRotation,
    clock: Clock,
    sealing_keys: SealingKeys,
    *,
    following: SecretsKey,
    by: str,
    discard: bool = False,
) -> RotationOutcome:
    """Change the secrets key, or go on with a change that was broken off. `discard` removes what no key opens."""

    def recorded(kind: EventKind, **data: object) -> InTransaction:
        event = Event(kind=kind, at=clock.now(), actor=by, data=data)
        return lambda connection: append(connection, [event])

    await rotation.begin(following, at=clock.now(), also=recorded(EventKind.SECRETS_KEY_CHANGING))
    await sealing_keys.look()
    await clock.sleep(SETTLE.total_seconds())
    await _until_all_know(rotation, clock, sealing_keys)
    done = await rotation.reseal(discard=discard)
    await sealing_keys.look()  # so that this process counts as running, however long that took
    behind = await rotation.behind(now=clock.now())
    if not behind:
        words = {"sealed": done.sealed, "discarded" if discard else "unreadable": len(done.unreadable)}
        await rotation.finish(now=clock.now(), also=recorded(EventKind.SECRETS_KEY_CHANGED, **words))
        behind = await rotation.behind(now=clock.now()) if await sealing_keys.behind() is not None else []
    return RotationOutcome(sealed=done.sealed, behind=_hosts(behind), unreadable=done.unreadable)


async def _until_all_know(rotation: KeyRotation, clock: Clock, sealing_keys: SealingKeys) -> None:
    """Wait for frontends that have not heard of the change: until they have, or count as running no longer."""
    until = clock.monotonic() + LASTS.total_seconds()
    while clock.monotonic() < until and not await rotation.is_known(now=clock.now()):
        await clock.sleep(_AGAIN.total_seconds())
        await sealing_keys.look()


def _hosts(holders: Sequence[KeyHolder]) -> list[str]:
    return sorted({holder.host for holder in holders})
