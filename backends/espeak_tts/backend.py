"""espeak-ng: text to speech in a hundred languages, robotic and fast, without a model file. gRPC only.

`ModelOptions.Options`, each `name:value`:

    voice:en-us         what requests get that name no voice
    pitch:50            0 to 99

A request's `params` may have `speed` (1 is normal, from 0.25 to 4) and `pitch`.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from corral_backend_sdk import (
    Backend,
    LoadFailed,
    ModelOptions,
    Reply,
    RequestRefused,
    Result,
    TTSRequest,
    option_values,
    serve,
)
from corral_backend_sdk.wave_files import wave_header
from espeak import Espeak, Saying
from voices import Voices

_MOST_CHARACTERS: Final = 20_000
_SPEEDS: Final = (0.25, 4.0)
_PITCHES: Final = (0, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manners:
    """What the model's options say."""

    voices: Voices
    pitch: int


class EspeakTts(Backend):
    """Speaks one text after the other."""

    name = "espeak-tts"
    _engine: Espeak | None = None
    _manners: Manners

    async def load(self, options: ModelOptions) -> str:
        if self._engine is None:
            self._engine = await asyncio.to_thread(Espeak)
        values = option_values(options.Options)
        voices = self._engine.voices(default=values.get("voice", "en-us"))
        try:
            voices.choose("", "")
            self._manners = Manners(voices=voices, pitch=int(_number(values.get("pitch", "50"), "pitch", _PITCHES)))
        except RequestRefused as error:
            raise LoadFailed(str(error)) from error
        return f"Loading succeeded: espeak-ng at {self._engine.rate} samples a second"

    async def tts(self, request: TTSRequest) -> Result:
        """Write a WAV file to `dst`; a file that is there is complete."""
        target = _target(request.dst)
        draft = target.with_name(f".{target.name}.part")
        async with aclosing(self._parts(self._saying(request))) as parts:
            sound = b"".join([part async for part in parts])
        try:
            await asyncio.to_thread(_write, draft, target, wave_header(self._rate, len(sound)) + sound)
        finally:
            draft.unlink(missing_ok=True)
        return Result(success=True, message="spoken")

    async def tts_stream(self, request: TTSRequest) -> AsyncIterator[Reply]:
        """The rate first, then samples as they are made."""
        async with aclosing(self._parts(self._saying(request))) as parts:
            yield Reply(message=json.dumps({"sample_rate": self._rate}).encode())
            async for part in parts:
                yield Reply(audio=part)

    @property
    def _rate(self) -> int:
        return self._engine.rate if self._engine is not None else 0

    def _saying(self, request: TTSRequest) -> Saying:
        text = request.text.replace("\0", " ")
        if not any(character.isalnum() for character in text):
            raise RequestRefused("there is nothing to say: the text has neither letters nor digits")
        if len(text) > _MOST_CHARACTERS:
            raise RequestRefused(f"the text has {len(text)} characters, and {_MOST_CHARACTERS} are the most")
        given = request.params
        return Saying(
            text=text,
            voice=self._manners.voices.choose(request.voice, request.language),
            speed=_number(given.get("speed", "1"), "speed", _SPEEDS),
            pitch=int(_number(given.get("pitch", str(self._manners.pitch)), "pitch", _PITCHES)),
        )

    async def _parts(self, saying: Saying) -> AsyncGenerator[bytes, None]:
        """Closing it stops the voice. What waits here is bounded by the text."""
        engine, loop = self._engine, asyncio.get_running_loop()
        if engine is None:
            raise RuntimeError("espeak is not loaded")
        parts: asyncio.Queue[bytes | None] = asyncio.Queue()
        wanted = [True]

        def hand(part: bytes) -> bool:
            loop.call_soon_threadsafe(parts.put_nowait, part)
            return wanted[0]

        work = loop.run_in_executor(None, engine.say, saying, hand)
        work.add_done_callback(lambda _: parts.put_nowait(None))
        try:
            while (part := await parts.get()) is not None:
                yield part
        finally:
            wanted[0] = False
            await asyncio.wait((work,))
        work.result()


def _number(text: str, name: str, bounds: tuple[float, float]) -> float:
    least, most = bounds
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not least <= number <= most:
        raise RequestRefused(f"{name} must be a number from {least:g} to {most:g}, and is {text}")
    return number


def _target(path: str) -> Path:
    target = Path(path)
    if not target.is_absolute() or not target.parent.is_dir():
        raise RequestRefused("dst must be the absolute path of a file in a directory that is there")
    return target


def _write(draft: Path, target: Path, content: bytes) -> None:
    draft.write_bytes(content)
    draft.replace(target)


if __name__ == "__main__":
    serve(EspeakTts)
