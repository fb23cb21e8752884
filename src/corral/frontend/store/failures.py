"""What the drivers raise, in our words. Nothing outside this package sees an error of a driver or of SQLAlchemy.

What may pass by itself (locked, full, gone, starting, too slow) becomes DatabaseUnavailable; a broken constraint
becomes ConstraintViolated; a mistake in a statement stays what it is and crashes, as programming errors do.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from asyncpg.exceptions import ClientConfigurationError
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as NoFreeConnection

from corral.base.errors import CorralError, DatabaseUnavailable, InvalidInput

_OUR_MISTAKES: Final = ("22", "42")
"""Classes of SQLSTATE: bad data, bad statement or missing table."""
_PERMISSION_DENIED: Final = "42501"
"""In a class of our mistakes, but for the administrator of the database to mend."""


class ConstraintViolated(CorralError):
    """A row with these values is already there."""

    code = "constraint_violated"


@contextmanager
def translated() -> Iterator[None]:
    """Translate whatever the drivers raise inside."""
    try:
        yield
    except IntegrityError as error:
        raise ConstraintViolated(_reason(_driver_error(error))) from error
    except DBAPIError as error:
        cause = _driver_error(error)
        if isinstance(cause, ClientConfigurationError):
            raise InvalidInput("database", f"the PostgreSQL URL cannot be used: {_reason(cause)}") from error
        if _is_our_mistake(cause):
            raise
        raise _unavailable(_reason(cause)) from error
    except NoFreeConnection as error:
        raise _unavailable("all connections to it are busy") from error
    except OSError as error:
        # Connecting, and the driver's own time limit: SQLAlchemy lets these pass as they are.
        raise _unavailable(_reason(error)) from error


def _unavailable(reason: str) -> DatabaseUnavailable:
    return DatabaseUnavailable(f"the database did not answer: {reason}", reason=reason)


def _driver_error(error: DBAPIError) -> BaseException:
    """What the driver raised, under the layers that SQLAlchemy put over it."""
    emulated = error.orig
    original = getattr(emulated, "orig", None)
    if isinstance(original, BaseException):
        return original
    return error if emulated is None else emulated


def _is_our_mistake(error: BaseException) -> bool:
    if isinstance(error, sqlite3.Error):
        return _sqlite_code(error) in (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISUSE, sqlite3.SQLITE_RANGE)
    if isinstance(error, ValueError):
        return True  # asyncpg could not encode an argument
    state = getattr(error, "sqlstate", None) or ""
    return state[:2] in _OUR_MISTAKES and state != _PERMISSION_DENIED


def _sqlite_code(error: sqlite3.Error) -> int:
    """The primary code without its details; errors that the driver itself makes up have none."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_IOERR) & 0xFF


def _reason(error: BaseException) -> str:
    """The first line: the others may quote rows."""
    lines = str(error).strip().splitlines()
    if lines:
        return lines[0]
    return "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
