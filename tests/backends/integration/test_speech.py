"""espeak, PocketSphinx and Silero VAD as processes: one says something, the others hear it."""

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import psutil
import pytest

from corral.rpc import errors
from corral.rpc.messages import ModelOptions, StatusResponse, TranscriptRequest, TTSRequest, VADRequest
from tests.kit.backends import SOON, RunningBackend, running_backend
from tests.kit.speech import HEADER_BYTES, SENTENCE, UNDERSTOOD, loaded_backend, rate_of, samples_of, say, wave_file
from tests.kit.waiting import wait_until

SECOND_OF_SILENCE = [0.0] * 16_000


@pytest.fixture
async def espeak() -> AsyncIterator[RunningBackend]:
    async with loaded_backend("espeak_tts") as backend:
        yield backend


class TestSpeaking:
    async def test_a_text_becomes_a_wave_file(self, espeak: RunningBackend, tmp_path: Path) -> None:
        wave = (await say(espeak, tmp_path / "said.wav")).read_bytes()
        assert (wave[:4], wave[8:12], rate_of(wave)) == (b"RIFF", b"WAVE", 22050)
        assert struct.unpack_from("<I", wave, 40) == (len(wave) - HEADER_BYTES,)
        assert 1 < len(samples_of(wave)) / 22050 < 4
        assert names_in(tmp_path) == ["said.wav"]
        slow = TTSRequest(text=SENTENCE, voice="nova", dst=str(tmp_path / "slow.wav"), params={"speed": "0.5"})
        await espeak.client.speak(slow, timeout=SOON)
        assert (tmp_path / "slow.wav").stat().st_size > 1.5 * len(wave)

    async def test_a_stream_tells_its_rate_and_then_the_sound(self, espeak: RunningBackend, tmp_path: Path) -> None:
        wave = (await say(espeak, tmp_path / "said.wav")).read_bytes()
        stream = espeak.client.speech(TTSRequest(text=SENTENCE, voice="nova"))
        parts = [part async for batch in stream for part in batch]
        assert json.loads(parts[0].message) == {"sample_rate": 22050}
        assert len(parts) > 3
        sound = b"".join(part.audio for part in parts)
        assert len(sound) == pytest.approx(len(wave), rel=0.02), "espeak says nothing twice in the same way"

    async def test_who_stops_listening_silences_it_and_nobody_else(
        self, espeak: RunningBackend, tmp_path: Path
    ) -> None:
        long = TTSRequest(text=SENTENCE * 500)
        async with aclosing(espeak.client.speech(long)) as parts:
            await anext(parts)
            await espeak.client.health(timeout=SOON)
        await say(espeak, tmp_path / "next.wav")
        async with asyncio.timeout(SOON.total_seconds()):
            while (await espeak.client.status(timeout=SOON)).state != StatusResponse.READY:
                pass

    async def test_what_cannot_be_said_is_refused_with_what_can(self, espeak: RunningBackend, tmp_path: Path) -> None:
        target = str(tmp_path / "x.wav")
        refused = {
            "there is nothing to say": TTSRequest(text=" … ", dst=target),
            "20000 are the most": TTSRequest(text="a" * 20_001, dst=target),
            "the voice darth is not known: there are alloy,": TTSRequest(text="a", voice="darth", dst=target),
            "there is no variant x9, but ed, f1,": TTSRequest(text="a", voice="en+x9", dst=target),
            "the language zz is not known": TTSRequest(text="a", language="zz", dst=target),
            "speed must be a number from 0.25 to 4, and is fast": TTSRequest(
                text="a", dst=target, params={"speed": "fast"}
            ),
            "dst must be the absolute path": TTSRequest(text="a", dst="x.wav"),
            "in a directory that is there": TTSRequest(text="a", dst="/no/such/directory/x.wav"),
        }
        for words, request in refused.items():
            with pytest.raises(errors.RequestRefused, match=words):
                await espeak.client.speak(request, timeout=SOON)
        assert names_in(tmp_path) == []

    async def test_a_voice_that_is_not_there_fails_the_load(self) -> None:
        async with running_backend("espeak_tts") as backend:
            with pytest.raises(errors.LoadFailed, match="the language xx is not known: there are af"):
                await backend.client.load(ModelOptions(Model="m", Options=["voice:xx"]), timeout=SOON)


class TestListening:
    async def test_what_espeak_says_is_understood_at_any_rate(self, espeak: RunningBackend, tmp_path: Path) -> None:
        """And with both ways to ask, and after somebody left in the middle."""
        said = await say(espeak, tmp_path / "said.wav")
        wave = said.read_bytes()
        stereo = tmp_path / "stereo.wav"
        both = b"".join(sample + sample for sample in pairs(wave[HEADER_BYTES:]))
        stereo.write_bytes(wave_file(both, rate=rate_of(wave), channels=2))
        async with loaded_backend("pocketsphinx_stt") as backend:
            whole = await backend.client.transcribe(TranscriptRequest(dst=str(said), language="en"), timeout=SOON)
            assert UNDERSTOOD in whole.text
            assert whole.duration == pytest.approx(len(samples_of(wave)) / 22050, abs=0.01)
            [segment] = whole.segments
            assert [word.text for word in segment.words] == whole.text.split()
            assert 0 <= segment.start < segment.end <= (whole.duration + 0.5) * 1e9

            async with aclosing(backend.client.transcript(TranscriptRequest(dst=str(stereo), stream=True))) as batches:
                heard = [part async for batch in batches for part in batch]
            assert "".join(part.delta for part in heard) == heard[-1].final_result.text == whole.text
            await leave_in_the_middle(backend, wave, tmp_path / "long.wav")
            again = await backend.client.transcribe(TranscriptRequest(dst=str(said)), timeout=SOON)
            assert again == whole, "what was heard before has no influence"

    async def test_what_is_no_sound_is_refused_by_name(self, tmp_path: Path) -> None:
        second = bytes(32_000)
        bad = {
            "the file has no bytes": b"",
            "is not a WAV file": b"hello",
            "this is MP3": b"ID3\x04rest",
            "this is Ogg": b"OggS\0\0\0\0",
            "it is cut off": wave_file(second)[:30],
            "has no samples": wave_file(b""),
            "send PCM": wave_file(second, tag=2),
            "12 bits": wave_file(second, bits=12),
            "0 channels": wave_file(second, channels=0, bits=16),
            "5 samples a second": wave_file(second, rate=5),
            "900 are the most": wave_file(bytes(2_000_000), rate=1000),
        }
        async with loaded_backend("pocketsphinx_stt") as backend:
            for words, content in bad.items():
                file = tmp_path / "bad.wav"
                file.write_bytes(content)
                with pytest.raises(errors.RequestRefused, match=words):
                    await backend.client.transcribe(TranscriptRequest(dst=str(file)), timeout=SOON)
            with pytest.raises(errors.RequestRefused, match="cannot be read: No such file"):
                await backend.client.transcribe(TranscriptRequest(dst=str(tmp_path / "none.wav")), timeout=SOON)
            with pytest.raises(errors.RequestRefused, match="the language de is not known: there is en"):
                await backend.client.transcribe(TranscriptRequest(dst=str(file), language="de"), timeout=SOON)
            silent = tmp_path / "silent.wav"
            silent.write_bytes(wave_file(second))
            nothing = await backend.client.transcribe(TranscriptRequest(dst=str(silent)), timeout=SOON)
            assert (nothing.text, list(nothing.segments), nothing.duration) == ("", [], 1.0)


async def leave_in_the_middle(backend: RunningBackend, wave: bytes, file: Path) -> None:
    """The recogniser is busy for a while then: its process has to end with the request."""
    await asyncio.to_thread(file.write_bytes, wave_file((wave[HEADER_BYTES:] + bytes(30_000)) * 20, rate=rate_of(wave)))
    (child,) = psutil.Process(backend.process.pid).children()
    async with aclosing(backend.client.transcript(TranscriptRequest(dst=str(file)))) as batches:
        assert (await anext(batches))[0].delta
        await backend.client.health(timeout=SOON)
    await asyncio.to_thread(wait_until, lambda: not child.is_running(), "the end of the recogniser")


def names_in(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir()]


def pairs(samples: bytes) -> list[bytes]:
    return [samples[place : place + 2] for place in range(0, len(samples), 2)]


async def test_speech_is_found_between_silences(espeak: RunningBackend, tmp_path: Path) -> None:
    wave = (await say(espeak, tmp_path / "said.wav")).read_bytes()
    speech = nearest(samples_of(wave), source=rate_of(wave), target=16_000)
    length = len(speech) / 16_000
    sound = [*SECOND_OF_SILENCE, *speech, *SECOND_OF_SILENCE, *SECOND_OF_SILENCE, *speech, *SECOND_OF_SILENCE]
    async with loaded_backend("silero_vad") as backend:
        found = (await backend.client.vad(VADRequest(audio=sound), timeout=SOON)).segments
        times = [(segment.start, segment.end) for segment in found]
        for begins, ends in ((1, 1 + length), (3 + length, 3 + 2 * length)):
            inside = [(start, end) for start, end in times if begins - 0.3 < start < end < ends + 0.3]
            assert sum(end - start for start, end in inside) > 0.7 * length, times
            times = [one for one in times if one not in inside]
        assert times == [], "there is no speech in the silence"
        assert not (await backend.client.vad(VADRequest(audio=SECOND_OF_SILENCE), timeout=SOON)).segments
        assert not (await backend.client.vad(VADRequest(audio=[0.5]), timeout=SOON)).segments
        with pytest.raises(errors.RequestRefused, match="the sound is empty"):
            await backend.client.vad(VADRequest(), timeout=SOON)
        with pytest.raises(errors.RequestRefused, match="no numbers"):
            await backend.client.vad(VADRequest(audio=[0.0, float("nan")]), timeout=SOON)
        with pytest.raises(errors.LoadFailed, match="threshold must be a number from 0 to 1, and is 2"):
            await backend.client.load(ModelOptions(Model="m", Options=["threshold:2"]), timeout=SOON)


def nearest(samples: list[float], *, source: int, target: int) -> list[float]:
    """Another rate, as simply as can be: enough to find speech in it."""
    return [samples[place * source // target] for place in range(len(samples) * target // source)]
