"""Whether a database is whole: a quick look at every start, and a thorough one when a person asks for it."""

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

from sqlalchemy import Text, cast, func, literal_column, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from corral.base.errors import DatabaseDamaged
from corral.frontend.store.schema import metadata

QUICK: Final = timedelta(seconds=1)
"""How long a start looks for damage: enough for some hundred megabytes, and little beside the rest of a start."""
DEEP: Final = timedelta(minutes=5)
"""How long a thorough look may take: some ten gigabytes."""
_STEPS: Final = 500
"""Instructions of SQLite, or pages that it checks, between two looks at the clock: some milliseconds at most."""
_MOST_PROBLEMS: Final = 20
_MALFORMED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_AMCHECK: Final = text("SELECT 1 FROM pg_extension WHERE extname = 'amcheck'")
_TREES: Final = text(
    "SELECT c.oid::regclass::text FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
    " JOIN pg_am a ON a.oid = c.relam JOIN pg_class t ON t.oid = i.indrelid"
    " WHERE a.amname = 'btree' AND i.indisvalid AND t.relname = ANY(:tables) AND t.relnamespace = to_regnamespace("
    "current_schema()) ORDER BY 1"
)
_CHECK_TREE: Final = text("SELECT bt_index_check(CAST(:name AS regclass), true)")


def refuse_damaged(path: Path, within: timedelta = QUICK) -> None:
    """Raise DatabaseDamaged when a quick look finds the SQLite file damaged. What takes longer counts as whole."""
    try:
        problems = sqlite_problems(path, pragma="quick_check", within=within)
    except TimeoutError:
        return
    if problems:
        raise DatabaseDamaged(damage(path, problems[0]), path=str(path))


def damage(path: Path, problem: str) -> str:
    """The sentence for a damaged file, with the ways out."""
    return (
        f"the database {path} is damaged ({problem}); keep a copy of it, and put your last backup of it in its place."
        f" `sqlite3 {path} .recover` saves what is still readable. Only to give the fleet up: move the file away and"
        " start with --new-fleet"
    )


def sqlite_problems(path: Path, *, pragma: str, within: timedelta) -> list[str]:
    """What `quick_check` or `integrity_check` says of a file; nothing when it is whole, empty, busy or not there.
    TimeoutError: it takes longer than this.

    Only reads, so another process may use the file meanwhile, and the evidence stays as it is.
    """
    if not path.exists() or path.stat().st_size == 0:
        return []
    deadline = time.monotonic() + within.total_seconds()
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
            with _interrupted(connection, within):
                rows = [str(row[0]) for row in connection.execute(f"PRAGMA {pragma}({_MOST_PROBLEMS})")]
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_IOERR) & 0xFF
        if code == sqlite3.SQLITE_INTERRUPT:
            raise TimeoutError from error
        return [str(error)] if code in _MALFORMED else []
    return [] if rows == ["ok"] else rows


@contextmanager
def _interrupted(connection: sqlite3.Connection, within: timedelta) -> Iterator[None]:
    """Older versions of SQLite check a whole tree of pages as one instruction, and only hear an interrupt."""
    timer = threading.Timer(max(within.total_seconds(), 0), connection.interrupt)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


async def read_everything(connection: AsyncConnection) -> None:
    """Have PostgreSQL read every row, which it checks as far as its checksums go; and every index, where it has
    amcheck. DatabaseDamaged comes out of it."""
    for table in metadata.sorted_tables:
        await connection.execute(select(func.count(cast(literal_column(table.name), Text))).select_from(table))
    if (await connection.execute(_AMCHECK)).first() is None:
        return
    names = (await connection.execute(_TREES, {"tables": sorted(metadata.tables)})).scalars().all()
    for name in names:
        await connection.execute(_CHECK_TREE, {"name": name})
