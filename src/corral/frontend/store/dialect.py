"""What is done differently on SQLite and on PostgreSQL: column types, and statements about many rows at once.

Column types are total: whatever a worker reports can be stored. One node's odd value must never fail the transaction
that carries the heartbeats of a hundred others.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from sqlalchemy import (
    JSON,
    TIMESTAMP,
    BigInteger,
    Column,
    ColumnElement,
    Dialect,
    FromClause,
    Table,
    Text,
    TypeDecorator,
    and_,
    any_,
    bindparam,
    cast,
    column,
    func,
    literal,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import TypeEngine

from corral.base.unreadable_json import UNREADABLE_JSON

POSTGRES: Final = "postgresql"
_NAME: Final = "given"
_DOCUMENT: Final = "given_rows"
_MIGRATION_LOCK: Final = 0x436F7272616C  # "Corral": the same number in every frontend, and hardly in another program
_FLEET_RULES_LOCK: Final = _MIGRATION_LOCK + 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_LARGEST: Final = 2**63 - 1
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")
_ASCII_WRITER: Final = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"))
_READER: Final = msgspec.json.Decoder()
_WRITER: Final = msgspec.json.Encoder()


def from_json(text: str | bytes) -> Any:
    """A stored document. The fast reader refuses half a surrogate pair, which a worker may well have sent."""
    try:
        return _READER.decode(text)
    except UNREADABLE_JSON:
        return json.loads(text)


def to_json(value: object) -> str:
    """ASCII only, so that any string survives: PostgreSQL takes no NUL and no lone surrogate except as an escape.

    The fast writer escapes control characters and nothing else, and refuses half a surrogate pair and large numbers.
    """
    try:
        data = _WRITER.encode(value)
    except (UnicodeEncodeError, OverflowError):
        return _ASCII_WRITER.encode(value)
    return data.decode() if data.isascii() else _ASCII_WRITER.encode(value)


class UtcTime(TypeDecorator[datetime]):
    """A moment with its microseconds. SQLite has no such type, so there it is a number that sorts exactly."""

    impl = BigInteger
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == POSTGRES:
            return dialect.type_descriptor(TIMESTAMP(timezone=True))
        return dialect.type_descriptor(BigInteger())

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | int | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a time without a time zone cannot be stored")
        return value if dialect.name == POSTGRES else (value - _EPOCH) // _MICROSECOND

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], datetime | None] | None:
        """None on PostgreSQL, whose driver makes moments in UTC: a call for each of thousands takes its time."""
        return None if dialect.name == POSTGRES else _moment


def _moment(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else _EPOCH + timedelta(microseconds=microseconds)


class Whole(TypeDecorator[int]):
    """A whole number; what does not fit into 64 bits becomes the nearest that does."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: int | None, dialect: Dialect) -> int | None:
        return None if value is None else _within(value)


class DurationColumn(TypeDecorator[timedelta]):
    """A length of time in whole microseconds."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: timedelta | None, dialect: Dialect) -> int | None:
        return None if value is None else microseconds(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> timedelta | None:
        return None if value is None else timedelta(microseconds=value)


class Words(TypeDecorator[str]):
    """Text in the order of its code points. NUL and lone surrogates, which no text column holds, become U+FFFD."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        # Not `type_descriptor`: the driver's own kind of string would be created as VARCHAR.
        return Text(collation="C") if dialect.name == POSTGRES else Text()

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else storable(value)


def storable(text: str) -> str:
    """The text as a text column keeps it."""
    return _UNSTORABLE.sub("\ufffd", text)


def microseconds(duration: timedelta) -> int:
    """A duration in microseconds, as durations are stored inside JSON."""
    return _within(duration // _MICROSECOND)


def _within(value: int) -> int:
    return max(-_LARGEST, min(value, _LARGEST))


def is_postgres(connection: AsyncConnection) -> bool:
    return connection.dialect.name == POSTGRES


def insert_into(connection: AsyncConnection, table: Table) -> postgresql.Insert | sqlite.Insert:
    """An INSERT that can be given an ON CONFLICT clause."""
    return upsert_into(connection.dialect.name, table)


def upsert_into(dialect: str, table: Table) -> postgresql.Insert | sqlite.Insert:
    """An INSERT that can be given an ON CONFLICT clause, for statements that are made once and kept."""
    return postgresql.insert(table) if dialect == POSTGRES else sqlite.insert(table)


def among(connection: AsyncConnection, column: ColumnElement[str], values: Sequence[str]) -> ColumnElement[bool]:
    """`column` is one of `values`, as one parameter: the statement's text is the same for any number of them."""
    if is_postgres(connection):
        return column == any_(literal(list(values), postgresql.ARRAY(Text)))
    entries = func.json_each(literal(list(values), sqlite.JSON)).table_valued("value")
    return column.in_(select(entries.c.value))


async def wait_for_migration_lock(connection: AsyncConnection) -> None:
    """One migration at a time. SQLite needs nothing more: its write transaction is already the only one."""
    if is_postgres(connection):
        await connection.execute(select(func.pg_advisory_xact_lock(_MIGRATION_LOCK)))


async def wait_for_fleet_rules_lock(connection: AsyncConnection) -> None:
    """One change of the set of rules at a time: no row stands for the whole of them."""
    if is_postgres(connection):
        await connection.execute(select(func.pg_advisory_xact_lock(_FLEET_RULES_LOCK)))


class RowSet:
    """The rows that a statement is about, as values of these columns: one parameter, a JSON document.

    Statements are made once for each dialect and kept: making one costs more than running it. One document is made
    much faster than an array for each column, in which the driver looks at every value.
    """

    def __init__(self, *columns: Column[Any]) -> None:
        self._columns = {each.name: each for each in columns}

    def table(self, dialect: str) -> FromClause:
        """Something to select from or to join with; a new one each time. Its JSON is text: see `value`."""
        types = {name: _plain(each.type) for name, each in self._columns.items()}
        if dialect == POSTGRES:
            columns = (column(name, type) for name, type in types.items())
            document = cast(bindparam(_DOCUMENT, type_=Text), postgresql.JSON)
            rows = func.json_to_recordset(document).table_valued(*columns, name=_NAME)
            return rows.render_derived(with_types=True)
        rows = func.json_each(bindparam(_DOCUMENT, type_=Text)).table_valued("value")
        values = (func.json_extract(rows.c.value, f"$.{name}", type_=type).label(name) for name, type in types.items())
        return select(*values).subquery(_NAME)

    def value(self, table: FromClause, name: str, dialect: str) -> ColumnElement[Any]:
        """What a column of ours is set to."""
        is_json = isinstance(self._columns[name].type, JSON)
        return cast(table.c[name], postgresql.JSON) if is_json and dialect == POSTGRES else table.c[name]

    def parameters(self, connection: AsyncConnection, rows: Sequence[Mapping[str, object]]) -> dict[str, object]:
        """The rows themselves, to execute the statement with."""
        columns = [
            _in_document(column_type.type, [row[name] for row in rows], connection.dialect)
            for name, column_type in self._columns.items()
        ]
        names = tuple(self._columns)
        return {_DOCUMENT: to_json([dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)])}


def _in_document(column_type: TypeEngine[Any], values: list[Any], dialect: Dialect) -> list[Any]:
    """The values of a column as the document has them, all at once: calls for each of them take too long."""
    match column_type:
        case Words():
            text = "".join([value for value in values if value is not None])
            is_clean = _UNSTORABLE.search(text) is None
            return values if is_clean else [None if value is None else storable(value) for value in values]
        case Whole():
            return [None if value is None else _within(value) for value in values]
        case JSON():
            return [None if value is None else to_json(value) for value in values]
        case UtcTime():
            stored = [column_type.process_bind_param(value, dialect) for value in values]
            if dialect.name != POSTGRES:
                return stored
            return [None if value is None else value.isoformat() for value in values]
    raise TypeError(f"rows of {column_type!r} are not known")


def same(table: Table, rows: FromClause, *names: str) -> ColumnElement[bool]:
    """A row of the table is one of the given ones, by the columns of these names."""
    return and_(*(table.c[name] == rows.c[name] for name in names))


def _plain(column_type: TypeEngine[Any]) -> TypeEngine[Any]:
    """The plain type of what the column's own type stores."""
    if isinstance(column_type, UtcTime):
        return column_type
    return BigInteger() if isinstance(column_type, Whole) else Text()
