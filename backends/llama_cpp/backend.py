"""llama.cpp: its own OpenAI server for Corral, and the contract's methods for LocalAI frontends.

Loading starts the engine, whose server listens at `--http-addr` and asks for the key of the environment; it serves the
model under `--model-name`. A second port, `--front-addr`, answers what that server would answer otherwise than asked.
The contract's methods ask the same server, so all ways in share its slots and its cache.
Freeing ends the engine. Should the engine die by itself, this process ends too: then the worker knows at once.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from corral_backend_sdk import (
    Backend,
    DetokenizeRequest,
    DetokenizeResponse,
    EmbeddingLayout,
    EmbeddingResult,
    ModelMetadataResponse,
    ModelOptions,
    PortTaken,
    PredictOptions,
    Reply,
    RequestRefused,
    RerankRequest,
    RerankResult,
    TokenizationResponse,
    serve,
)
from engine_process import Engine, start_engine
from llama_careful import with_chosen_tool
from llama_front import Front
from llama_media import with_media_inside
from llama_parameters import parameters_for
from llama_refusals import Refused
from llama_requests import body_for, is_chat, reply_for, rerank_body, rerank_result

log = logging.getLogger("backend")


class LlamaCpp(Backend):
    """Has an engine while a model is loaded."""

    name = "llama-cpp"
    _engine: Engine
    _front: Front
    _watch: asyncio.Task[None]

    async def load(self, options: ModelOptions) -> str:
        self.launch.check_ports()
        self._engine = await start_engine(parameters_for(options, self.launch, os.environ))
        self._front = Front(self._engine, key=self.launch.http_key)
        if self.launch.front_address:
            try:
                await self._front.listen(self.launch.front_address)
            except OSError as error:
                await self._engine.end()
                raise PortTaken(f"cannot listen at {self.launch.front_address}: {error.strerror}") from error
        self._watch = asyncio.create_task(_end_with(self._engine), name="watch the engine")
        return "Loading succeeded"

    async def free(self) -> None:
        self._watch.cancel()
        await self._front.close()
        await self._engine.end()

    async def predict_stream(self, request: PredictOptions) -> AsyncIterator[Reply]:
        request = await asyncio.to_thread(with_media_inside, request)
        path = "/v1/chat/completions" if is_chat(request) else "/v1/completions"
        body = self._with_tools(body_for(request, self._engine.media_mark))
        async with aclosing(self._engine.events(path, body)) as events:
            async for event in events:
                yield reply_for(event)

    def _with_tools(self, body: dict[str, Any]) -> dict[str, Any]:
        try:
            return with_chosen_tool(body, offers_tools=self._engine.offers_tools)
        except Refused as refused:
            raise RequestRefused(f"{refused.param}: {refused}") from refused

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

    async def rerank(self, request: RerankRequest) -> RerankResult:
        return rerank_result(await self._engine.ask("/v1/rerank", rerank_body(request)), request)

    async def model_metadata(self, _: ModelOptions) -> ModelMetadataResponse:
        """A model can think when its template makes a difference of it."""
        thinking, plain = await self._rendered(thinks=True), await self._rendered(thinks=False)
        return ModelMetadataResponse(
            supports_thinking=thinking != plain, rendered_template=thinking, media_marker=self._engine.media_mark
        )

    async def _rendered(self, *, thinks: bool) -> str:
        messages = [{"role": "user", "content": "test"}]
        body = {"messages": messages, "chat_template_kwargs": {"enable_thinking": thinks}}
        return str((await self._engine.ask("/apply-template", body))["prompt"])


async def _end_with(engine: Engine) -> None:
    code = await engine.wait()
    log.error("llama.cpp ended by itself with code %s", code)
    os._exit(1)


if __name__ == "__main__":
    serve(LlamaCpp)
