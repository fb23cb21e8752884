"""all-MiniLM-L6-v2 as a process: meaning is near meaning."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from corral.rpc import errors
from corral.rpc.messages import ModelOptions, PredictOptions
from tests.kit.backends import SOON, RunningBackend
from tests.kit.speech import loaded_backend

PUBLISHED = {
    "This is an example sentence": [0.0676569, 0.0634959, 0.0487131, 0.0793049, 0.0374480],
    "Each sentence is converted": [0.0864386, 0.1027626, 0.0053946, 0.0020444, -0.0099634],
}
"""How vectors begin that the network's authors, and everybody else, compute for their own examples."""


@pytest.fixture
async def minilm() -> AsyncIterator[RunningBackend]:
    async with loaded_backend("minilm_embeddings") as backend:
        yield backend


async def vector(backend: RunningBackend, text: str) -> list[float]:
    result = await backend.client.embedding(PredictOptions(Embeddings=text), timeout=SOON)
    assert (result.dim, result.tokens, len(result.embeddings)) == (384, 1, 384)
    return list(result.embeddings)


def nearness(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


async def test_paraphrases_are_nearer_than_other_sentences(minilm: RunningBackend) -> None:
    async with asyncio.TaskGroup() as group:
        texts = ("A man is eating food.", "Someone is having a meal.", "The stock market fell sharply today.")
        tasks = [group.create_task(vector(minilm, text)) for text in texts]
    eating, meal, market = (task.result() for task in tasks)
    assert nearness(eating, eating) == pytest.approx(1, abs=1e-5)
    assert nearness(eating, meal) > 0.6 > 0.2 > nearness(eating, market)
    assert await vector(minilm, texts[0]) == eating, "the same text gives the same vector"


async def test_vectors_are_those_of_the_published_network(minilm: RunningBackend) -> None:
    for text, beginning in PUBLISHED.items():
        assert (await vector(minilm, text))[:5] == pytest.approx(beginning, abs=2e-6)


async def test_tokens_are_counted_and_can_be_given(minilm: RunningBackend) -> None:
    assert await minilm.client.tokenize(PredictOptions(Prompt="Hello world!")) == [7592, 2088, 999]
    framed = [101, 7592, 2088, 999, 102]
    by_text = await minilm.client.embedding(PredictOptions(Embeddings="Hello world!"))
    by_token = await minilm.client.embedding(PredictOptions(EmbeddingTokens=framed))
    assert by_text.prompt_tokens == by_token.prompt_tokens == 5
    assert list(by_text.embeddings) == list(by_token.embeddings)


async def test_what_cannot_be_embedded_is_refused(minilm: RunningBackend, tmp_path: Path) -> None:
    with pytest.raises(errors.RequestRefused, match="nothing to embed"):
        await minilm.client.embedding(PredictOptions(Embeddings="  "))
    with pytest.raises(errors.RequestRefused, match="from 0 to 30521"):
        await minilm.client.embedding(PredictOptions(EmbeddingTokens=[40_000]))
    with pytest.raises(errors.RequestRefused, match="402 tokens, and 256 are the most; the model's option truncate"):
        await minilm.client.embedding(PredictOptions(Embeddings="word " * 400))
    with pytest.raises(errors.LoadFailed, match="has no usable MiniLM"):
        await minilm.client.load(ModelOptions(Model="x", ModelFile=str(tmp_path)), timeout=SOON)
    await minilm.client.load(ModelOptions(Model="m", Options=["truncate"]), timeout=SOON)
    assert len(await vector(minilm, "word " * 400)) == 384
