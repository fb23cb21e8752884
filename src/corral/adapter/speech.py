"""Texts spoken: as a WAV file, or as one that begins while it is still being made."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Final

from aiohttp import web

from corral.adapter.bodies import read_body
from corral.adapter.replicas import Served
from corral.adapter.scratch import Scratch, read_parts
from corral.adapter.streams import stream_sound
from corral.dialect.requests import parse
from corral.dialect.speech import SpeechParts, SpeechRequest, speech_options
from corral.rpc.errors import BackendFailed

_WAVE: Final = "audio/wav"


async def speech(served: Served, request: web.Request, scratch: Scratch) -> web.StreamResponse:
    asked = parse(await read_body(request), SpeechRequest)
    asked.check()
    if asked.stream:
        return await stream_sound(request, _spoken_in_parts(served, asked), _WAVE)
    async with scratch.folder() as folder:
        file = folder / "speech.wav"
        await served.backend.speak(speech_options(asked, served.model, file=str(file)))
        return await stream_sound(request, _written(served, read_parts(file)), _WAVE)


async def _spoken_in_parts(served: Served, asked: SpeechRequest) -> AsyncGenerator[bytes, None]:
    """Until the first sound the answer may still become an error with a status."""
    joined = SpeechParts()
    async with aclosing(served.backend.speech(speech_options(asked, served.model))) as replies:
        async for reply in replies:
            if part := joined.part(reply):
                yield part


async def _written(served: Served, parts: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """The file, which must not be empty."""
    is_empty = True
    async for part in parts:
        is_empty = False
        yield part
    if is_empty:
        raise BackendFailed(served.told.address, "it wrote no sound")
