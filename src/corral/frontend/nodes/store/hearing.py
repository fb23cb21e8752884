"""Hearing: since when some control could hear the fleet without a break, and until when that is proven.

Silence of a node counts only over this time; see `frontend/nodes/decide/node.py`.
"""

from datetime import datetime, timedelta
from functools import cache
from typing import Final

from sqlalchemy import Executable, bindparam, case, select

from corral.frontend.nodes.decide.node import Hearing
from corral.frontend.store.db import Database
from corral.frontend.store.dialect import insert_into, upsert_into
from corral.frontend.store.schema import hearing

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
        times = {"now": now, "gap_ended": now - longest_gap}
        async with self._db.write() as connection:
            stored = (await connection.execute(_confirm(connection.dialect.name), times)).one()
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


@cache
def _confirm(dialect: str) -> Executable:
    """Made once for each dialect: it runs every second, and making it takes as long as running it."""
    now, gap_ended = (bindparam(name, type_=hearing.c.until.type) for name in ("now", "gap_ended"))
    row = upsert_into(dialect, hearing).values(id=_ROW, since=now, until=now)
    confirmed = {
        "since": case((hearing.c.until < gap_ended, row.excluded.since), else_=hearing.c.since),
        "until": case((row.excluded.until > hearing.c.until, row.excluded.until), else_=hearing.c.until),
    }
    upsert = row.on_conflict_do_update(index_elements=[hearing.c.id], set_=confirmed)
    return upsert.returning(hearing.c.since, hearing.c.until)
