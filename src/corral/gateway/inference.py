"""A request to a model, after its key was checked: picks a replica, retries on another, and translates errors."""

import asyncio
import re
from codecs import BOM_UTF8
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from corral.adapter.dialects.engine_errors import (
    ANTHROPIC_ROUTES,
    anthropic_error_of,
    is_mendable,
    ollama_error_of,
    openai_error,
)
from corral.gateway.admit import asked_in_form, asked_in_json
from corral.gateway.answers import Answer, GatewayRefusal
from corral.gateway.bodies import Inflation
from corral.gateway.deployments import name_in_form, name_in_json
from corral.gateway.engine_requests import (
    ENGINE_IS_WELL,
    check_hops,
    engine_failure,
    engine_head,
    rename_in_form,
    rename_in_json,
)
from corral.gateway.exchange import OK, REFUSED, ClientSide, Exchange, RequestOutcome, Services
from corral.gateway.head import RequestHead, write_head
from corral.gateway.prefixes import chain_of
from corral.gateway.tally import ModelTally
from corral.gateway.upstream import TIME_OUTS, AnswerHead, Origin, UpstreamFailure
from corral.gateway.usage import AnswerTail
from corral.gateway.view import UpstreamReplica
from corral.wire.adapter import BACKEND_GONE_HEADER, MODEL_GONE_STATUS
from corral.wire.metrics import FIRST_BYTE_BOUNDS
from corral.wire.models import OLLAMA_ROUTES, ROUTE_USES
from corral.wire.view import EngineEntry, KeyEntry

_VERSION: Final = b"/v1"
_USES: Final = {route.encode(): use for route, use in ROUTE_USES.items()}
OLLAMA_PATHS: Final = frozenset(route.encode() for route in OLLAMA_ROUTES)
ROUTES: Final[Mapping[bytes, bytes]] = {
    **{
        prefix + route.removeprefix(_VERSION): route
        for route in _USES
        for prefix in ((b"",) if route in OLLAMA_PATHS else (_VERSION, b""))
    },
    b"/tts": b"/v1/audio/speech",
}
"""Public paths of inference routes, and the path that the replica is asked for."""
ANTHROPIC_PATHS: Final = frozenset(path for path, route in ROUTES.items() if route.decode() in ANTHROPIC_ROUTES)
_FORMS: Final = b"/v1/audio/transcriptions"
"""The route whose bodies are multipart forms."""
_FOR_FRONTS: Final = frozenset({b"/v1/responses", b"/v1/messages"}) | OLLAMA_PATHS
"""Routes that no engine with a port in front of it answers completely by itself."""
_NOBODY: Final[frozenset[str]] = frozenset()
_INFLATED_AT_ONCE: Final = 256 * 1024
"""Bytes that can be inflated on the event loop: about a millisecond."""
_RETRIES: Final = 1
"""Attempts on other replicas, before the first byte of a response."""
_ENGINE_RETRIES: Final = 3
"""Attempts on other replicas after a failed external engine: a model may have several engines to fall back on."""
_UNREACHED_RETRIES: Final = 4
"""Attempts on other replicas for a request that none has received, so that none can have failed because of it."""
_GONE: Final = frozenset(
    {UpstreamFailure.REFUSED, UpstreamFailure.CLOSED, UpstreamFailure.DENIED, UpstreamFailure.MODEL_GONE}
)
"""Failures that a dead process, or one that lost its model, produces at its address."""
_WAITED_FOR: Final = {"model_busy": "queue", "replica_failed": "replacement"}
"""Name of the timeout that ended a wait, by the code of the refusal. All others were waits for a load."""
_MOST_ERROR_BYTES: Final = 64 * 1024
_ASKED_IN: Final = {
    b"/v1/chat/completions": "messages",
    b"/v1/messages": "messages",
    b"/v1/messages/count_tokens": "messages",
    b"/v1/completions": "prompt",
}
"""Name of the body field that holds the prompt; `input` for other routes."""
_PROMPTED: Final = frozenset(
    {
        b"/v1/chat/completions",
        b"/v1/messages",
        b"/v1/completions",
        b"/v1/responses",
        b"/api/chat",
        b"/api/generate",
    }
)
"""Routes whose engines keep what they have read of a prompt."""
_BACKEND_GONE: Final = f"\r\n{BACKEND_GONE_HEADER}:".encode()
_RETRY_AFTER: Final = re.compile(rb"\r\nretry-after:[ \t]*([^\r\n]*)", re.IGNORECASE)


@dataclass(slots=True)
class _HeldError:
    """An error response of a replica that is being received."""

    head: AnswerHead
    body: bytes


class Inference(Exchange):
    """An exchange with a replica. The replica's in-flight count is raised from `assign` until the exchange leaves
    it."""

    _tally: ModelTally
    """What is counted of the model, once that is known."""
    _needs_care: bool
    """Whether the body uses a feature that some engines ignore; known with the model."""
    _asks_front: bool
    """Whether the port in front of the engine is asked; known with the replica."""
    _is_second_try: bool
    """Whether the replica is asked again, because a kept connection was closed."""
    _is_streamed: bool
    """Whether the answer is a stream of events; known once it begins."""
    _swept_size: int
    """How much of the answer had come when it was last swept; -1 when it was not yet."""
    _moved_at: float
    """When a sweep last found that more of it had come."""
    _inflating: asyncio.Task[None]

    __slots__ = (
        "_asks_front",
        "_came_at",
        "_chain",
        "_error",
        "_failures",
        "_first_at",
        "_inflating",
        "_is_counted",
        "_is_second_try",
        "_is_streamed",
        "_key",
        "_moved_at",
        "_needs_care",
        "_replica",
        "_route",
        "_swept_size",
        "_tail",
        "_tally",
        "_waits_since",
        "excluded",
        "model",
        "owner",
    )

    def __init__(self, services: Services, client: ClientSide, head: RequestHead, body: bytes, key: KeyEntry) -> None:
        Exchange.__init__(self, services, client, head, body)  # cheaper than with `super()`
        self.model = ""
        self.owner = key.id or key.hash
        self._key = key
        self.excluded = _NOBODY
        """Ids of replicas that must not be asked, or not again."""
        self._route = ROUTES[head.path]
        self._replica: UpstreamReplica | None = None
        self._failures: Sequence[UpstreamFailure] = ()
        """Failures of the replicas that were asked before."""
        self._error: _HeldError | None = None
        self._chain: Sequence[int] | None = None
        self._is_counted = False
        self._waits_since: float | None = None
        self._tail = AnswerTail()
        self._came_at = services.loop.time()
        self._first_at = 0.0
        """When the first byte of the answer came, after its head; 0 before."""

    @property
    def scopes(self) -> Collection[str]:
        return self._key.scopes

    def start(self) -> None:
        if not self._head.encoding:
            self._submit()
            return
        inflation = Inflation(self._body, limit=self._services.config.limits.body)
        if inflation.run(_INFLATED_AT_ONCE):
            self._take_inflated(inflation)
        else:  # a large body is inflated in a thread, so that other clients are not delayed
            self._inflating = self._services.tasks.start(self._inflate_in_thread(inflation), name="inflate")

    async def _inflate_in_thread(self, inflation: Inflation) -> None:
        try:
            await asyncio.to_thread(inflation.run)
            if not self.is_over:
                self._take_inflated(inflation)
        except GatewayRefusal as refusal:
            if not self.is_over:
                self.refuse(refusal)

    def _take_inflated(self, inflation: Inflation) -> None:
        self._body = inflation.content
        self._client.body_sent()
        self._client.hold_body(len(self._body))
        self._submit()

    def _submit(self) -> None:
        body, route = self._body, self._route
        if body and body[0] == BOM_UTF8[0]:
            self._body = body = body.removeprefix(BOM_UTF8)
        services, only = self._services, self._key.models
        parsed = asked_in_json(body) if route != _FORMS else asked_in_form(self._head, body)
        name = parsed.named()
        if is_ollama := route in OLLAMA_PATHS:
            name = services.directory.plain_name(name)
        entry = services.directory.find_model(name) if only is None else services.directory.find_allowed(name, only)
        is_anthropic = route in ANTHROPIC_PATHS
        parsed.check_messages(takes_null=not is_anthropic, takes_empty=is_ollama)
        self._needs_care = route in _FOR_FRONTS or (is_anthropic and parsed.has_blocks())
        if parsed.has_options():
            parsed.check_options()
            self._needs_care = self._needs_care or parsed.needs_care()
        use = _USES[route]
        if entry.uses and use is not None and use not in entry.uses:  # refused before anything is loaded for it
            reason = f"the model {entry.name} is for {' and '.join(entry.uses)}, and not for {use}"
            knobs = "its configuration decides that: backend, known_usecases, embeddings, reranking"
            raise GatewayRefusal(400, f"{reason}; {knobs}", code="unsupported_by_model", param="model")
        self.model = entry.name
        self._tally = services.tally.of(entry.name)
        self._queue_up()

    # Called by the dispatcher.

    def prompt_chain(self) -> Sequence[int]:
        if self._chain is None:
            self._chain = chain_of(self._body) if self._route in _PROMPTED else ()
        return self._chain

    def assign(self, replica: UpstreamReplica) -> None:
        if self._route not in replica.routes:
            self._pass_over(replica)
            return
        self._replica = replica
        self._is_second_try = False
        self._is_counted = True
        replica.in_flight += 1
        if self._failures:
            self._services.tally.retries += 1
            self._pieces = ()  # of an engine that was asked before
        if self._waits_since is not None:
            self._tally.waited(self._services.loop.time() - self._waits_since)
            self._waits_since = None
        self._tally.request_bytes += len(self._body)
        self._asks_front = self._needs_care
        if replica.engine is not None and not self._is_ready_for(replica, replica.engine):
            return
        self._ask(self._origin(replica) if self._asks_front else replica.origin)

    def _is_ready_for(self, replica: UpstreamReplica, engine: EngineEntry) -> bool:
        """Write the engine's name of the model into the request. False: that is impossible, and the client got a
        refusal."""
        if replica.wakes_fleet:
            self._services.dispatcher.wake_fleet(self.model)
        try:
            check_hops(self._head, self.model)
            if self._route == _FORMS:
                self._pieces = rename_in_form(self._head.lines, self._body, engine.model)
            else:
                self._pieces = rename_in_json(self._body, engine.model)
        except GatewayRefusal as refusal:
            self.refuse(refusal)
            return False
        return True

    def _origin(self, replica: UpstreamReplica) -> Origin:
        """Return the engine's own port, or the port in front of it for features that the engine ignores or refuses."""
        return replica.front if self._asks_front and replica.front is not None else replica.origin

    def _pass_over(self, replica: UpstreamReplica) -> None:
        """The replica does not serve this route: try another replica of the model."""
        self.excluded |= {replica.id}
        if self._services.directory.serves(self.model, self.excluded):
            self._queue_up()
        elif self._failures:
            self._outlive(self._failures[-1])
        else:
            text = f"the backend of the model {self.model} does not answer {self._route.decode()}"
            self.refuse(GatewayRefusal(400, text, code="unsupported_by_model", param="model"))

    def wait(self, seconds: float) -> None:
        now = self._services.loop.time()
        self._wait_until(now + seconds)
        if self._waits_since is None:
            self._waits_since = now

    # Called by the base class.

    def _request_head(self) -> bytes:
        head, replica = self._head, self._replica
        assert replica is not None  # noqa: S101 - for the type checker; a cast would be a call for every request
        if replica.engine is not None:
            base = replica.engine.base.encode()
            route = base + self._route.removeprefix(_VERSION)
            return engine_head(head, route, lines=replica.lines, id_line=self._client.id_line, pieces=self._pieces)
        return write_head(
            head,
            target=self._route + b"?" + head.query if head.query else self._route,
            lines=replica.lines,
            added=self._client.forwarded + self._client.id_line,
            length=len(self._body),
        )

    def upstream_data(self, data: bytes) -> None:
        if not self._first_at:
            if self._error is not None:
                self._error.body += data
                return
            self._begins()
        self._client.write(data)
        tail = self._tail
        tail.pieces.append(data)
        tail.size = size = tail.size + len(data)
        if size >= tail.trim_at:
            tail.trim()

    def upstream_began(self, head: AnswerHead, first: bytes) -> None:
        """Hold short error responses until they are complete, because they may be translated. Pass on everything
        else."""
        replica = self._replica
        if head.status == 200 and replica is not None and not replica.is_demoted:
            self._pass_on(head, first)
        elif (failure := self._accept(head)) is not None:
            self._give_up(failure)
        elif head.status >= 400 and head.is_short(_MOST_ERROR_BYTES) and self._head.method != b"HEAD":
            self._error = _HeldError(head, first)
        else:
            self._pass_on(head, first)

    def _pass_on(self, head: AnswerHead, first: bytes) -> None:
        """Begin the client's answer with a head that was accepted. It is not judged again: by now the connection may
        be gone, and other replicas there."""
        replica, added = self._replica, self._client.answer_lines
        if replica is not None and self._services.config.expose_node:
            added = b"X-LocalAI-Node: %b\r\n%b" % (replica.node_id.encode("latin-1", "replace"), added)
        if head.is_about_host:
            head = head.without_host()
        self._is_streamed = head.is_events
        self._swept_size = -1
        self._answer_with(head, first, added)
        if first:
            self._tail.add(first)
            self._begins()

    def _begins(self) -> None:
        """The first byte of the answer goes to the client."""
        self._first_at = now = self._services.loop.time()
        if self._status < 400:
            self._tally.first_byte.add(now - self._came_at, FIRST_BYTE_BOUNDS)

    def _answer_seconds(self) -> float:
        """How long the answer took from its first byte; one that came in one piece, from the asking."""
        now = self._services.loop.time()
        is_measured = self._is_streamed and now > self._first_at
        return now - (self._first_at if is_measured else self._sent_at)

    def upstream_ended(self) -> None:
        error = self._error
        if error is None:
            self._complete()
            return
        self._error = None
        self._connection = None
        front = None if self._replica is None or self._asks_front else self._replica.front
        if front is not None and is_mendable(error.body):
            self._asks_front = True
            self._is_second_try = False
            self._ask(front)
            return
        translated = None
        if self._replica is None or self._replica.engine is None:  # engines of others are quoted as they are
            translated = openai_error(error.head.status, error.body, about=_ASKED_IN.get(self._route, "input"))
        if self._head.path in ANTHROPIC_PATHS:
            status, body = translated or (error.head.status, error.body)
            translated = status, anthropic_error_of(status, body)
        elif self._head.path in OLLAMA_PATHS:
            status, body = translated or (error.head.status, error.body)
            translated = status, ollama_error_of(body)
        if translated is None:
            self._pass_on(error.head, error.body)
            self._complete()
            return
        self._status, body = translated
        self._tail.add(body)
        self._end(REFUSED)
        retry_after = _RETRY_AFTER.search(error.head.raw)
        headers = {} if retry_after is None else {"Retry-After": retry_after[1].decode("latin-1")}
        if self._services.config.expose_node and self._replica is not None:
            headers["X-LocalAI-Node"] = self._replica.node_id
        self._client.answer(Answer(self._status, body, headers))

    def upstream_failed(self, failure: UpstreamFailure) -> None:
        self._error = None
        super().upstream_failed(failure)

    def _accept(self, head: AnswerHead) -> UpstreamFailure | None:
        replica = self._replica
        assert replica is not None  # noqa: S101 - for the type checker; who answers was assigned
        if head.status != 200:
            if replica.engine is not None:
                return self._accept_from_engine(head, replica)
            if (failure := _failure_of(head)) is not None:
                return failure
        if replica.is_demoted:
            replica.restore()
        return None

    def _accept_from_engine(self, head: AnswerHead, replica: UpstreamReplica) -> UpstreamFailure | None:
        failure = engine_failure(head.status)
        if failure is None:
            replica.restore()
        elif failure in ENGINE_IS_WELL and not self._may_try_another(replica):
            return None
        return failure

    def _may_try_another(self, engine: UpstreamReplica) -> bool:
        has_others = self._services.directory.serves(self.model, {*self.excluded, engine.id})
        return has_others and len(self._failures) < _ENGINE_RETRIES

    def _sweep_answer(self, now: float) -> None:
        if self._swept_size != self._tail.size or self._client.is_full:
            self._swept_size, self._moved_at = self._tail.size, now
        elif now - self._moved_at >= self._services.config.time_outs.idle:
            self._give_up(UpstreamFailure.IDLE_TIMED_OUT)

    def _time_is_over(self) -> None:
        if not self._is_counted:
            why = self._services.dispatcher.why_waited(self)
            self._services.tally.time_outs[_WAITED_FOR.get(why.code, "load")] += 1
            self._services.dispatcher.withdraw(self)
            self.refuse(why)
        else:
            super()._time_is_over()

    def _recover(self, failure: UpstreamFailure) -> None:
        replica = cast(UpstreamReplica, self._replica)
        if failure is UpstreamFailure.STALE and not self._is_second_try:
            self._is_second_try = True
            self._services.tally.reconnects += 1
            self._ask_afresh(self._origin(replica))  # it may be elsewhere by now
            return
        self._blame(replica, failure)
        self.excluded |= {replica.id}
        self._failures = (*self._failures, failure)
        self._leave()
        if len(self._failures) > _most_retries(replica, failure):
            self.refuse(_failed(self.model, failure))
        elif not self._services.directory.serves(self.model, self.excluded):
            self._outlive(failure)
        else:
            self._queue_up()

    def _queue_up(self) -> None:
        try:
            self._services.dispatcher.submit(self)
        except GatewayRefusal as refusal:
            self.refuse(refusal)

    def _outlive(self, failure: UpstreamFailure) -> None:
        """No other replica exists. Wait for a replacement if this one is gone, else refuse."""
        engine = None if self._replica is None else self._replica.engine
        if engine is not None:
            self._outlive_engine(engine, failure)
        elif failure in _GONE:
            self._services.dispatcher.strand(self, _failed(self.model, failure))
        else:
            self.refuse(_failed(self.model, failure))

    def _outlive_engine(self, engine: EngineEntry, failure: UpstreamFailure) -> None:
        """Nobody replaces an engine that somebody else runs, but the fleet may load the model itself."""
        refusal = _failed(self.model, failure)
        if engine.has_fleet and not self._services.directory.has_fleet_replica(self.model):
            self._services.dispatcher.await_fleet(self, refusal)
        else:
            self.refuse(refusal)

    def _broke_off(self, failure: UpstreamFailure) -> None:
        if self._replica is not None:
            self._blame(self._replica, failure)

    def _blame(self, replica: UpstreamReplica, failure: UpstreamFailure) -> None:
        if failure is UpstreamFailure.DECLINED:
            return
        replica.demote()
        self._services.ledger.failed(replica.id, failure)
        if failure in TIME_OUTS:
            self._services.tally.time_outs[TIME_OUTS[failure]] += 1

    def _leave(self) -> None:
        if self._is_counted and self._replica is not None:
            self._is_counted = False
            self._replica.in_flight -= 1
            self._services.dispatcher.freed(self.model)

    def _on_end(self, outcome: RequestOutcome) -> None:
        if not self.model:
            return
        if not self._is_counted:
            self._services.dispatcher.withdraw(self)
        usage = self._tail.usage() if outcome is OK else None
        seconds = self._answer_seconds() if usage is not None else 0.0
        if self._replica is not None:
            self._services.ledger.ended(self._replica.id, self.model, self.owner, outcome, usage, seconds)
        self._tally.ended(self._status, outcome, answer_bytes=self._tail.size, usage=usage, seconds=seconds)
        self._leave()


class NamedByPath(Inference):
    """A request whose path named the model. The name is written into its body, where engines read it."""

    __slots__ = ()

    def _submit(self) -> None:
        head, body = self._head, self._body.removeprefix(BOM_UTF8)
        is_form = self._route == _FORMS
        self._body = name_in_form(head.lines, body, head.model) if is_form else name_in_json(body, head.model)
        super()._submit()


def _failure_of(head: AnswerHead) -> UpstreamFailure | None:
    """Return what is wrong with a replica of the fleet's own that answers so, or None."""
    if head.status == 101:
        return UpstreamFailure.GARBAGE
    if head.status == 401:
        return UpstreamFailure.DENIED  # the port belongs to another process by now, or the key changed
    if head.status == MODEL_GONE_STATUS:
        return UpstreamFailure.MODEL_GONE
    if head.status == 503 and _BACKEND_GONE in head.raw:  # what an adapter says of the process behind it
        return UpstreamFailure.REFUSED
    return None


def _most_retries(replica: UpstreamReplica, failure: UpstreamFailure) -> int:
    if failure is UpstreamFailure.REFUSED:
        return _UNREACHED_RETRIES
    return _RETRIES if replica.engine is None else _ENGINE_RETRIES


def _failed(model: str, failure: UpstreamFailure) -> GatewayRefusal:
    status, code = (504, "replica_timed_out") if failure in TIME_OUTS else (502, "replica_failed")
    return GatewayRefusal.busy(status, f"the replica of the model {model} failed: {failure}", code=code, retry_after=1)
