"""Does the database answer, and how fast?"""

from corral.base.errors import DatabaseUnavailable
from corral.frontend.api.context import AdminContext
from corral.frontend.diagnosis.doctor.diagnostic import OK, PROBLEM, WARNING
from corral.wire.nodes import Finding

_SLOW_SECONDS = 0.5


async def check_database(context: AdminContext) -> Finding:
    started = context.clock.monotonic()
    try:
        await context.foundation.database.check()
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
            summary=f"{context.foundation.database.dialect} needs {took * 1000:.0f} ms for a trivial question",
            remedy="Look at the load and the disk of the database's machine.",
        )
    return Finding(
        check="database", level=OK, summary=f"{context.foundation.database.dialect} answers in {took * 1000:.0f} ms"
    )
