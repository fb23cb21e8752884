"""The HTTP side: routes, keys, streams. A client that goes away cancels its handler, and with it its one gRPC call."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final

from aiohttp import web

from corral.adapter.chat import chat, completions
from corral.adapter.embeddings import embeddings
from corral.adapter.errors import document_of, failure_of, words_of
from corral.adapter.replicas import KeyUnknown, Replicas, Served
from corral.base.clock import Clock
from corral.base.errors import CorralError, InvalidInput
from corral.dialect.answers import error_event

log = logging.getLogger(__name__)

MAX_BODY_BYTES: Final = 48 * 1024 * 1024
"""What fits into one message of the contract, with room for what is added."""
_JSON: Final = "application/json"
_EVENTS: Final = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}

Answer = bytes | AsyncGenerator[bytes, None]
Translate = Callable[[Served, bytes, Clock], Awaitable[Answer]]


class AdapterApp:
    """Answers for all replicas that the adapter was told of."""

    def __init__(self, replicas: Replicas, clock: Clock) -> None:
        self._replicas = replicas
        self._clock = clock
        self._in_flight = 0

    def build(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/v1/models", self._models)
        for path, translate in _ROUTES.items():
            app.router.add_post(path, self._route(translate))
        return app

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok", "replicas": len(self._replicas), "in_flight": self._in_flight})

    async def _models(self, request: web.Request) -> web.StreamResponse:
        try:
            name = self._replicas.find(_bearer(request)).model.name
        except KeyUnknown as error:
            return _refusal(error)
        return web.json_response({"object": "list", "data": [{"id": name, "object": "model", "owned_by": "corral"}]})

    def _route(self, translate: Translate) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            self._in_flight += 1
            try:
                return await self._answer(request, translate)
            except CorralError as error:
                return _refusal(error)
            finally:
                self._in_flight -= 1

        return handle

    async def _answer(self, request: web.Request, translate: Translate) -> web.StreamResponse:
        served = self._replicas.find(_bearer(request))
        answer = await translate(served, await _body(request), self._clock)
        if isinstance(answer, bytes):
            return web.Response(body=answer, content_type=_JSON)
        return await _stream(request, answer)


async def _body(request: web.Request) -> bytes:
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise BodyTooLarge from error


class BodyTooLarge(InvalidInput):
    """The request is too large."""

    code = "request_too_large"

    def __init__(self) -> None:
        super().__init__("", f"the body has more than {MAX_BODY_BYTES} bytes")


async def _stream(request: web.Request, events: AsyncGenerator[bytes, None]) -> web.StreamResponse:
    """The status is sent with the first event: what fails before it still gets one of its own."""
    async with aclosing(events) as parts:
        first = await anext(parts, b"")
        response = web.StreamResponse(headers=_EVENTS)
        await response.prepare(request)
        await response.write(first)
        try:
            async for part in parts:
                if part:
                    await response.write(part)
        except CorralError as error:
            log.warning("stream broken: %s", error, extra={"event": "adapter.stream_broken"})
            await response.write(error_event(words_of(error), kind=failure_of(error).kind, code=error.code))
        await response.write_eof()
    return response


def _refusal(error: CorralError) -> web.Response:
    status = 413 if isinstance(error, BodyTooLarge) else failure_of(error).status
    return web.Response(status=status, body=document_of(error), content_type=_JSON)


def _bearer(request: web.Request) -> str:
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


_ROUTES: Final[dict[str, Translate]] = {
    "/v1/chat/completions": chat,
    "/v1/completions": completions,
    "/v1/embeddings": embeddings,
}
