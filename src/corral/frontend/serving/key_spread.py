"""Waits until the gateways know of a changed key: it works, or stops working, with the answer that says so."""

import asyncio
import contextlib
from datetime import timedelta
from typing import Final

from corral.base.clock import Clock
from corral.frontend.serving.gateway_reports import GatewayReports
from corral.frontend.serving.view import ViewKeeper
from corral.wire.view import keys_digest

_BOUND_SECONDS: Final = 2.0
_LOOK: Final = timedelta(milliseconds=200)


class KeySpread:
    """Gateways report at once when their keys change, and with a digest of them: also those of other frontends."""

    def __init__(self, view: ViewKeeper, reports: GatewayReports, clock: Clock) -> None:
        self._view = view
        self._reports = reports
        self._clock = clock

    async def reach(self, hash: str, *, is_valid: bool) -> tuple[str, ...]:
        """The gateways that did not confirm in time that a key is valid, or is not any more. Call after `announce`."""
        if self._reports.connected():
            with contextlib.suppress(TimeoutError), self._reports.key_changes.listener() as poke:
                async with asyncio.timeout(_BOUND_SECONDS):
                    while self._unaware(hash, is_valid=is_valid):
                        await poke.wait(self._clock, _LOOK)
        return tuple(sorted({*self._unaware(hash, is_valid=is_valid), *self._reports.silent_ids()}))

    def _unaware(self, hash: str, *, is_valid: bool) -> list[str]:
        current = self._view.current
        if current is None or (hash in current.keys) != is_valid:
            return self._reports.connected()
        return self._reports.connected(other_than=keys_digest(current.keys))
