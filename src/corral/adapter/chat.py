"""Chat and text completions, streamed and not."""

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from datetime import timedelta
from typing import Final

from corral.adapter.dialects.answers import ChatEvents, CompletionEvents, Stamp, chat_answer, completion_answer
from corral.adapter.dialects.openai import MEDIA_MARK, chat_options, completion_options, prompts_of, repeated
from corral.adapter.dialects.requests import (
    ChatRequest,
    CompletionRequest,
    Sampling,
    check_chat,
    check_completion,
    parse,
)
from corral.adapter.replicas import Served
from corral.base.clock import Clock
from corral.base.ids import new_answer_id
from corral.rpc.errors import BackendError
from corral.rpc.messages import PredictOptions

_MARK_WITHIN: Final = timedelta(seconds=10)


async def chat(served: Served, body: bytes, clock: Clock) -> bytes | AsyncGenerator[bytes, None]:
    request = parse(body, ChatRequest)
    check_chat(request)
    options = chat_options(request, served.model)
    if MEDIA_MARK in options.Prompt and (options.Images or options.Audios):
        options.Prompt = options.Prompt.replace(MEDIA_MARK, await _media_mark(served))
    stamp = _stamp("chatcmpl", request, served, clock, limit=options.Tokens)
    calls = repeated(options, stamp.n)
    if request.stream:
        return _chat_events(served, calls, stamp)
    return chat_answer([await served.backend.predict(call) for call in calls], stamp)


async def _media_mark(served: Served) -> str:
    """Return the backend's own media marker if it reports one: LocalAI's llama.cpp invents one at every start."""
    with suppress(BackendError):
        return (await served.backend.metadata(timeout=_MARK_WITHIN)).media_marker or MEDIA_MARK
    return MEDIA_MARK


async def completions(served: Served, body: bytes, clock: Clock) -> bytes | AsyncGenerator[bytes, None]:
    """Several prompts, and several answers to each, are generated one after the other, with one call for each."""
    request = parse(body, CompletionRequest)
    check_completion(request)
    prompts = prompts_of(request)
    first = completion_options(request, prompts[0], served.model)
    stamp = _stamp("cmpl", request, served, clock, limit=first.Tokens)
    each = [repeated(completion_options(request, prompt, served.model), stamp.n) for prompt in prompts]
    calls = [call for some in each for call in some]
    before = [prompt for prompt in prompts for _ in range(stamp.n)] if request.echo else []
    if request.stream:
        return _completion_events(served, calls, stamp, before)
    return completion_answer([await served.backend.predict(call) for call in calls], stamp, before=before)


def _stamp(kind: str, request: Sampling, served: Served, clock: Clock, *, limit: int) -> Stamp:
    return Stamp(
        id=new_answer_id(kind),
        created=int(clock.now().timestamp()),
        model=served.model.name,
        limit=limit,
        include_usage=request.stream_options is not None and bool(request.stream_options.include_usage),
        n=request.n or 1,
    )


async def _chat_events(served: Served, calls: list[PredictOptions], stamp: Stamp) -> AsyncGenerator[bytes, None]:
    events = ChatEvents(stamp)
    for call in calls:
        async with aclosing(_one_answer(served, call, events, opening=events.opening())) as parts:
            async for part in parts:
                yield part
    yield events.closing()


async def _completion_events(
    served: Served, calls: list[PredictOptions], stamp: Stamp, before: list[str]
) -> AsyncGenerator[bytes, None]:
    events = CompletionEvents(stamp)
    for index, call in enumerate(calls):
        opening = events.echo(before[index]) if before else b""
        async with aclosing(_one_answer(served, call, events, opening=opening)) as parts:
            async for part in parts:
                yield part
    yield events.closing()


async def _one_answer(
    served: Served, call: PredictOptions, events: ChatEvents | CompletionEvents, *, opening: bytes
) -> AsyncGenerator[bytes, None]:
    """Yield the events of one answer. The opening waits for the first reply: until then an error can still get a
    status."""
    async with aclosing(served.backend.predict_stream(call)) as replies:
        async for reply in replies:
            if part := opening + events.part(reply):
                yield part
            opening = b""
    yield opening + events.ending()
