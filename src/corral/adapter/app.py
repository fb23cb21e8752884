"""The adapter's HTTP server: routes, keys, streams.

A client that disconnects cancels its handler, and with it the handler's gRPC call.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final

from aiohttp import web

from corral.adapter.audio import speech, transcriptions
from corral.adapter.calls import detokenize, embeddings, rerank, tokenize, voice_activity
from corral.adapter.chat import chat, completions
from corral.adapter.errors import document_of, failure_of
from corral.adapter.forms import MAX_BODY_BYTES, read_body
from corral.adapter.replicas import KeyUnknown, Served, ServedReplicas
from corral.adapter.scratch import Scratch
from corral.adapter.streams import stream_events
from corral.base.clock import Clock
from corral.base.errors import CorralError

_JSON: Final = "application/json"

AdapterReply = bytes | AsyncGenerator[bytes, None]
Translate = Callable[[Served, bytes, Clock], Awaitable[AdapterReply]]
"""Handles a JSON request; answers with JSON or with a stream of events."""
AudioHandler = Callable[[Served, web.Request, Scratch], Awaitable[web.StreamResponse]]
"""Handles a request with audio, which backends read and write as files."""
Handle = Callable[[web.Request, Served], Awaitable[web.StreamResponse]]


class AdapterApp:
    """Serves all replicas that the adapter's parent has registered."""

    def __init__(self, replicas: ServedReplicas, clock: Clock, scratch: Scratch) -> None:
        self._replicas = replicas
        self._clock = clock
        self._scratch = scratch
        self._in_flight = 0

    def build(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/v1/models", self._models)
        for path, translate in _ROUTES.items():
            app.router.add_post(path, self._route(self._translating(translate)))
        for path, exchange in _SOUND_ROUTES.items():
            app.router.add_post(path, self._route(self._exchanging(exchange)))
        return app

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok", "replicas": len(self._replicas), "in_flight": self._in_flight})

    async def _models(self, request: web.Request) -> web.StreamResponse:
        try:
            name = self._replicas.find(_bearer(request)).model.name
        except KeyUnknown as error:
            return _refusal(error, request)
        return web.json_response({"object": "list", "data": [{"id": name, "object": "model", "owned_by": "corral"}]})

    def _route(self, handle: Handle) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def answer(request: web.Request) -> web.StreamResponse:
            self._in_flight += 1
            try:
                return await handle(request, self._replicas.find(_bearer(request)))
            except CorralError as error:
                return _refusal(error, request)
            finally:
                self._in_flight -= 1

        return answer

    def _translating(self, translate: Translate) -> Handle:
        async def handle(request: web.Request, served: Served) -> web.StreamResponse:
            answer = await translate(served, await read_body(request), self._clock)
            if isinstance(answer, bytes):
                return web.Response(body=answer, content_type=_JSON)
            return await stream_events(request, answer)

        return handle

    def _exchanging(self, exchange: AudioHandler) -> Handle:
        async def handle(request: web.Request, served: Served) -> web.StreamResponse:
            return await exchange(served, request, self._scratch)

        return handle


def _refusal(error: CorralError, request: web.Request) -> web.Response:
    failure = failure_of(error, about=_ASKED_IN.get(request.path, "input"))
    return web.Response(status=failure.status, body=document_of(error, failure), content_type=_JSON)


def _bearer(request: web.Request) -> str:
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


_ROUTES: Final[dict[str, Translate]] = {
    "/v1/chat/completions": chat,
    "/v1/completions": completions,
    "/v1/embeddings": embeddings,
    "/v1/rerank": rerank,
    "/v1/vad": voice_activity,
    "/tokenize": tokenize,
    "/detokenize": detokenize,
}
"""The last two have no version prefix, as in llama.cpp's own server."""
_ASKED_IN: Final = {"/v1/chat/completions": "messages", "/v1/completions": "prompt"}
"""Name of the field that holds the prompt; `input` for other routes."""
_SOUND_ROUTES: Final[dict[str, AudioHandler]] = {
    "/v1/audio/speech": speech,
    "/v1/audio/transcriptions": transcriptions,
}
