"""Says what it is told, in the way its options want it: for tests, benches and chaos. gRPC only.

Where it has tools, it calls one with what it is told, in the argument `text`: the one that the request names, else the
first. It does not when the last word is a tool's.

`ModelOptions.Options`, each `name:value`:

    delay:0.5           seconds before the first token
    rate:50             tokens a second; as fast as possible without
    tokens:32           so many tokens, whatever the request asks for; without, the words of the request
    per_message:8       tokens in one message of a stream
    dimensions:8        width of an embedding
    crash_after:3       the process dies once it has sent so many tokens; 0 is before the first
    hang_after:3        the same, but it falls silent and lives on
    error_after:3       the same, but the call fails
    crash_at_load       the process dies instead of loading; hang_at_load and error_at_load likewise
"""

import asyncio
import hashlib
import itertools
import json
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from corral_backend_sdk import (
    Backend,
    ChatDelta,
    EmbeddingLayout,
    EmbeddingResult,
    LoadFailed,
    ModelOptions,
    PredictOptions,
    Reply,
    RequestRefused,
    TokenizationResponse,
    ToolCallDelta,
    option_values,
    serve,
)

_NEVER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Manners:
    """How to answer."""

    delay: float = 0.0
    rate: float = 0.0
    tokens: int = 0
    per_message: int = 1
    dimensions: int = 8
    crash_after: int = _NEVER
    hang_after: int = _NEVER
    error_after: int = _NEVER

    @classmethod
    def of(cls, values: dict[str, str]) -> "Manners":
        kinds = {"delay": float, "rate": float}
        try:
            known = {name: kinds.get(name, int)(values[name]) for name in cls.__slots__ if name in values}
        except ValueError as error:
            raise LoadFailed(f"an option is not a number: {error}") from error
        return cls(**known)  # type: ignore[arg-type]

    @property
    def limit(self) -> int:
        """The tokens that are sent before something happens."""
        return max(self.crash_after, self.hang_after, self.error_after)


class Echo(Backend):
    """Answers every request with its own words."""

    name = "echo"
    _manners = Manners()

    async def load(self, options: ModelOptions) -> str:
        values = option_values(options.Options)
        if "crash_at_load" in values:
            os._exit(3)
        if "hang_at_load" in values:
            await asyncio.Event().wait()
        if "error_at_load" in values:
            raise LoadFailed("told to fail by error_at_load")
        self._manners = Manners.of(values)
        return "Loading succeeded"

    async def predict_stream(self, request: PredictOptions) -> AsyncIterator[Reply]:
        manners = self._manners
        said = _said(request)
        if request.Grammar:
            raise RequestRefused("grammar: echo says what it is told, in no other form")
        if name := _called(request):
            call = ToolCallDelta(id="call_0", name=name, arguments=json.dumps({"text": said}))
            yield Reply(chat_deltas=[ChatDelta(tool_calls=[call])], tokens=1, prompt_tokens=len(_words(said)))
            return
        words = _words(said)
        count = manners.tokens or (min(len(words), request.Tokens) if request.Tokens > 0 else len(words))
        await asyncio.sleep(manners.delay)
        sent = 0
        for part in _batches(itertools.islice(itertools.cycle(words), count), manners):
            sent += len(part)
            yield Reply(message="".join(part).encode(), tokens=sent, prompt_tokens=len(words))
            if manners.rate:
                await asyncio.sleep(len(part) / manners.rate)
            if sent == manners.limit:
                break
        if manners.limit != _NEVER:
            await self._misbehave(manners)

    async def embedding(self, request: PredictOptions) -> EmbeddingResult:
        text = request.Embeddings or " ".join(map(str, request.EmbeddingTokens))
        if not text:
            raise RequestRefused("there is nothing to embed")
        await asyncio.sleep(self._manners.delay)
        return EmbeddingResult(
            embeddings=_vector(text, self._manners.dimensions),
            tokens=1,
            dim=self._manners.dimensions,
            prompt_tokens=len(_words(text)),
            layout=EmbeddingLayout.EMBEDDING_LAYOUT_FINAL,
        )

    async def tokenize_string(self, request: PredictOptions) -> TokenizationResponse:
        words = _words(request.Prompt)
        return TokenizationResponse(length=len(words), tokens=map(_number, words))

    async def _misbehave(self, manners: Manners) -> None:
        if manners.crash_after == manners.limit:
            os._exit(3)
        if manners.hang_after == manners.limit:
            await asyncio.Event().wait()
        raise RuntimeError("told to fail by error_after")


def _said(request: PredictOptions) -> str:
    if request.UseTokenizerTemplate and request.Messages:
        return next((one.content for one in reversed(request.Messages) if one.role == "user"), "")
    return request.Prompt


def _called(request: PredictOptions) -> str:
    """The tool that is called; empty when none is."""
    choice = json.loads(request.ToolChoice) if request.ToolChoice else "auto"
    answers_tool = bool(request.Messages) and request.Messages[-1].role == "tool"
    if not request.Tools or choice == "none" or (answers_tool and choice == "auto"):
        return ""
    named = choice if isinstance(choice, dict) else json.loads(request.Tools)[0]
    return str(named["function"]["name"])


def _words(text: str) -> list[str]:
    """Each word with the blank before it, so that joining them gives the text again; never empty."""
    words = text.split()
    return [word if not number else f" {word}" for number, word in enumerate(words)] or ["…"]


def _batches(tokens: Iterator[str], manners: Manners) -> Iterator[list[str]]:
    """Messages of so many tokens; a shorter one where something is to happen."""
    sent = 0
    while True:
        until_limit = manners.limit - sent if manners.limit > sent else manners.per_message
        if sent == manners.limit:
            return
        batch = list(itertools.islice(tokens, min(manners.per_message, until_limit)))
        if not batch:
            return
        sent += len(batch)
        yield batch


def _vector(text: str, dimensions: int) -> list[float]:
    """Return a vector of length one that depends only on the text."""
    seed = itertools.cycle(hashlib.sha256(text.encode()).digest())
    raw = [byte / 255 - 0.5 for byte in itertools.islice(seed, dimensions)]
    length = sum(number * number for number in raw) ** 0.5 or 1.0
    return [number / length for number in raw]


def _number(word: str) -> int:
    return int.from_bytes(hashlib.sha256(word.encode()).digest()[:2])


if __name__ == "__main__":
    serve(Echo)
