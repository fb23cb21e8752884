"""Where in a sound somebody speaks."""

from corral.adapter.replicas import Served
from corral.base.clock import Clock
from corral.dialect.requests import parse
from corral.dialect.speech import VoiceActivityRequest, voice_activity_answer, voice_activity_options


async def voice_activity(served: Served, body: bytes, _: Clock) -> bytes:
    request = parse(body, VoiceActivityRequest)
    return voice_activity_answer(await served.backend.vad(voice_activity_options(request, served.model)))
