"""Checks of what control itself stands on: database, NATS, room on the disk, clock, and keys of administrators."""

import asyncio
import shutil
from datetime import timedelta

from corral.base.errors import DatabaseUnavailable
from corral.base.words import format_duration
from corral.frontend.api.route import AdminContext
from corral.frontend.diagnosis.doctor import OK, PROBLEM, WARNING
from corral.wire.keys import Scope
from corral.wire.nodes import Finding

_SLOW_SECONDS = 0.5
_GIB = 1024**3
_LITTLE = 1 * _GIB
_TOO_LITTLE = 100 * 1024**2
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
        summary="not connected; workers cannot be told anything, and silence of nodes is not counted",
        remedy="Start the NATS server, or correct its URL and credentials (CORRAL_NATS_URL).",
    )


async def check_disk(context: AdminContext) -> Finding:
    try:
        free = (await asyncio.to_thread(shutil.disk_usage, context.config.data)).free
    except OSError as error:
        return Finding(
            check="disk",
            level=PROBLEM,
            summary=f"the data directory {context.config.data} cannot be read: {error.strerror}",
            remedy="Make the directory available to this user, or choose another with --data.",
        )
    summary = f"{free / _GIB:.1f} GiB free in the data directory"
    if free >= _LITTLE:
        return Finding(check="disk", level=OK, summary=summary)
    return Finding(
        check="disk",
        level=PROBLEM if free < _TOO_LITTLE else WARNING,
        summary=summary,
        remedy=f"Free space on the filesystem of {context.config.data}.",
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
    heard = max(now - hearing.since, timedelta(0))
    return Finding(check="clock", level=OK, summary=f"control has heard its nodes for {format_duration(heard)}")


async def check_keys(context: AdminContext) -> Finding:
    now = context.clock.now()
    admins = [key for key in await context.access.key_ring.list() if key.allows(Scope.ADMIN) and key.is_valid(now)]
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
