"""Routes that answer a JSON request with JSON: embeddings, rerank, voice activity, tokens."""

import asyncio
from typing import Final

import msgspec

from corral.adapter.dialects.answers import embedding_answer
from corral.adapter.dialects.localai import (
    DetokenizeRequest,
    RankingRequest,
    TokenizeRequest,
    ranking_answer,
    ranking_options,
    tokenize_options,
)
from corral.adapter.dialects.openai import embedding_options
from corral.adapter.dialects.requests import EmbeddingRequest, parse
from corral.adapter.dialects.speech import VoiceActivityRequest, voice_activity_answer, voice_activity_options
from corral.adapter.replicas import Served
from corral.base.clock import Clock
from corral.base.errors import InvalidInput
from corral.rpc.messages import EmbeddingResult

_AT_ONCE: Final = 8
_FORMATS: Final = ("float", "base64", None)


async def embeddings(served: Served, body: bytes, _: Clock) -> bytes:
    """One call for each text, several of them at once; the first failure cancels the others."""
    request = parse(body, EmbeddingRequest)
    if request.encoding_format not in _FORMATS:
        raise InvalidInput("encoding_format", "must be float or base64")
    if request.dimensions is not None and request.dimensions < 1:
        raise InvalidInput("dimensions", "must be at least 1")
    room = asyncio.Semaphore(_AT_ONCE)

    async def embed(text: str | list[int]) -> EmbeddingResult:
        async with room:
            return await served.backend.embedding(embedding_options(text, served.model))

    texts = request.texts()
    if len(texts) == 1:
        results = [await embed(texts[0])]
    else:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(embed(text), name="embed") for text in texts]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures
        results = [task.result() for task in tasks]
    return embedding_answer(
        results,
        model=served.model.name,
        as_base64=request.encoding_format == "base64",
        dimensions=request.dimensions,
    )


async def rerank(served: Served, body: bytes, _: Clock) -> bytes:
    request = parse(body, RankingRequest)
    request.check()
    return ranking_answer(await served.backend.rerank(ranking_options(request, served.model)), model=served.model.name)


async def voice_activity(served: Served, body: bytes, _: Clock) -> bytes:
    request = parse(body, VoiceActivityRequest)
    return voice_activity_answer(await served.backend.vad(voice_activity_options(request, served.model)))


async def tokenize(served: Served, body: bytes, _: Clock) -> bytes:
    request = parse(body, TokenizeRequest)
    return msgspec.json.encode({"tokens": await served.backend.tokenize(tokenize_options(request, served.model))})


async def detokenize(served: Served, body: bytes, _: Clock) -> bytes:
    request = parse(body, DetokenizeRequest)
    request.check()
    return msgspec.json.encode({"content": await served.backend.detokenize(request.tokens)})
