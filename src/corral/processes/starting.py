"""The first start of children: repeated when it failed by accident, given up when only people can mend it."""

import itertools
import logging
from datetime import timedelta
from typing import Final

from corral.base.clock import Clock
from corral.base.errors import ChildFailed
from corral.base.retry import Backoff
from corral.processes.children import Child, Children
from corral.processes.exit_codes import NOT_WORTH_A_RESTART

log = logging.getLogger(__name__)

FINAL: Final[frozenset[int]] = frozenset(NOT_WORTH_A_RESTART)
_PAUSE: Final = Backoff(first=timedelta(milliseconds=250), cap=timedelta(seconds=30))


async def start_patiently(
    children: Children, *group: Child, clock: Clock, attempts: int | None = None, final: frozenset[int] = FINAL
) -> None:
    """Start a group until it is ready. ChildFailed after a final exit code, or when all attempts are used up."""
    for attempt in itertools.count(1):
        try:
            await children.start(*group)
        except ChildFailed as error:
            if error.fields.get("exit_code") in final or attempt == attempts:
                raise
            log.warning("starting again: %s", error, extra={"event": "child.start_repeated", "attempt": attempt})
            await clock.sleep(_PAUSE.delay(attempt).total_seconds())
        else:
            return
