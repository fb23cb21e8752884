"""llama.cpp: its own OpenAI server for Corral, and the contract's methods for LocalAI frontends.

Loading starts the engine, whose server listens at `--http-addr` and asks for the key of the environment; it serves the
model under `--model-name`. The contract's methods ask the same server, so both ways in share its slots and its cache.
Freeing ends the engine. Should the engine die by itself, this process ends too: then the worker knows at once.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import aclosing

from corral_backend_sdk import (
    Backend,
    DetokenizeRequest,
    DetokenizeResponse,
    EmbeddingLayout,
    EmbeddingResult,
    ModelOptions,
    PredictOptions,
    Reply,
    RequestRefused,
    TokenizationResponse,
    serve,
)
from engine_process import Engine, start_engine
from llama_parameters import parameters_for
from llama_requests import body_for, is_chat, reply_for

log = logging.getLogger("backend")


class LlamaCpp(Backend):
    """Has an engine while a model is loaded."""

    name = "llama-cpp"
    _engine: Engine
    _watch: asyncio.Task[None]

    async def load(self, options: ModelOptions) -> str:
        self._engine = await start_engine(parameters_for(options, self.launch))
        self._watch = asyncio.create_task(_end_with(self._engine), name="watch the engine")
        return "Loading succeeded"

    async def free(self) -> None:
        self._watch.cancel()
        await self._engine.end()

    async def predict_stream(self, request: PredictOptions) -> AsyncIterator[Reply]:
        path = "/v1/chat/completions" if is_chat(request) else "/v1/completions"
        async with aclosing(self._engine.events(path, body_for(request))) as events:
            async for event in events:
                yield reply_for(event)

    async def embedding(self, request: PredictOptions) -> EmbeddingResult:
        what = request.Embeddings or list(request.EmbeddingTokens)
        if not what:
            raise RequestRefused("there is nothing to embed")
        answer = await self._engine.ask("/v1/embeddings", {"input": what})
        vector = answer["data"][0]["embedding"]
        return EmbeddingResult(
            embeddings=vector,
            tokens=1,
            dim=len(vector),
            prompt_tokens=answer["usage"]["prompt_tokens"],
            layout=EmbeddingLayout.EMBEDDING_LAYOUT_FINAL,
        )

    async def tokenize_string(self, request: PredictOptions) -> TokenizationResponse:
        answer = await self._engine.ask("/tokenize", {"content": request.Prompt})
        return TokenizationResponse(length=len(answer["tokens"]), tokens=answer["tokens"])

    async def detokenize(self, request: DetokenizeRequest) -> DetokenizeResponse:
        answer = await self._engine.ask("/detokenize", {"tokens": list(request.tokens)})
        return DetokenizeResponse(content=answer["content"])


async def _end_with(engine: Engine) -> None:
    code = await engine.wait()
    log.error("llama.cpp ended by itself with code %s", code)
    os._exit(1)


if __name__ == "__main__":
    serve(LlamaCpp)
