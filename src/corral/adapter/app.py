"""The adapter's HTTP server: routes, keys, streams.

A client that disconnects cancels its handler, and with it the handler's gRPC call.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from aiohttp import web

from corral.adapter import handlers
from corral.adapter.forms import MAX_BODY_BYTES, read_body
from corral.adapter.replicas import KeyUnknown, Served, ServedReplicas
from corral.adapter.responses import EventStream, error_response, stream_events
from corral.adapter.scratch import Scratch
from corral.base.clock import Clock
from corral.base.errors import CorralError
from corral.wire.models import (
    COUNT_TOKENS,
    EDITS,
    MESSAGES,
    OLLAMA_CHAT,
    OLLAMA_EMBED,
    OLLAMA_EMBEDDINGS,
    OLLAMA_GENERATE,
    RESPONSES,
)

Translate = Callable[[Served, bytes, Clock], Awaitable[bytes | EventStream]]
"""Handles a JSON request; answers with JSON or with a stream of events."""
AudioHandler = Callable[[Served, web.Request, Scratch], Awaitable[web.StreamResponse]]
"""Handles a request with audio, which backends read and write as files."""

_ROUTES: Final[dict[str, Translate]] = {
    "/v1/chat/completions": handlers.chat,
    "/v1/completions": handlers.completions,
    EDITS: handlers.edits,
    RESPONSES: handlers.responses,
    MESSAGES: handlers.messages,
    COUNT_TOKENS: handlers.count_tokens,
    OLLAMA_CHAT: handlers.ollama_chat,
    OLLAMA_GENERATE: handlers.ollama_generate,
    OLLAMA_EMBED: handlers.ollama_embed,
    OLLAMA_EMBEDDINGS: handlers.ollama_embeddings,
    "/v1/embeddings": handlers.embeddings,
    "/v1/rerank": handlers.rerank,
    "/v1/vad": handlers.voice_activity,
    "/tokenize": handlers.tokenize,
    "/detokenize": handlers.detokenize,
}
"""The last two have no version prefix, as in llama.cpp's own server."""
_SOUND_ROUTES: Final[dict[str, AudioHandler]] = {
    "/v1/audio/speech": handlers.speech,
    "/v1/audio/transcriptions": handlers.transcriptions,
}
_PROMPT_FIELDS: Final = {
    "/v1/chat/completions": "messages",
    MESSAGES: "messages",
    COUNT_TOKENS: "messages",
    "/v1/completions": "prompt",
}
"""Name of the field that holds the prompt; `input` for other routes."""


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
            app.router.add_post(path, partial(self._answer, partial(self._translate, translate)))
        for path, handle in _SOUND_ROUTES.items():
            app.router.add_post(path, partial(self._answer, partial(self._handle_audio, handle)))
        return app

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok", "replicas": len(self._replicas), "in_flight": self._in_flight})

    async def _models(self, request: web.Request) -> web.StreamResponse:
        try:
            name = self._replicas.find(_bearer(request)).model.name
        except KeyUnknown as error:
            return error_response(error)
        return web.json_response({"object": "list", "data": [{"id": name, "object": "model", "owned_by": "corral"}]})

    async def _answer(
        self, handle: Callable[[Served, web.Request], Awaitable[web.StreamResponse]], request: web.Request
    ) -> web.StreamResponse:
        self._in_flight += 1
        try:
            return await handle(self._replicas.find(_bearer(request)), request)
        except CorralError as error:
            return error_response(error, about=_PROMPT_FIELDS.get(request.path, "input"))
        finally:
            self._in_flight -= 1

    async def _translate(self, translate: Translate, served: Served, request: web.Request) -> web.StreamResponse:
        answer = await translate(served, await read_body(request), self._clock)
        if isinstance(answer, bytes):
            return web.Response(body=answer, content_type="application/json")
        return await stream_events(request, answer)

    async def _handle_audio(self, handle: AudioHandler, served: Served, request: web.Request) -> web.StreamResponse:
        return await handle(served, request, self._scratch)


def _bearer(request: web.Request) -> str:
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""
