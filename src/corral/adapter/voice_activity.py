"""Where in a sound somebody speaks."""

from corral.adapter.dialects.requests import parse
from corral.adapter.dialects.speech import VoiceActivityRequest, voice_activity_answer, voice_activity_options
from corral.adapter.replicas import Served
from corral.base.clock import Clock


async def voice_activity(served: Served, body: bytes, _: Clock) -> bytes:
    request = parse(body, VoiceActivityRequest)
    return voice_activity_answer(await served.backend.vad(voice_activity_options(request, served.model)))
