"""Column types that mean the same on SQLite and on PostgreSQL.

They are total: whatever a worker reports can be stored. One node's odd value must never fail the transaction that
carries the heartbeats of a hundred others.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import TIMESTAMP, BigInteger, Dialect, Text, TypeDecorator
from sqlalchemy.types import TypeEngine

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_LARGEST: Final = 2**63 - 1
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")


class UtcTime(TypeDecorator[datetime]):
    """A moment with its microseconds. SQLite has no such type, so there it is a number that sorts exactly."""

    impl = BigInteger
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(TIMESTAMP(timezone=True))
        return dialect.type_descriptor(BigInteger())

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | int | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a time without a time zone cannot be stored")
        return value if dialect.name == "postgresql" else (value - _EPOCH) // _MICROSECOND

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if isinstance(value, datetime):
            return value.astimezone(UTC)
        return _EPOCH + timedelta(microseconds=value)


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
        return Text(collation="C") if dialect.name == "postgresql" else Text()

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else _UNSTORABLE.sub("\ufffd", value)


def microseconds(duration: timedelta) -> int:
    """For durations inside JSON."""
    return _within(duration // _MICROSECOND)


def from_microseconds(value: int) -> timedelta:
    return timedelta(microseconds=value)


def _within(value: int) -> int:
    return max(-_LARGEST, min(value, _LARGEST))
