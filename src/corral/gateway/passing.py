"""Requests that are not inference: relayed to control unchanged, WebSockets as a tunnel."""

from typing import Final

from corral.gateway.admit import admit_key
from corral.gateway.answers import Answer, GatewayRefusal
from corral.gateway.exchange import ClientSide, Exchange, RequestOutcome, Services
from corral.gateway.head import RequestHead, own_lines, write_head
from corral.gateway.tally import CLIENT_LEFT
from corral.gateway.upstream import AnswerHead, UpstreamFailure
from corral.gateway.vitals import current_counts
from corral.wire.keys import Scope
from corral.wire.metrics import CONTENT_TYPE, families, render

METRICS_PATH: Final = b"/metrics"
_METRICS_SECONDS: Final = 4.0
"""How long control may take for its metrics. Prometheus gives up after 10 seconds by default."""
_REPEATABLE: Final = frozenset({b"GET", b"HEAD", b"OPTIONS"})
_AWAY: Final = frozenset(
    {
        UpstreamFailure.REFUSED,
        UpstreamFailure.UNTRUSTED,
        UpstreamFailure.CONNECT_TIMED_OUT,
        UpstreamFailure.CLOSED,
        UpstreamFailure.STALE,
    }
)
_TUNNEL: Final = b"Connection: Upgrade\r\nUpgrade: websocket\r\n"


class Passing(Exchange):
    """An exchange with control. A request that changes something gets a new connection, since it cannot be sent
    twice."""

    __slots__ = ("_is_second_try",)

    def __init__(self, services: Services, client: ClientSide, head: RequestHead, body: bytes) -> None:
        super().__init__(services, client, head, body)
        self._is_second_try = False

    def start(self) -> None:
        if self._head.method in _REPEATABLE:
            self._ask(self._services.control)
        else:
            self._ask_afresh(self._services.control)

    def _request_head(self) -> bytes:
        head = self._head
        added = head.api_key + self._client.forwarded + self._client.id_line
        if head.origin is not None:
            added += b"Origin: " + head.origin + b"\r\n"
        if head.cookie:
            added += b"Cookie: " + head.cookie + b"\r\n"
        if head.csrf:
            added += b"X-Corral-CSRF: " + head.csrf + b"\r\n"
        if head.encoding:
            added += b"Content-Encoding: " + head.encoding + b"\r\n"
        if head.host:
            added += b"X-Forwarded-Host: " + head.host + b"\r\n"
        return write_head(
            head,
            target=head.path + b"?" + head.query if head.query else head.path,
            lines=own_lines(head.host or self._services.control.host_header, head.authorization),
            added=added + _TUNNEL if head.wants_tunnel else added,
            length=len(self._body),
        )

    def _accept(self, head: AnswerHead) -> UpstreamFailure | None:
        return UpstreamFailure.GARBAGE if head.status == 101 and not self._head.wants_tunnel else None

    def upstream_began(self, head: AnswerHead, first: bytes) -> None:
        if head.status != 101 or not self._head.wants_tunnel:
            super().upstream_began(head, first)
            return
        self._begin(head)
        self._keep = False
        self._client.write(head.for_tunnel(added=self._client.answer_lines) + first)
        self._client.begin_tunnel()

    def _recover(self, failure: UpstreamFailure) -> None:
        if failure is UpstreamFailure.STALE and not self._is_second_try:
            self._is_second_try = True
            self._ask_afresh(self._services.control)
        elif failure in _AWAY:
            self._control_is_away()
        elif failure is UpstreamFailure.FIRST_BYTE_TIMED_OUT:
            self.refuse(GatewayRefusal(504, "the control plane did not answer in time", code="control_timed_out"))
        else:
            self.refuse(GatewayRefusal(502, f"the control plane failed: {failure}", code="control_failed"))

    def _control_is_away(self) -> None:
        text = "the control plane is away; models that are loaded still answer"
        self.refuse(GatewayRefusal.busy(503, text, code="control_unavailable"))

    def _on_end(self, outcome: RequestOutcome) -> None:
        self._services.tally.passed[self._status or CLIENT_LEFT] += 1


class FromWorker(Passing):
    """A request with a proof that only control can check. The sender counts as known once control accepts it."""

    def upstream_began(self, head: AnswerHead, first: bytes) -> None:
        self._client.judged(head.status)
        super().upstream_began(head, first)


class Metrics(Passing):
    """Serves `/metrics`: control's page for all gateways, or this gateway's own counters while control is away."""

    @property
    def first_byte_seconds(self) -> float:
        return min(super().first_byte_seconds, _METRICS_SECONDS)

    def _recover(self, failure: UpstreamFailure) -> None:
        if failure is UpstreamFailure.FIRST_BYTE_TIMED_OUT:
            self._control_is_away()
        else:
            super()._recover(failure)

    def _control_is_away(self) -> None:
        services = self._services
        try:  # control's own rule: people who may look, or everybody where the setting `metrics_public` says so
            if not services.directory.control.metrics_public:
                admit_key(services.directory, self._head, services.clock, scope=Scope.VIEWER)
        except GatewayRefusal as refusal:
            self.refuse(refusal)
            return
        note = "# control is away: these are the series of this gateway alone\n"
        text = note + render(families({services.ledger.gateway: current_counts(services)}))
        self._status = 200
        self._end(RequestOutcome.OK)
        self._client.answer(Answer(200, text.encode(), content_type=CONTENT_TYPE))
