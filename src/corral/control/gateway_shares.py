"""Tells the other frontends what our gateways have under way, since each reports to one frontend only.

A lost message costs a second. While nothing comes, the other side takes those gateways for silent, and that is true:
nobody there knows their share.
"""

import logging

import msgspec

from corral.base.errors import CorralError
from corral.base.ids import FrontendId
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.bus.port import Bus, Message
from corral.control.gateway_reports import GatewayReports
from corral.protocol.subjects import GATEWAY_SHARES
from corral.protocol.view import GatewayReport, GatewayShare

log = logging.getLogger(__name__)


class GatewayShares:
    def __init__(self, bus: Bus, reports: GatewayReports, frontend_id: FrontendId) -> None:
        self._bus = bus
        self._reports = reports
        self._frontend_id = frontend_id

    async def tell(self, report: GatewayReport) -> None:
        share = GatewayShare(
            frontend=self._frontend_id,
            gateway=report.gateway,
            in_flight=report.in_flight,
            is_last=report.is_last,
        )
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
