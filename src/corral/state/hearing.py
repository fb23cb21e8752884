"""Hearing: since when some control could hear the fleet without a break, and until when that is proven.

Silence of a node counts only over this time; see `domain/node.py`.
"""

from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import case, select

from corral.domain.node import Hearing
from corral.state.db import Database
from corral.state.dialect import insert_into
from corral.state.schema import hearing

_ROW: Final = 1
_PERIOD: Final = select(hearing.c.since, hearing.c.until).where(hearing.c.id == _ROW)


class HearingPeriods:
    """One period for the fleet, kept by all frontends together."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def confirm(self, now: datetime, *, longest_gap: timedelta) -> Hearing:
        """Some control can hear now: extends the period, or starts a new one after a longer gap.

        A frontend whose clock is behind moves nothing back.
        """
        async with self._db.write() as connection:
            row = insert_into(connection, hearing).values(id=_ROW, since=now, until=now)
            later = row.excluded.until > hearing.c.until
            is_new = hearing.c.until < now - longest_gap
            confirmed = {
                "since": case((is_new, row.excluded.since), else_=hearing.c.since),
                "until": case((later, row.excluded.until), else_=hearing.c.until),
            }
            upsert = row.on_conflict_do_update(index_elements=[hearing.c.id], set_=confirmed)
            stored = (await connection.execute(upsert.returning(hearing.c.since, hearing.c.until))).one()
        return Hearing(since=stored.since, until=stored.until)

    async def restart(self, now: datetime) -> Hearing:
        """Start a new period whatever was proven: the clock jumped, so times before it mean nothing."""
        async with self._db.write() as connection:
            period = {"since": now, "until": now}
            row = insert_into(connection, hearing).values(id=_ROW, **period)
            await connection.execute(row.on_conflict_do_update(index_elements=[hearing.c.id], set_=period))
        return Hearing(since=now, until=now)

    async def read(self) -> Hearing | None:
        """None before the first confirmation."""
        async with self._db.look() as connection:
            row = (await connection.execute(_PERIOD)).one_or_none()
        return None if row is None else Hearing(since=row.since, until=row.until)
