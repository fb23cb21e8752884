"""Checks of what control itself stands on: database, NATS, disk, clock, keys of administrators, its web page.

The thorough check of the database reads every page, row and index, and every sealed secret; people ask for it.
"""

import asyncio
from datetime import timedelta
from functools import partial
from typing import Final

from corral.base.errors import DatabaseDamaged, DatabaseUnavailable
from corral.base.words import counted, format_duration, format_size, listed
from corral.frontend.api.route import AdminContext
from corral.frontend.api.web_page import missing_files
from corral.frontend.diagnosis.doctor import OK, PROBLEM, WARNING
from corral.frontend.store.engines import sqlite_path
from corral.frontend.store.soundness import DEEP, read_everything, sqlite_problems
from corral.wire.keys import Scope
from corral.wire.nodes import Finding

_SLOW_SECONDS = 0.5
_SUSPICIOUS = timedelta(seconds=5)
_SOON = timedelta(days=7)


async def check_database(context: AdminContext) -> Finding:
    started = context.clock.monotonic()
    try:
        await context.database.check()
    except DatabaseUnavailable as error:
        return Finding(
            check="database",
            level=PROBLEM,
            summary=error.message,
            remedy="Start the database, or correct the setting database (CORRAL_DATABASE).",
        )
    took = context.clock.monotonic() - started
    if took > _SLOW_SECONDS:
        return Finding(
            check="database",
            level=WARNING,
            summary=f"{context.database.dialect} needs {took * 1000:.0f} ms for a trivial question",
            remedy="Look at the load and the disk of the database's machine.",
        )
    return Finding(check="database", level=OK, summary=f"{context.database.dialect} answers in {took * 1000:.0f} ms")


async def check_bus(context: AdminContext) -> Finding:
    if context.bus.connected:
        return Finding(check="nats", level=OK, summary="connected")
    return Finding(
        check="nats",
        level=PROBLEM,
        summary="not connected; nothing can be sent to workers, and silence of nodes is not counted",
        remedy="Start the NATS server, or correct its URL and credentials (CORRAL_NATS_URL).",
    )


async def check_disk(context: AdminContext) -> Finding:
    disk, policy = context.readiness.disk, context.config.disk
    free = await disk.look()
    if free is None:
        return Finding(
            check="disk",
            level=PROBLEM,
            summary=f"the data directory {context.config.data} cannot be read: {disk.unreadable}",
            remedy="Make the directory available to this user, or choose another with --data.",
        )
    summary = f"{format_size(free)} free in the data directory"
    if not disk.is_low and not disk.is_full:
        return Finding(check="disk", level=OK, summary=summary)
    least = f"disk_full: {format_size(policy.full)}" if disk.is_full else f"disk_low: {format_size(policy.low)}"
    return Finding(
        check="disk",
        level=PROBLEM if disk.is_full else WARNING,
        summary=f"{summary} (setting {least})",
        remedy=f"Free space on the filesystem of {context.config.data}; nothing has to be restarted.",
    )


async def check_clock(context: AdminContext) -> Finding:
    hearing = context.nodes.hearing.current
    now = context.clock.now()
    if hearing.until - now > _SUSPICIOUS:
        return Finding(
            check="clock",
            level=WARNING,
            summary=f"this clock is {format_duration(hearing.until - now)} behind another frontend's",
            remedy="Let NTP set the clocks of all frontends.",
        )
    deaf = now - hearing.until
    if deaf > context.config.liveness.tolerated_deafness:
        return Finding(
            check="clock",
            level=WARNING,
            summary=f"control has been deaf for {format_duration(deaf)}; silence of nodes is not counted",
            remedy="Mend what the other checks report: the database or NATS.",
        )
    listening_time = max(now - hearing.since, timedelta(0))
    return Finding(
        check="clock", level=OK, summary=f"control has heard its nodes for {format_duration(listening_time)}"
    )


async def check_keys(context: AdminContext) -> Finding:
    now = context.clock.now()
    admins = [key for key in await context.access.key_ring.list() if key.allows(Scope.ADMIN) and key.is_valid(now)]
    people = [user for user, _ in await context.access.users.list() if user.can_administer]
    if people:
        can = "1 user can" if len(people) == 1 else f"{len(people)} users can"
        return Finding(
            check="keys", level=OK, summary=f"{can} log in as administrator; {len(admins)} such keys are valid"
        )
    if not admins:
        return Finding(
            check="keys",
            level=PROBLEM,
            summary="no administrator key is valid",
            remedy="Run `corral keys reset-admin` on the frontend's machine.",
        )
    if all(key.expires_at is not None and key.expires_at - now < _SOON for key in admins):
        return Finding(
            check="keys",
            level=WARNING,
            summary="every administrator key expires within a week",
            remedy="Make a new one with `corral keys create NAME --scope admin`.",
        )
    valid = "1 administrator key is" if len(admins) == 1 else f"{len(admins)} administrator keys are"
    return Finding(check="keys", level=OK, summary=f"{valid} valid")


async def check_secrets_key(context: AdminContext) -> Finding:
    behind = await context.access.sealing.behind()
    if unreadable := await context.access.sealing.unreadable():
        return Finding(
            check="secrets key",
            level=PROBLEM,
            summary=f"the secrets key does not open these secrets: {listed(unreadable)}",
            remedy="Put back a backup of the database, or remove them with `corral keys rotate --discard-unreadable`:"
            " workers tell theirs again, keys of engines must be set again.",
        )
    if behind is None:
        return Finding(check="secrets key", level=OK, summary="one key seals all secrets")
    why = f"; {', '.join(behind)} would still start with the key before" if behind else ""
    return Finding(
        check="secrets key",
        level=WARNING,
        summary=f"a change of the secrets key is not finished, so that the key before still opens everything{why}",
        remedy="Run `corral keys rotate` again on a frontend's machine; it goes on, or says what is missing.",
    )


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


async def check_web_page(context: AdminContext) -> Finding:
    missing = await missing_files()
    if missing is None:  # in a checkout, by people who know; nothing else needs the page
        return Finding(check="web page", level=OK, summary="not built: browsers see a placeholder, until `make ui`")
    if missing:
        return Finding(
            check="web page",
            level=PROBLEM,
            summary=f"the page lacks {counted(len(missing), 'file')}, {missing[0]} for one, and cannot start",
            remedy="Install Corral again, or run `make ui` in the checkout.",
        )
    count = len(await context.access.sessions.active())
    return Finding(check="web page", level=OK, summary=f"served at /ui/, {counted(count, 'session')}")
