"""The change of the secrets key: everything that is sealed with one key is sealed with the next, while frontends run.

Both keys are stored meanwhile, each sealed with the other one, so that a frontend with either of them opens everything.
Each step can be repeated by any process, and each row is written only if nobody else changed it: an interrupted change
is continued by the next attempt.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Final

import msgspec
from sqlalchemy import Column, and_, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from corral.base.errors import Conflict
from corral.base.ids import FrontendId
from corral.frontend.store.db import Database
from corral.frontend.store.dialect import insert_into
from corral.frontend.store.schema import external_engines, leases, replicas, secrets
from corral.frontend.store.secrets import (
    KEY_BEFORE,
    NEXT_KEY,
    Secrets,
    SecretsKey,
    engine_key_name,
    replica_key_name,
    replica_token_name,
)

_HOLDERS: Final = "sealing/"
_BRIDGE: Final = (NEXT_KEY, KEY_BEFORE)
_BATCH: Final = 200

InTransaction = Callable[[AsyncConnection], Awaitable[None]]
"""What is written together with a step, if that step changed something."""


class SealedColumn(msgspec.Struct, frozen=True):
    """Where sealed values are, and under which name each is sealed."""

    id: Column[str]
    sealed: Column[bytes]
    name_of: Callable[[str], str]


SEALED_COLUMNS: Final = (
    SealedColumn(secrets.c.name, secrets.c.sealed, str),
    SealedColumn(replicas.c.id, replicas.c.sealed_key, replica_key_name),
    SealedColumn(replicas.c.id, replicas.c.sealed_token, replica_token_name),
    SealedColumn(external_engines.c.id, external_engines.c.sealed_key, engine_key_name),
)
"""All of them: what is forgotten here is lost with the key before."""


class KeyHolder(msgspec.Struct, frozen=True, kw_only=True):
    """A running frontend, and which secrets key it works with."""

    host: str
    change: str
    """The change that it takes part in, so that it seals with the next key; empty without one."""
    has_next: bool
    """Whether the frontend would start with the next key."""


class Resealing(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the sealed values."""

    sealed: int
    """Values that were sealed with the key before."""
    unreadable: Sequence[str]
    """The names of those that neither key opens."""


class KeyRotation:
    def __init__(self, database: Database, secrets: Secrets) -> None:
        self._db = database
        self._secrets = secrets

    async def begin(self, following: SecretsKey, *, at: datetime, also: InTransaction) -> SecretsKey:
        """Let all frontends know the next key; returns that of a change that was begun before, if there is one."""
        rows = [
            {"name": name, "sealed": sealed, "created_at": at, "updated_at": at}
            for name, sealed in self._secrets.bridge(following).items()
        ]
        async with self._db.begin() as connection:
            insert = insert_into(connection, secrets).values(rows).on_conflict_do_nothing()
            if (await connection.execute(insert)).rowcount == len(rows):
                await also(connection)
        key = await self._secrets.look_for_change()
        if key is None:
            raise Conflict("another change of the secrets key ended just now; try again if you want one more")
        return key

    async def take_part(self, id: FrontendId, holder: KeyHolder, *, at: datetime, until: datetime) -> None:
        """Say that this frontend runs, and how far it is with a change."""
        row = {"token": f"{holder.change}/{holder.has_next}", "holder": holder.host, "claimed_at": at, "until": until}
        async with self._db.write() as connection:
            insert = insert_into(connection, leases).values(name=f"{_HOLDERS}{id}", **row)
            await connection.execute(insert.on_conflict_do_update(index_elements=[leases.c.name], set_=row))

    async def running(self, *, now: datetime) -> int:
        """The number of frontends that run at this time."""
        is_running = and_(leases.c.name.startswith(_HOLDERS, autoescape=True), leases.c.until > now)
        async with self._db.look() as connection:
            return int((await connection.execute(select(func.count()).where(is_running))).scalar_one())

    async def leave(self, id: FrontendId) -> None:
        """Remove this frontend from those that run, because it stops."""
        async with self._db.write() as connection:
            await connection.execute(delete(leases).where(leases.c.name == f"{_HOLDERS}{id}"))

    async def behind(self, *, now: datetime) -> list[KeyHolder]:
        """The frontends that run now, and would start with the key before the change that is under way."""
        async with self._db.look() as connection:
            return await self._behind(connection, now)

    async def is_known(self, *, now: datetime) -> bool:
        """Whether all frontends that run take part in the change that is under way."""
        return all(holder.change == self._secrets.change for holder in await self.behind(now=now))

    async def reseal(self, *, discard: bool = False) -> Resealing:
        """Seal everything with the next key. What neither key opens is left as it is, or discarded."""
        changed = 0
        for column in SEALED_COLUMNS:
            while count := await self._reseal_some(column):
                changed += count
        unreadable = [(column, id, sealed) for column in SEALED_COLUMNS for id, sealed in await self._shut(column)]
        if discard:
            for column, id, sealed in unreadable:
                await self._discard(column, id, sealed)
        return Resealing(sealed=changed, unreadable=[column.name_of(id) for column, id, _ in unreadable])

    async def unreadable(self) -> list[str]:
        """The names of all sealed values that no key of now opens."""
        return [column.name_of(id) for column in SEALED_COLUMNS for id, _ in await self._shut(column)]

    async def _reseal_some(self, column: SealedColumn) -> int:
        """A pass over one column, in short transactions. 0: nothing was left to do."""
        open_ones = [
            (id, sealed, name)
            for id, sealed in await self._rows(column)
            if self._secrets.opens(name := column.name_of(id), sealed)
        ]
        old = [(id, sealed, new) for id, sealed, name in open_ones if (new := self._secrets.resealed(name, sealed))]
        for start in range(0, len(old), _BATCH):
            await self._replace(column, old[start : start + _BATCH])
        return len(old)

    async def _shut(self, column: SealedColumn) -> list[tuple[str, bytes]]:
        """The sealed values of a column that no key opens, with their names."""
        rows = await self._rows(column)
        return [(id, sealed) for id, sealed in rows if not self._secrets.opens(column.name_of(id), sealed)]

    async def _rows(self, column: SealedColumn) -> list[tuple[str, bytes]]:
        statement = select(column.id, column.sealed).where(column.sealed.is_not(None))
        if column.id.table is secrets:
            statement = statement.where(column.id.not_in(_BRIDGE))
        async with self._db.look() as connection:
            return [(id, sealed) for id, sealed in await connection.execute(statement.order_by(column.id))]

    async def _discard(self, column: SealedColumn, id: str, sealed: bytes) -> None:
        """Unless somebody wrote a new one meanwhile. A row of secrets goes; others stay without the sealed value."""
        table, unchanged = column.id.table, (column.id == id) & (column.sealed == sealed)
        change = delete(table) if table is secrets else update(table).values({column.sealed.name: None})
        async with self._db.begin() as connection:
            await connection.execute(change.where(unchanged))

    async def _replace(self, column: SealedColumn, values: Sequence[tuple[str, bytes, bytes]]) -> None:
        """Write those that nobody changed meanwhile. What somebody did change is looked at in the next pass."""
        async with self._db.begin() as connection:
            for id, before, after in values:
                unchanged = (column.id == id) & (column.sealed == before)
                await connection.execute(update(column.id.table).where(unchanged).values({column.sealed.name: after}))

    async def finish(self, *, now: datetime, also: InTransaction) -> bool:
        """Forget the key before. False: somebody else did, or a frontend that runs would still start with it."""
        async with self._db.begin() as connection:
            if await self._behind(connection, now):
                return False
            was_forgotten = (await connection.execute(delete(secrets).where(secrets.c.name.in_(_BRIDGE)))).rowcount > 0
            if was_forgotten:
                await also(connection)
        await self._secrets.look_for_change()
        return was_forgotten

    async def _behind(self, connection: AsyncConnection, now: datetime) -> list[KeyHolder]:
        running = leases.c.name.startswith(_HOLDERS, autoescape=True) & (leases.c.until > now)
        rows = await connection.execute(select(leases.c.holder, leases.c.token).where(running))
        parts = [(row.holder, *row.token.partition("/")) for row in rows]
        holders = [KeyHolder(host=host, change=change, has_next=word == str(True)) for host, change, _, word in parts]
        return [holder for holder in holders if not holder.has_next or holder.change != self._secrets.change]
