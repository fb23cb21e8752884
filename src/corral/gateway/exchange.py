"""One request and its response: connects one client with one upstream connection, and cleans up on every path.

The base class knows the phases and timeouts. `inference.py` and `passing.py` decide whom to ask.
"""

import asyncio
import logging
import ssl
from collections.abc import Sequence
from enum import Enum, StrEnum
from typing import Final, Protocol

import msgspec

from corral.base.clock import Clock
from corral.base.ids import RequestIds
from corral.base.own_network import ForbiddenAddress
from corral.gateway.answers import Answer, GatewayRefusal
from corral.gateway.bodies import Bodies, UnfinishedHeads
from corral.gateway.config import GatewayConfig
from corral.gateway.dialling import FleetDialler
from corral.gateway.dispatch import RequestDispatcher, Tasks
from corral.gateway.engine_requests import Piece, size_of
from corral.gateway.head import RequestHead
from corral.gateway.pool import Pool
from corral.gateway.tally import Ledger, Tally
from corral.gateway.upstream import AnswerHead, Origin, UpstreamConnection, UpstreamFailure
from corral.gateway.view import Directory

log = logging.getLogger(__name__)

_FAILURES: Final = frozenset({500, 502, 504})
"""Statuses of refusals that are logged, because something failed. Refusals for overload are not: they would fill the
log."""
_JOINED: Final = 64 * 1024
"""Bytes of a body in pieces that are copied into one piece, so that one write is enough."""


class RequestOutcome(StrEnum):
    """How a request ended, as it is counted and reported."""

    OK = "ok"
    REFUSED = "refused"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CLIENT_GONE = "client_gone"


OK, REFUSED = RequestOutcome.OK, RequestOutcome.REFUSED
"""Names of their own for the usual outcomes, because looking a member up in its enum class costs more than most uses of
it."""


class Services(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that exchanges need; one object for the whole process."""

    config: GatewayConfig
    clock: Clock
    loop: asyncio.AbstractEventLoop
    control: Origin
    pool: Pool
    directory: Directory
    dispatcher: RequestDispatcher
    ledger: Ledger
    tasks: Tasks
    fleet: FleetDialler
    heads: UnfinishedHeads
    bodies: Bodies = msgspec.field(default_factory=Bodies)
    tally: Tally = msgspec.field(default_factory=Tally)
    request_ids: RequestIds = msgspec.field(default_factory=RequestIds)


class ClientSide(Protocol):
    """The client connection as an exchange sees it. After `answer`, `finish`, `refuse` or `abort` it does not call
    back."""

    forwarded: bytes
    """Header lines that tell the upstream about the sender."""
    id_line: bytes
    """Header line with the request id, for the upstream."""
    answer_lines: bytes
    """Header lines that the gateway adds to every response to this request."""
    closes: bool
    """Whether the connection is closed after this response."""
    is_full: bool
    """Whether the client reads more slowly than the response arrives."""

    @property
    def request_id(self) -> bytes:
        """The request's id, for logs."""

    def hold_body(self, size: int) -> None:
        """Account body bytes until `body_sent`. Raise `GatewayRefusal` when the budget is exceeded."""

    def body_sent(self) -> None:
        """Release the request's body: it is not needed for a retry any more."""

    def judged(self, status: int) -> None:
        """Control answered a proof that only it can check. An accepted sender is no longer evicted as a stranger."""

    def write(self, data: bytes) -> None: ...
    def unchunk(self) -> None:
        """Strip chunked framing from everything that is written from now on, until the connection ends."""

    def answer(self, answer: Answer) -> None: ...
    def finish(self, *, keep: bool) -> None: ...
    def refuse(self, refusal: GatewayRefusal) -> None: ...
    def abort(self) -> None: ...
    def reset(self) -> None:
        """Abort with a TCP reset. An orderly close would look like the end of a response that states no length."""

    def begin_tunnel(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class _Phase(Enum):
    WAITING = 0
    CONNECTING = 1
    SENT = 2
    ANSWERING = 3
    DONE = 4


_WAITING, _CONNECTING, _SENT, _ANSWERING, _DONE = _Phase
"""Module-level names, because looking a member up in its enum class costs more than most uses of it."""


class Exchange:
    """Base of `Inference` and `Passing`, which decide whom to ask and what to do when that fails."""

    _keep: bool
    """Whether the client's connection stays open after the response; known once that begins."""
    _sent_at: float
    """When the request was sent to the upstream, once it was."""

    __slots__ = (
        "_body",
        "_client",
        "_connection",
        "_deadline",
        "_dialling",
        "_head",
        "_keep",
        "_phase",
        "_pieces",
        "_sent_at",
        "_services",
        "_status",
    )
    """Slots, because there is one exchange per request and attributes in a dictionary are slower."""

    def __init__(self, services: Services, client: ClientSide, head: RequestHead, body: bytes) -> None:
        self._services = services
        self._client = client
        self._head = head
        self._body = body
        self._pieces: Sequence[Piece] = ()
        """The body as the upstream gets it, where that is another one than `_body`."""
        self._phase = _WAITING
        self._deadline: float | None = None
        """When waiting ends, before the request is sent."""
        self._connection: UpstreamConnection | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._status = 0

    # Overridden by subclasses.

    @property
    def first_byte_seconds(self) -> float:
        """Longest time until the upstream begins its response."""
        return self._services.config.time_outs.first_byte

    def start(self) -> None:
        """Begin. Raise `GatewayRefusal` when the request cannot be served."""
        raise NotImplementedError

    def _request_head(self) -> bytes:
        raise NotImplementedError

    def _accept(self, head: AnswerHead) -> UpstreamFailure | None:
        """Return why this response counts as a failure of the upstream, or None to pass it on."""
        raise NotImplementedError

    def _recover(self, failure: UpstreamFailure) -> None:
        """Handle a failure before the first byte: ask another replica, or refuse."""
        raise NotImplementedError

    def _on_end(self, outcome: RequestOutcome) -> None:
        """Account the end of the request. Called exactly once, on every path."""
        raise NotImplementedError

    def _sweep_answer(self, now: float) -> None:
        """Look at a response that is being passed on. It may take as long as it likes, unless overridden."""

    @property
    def is_over(self) -> bool:
        return self._phase is _DONE

    # Called by the client's connection.

    def client_gone(self) -> None:
        self._end(RequestOutcome.CLIENT_GONE)

    def client_full(self) -> None:
        if self._connection is not None:
            self._connection.pause()

    def client_writable(self) -> None:
        if self._connection is not None:
            self._connection.resume()

    def client_data(self, data: bytes) -> None:
        """Pass data through a tunnel; only called after `begin_tunnel`."""
        if self._connection is not None:
            self._connection.write(data)

    def sweep(self, now: float) -> None:
        """End the exchange if one of its timeouts has passed. Called periodically."""
        if self._phase is _ANSWERING:
            self._sweep_answer(now)
        elif self._phase is _SENT:
            if now >= self._sent_at + self.first_byte_seconds:
                self._time_is_over()
        elif self._deadline is not None and now >= self._deadline:
            self._time_is_over()

    def _time_is_over(self) -> None:
        self._give_up(UpstreamFailure.FIRST_BYTE_TIMED_OUT)

    def _give_up(self, failure: UpstreamFailure) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()
        self.upstream_failed(failure)

    def _wait_until(self, deadline: float) -> None:
        self._phase = _WAITING
        self._deadline = deadline

    # Asking the upstream.

    def _ask(self, origin: Origin) -> None:
        """Send the request on an idle connection if one exists, on a new one otherwise."""
        connection = self._services.pool.take(origin)
        if connection is None:
            self._ask_afresh(origin)
        else:
            self._send(connection)

    def _ask_afresh(self, origin: Origin) -> None:
        self._phase = _CONNECTING
        self._deadline = None
        self._dialling = self._services.tasks.start(self._dial(origin), name="dial")

    async def _dial(self, origin: Origin) -> None:
        try:
            connection = await self._services.pool.connect(origin)
        except TimeoutError:
            self._dialling = None
            self.upstream_failed(UpstreamFailure.CONNECT_TIMED_OUT)
        except (OSError, UnicodeError) as error:
            self._dialling = None
            self.upstream_failed(_dialling_failure(error))
        else:
            self._dialling = None
            self._send(connection)

    def _send(self, connection: UpstreamConnection) -> None:
        self._connection = connection
        self._phase = _SENT
        self._sent_at = self._services.loop.time()
        if self._pieces:
            self._send_pieces(connection)
            return
        connection.send(self, self._request_head(), self._body, is_head=self._head.method == b"HEAD")

    def _send_pieces(self, connection: UpstreamConnection) -> None:
        pieces = self._pieces
        if size_of(pieces) < _JOINED:
            connection.send(self, self._request_head(), b"".join(pieces))
            return
        connection.send(self, self._request_head(), b"")
        for piece in pieces:
            connection.write(piece)

    # Called by the upstream connection.

    def upstream_began(self, head: AnswerHead, first: bytes) -> None:
        failure = self._accept(head)
        if failure is not None:
            self._give_up(failure)
            return
        self._answer_with(head, first, self._client.answer_lines)

    def _answer_with(self, head: AnswerHead, first: bytes, added: bytes) -> None:
        """Begin the client's answer with a head that was accepted. `added` are complete header lines."""
        client = self._client
        self._begin(head)
        if head.is_chunked and self._head.is_http10:
            self._keep = False
            client.write(head.for_http10(added=added))
            client.unchunk()
            client.write(first)
            return
        self._keep = keep = head.own_length or self._head.method == b"HEAD"
        client.write(head.for_client(first, closes=client.closes or not keep, added=added))

    def _begin(self, head: AnswerHead) -> None:
        """Mark the response as begun. From here on the request cannot be retried."""
        client = self._client
        self._status = head.status
        self._phase = _ANSWERING
        self._body = b""
        self._pieces = ()
        client.body_sent()
        if client.is_full and self._connection is not None:
            self._connection.pause()

    def upstream_data(self, data: bytes) -> None:
        self._client.write(data)

    def upstream_ended(self) -> None:
        self._complete()

    def _complete(self) -> None:
        """The response has come to its end."""
        self._connection = None
        self._end(OK if self._status < 400 else REFUSED)
        self._client.finish(keep=self._keep)

    def upstream_failed(self, failure: UpstreamFailure) -> None:
        self._connection = None
        if self._phase is _DONE:
            return
        if self._phase is not _ANSWERING:
            self._recover(failure)
            return
        self._log("an answer broke off: %s", failure)
        self._broke_off(failure)
        self._end(RequestOutcome.TIMED_OUT if failure is UpstreamFailure.IDLE_TIMED_OUT else RequestOutcome.FAILED)
        # Reset, so that the client does not take a partial response for a complete one.
        if self._keep:
            self._client.abort()
        else:
            self._client.reset()

    def upstream_full(self) -> None:
        self._client.pause()

    def upstream_writable(self) -> None:
        self._client.resume()

    def _broke_off(self, failure: UpstreamFailure) -> None:
        """A response ended early, after its first byte. Override to report it."""

    # Ending.

    def refuse(self, refusal: GatewayRefusal) -> None:
        self._status = refusal.status
        if refusal.status in _FAILURES:
            self._log("a request failed: %s", refusal)
        self._end(RequestOutcome.TIMED_OUT if refusal.status == 504 else RequestOutcome.FAILED)
        self._client.refuse(refusal)

    def _log(self, text: str, why: object) -> None:
        """Log a failure with the request id that the client knows."""
        about = {"request_id": self._client.request_id.decode(), "path": self._head.path.decode()}
        log.info(text, why, extra={"event": "gateway.request_failed", **about})

    def _end(self, outcome: RequestOutcome) -> None:
        phase, self._phase = self._phase, _DONE
        if phase is _DONE:
            return
        if phase is not _ANSWERING:  # else the body was dropped, and nobody is dialled
            self._body = b""
            self._pieces = ()
            if self._dialling is not None:
                self._dialling.cancel()
        if self._connection is not None:
            self._connection.abort()
            self._connection = None
        self._on_end(outcome)


def _dialling_failure(error: Exception) -> UpstreamFailure:
    if isinstance(error, ForbiddenAddress):
        return UpstreamFailure.FORBIDDEN
    return UpstreamFailure.UNTRUSTED if isinstance(error, ssl.SSLError) else UpstreamFailure.REFUSED
