"""Routes with audio: text to speech and speech to text, complete or streamed.

Backends read and write audio as files: see `scratch.py`.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from aiohttp import web

from corral.adapter.dialects.requests import parse
from corral.adapter.dialects.speech import SpeechParts, SpeechRequest, speech_options
from corral.adapter.dialects.transcripts import (
    transcription_answer,
    transcription_event,
    transcription_options,
    transcription_wish,
)
from corral.adapter.forms import read_body, read_form
from corral.adapter.replicas import Served
from corral.adapter.scratch import Scratch, read_parts, size_of
from corral.adapter.streams import stream_events, stream_sound
from corral.rpc.errors import BackendFailed
from corral.rpc.messages import TranscriptRequest

_HEADERS: Final = {"Content-Type": "audio/wav"}


async def speech(served: Served, request: web.Request, scratch: Scratch) -> web.StreamResponse:
    asked = parse(await read_body(request), SpeechRequest)
    asked.check()
    if asked.stream:
        return await stream_sound(request, _spoken_in_parts(served, asked), _HEADERS)
    async with scratch.folder() as folder:
        file = folder / "speech.wav"
        await served.backend.speak(speech_options(asked, served.model, file=str(file)))
        size = await asyncio.to_thread(size_of, file)
        if not size:
            raise BackendFailed(served.replica.address, "it wrote no sound")
        return await stream_sound(request, read_parts(file), {**_HEADERS, "Content-Length": str(size)})


async def _spoken_in_parts(served: Served, asked: SpeechRequest) -> AsyncGenerator[bytes, None]:
    """Yield WAV data. Until the first piece, an error can still get a status."""
    joined = SpeechParts()
    async with aclosing(served.backend.speech(speech_options(asked, served.model))) as replies:
        async for reply in replies:
            if part := joined.part(reply):
                yield part


async def transcriptions(served: Served, request: web.Request, scratch: Scratch) -> web.StreamResponse:
    async with scratch.folder() as folder:
        form = await read_form(request, folder)
        wish = transcription_wish(form.fields)
        options = transcription_options(wish, served.model, file=str(form.file))
        if wish.stream:
            return await stream_events(request, _events(served, options))
        body, kind = transcription_answer(await served.backend.transcribe(options), wish)
    return web.Response(body=body, headers={"Content-Type": kind})


async def _events(served: Served, options: TranscriptRequest) -> AsyncGenerator[bytes, None]:
    async with aclosing(served.backend.transcript(options)) as parts:
        async for part in parts:
            if event := transcription_event(part):
                yield event
