"""PocketSphinx: English speech to text on any processor. Real, and of the kind that mishears. gRPC only.

The models come with the package `pocketsphinx`. Sounds are WAV files of any rate; a request waits for the one before.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import numpy as np
from corral_backend_sdk import (
    Backend,
    ModelOptions,
    RequestRefused,
    TranscriptRequest,
    TranscriptResult,
    TranscriptSegment,
    TranscriptStreamResponse,
    TranscriptWord,
    serve,
)
from corral_backend_sdk.sounds import read_sound
from recogniser_process import Recogniser, Words

_RATE: Final = 16_000
_MOST_SECONDS: Final = 900
_LANGUAGE: Final = "en"
_LANGUAGES: Final = ("", "en", "english", "auto")
_NANOSECONDS: Final = 1_000_000_000


class PocketsphinxStt(Backend):
    """Has a recogniser while it is loaded."""

    name = "pocketsphinx-stt"
    _recogniser: Recogniser

    async def load(self, options: ModelOptions) -> str:
        self._recogniser = Recogniser()
        await self._recogniser.start()
        return "Loading succeeded"

    async def free(self) -> None:
        await self._recogniser.end()

    async def audio_transcription(self, request: TranscriptRequest) -> TranscriptResult:
        result = TranscriptResult()
        async with aclosing(self.audio_transcription_stream(request)) as parts:
            async for part in parts:
                result = part.final_result
        return result

    async def audio_transcription_stream(
        self, request: TranscriptRequest
    ) -> AsyncGenerator[TranscriptStreamResponse, None]:
        """The text of each utterance when it is known, then everything."""
        samples = await self._samples(request)
        segments: list[TranscriptSegment] = []
        async with aclosing(self._recogniser.hear(samples)) as utterances:
            async for words in utterances:
                segment = _segment(len(segments), words)
                yield TranscriptStreamResponse(delta=f" {segment.text}" if segments else segment.text)
                segments.append(segment)
        whole = TranscriptResult(
            segments=segments,
            text=" ".join(segment.text for segment in segments),
            language=_LANGUAGE,
            duration=len(samples) / 2 / _RATE,
        )
        yield TranscriptStreamResponse(final_result=whole)

    async def _samples(self, request: TranscriptRequest) -> bytes:
        if request.language.lower().partition("-")[0] not in _LANGUAGES:
            raise RequestRefused(f"the language {request.language} is not known: there is en")
        sound = await asyncio.to_thread(read_sound, request.dst, rate=_RATE, most_seconds=_MOST_SECONDS)
        return bytes((sound * 32767).astype(np.dtype("<i2")).tobytes())


def _segment(number: int, words: Words) -> TranscriptSegment:
    timed = [
        TranscriptWord(text=word["text"], start=_nanoseconds(word["start"]), end=_nanoseconds(word["end"]))
        for word in words
    ]
    text = " ".join(word.text for word in timed)
    return TranscriptSegment(id=number, start=timed[0].start, end=timed[-1].end, text=text, words=timed)


def _nanoseconds(seconds: float) -> int:
    return max(0, round(seconds * _NANOSECONDS))


if __name__ == "__main__":
    serve(PocketsphinxStt)
