"""Handlers of the adapter's routes: each translates a request for the backend, calls it, and translates the answer."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from datetime import datetime, timedelta
from typing import Final

import msgspec
from aiohttp import web

from corral.adapter.dialects import (
    answers,
    anthropic,
    calls,
    localai,
    ollama,
    openai,
    openai_responses,
    openai_responses_answers,
    requests,
    sound,
)
from corral.adapter.forms import read_body, read_form
from corral.adapter.node_files import files_of
from corral.adapter.replicas import Served
from corral.adapter.responses import EVENTS, LINES, EventStream, stream_events, stream_sound
from corral.adapter.scratch import Scratch, read_parts, size_of
from corral.base.clock import Clock
from corral.base.errors import InvalidInput
from corral.base.ids import new_answer_id, new_response_id
from corral.rpc.errors import BackendError, BackendFailed
from corral.rpc.messages import EmbeddingResult, PredictOptions, TranscriptRequest

_PredictionEvents = (
    answers.ChatEvents
    | answers.CompletionEvents
    | anthropic.MessageEvents
    | ollama.OllamaLines
    | openai_responses_answers.ResponseEvents
)
_MARK_WITHIN: Final = timedelta(seconds=10)
_EMBEDDED_AT_ONCE: Final = 8
_WAV: Final = {"Content-Type": "audio/wav"}


async def chat(served: Served, body: bytes, clock: Clock) -> bytes | EventStream:
    request = requests.parse(body, requests.ChatRequest)
    options = await _rendered(served, request)
    stamp = _stamp(new_answer_id("chatcmpl"), request, served, clock, limit=options.Tokens)
    predictions, rules = openai.repeated(options, stamp.n), calls.call_rules(request, served.model)
    if request.stream:
        return _stream(served, predictions, answers.ChatEvents(stamp), rules)
    replies = [await served.backend.predict(prediction) for prediction in predictions]
    return answers.chat_answer([rules.applied(reply) for reply in replies], stamp)


async def responses(served: Served, body: bytes, clock: Clock) -> bytes | EventStream:
    asked = requests.parse(body, openai_responses.ResponsesRequest)
    request = openai_responses.chat_request(asked)
    options = await _rendered(served, request)
    stamp = _stamp(new_response_id("resp"), request, served, clock, limit=options.Tokens)
    rules = calls.call_rules(request, served.model)
    events = openai_responses_answers.ResponseEvents(stamp, asked, lambda: _seconds(clock))
    if request.stream:
        return _stream(served, [options], events, rules)
    return events.whole(rules.applied(await served.backend.predict(options)))


async def messages(served: Served, body: bytes, clock: Clock) -> bytes | EventStream:
    request = anthropic.chat_request(requests.parse(body, anthropic.MessagesRequest))
    options = await _rendered(served, request)
    stamp = _stamp(new_answer_id("msg"), request, served, clock, limit=options.Tokens)
    rules = calls.call_rules(request, served.model)
    if request.stream:
        return _stream(served, [options], anthropic.MessageEvents(stamp), rules)
    return anthropic.message_answer(rules.applied(await served.backend.predict(options)), stamp)


async def count_tokens(served: Served, body: bytes, _: Clock) -> bytes:
    request = anthropic.chat_request(requests.parse(body, anthropic.MessagesRequest))
    text = anthropic.counted_text(await _rendered(served, request))
    options = PredictOptions(Prompt=text, ModelIdentity=served.model.identity)
    return msgspec.json.encode({"input_tokens": len(await served.backend.tokenize(options))})


async def _rendered(served: Served, request: requests.ChatRequest) -> PredictOptions:
    """The message for the backend. Templates and grammars may take seconds, while other requests must be answered."""
    requests.check_chat(request)
    if served.model.use_tokenizer_template and not requests.wants_json(request):
        return openai.chat_options(request, served.model)
    options = await asyncio.to_thread(openai.chat_options, request, served.model)
    if openai.MEDIA_MARK in options.Prompt and (options.Images or options.Audios):
        with suppress(BackendError):  # LocalAI's llama.cpp invents a media marker of its own at every start
            mark = (await served.backend.metadata(timeout=_MARK_WITHIN)).media_marker or openai.MEDIA_MARK
            options.Prompt = options.Prompt.replace(openai.MEDIA_MARK, mark)
    return options


async def completions(served: Served, body: bytes, clock: Clock) -> bytes | EventStream:
    """Several prompts, and several answers to each, are generated one after the other, with one call for each."""
    request = requests.parse(body, requests.CompletionRequest)
    requests.check_completion(request)
    prompts = openai.prompts_of(request)
    options = await asyncio.to_thread(openai.completion_options, request, served.model)
    stamp = _stamp(new_answer_id("cmpl"), request, served, clock, limit=options[0].Tokens)
    predictions = [prediction for each in options for prediction in openai.repeated(each, stamp.n)]
    before = [prompt for prompt in prompts for _ in range(stamp.n)] if request.echo else []
    if request.stream:
        return _stream(served, predictions, answers.CompletionEvents(stamp, before=before), calls.CallRules())
    replies = [await served.backend.predict(prediction) for prediction in predictions]
    return answers.completion_answer(replies, stamp, before=before)


async def edits(served: Served, body: bytes, clock: Clock) -> bytes:
    """Several texts, and several answers to each, are generated one after the other, with one call for each."""
    request = requests.parse(body, requests.EditRequest)
    requests.check_edit(request)
    options = await asyncio.to_thread(openai.edit_options, request, served.model)
    stamp = _stamp(new_answer_id("edit"), request, served, clock, limit=options[0].Tokens)
    predictions = [prediction for each in options for prediction in openai.repeated(each, stamp.n)]
    return answers.edit_answer([await served.backend.predict(prediction) for prediction in predictions], stamp)


async def ollama_chat(served: Served, body: bytes, clock: Clock) -> bytes | EventStream:
    """No messages have the model loaded, which it is by now."""
    begun = clock.now()
    asked = requests.parse(body, ollama.OllamaChat)
    if not asked.messages:
        return ollama.loaded_answer(_ollama_stamp(asked.model, served, clock, begun=begun), ollama.ChatForm())
    request = ollama.chat_request(asked)
    options = await _rendered(served, request)
    prefix = "" if requests.wants_json(request) else served.model.reply_prefix
    stamp = _ollama_stamp(asked.model, served, clock, begun=begun, limit=options.Tokens, prefix=prefix)
    rules = calls.call_rules(request, served.model)
    return await _in_lines(served, options, ollama.OllamaLines(stamp, ollama.ChatForm()), rules, streams=asked.streams)


async def ollama_generate(served: Served, body: bytes, clock: Clock) -> bytes | EventStream:
    """An empty prompt has the model loaded, which it is by now."""
    begun = clock.now()
    asked = requests.parse(body, ollama.OllamaGenerate)
    if not asked.prompt and not asked.images:
        return ollama.loaded_answer(_ollama_stamp(asked.model, served, clock, begun=begun), ollama.TextForm())
    if asked.raw:
        completion = ollama.raw_request(asked)
        requests.check_completion(completion)
        (options,) = await asyncio.to_thread(openai.completion_options, completion, served.model)
        prefix = ""
    else:
        request = ollama.prompt_request(asked)
        options = await _rendered(served, request)
        prefix = "" if requests.wants_json(request) else served.model.reply_prefix
    stamp = _ollama_stamp(asked.model, served, clock, begun=begun, limit=options.Tokens, prefix=prefix)
    lines = ollama.OllamaLines(stamp, ollama.TextForm())
    return await _in_lines(served, options, lines, calls.CallRules(), streams=asked.streams)


async def _in_lines(
    served: Served, options: PredictOptions, lines: ollama.OllamaLines, rules: calls.CallRules, *, streams: bool
) -> bytes | EventStream:
    if streams:
        return _stream(served, [options], lines, rules, content_type=LINES)
    return lines.whole(rules.applied(await served.backend.predict(options)))


async def ollama_embed(served: Served, body: bytes, clock: Clock) -> bytes:
    begun = clock.now()
    asked = requests.parse(body, ollama.OllamaEmbed)
    request = ollama.embedding_request(asked)
    results = await _embedded(served, request)
    vectors = answers.vectors(results, request.dimensions)
    stamp = _ollama_stamp(asked.model, served, clock, begun=begun)
    return ollama.embed_answer(vectors, stamp, tokens=sum(result.prompt_tokens for result in results))


async def ollama_embeddings(served: Served, body: bytes, _: Clock) -> bytes:
    request = ollama.embedding_request(requests.parse(body, ollama.OllamaEmbeddings))
    return ollama.embeddings_answer(answers.vectors(await _embedded(served, request), None))


def _ollama_stamp(
    name: str | None, served: Served, clock: Clock, *, begun: datetime, limit: int = 0, prefix: str = ""
) -> ollama.OllamaStamp:
    return ollama.OllamaStamp(
        model=name or served.model.name,
        created_at=begun.isoformat().replace("+00:00", "Z"),
        elapsed=lambda: int((clock.now() - begun).total_seconds() * 1e9),
        limit=limit,
        prefix=prefix,
    )


def _stamp(id: str, request: requests.Sampling, served: Served, clock: Clock, *, limit: int) -> answers.Stamp:
    return answers.Stamp(
        id=id,
        created=_seconds(clock),
        model=served.model.name,
        limit=limit,
        include_usage=request.stream_options is not None and bool(request.stream_options.include_usage),
        n=request.n or 1,
        prefix="" if requests.wants_json(request) else served.model.reply_prefix,
    )


def _seconds(clock: Clock) -> int:
    return int(clock.now().timestamp())


def _stream(
    served: Served,
    predictions: list[PredictOptions],
    events: _PredictionEvents,
    rules: calls.CallRules,
    *,
    content_type: str = EVENTS,
) -> EventStream:
    return EventStream(
        parts=_prediction(served, predictions, events, rules),
        closing=lambda: events.ending() + events.closing(),
        failed=events.failed,
        content_type=content_type,
    )


async def _prediction(
    served: Served, predictions: list[PredictOptions], events: _PredictionEvents, rules: calls.CallRules
) -> AsyncGenerator[bytes, None]:
    """Yield all events but the ending of the last answer."""
    for number, prediction in enumerate(predictions, start=1):
        opening = events.opening()  # waits for the first reply: until then an error can still get a status
        async with (
            aclosing(served.backend.predict_stream(prediction)) as from_backend,
            aclosing(rules.applied_to_parts(from_backend)) as batches,
        ):
            async for replies in batches:
                if part := opening + b"".join(map(events.part, replies)):
                    yield part
                opening = b""
        if part := opening + (events.ending() if number < len(predictions) else b""):
            yield part


async def embeddings(served: Served, body: bytes, _: Clock) -> bytes:
    request = requests.parse(body, requests.EmbeddingRequest)
    if request.encoding_format not in ("float", "base64", None):
        raise InvalidInput("encoding_format", "must be float or base64")
    results = await _embedded(served, request)
    as_base64 = request.encoding_format == "base64"
    return answers.embedding_answer(
        results, model=served.model.name, as_base64=as_base64, dimensions=request.dimensions
    )


async def _embedded(served: Served, request: requests.EmbeddingRequest) -> list[EmbeddingResult]:
    """One call for each text, several of them at once; the first failure cancels the others."""
    if request.dimensions is not None and request.dimensions < 1:
        raise InvalidInput("dimensions", "must be at least 1")
    room = asyncio.Semaphore(_EMBEDDED_AT_ONCE)

    async def embed(text: str | list[int]) -> EmbeddingResult:
        async with room:
            return await served.backend.embedding(openai.embedding_options(text, served.model))

    texts = request.texts()
    if len(texts) == 1:
        return [await embed(texts[0])]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(embed(text), name="embed") for text in texts]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures
    return [task.result() for task in tasks]


async def rerank(served: Served, body: bytes, _: Clock) -> bytes:
    request = requests.parse(body, localai.RankingRequest)
    request.check()
    result = await served.backend.rerank(localai.ranking_options(request, served.model))
    return localai.ranking_answer(result, model=served.model.name)


async def voice_activity(served: Served, body: bytes, _: Clock) -> bytes:
    request = requests.parse(body, localai.VoiceActivityRequest)
    response = await served.backend.vad(localai.voice_activity_options(request, served.model))
    return localai.voice_activity_answer(response)


async def tokenize(served: Served, body: bytes, _: Clock) -> bytes:
    request = requests.parse(body, localai.TokenizeRequest)
    options = PredictOptions(Prompt=request.content, ModelIdentity=served.model.identity)
    return msgspec.json.encode({"tokens": await served.backend.tokenize(options)})


async def detokenize(served: Served, body: bytes, _: Clock) -> bytes:
    request = requests.parse(body, localai.DetokenizeRequest)
    request.check()
    return msgspec.json.encode({"content": await served.backend.detokenize(request.tokens)})


async def speech(served: Served, request: web.Request, scratch: Scratch) -> web.StreamResponse:
    asked = requests.parse(await read_body(request), sound.SpeechRequest)
    asked.check()
    if asked.stream:
        return await stream_sound(request, _speech_parts(served, asked), _WAV)
    async with scratch.folder(served.replica.folder) as folder, files_of(served, folder) as files:
        path = await files.place("speech.wav")
        await served.backend.speak(sound.speech_options(asked, served.model, file=path))
        file = await files.fetch(path)
        size = await asyncio.to_thread(size_of, file)
        if not size:
            raise BackendFailed(served.replica.address, "it wrote no sound")
        return await stream_sound(request, read_parts(file), {**_WAV, "Content-Length": str(size)})


async def _speech_parts(served: Served, asked: sound.SpeechRequest) -> AsyncGenerator[bytes, None]:
    joined = sound.SpeechParts()
    async with aclosing(served.backend.speech(sound.speech_options(asked, served.model))) as batches:
        async for replies in batches:
            if part := b"".join(map(joined.part, replies)):
                yield part


async def transcriptions(served: Served, request: web.Request, scratch: Scratch) -> web.StreamResponse:
    async with scratch.folder(served.replica.folder) as folder, files_of(served, folder) as files:
        fields, file = await read_form(request, folder)
        wish = sound.transcription_wish(fields)
        options = sound.transcription_options(wish, served.model, file=await files.give(file))
        if wish.stream:
            stream = EventStream(parts=_transcript_events(served, options), failed=answers.error_event)
            return await stream_events(request, stream)
        body, kind = sound.transcription_answer(await served.backend.transcribe(options), wish)
    return web.Response(body=body, headers={"Content-Type": kind})


async def _transcript_events(served: Served, options: TranscriptRequest) -> AsyncGenerator[bytes, None]:
    async with aclosing(served.backend.transcript(options)) as batches:
        async for parts in batches:
            if events := b"".join(map(sound.transcription_event, parts)):
                yield events
