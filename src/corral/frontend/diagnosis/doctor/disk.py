"""Is there room in the data directory?"""

import asyncio
import shutil

from corral.frontend.api.context import AdminContext
from corral.frontend.diagnosis.doctor.diagnostic import OK, PROBLEM, WARNING
from corral.wire.nodes import Finding

_GIB = 1024**3
_LITTLE = 1 * _GIB
_TOO_LITTLE = 100 * 1024**2


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
