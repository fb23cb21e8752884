"""One request and its answer: the way between one client and one upstream connection, and its end on every path."""

import asyncio
import logging
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Final, Protocol

from corral.base.clock import Clock
from corral.base.ids import RequestIds
from corral.gateway.answers import Answer, Refusal
from corral.gateway.bodies import Bodies
from corral.gateway.config import GatewayConfig
from corral.gateway.dispatch import Dispatcher, Tasks
from corral.gateway.head import RequestHead
from corral.gateway.ledger import Ledger
from corral.gateway.pool import Pool
from corral.gateway.tally import Tally
from corral.gateway.upstream import AnswerHead, Failure, Origin, UpstreamConnection
from corral.gateway.view import Directory

log = logging.getLogger(__name__)

_FAILURES: Final = frozenset({500, 502, 504})
"""Refusals that are told in the log: somebody else failed. Those who are merely busy do not fill it."""


class Outcome(StrEnum):
    """How a request ended, as it is reported."""

    OK = "ok"
    REFUSED = "refused"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CLIENT_GONE = "client_gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What exchanges work with; one for the whole process."""

    config: GatewayConfig
    clock: Clock
    loop: asyncio.AbstractEventLoop
    control: Origin
    pool: Pool
    directory: Directory
    dispatcher: Dispatcher
    ledger: Ledger
    tasks: Tasks
    bodies: Bodies = field(default_factory=Bodies)
    tally: Tally = field(default_factory=Tally)
    request_ids: RequestIds = field(default_factory=RequestIds)


class Client(Protocol):
    """The client's side of an exchange. After `answer`, `finish`, `refuse` and `abort` the exchange is not called."""

    @property
    def forwarded(self) -> bytes:
        """Header lines that say who asks."""

    @property
    def request_id(self) -> bytes:
        """What this request is called everywhere."""

    @property
    def id_line(self) -> bytes:
        """The header line that says so, for whoever is asked."""

    @property
    def answer_lines(self) -> bytes:
        """Header lines that the gateway adds to every answer to this request."""

    @property
    def closes(self) -> bool:
        """Whether its connection ends with this answer."""

    @property
    def is_full(self) -> bool:
        """Whether it reads more slowly than the answer comes."""

    def hold_body(self, size: int) -> None:
        """Bytes of a body are held for its request until `body_sent`. Refusal when that is too much."""

    def body_sent(self) -> None:
        """The request's body is not needed any more."""

    def judged(self, status: int) -> None:
        """Control has answered with this status to a proof that only it can check: what it accepts makes the sender
        known, whose connection is then not one of those that make room for others."""

    def write(self, data: bytes) -> None: ...
    def unchunk(self) -> None:
        """What is written from now on comes in chunks; the client gets what is inside, until its connection ends."""

    def answer(self, answer: Answer) -> None: ...
    def finish(self, *, keep: bool) -> None: ...
    def refuse(self, refusal: Refusal) -> None: ...
    def abort(self) -> None: ...
    def reset(self) -> None:
        """Abort so that it is no orderly end: where an answer says no length, that would be taken for its end."""

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
"""As names of their own: looking one up in its class takes longer than most of what is done with it."""


class Exchange:
    """Base of both kinds. Subclasses decide whom to ask, and what to do when that fails."""

    __slots__ = (
        "_body",
        "_client",
        "_connection",
        "_deadline",
        "_dialling",
        "_head",
        "_keep",
        "_moved",
        "_moved_at",
        "_phase",
        "_services",
        "_status",
        "_told_beside",
        "first_byte_seconds",
        "idle_seconds",
    )
    """There is an exchange for every request: attributes in a dictionary would take longer to set and to find."""

    def __init__(self, services: Services, client: Client, head: RequestHead, body: bytes) -> None:
        self.first_byte_seconds = services.config.time_outs.first_byte
        self.idle_seconds: float | None = None
        """How long an answer may pause; None is for ever."""
        self._services = services
        self._client = client
        self._head = head
        self._body = body
        self._phase = _WAITING
        self._deadline: float | None = None
        self._connection: UpstreamConnection | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._status = 0
        self._told_beside = b""
        """Header lines for the client, beside those of the answer."""
        self._keep = self._moved = False
        self._moved_at = 0.0

    # For subclasses to fill in.

    def start(self) -> None:
        """Raises Refusal."""
        raise NotImplementedError

    def _request_head(self) -> bytes:
        raise NotImplementedError

    def _accept(self, head: AnswerHead) -> Failure | None:
        """Whether this answer may be passed on, or is a failure of who gave it."""
        raise NotImplementedError

    def _recover(self, failure: Failure) -> None:
        """No byte was passed on yet: ask another, or refuse."""
        raise NotImplementedError

    def _left(self, outcome: Outcome) -> None:
        """Called exactly once, at the end, on every path."""
        raise NotImplementedError

    @property
    def is_over(self) -> bool:
        return self._phase is _DONE

    # What the client's connection calls.

    def client_gone(self) -> None:
        self._end(Outcome.CLIENT_GONE)

    def client_full(self) -> None:
        if self._connection is not None:
            self._connection.pause()

    def client_writable(self) -> None:
        if self._connection is not None:
            self._connection.resume()

    def client_data(self, data: bytes) -> None:
        """Only after `begin_tunnel`."""
        if self._connection is not None:
            self._connection.write(data)

    def sweep(self, now: float) -> None:
        """Called every now and then: time-outs end here."""
        if self._deadline is not None:
            if now >= self._deadline:
                self._time_is_over()
        elif self._phase is _ANSWERING and self.idle_seconds is not None:
            if self._moved or self._client.is_full:
                self._moved, self._moved_at = False, now
            elif now - self._moved_at >= self.idle_seconds:
                self._give_up(Failure.IDLE_TIMED_OUT)

    def _time_is_over(self) -> None:
        self._give_up(Failure.FIRST_BYTE_TIMED_OUT)

    def _give_up(self, failure: Failure) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()
        self.upstream_failed(failure)

    # Asking.

    def _ask(self, origin: Origin) -> None:
        """On a kept connection if there is one."""
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
            self.upstream_failed(Failure.CONNECT_TIMED_OUT)
        except (OSError, UnicodeError):
            self._dialling = None
            self.upstream_failed(Failure.REFUSED)
        else:
            self._dialling = None
            self._send(connection)

    def _send(self, connection: UpstreamConnection) -> None:
        self._connection = connection
        self._phase = _SENT
        self._deadline = self._services.loop.time() + self.first_byte_seconds
        connection.send(self, self._request_head(), self._body, is_head=self._head.method == b"HEAD")

    # What the upstream connection calls.

    def upstream_began(self, head: AnswerHead, first: bytes) -> None:
        failure = self._accept(head)
        if failure is not None:
            self._give_up(failure)
            return
        self._begin(head)
        self._keep = head.own_length or self._head.method == b"HEAD"
        if head.is_chunked and self._head.is_http10:
            self._keep = False
            self._client.write(head.for_http10(added=self._told_beside + self._client.answer_lines))
            self._client.unchunk()
            self._client.write(first)
            return
        closes = self._client.closes or not self._keep
        added = self._told_beside + self._client.answer_lines
        self._client.write(head.for_client(closes=closes, added=added) + first)

    def _begin(self, head: AnswerHead) -> None:
        """From here on nothing can be asked again."""
        self._status = head.status
        self._phase = _ANSWERING
        self._deadline = None
        self._moved = True
        self._body = b""
        self._client.body_sent()
        if self._client.is_full and self._connection is not None:
            self._connection.pause()

    def upstream_data(self, data: bytes) -> None:
        self._moved = True
        self._client.write(data)

    def upstream_ended(self) -> None:
        self._connection = None
        self._end(Outcome.OK if self._status < 400 else Outcome.REFUSED)
        self._client.finish(keep=self._keep)

    def upstream_failed(self, failure: Failure) -> None:
        self._connection = None
        if self._phase is _DONE:
            return
        if self._phase is not _ANSWERING:
            self._recover(failure)
            return
        self._log("an answer broke off: %s", failure)
        self._broke_off(failure)
        self._end(Outcome.TIMED_OUT if failure is Failure.IDLE_TIMED_OUT else Outcome.FAILED)
        # So that nobody takes what came for the whole answer.
        if self._keep:
            self._client.abort()
        else:
            self._client.reset()

    def upstream_full(self) -> None:
        self._client.pause()

    def upstream_writable(self) -> None:
        self._client.resume()

    def _broke_off(self, failure: Failure) -> None:
        """An answer that had begun did not come to its end."""

    # The end.

    def refuse(self, refusal: Refusal) -> None:
        self._status = refusal.status
        if refusal.status in _FAILURES:
            self._log("a request failed: %s", refusal)
        self._end(Outcome.TIMED_OUT if refusal.status == 504 else Outcome.FAILED)
        self._client.refuse(refusal)

    def _log(self, text: str, why: object) -> None:
        """Of a failure, under the name that its client knows."""
        about = {"request_id": self._client.request_id.decode(), "path": self._head.path.decode()}
        log.info(text, why, extra={"event": "gateway.request_failed", **about})

    def _end(self, outcome: Outcome) -> None:
        if self._phase is _DONE:
            return
        self._phase = _DONE
        self._deadline = None
        self._body = b""
        if self._dialling is not None:
            self._dialling.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()
        self._left(outcome)
