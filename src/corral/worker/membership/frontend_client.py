"""HTTP calls from a worker to its frontends, Corral's or LocalAI's.

Stays with the frontend that works and moves to the next one when it does not answer or answers 5xx, or has no route for
registrations. Every call is harmless when repeated. Decides nothing: what a refusal means is the caller's business.
Messages name the frontend, the status and its reason, and never a token.
"""

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec

from corral.base.errors import InvalidInput, PeerRefused, PeerUnavailable
from corral.base.http_client import HttpFailed, HttpFault, asked, host_of, is_passing, read_body
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.base.values import PartlyPrinted
from corral.bus.config import reached_from
from corral.wire import go_json
from corral.wire.fleet_tls import CertificateAsk, IssuedCertificate
from corral.wire.registration import (
    CorralWelcome,
    HeartbeatRequest,
    HeartbeatResponse,
    NatsOffer,
    RegisterRequest,
    RegisterResponse,
    ReplicaInFlight,
)
from corral.worker.membership.registration import NO_ROUTE, AcceptedRegistration
from corral.worker.membership.trust import NoPin, Trust, same_problem

MAX_ANSWER: Final = 4 * 1024 * 1024
MAX_REASON: Final = 300


class _Call(PartlyPrinted, frozen=True, kw_only=True):
    unprinted = ("bearer",)

    method: str
    path: str
    bearer: str
    body: bytes | None = None

    @property
    def headers(self) -> dict[str, str]:
        headers = {"Authorization": f"Bearer {self.bearer}"} if self.bearer else {}
        if self.body is not None:
            headers["Content-Type"] = "application/json"
        return headers


class _FrontendAnswer(msgspec.Struct, frozen=True, kw_only=True):
    where: str
    host: str
    """The frontend's host as we dialled it."""
    status: int
    body: bytes


class FrontendClient:
    """Calls to one of several frontends of the same cluster."""

    def __init__(self, session: aiohttp.ClientSession, urls: Sequence[str], trust: Trust | None = None) -> None:
        """`trust` decides which of them may receive secrets; without it all may."""
        self._session = session
        self._trust = trust or NoPin()
        self._urls = tuple(urls)
        self._current = 0

    async def register(self, body: RegisterRequest) -> RegisterResponse:
        """Join, or join again. An answer needs nothing but an id."""
        call = _Call(method="POST", path="/api/node/register", bearer=body.token, body=msgspec.json.encode(body))
        try:
            answer = await self._send(call)
        except PeerRefused as refused:
            if refused.status in NO_ROUTE:
                self._move_on()
            raise
        try:
            response = go_json.decode(answer.body, RegisterResponse)
        except InvalidInput as error:
            raise _not_a_frontend(answer, str(error)) from error
        if not response.id:
            raise _not_a_frontend(answer, "no node id")
        if isinstance(response.corral, CorralWelcome) and isinstance(response.corral.nats, NatsOffer):
            offer = response.corral.nats
            try:
                offer.urls = [reached_from(url, answer.host) for url in offer.urls]
            except InvalidInput as error:
                raise _not_a_frontend(answer, f"it offers {error.message}") from error
        return response

    async def heartbeat(self, member: AcceptedRegistration, body: HeartbeatRequest) -> HeartbeatResponse:
        """Send a sign of life. Any 2xx counts, also with a body that cannot be read."""
        answer = await self._send(_node_call("POST", member, "heartbeat", msgspec.json.encode(body)))
        try:
            return go_json.decode(answer.body, HeartbeatResponse)
        except InvalidInput:
            return HeartbeatResponse()

    async def certificate(self, member: AcceptedRegistration, csr: str) -> IssuedCertificate:
        """Have a request for a certificate signed. Only for frontends that name `Feature.FLEET_TLS`."""
        path = f"/api/v1/nodes/{quote(member.node_id, safe='')}/certificate"
        body = msgspec.json.encode(CertificateAsk(csr=csr))
        answer = await self._send(_Call(method="POST", path=path, bearer=member.bearer, body=body))
        try:
            return msgspec.json.decode(answer.body, type=IssuedCertificate)
        except UNREADABLE_JSON as error:
            raise _not_a_frontend(answer, str(error)) from error

    async def drain(self, member: AcceptedRegistration) -> None:
        """Ask for no new work."""
        await self._send(_node_call("POST", member, "drain"))

    async def deregister(self, member: AcceptedRegistration) -> None:
        """Take this node offline until it registers again."""
        await self._send(_node_call("POST", member, "deregister"))

    async def in_flight(self, member: AcceptedRegistration) -> int:
        """How many requests the frontends have open on this node."""
        answer = await self._send(_node_call("GET", member, "models"))
        try:
            replicas = msgspec.json.decode(answer.body, type=list[ReplicaInFlight] | None)
        except UNREADABLE_JSON as error:
            raise _not_a_frontend(answer, str(error)) from error
        return sum(replica.in_flight for replica in replicas or [])

    async def _send(self, call: _Call) -> _FrontendAnswer:
        """Ask the frontend that worked last, then each of the others once."""
        problems: list[PeerUnavailable] = []
        for _ in self._urls:
            try:
                return await self._send_to(self._urls[self._current], call)
            except PeerUnavailable as error:
                problems.append(error)
                self._move_on()
        kind = same_problem(problems)
        raise kind("; ".join(sorted(problem.message for problem in problems))) from problems[-1]

    def _move_on(self) -> None:
        self._current = (self._current + 1) % len(self._urls)

    async def _send_to(self, url: str, call: _Call) -> _FrontendAnswer:
        try:
            try:
                answer = await self._exchange(url, call)
            except HttpFailed as error:
                if error.fault is not HttpFault.DISCONNECTED:
                    raise
                answer = await self._exchange(url, call)  # servers close kept connections at any time
        except HttpFailed as error:
            self._trust.forget(url)
            raise PeerUnavailable(f"frontend {error.host} does not answer: {error.reason}") from error
        if 200 <= answer.status < 300:
            return answer
        reason = error_text(answer.body)
        if call.bearer:  # a frontend has no reason to send our token back, and nobody else must read it
            reason = re.sub(rf"(?<![\w-]){re.escape(call.bearer)}(?![\w-])", "***", reason)
        message = f"frontend {answer.where} answered {answer.status} to {call.method} {call.path}"
        message += f": {reason}" if reason else ""
        if is_passing(answer.status):
            raise PeerUnavailable(message)
        if 300 <= answer.status < 400:
            message += " (redirects are not followed: set the URL it leads to)"
        raise PeerRefused(message, status=answer.status)

    async def _exchange(self, url: str, call: _Call) -> _FrontendAnswer:
        tls = await self._trust.check(url)  # before the bearer goes there
        async with asked(
            self._session, call.method, url + call.path, headers=call.headers, data=call.body, tls=tls
        ) as response:
            body = await read_body(response, MAX_ANSWER)
            return _FrontendAnswer(
                where=host_of(url), host=urlsplit(url).hostname or "", status=response.status, body=body
            )


def _node_call(method: str, member: AcceptedRegistration, action: str, body: bytes | None = None) -> _Call:
    return _Call(
        method=method, path=f"/api/node/{quote(member.node_id, safe='')}/{action}", bearer=member.bearer, body=body
    )


def _not_a_frontend(answer: _FrontendAnswer, problem: str) -> PeerUnavailable:
    return PeerUnavailable(f"{answer.where} answered {answer.status}, but not as a frontend does: {problem}")


def error_text(body: bytes) -> str:
    """What went wrong, from either of the two forms of error bodies, or from plain text that is no page."""
    text = ""
    try:
        match msgspec.json.decode(body):
            case {"error": {"message": str(text)}} | {"error": str(text)}:
                pass
    except UNREADABLE_JSON:
        text = body.decode("utf-8", errors="replace")
    return "" if text.lstrip().startswith("<") else " ".join(text.split())[:MAX_REASON]
