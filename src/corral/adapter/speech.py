"""Texts spoken: as a WAV file, or as one that begins while it is still being made."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from aiohttp import web

from corral.adapter.bodies import read_body
from corral.adapter.dialects.requests import parse
from corral.adapter.dialects.speech import SpeechParts, SpeechRequest, speech_options
from corral.adapter.replicas import Served
from corral.adapter.scratch import Scratch, read_parts, size_of
from corral.adapter.streams import stream_sound
from corral.rpc.errors import BackendFailed

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
            raise BackendFailed(served.told.address, "it wrote no sound")
        return await stream_sound(request, read_parts(file), {**_HEADERS, "Content-Length": str(size)})


async def _spoken_in_parts(served: Served, asked: SpeechRequest) -> AsyncGenerator[bytes, None]:
    """Until the first sound the answer may still become an error with a status."""
    joined = SpeechParts()
    async with aclosing(served.backend.speech(speech_options(asked, served.model))) as replies:
        async for reply in replies:
            if part := joined.part(reply):
                yield part
