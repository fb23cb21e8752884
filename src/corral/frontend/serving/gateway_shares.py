"""Tells the other frontends what our gateways have under way, since each reports to one frontend only.

Told when it changed, and every two seconds: so much a lost message costs. While nothing comes for five, the other side
takes those gateways for silent, and that is true: nobody there knows their share.
"""

import logging
from datetime import timedelta
from typing import Final

import msgspec

from corral.base.clock import Clock
from corral.base.errors import CorralError
from corral.base.ids import FrontendId
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.bus.port import Bus, Message
from corral.frontend.serving.gateway_reports import GatewayReports
from corral.wire.subjects import GATEWAY_SHARES
from corral.wire.view import GatewayReport, GatewayShare

log = logging.getLogger(__name__)

_REPEATED_AFTER: Final = timedelta(seconds=1.5)
"""Less than two reports, which come every second."""
_FORGOTTEN_SECONDS: Final = 60.0


class GatewayShares:
    def __init__(self, bus: Bus, reports: GatewayReports, frontend_id: FrontendId, clock: Clock) -> None:
        self._bus = bus
        self._reports = reports
        self._frontend_id = frontend_id
        self._clock = clock
        self._told: dict[str, tuple[GatewayShare, float]] = {}

    async def tell(self, report: GatewayReport) -> None:
        share = GatewayShare(
            frontend=self._frontend_id,
            gateway=report.gateway,
            keys_digest=report.keys_digest,
            in_flight=report.in_flight,
            is_last=report.is_last,
        )
        now = self._clock.monotonic()
        known, at = self._told.get(report.gateway, (None, 0.0))
        if share == known and now - at < _REPEATED_AFTER.total_seconds():
            return
        self._told = {gateway: told for gateway, told in self._told.items() if now - told[1] < _FORGOTTEN_SECONDS}
        self._told[report.gateway] = share, now
        try:
            await self._bus.publish(GATEWAY_SHARES, msgspec.json.encode(share))
        except CorralError as error:
            log.debug("other frontends were not told", extra={"event": "gateway.share_unheard", "reason": str(error)})

    async def on_message(self, message: Message) -> None:
        try:
            share = msgspec.json.decode(message.data, type=GatewayShare)
        except UNREADABLE_JSON as error:
            log.warning("a share was not understood: %s", error, extra={"event": "gateway.share_invalid"})
            return
        if share.frontend != self._frontend_id:
            self._reports.hear_of(share)
