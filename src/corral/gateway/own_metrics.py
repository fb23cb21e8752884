"""Serves `/metrics`: control's page for all gateways, or this gateway's own counters while control is away."""

from typing import Final

from corral.domain.key import Scope
from corral.gateway.admit import admit_key
from corral.gateway.answers import Answer, Refusal
from corral.gateway.exchange import Client, Outcome, Services
from corral.gateway.head import RequestHead
from corral.gateway.passing import Passing
from corral.gateway.upstream import Failure
from corral.gateway.vitals import Vitals
from corral.wire.gateway_counters import families
from corral.wire.metrics import CONTENT_TYPE, render

PATH: Final = b"/metrics"
_PATIENCE_SECONDS: Final = 4.0
"""How long control may take. Prometheus gives up after 10 seconds by default."""


class Metrics(Passing):
    def __init__(self, services: Services, client: Client, head: RequestHead, body: bytes) -> None:
        super().__init__(services, client, head, body)
        self.first_byte_seconds = min(self.first_byte_seconds, _PATIENCE_SECONDS)

    def _recover(self, failure: Failure) -> None:
        if failure is Failure.FIRST_BYTE_TIMED_OUT:
            self._control_is_away()
        else:
            super()._recover(failure)

    def _control_is_away(self) -> None:
        try:
            self._admit()
        except Refusal as refusal:
            self.refuse(refusal)
            return
        self._status = 200
        self._end(Outcome.OK)
        self._client.answer(Answer(200, self._text().encode(), content_type=CONTENT_TYPE))

    def _admit(self) -> None:
        """Apply control's own rule: administrators, or everybody where the setting `metrics_public` says so."""
        services = self._services
        if not services.directory.control.metrics_public:
            admit_key(services.directory, self._head, services.clock, scope=Scope.ADMIN)

    def _text(self) -> str:
        services = self._services
        note = "# control is away: these are the series of this gateway alone\n"
        return note + render(families({services.ledger.gateway: Vitals(services).counts()}))
