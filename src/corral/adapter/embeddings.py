"""Embeddings, as numbers or in base64."""

import asyncio
from typing import Final

from corral.adapter.dialects.answers import embedding_answer
from corral.adapter.dialects.openai import embedding_options
from corral.adapter.dialects.requests import EmbeddingRequest, parse
from corral.adapter.replicas import Served
from corral.base.clock import Clock
from corral.base.errors import InvalidInput
from corral.rpc.messages import EmbeddingResult

_AT_ONCE: Final = 8
_FORMATS: Final = ("float", "base64", None)


async def embeddings(served: Served, body: bytes, _: Clock) -> bytes:
    """One call for each text, some of them at once; the first that fails ends the others."""
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
