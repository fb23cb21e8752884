"""The thorough check of the database, which people ask for: every page, row and index, and every sealed secret."""

import asyncio
from datetime import timedelta
from functools import partial
from typing import Final

from corral.base.errors import DatabaseDamaged
from corral.base.words import format_duration, listed
from corral.frontend.api.route import AdminContext
from corral.frontend.diagnosis.doctor import OK, PROBLEM, WARNING
from corral.frontend.store.engines import sqlite_path
from corral.frontend.store.soundness import DEEP, read_everything, sqlite_problems
from corral.wire.nodes import Finding

_CHECK = "integrity"
_MARGIN: Final = timedelta(seconds=10)
"""What SQLite may need to notice that its time is over."""
_REMEDY = "Keep a copy of the database, and put back a backup of it."


async def check_integrity(context: AdminContext) -> Finding:
    try:
        problems = await _damage(context)
    except TimeoutError:
        summary = f"not finished within {format_duration(DEEP)}; nothing wrong was found until then"
        return Finding(check=_CHECK, level=WARNING, summary=summary, remedy="Check it with the database's own tools.")
    except DatabaseDamaged as error:
        problems = [error.message]
    if problems:
        return Finding(
            check=_CHECK, level=PROBLEM, summary=f"the database is damaged: {listed(problems)}", remedy=_REMEDY
        )
    if sealed := await context.secrets.unreadable():
        return Finding(
            check=_CHECK,
            level=PROBLEM,
            summary=f"the secrets key does not open these secrets: {listed(sealed)}",
            remedy="Put back the secrets key that they were sealed with, or a backup of the database.",
        )
    return Finding(check=_CHECK, level=OK, summary="every page, row and sealed secret of the database can be read")


async def _damage(context: AdminContext) -> list[str]:
    if context.database.dialect == "sqlite":
        file = sqlite_path(context.config.database_url)
        assert file is not None, "it is SQLite"  # noqa: S101 - for the type checker
        look = partial(sqlite_problems, file, pragma="integrity_check", within=DEEP)
        return await context.readiness.deep_thread.run(look, within=DEEP + _MARGIN)
    async with asyncio.timeout(DEEP.total_seconds()), context.database.begin_patiently() as connection:
        await read_everything(connection)
    return []
