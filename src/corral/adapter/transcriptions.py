"""Sounds written down: the whole in the form that was asked for, or part by part as events."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from aiohttp import web

from corral.adapter.dialects.transcripts import (
    transcription_answer,
    transcription_event,
    transcription_options,
    transcription_wish,
)
from corral.adapter.forms import read_form
from corral.adapter.replicas import Served
from corral.adapter.scratch import Scratch
from corral.adapter.streams import stream_events
from corral.rpc.messages import TranscriptRequest


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
