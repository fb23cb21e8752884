"""Sounds through an adapter: what clients upload and download, before real engines."""

import asyncio
import io
import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from corral.base.clock import SystemClock
from corral.base.ids import NodeId
from corral.bus.port import Bus
from corral.files.s3_bucket import open_bucket
from corral.frontend.nodes.node_storage import NodeStorage
from corral.frontend.serving.gateways.request_files import RequestFiles
from corral.rpc.adapter_link import PassFile
from corral.rpc.messages import StatusResponse
from corral.wire.adapter import PASSED_BYTES, AdapterModel, AdapterReplica, FileVerb, FileWish
from tests.kit.adapters import RunningAdapter, running_adapter
from tests.kit.backends import SOON, TOKEN, RunningBackend
from tests.kit.file_worker import open_file_worker
from tests.kit.object_node import object_node
from tests.kit.s3 import S3Server
from tests.kit.speech import SENTENCE, UNDERSTOOD, loaded_backend, rate_of, samples_of, wave_file
from tests.kit.waiting import wait_until

SPEECH = "/v1/audio/speech"
TRANSCRIPTIONS = "/v1/audio/transcriptions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sounds:
    """An adapter, and the backends that it was told of, each with its folder's name as the key."""

    adapter: RunningAdapter
    backends: dict[str, RunningBackend]
    session: aiohttp.ClientSession
    scratch: Path

    def post(self, key: str, path: str, **given: Any) -> Any:
        return self.session.post(self.adapter.url + path, headers={"Authorization": f"Bearer {key}"}, **given)

    async def ask(self, key: str, path: str, **given: Any) -> tuple[int, str, bytes]:
        async with self.post(key, path, **given) as answer:
            return answer.status, answer.headers["Content-Type"], await answer.read()

    async def refused(self, key: str, path: str, **given: Any) -> dict[str, Any]:
        """The error of a request that is at fault."""
        status, _, body = await self.ask(key, path, **given)
        error: dict[str, Any] = json.loads(body)["error"]
        assert (status, error["type"]) == (400, "invalid_request_error"), error
        return error

    async def length_told(self) -> int:
        async with self.post("espeak_tts", SPEECH, json={"input": SENTENCE}) as answer:
            assert int(answer.headers["Content-Length"]) == len(await answer.read())
            return answer.status

    async def say(self, text: str = SENTENCE, **more: Any) -> bytes:
        status, kind, sound = await self.ask("espeak_tts", SPEECH, json={"input": text, "voice": "nova", **more})
        assert (status, kind) == (200, "audio/wav"), sound
        return sound

    def left(self) -> list[str]:
        """What lies in the adapter's directory."""
        return sorted(file.name for home in self.scratch.iterdir() for file in home.iterdir())

    async def until_nothing_is_left(self) -> None:
        """But its lock. An answer may be complete a moment before its request is over."""
        await asyncio.to_thread(wait_until, lambda: self.left() == [".lock"], "the end of all files")


@asynccontextmanager
async def serving(
    scratch: Path, *folders: str, files_url: str = "", on_file: PassFile | None = None
) -> AsyncIterator[Sounds]:
    async with AsyncExitStack() as stack:
        adapter = await stack.enter_async_context(running_adapter(on_file, TMPDIR=str(scratch)))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        sounds = Sounds(adapter=adapter, backends={}, session=session, scratch=scratch)
        for folder in folders:
            backend = sounds.backends[folder] = await stack.enter_async_context(loaded_backend(folder))
            model = AdapterModel(name=folder, identity="m")
            replica = AdapterReplica(
                key=folder,
                address=backend.address,
                token=TOKEN,
                files_url=files_url,
                files_token=TOKEN,
                files_by_parent=on_file is not None,
                model=model,
            )
            await adapter.link.serve(replica)
        yield sounds


def form(file: bytes, name: str = "said.wav", **fields: str) -> aiohttp.FormData:
    made = aiohttp.FormData()
    for field, value in fields.items():
        made.add_field(field, value)
    made.add_field("file", io.BytesIO(file), filename=name, content_type="audio/wav")
    return made


async def test_a_text_is_spoken_whole_or_as_a_stream(tmp_path: Path) -> None:
    async with serving(tmp_path, "espeak_tts") as sounds:
        whole = await sounds.say()
        assert (whole[:4], rate_of(whole)) == (b"RIFF", 22050)
        assert 1 < len(samples_of(whole)) / 22050 < 4
        assert await sounds.length_told() == 200
        await sounds.until_nothing_is_left()
        streamed = await sounds.say(stream=True)
        assert (streamed[:8], rate_of(streamed)) == (b"RIFF\xff\xff\xff\xff", 22050)
        assert len(streamed) == pytest.approx(len(whole), rel=0.02)
        assert len(await sounds.say(speed=2)) < 0.7 * len(whole)


async def test_sounds_pass_through_the_file_server_of_another_machine(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    async with AsyncExitStack() as stack:
        worker = await stack.enter_async_context(open_file_worker(tmp_path / "worker", secret=TOKEN))
        folders = ("espeak_tts", "pocketsphinx_stt")
        sounds = await stack.enter_async_context(serving(scratch, *folders, files_url=worker.url))

        spoken = await sounds.say()
        assert spoken[:4] == b"RIFF"
        status, _, body = await sounds.ask("pocketsphinx_stt", TRANSCRIPTIONS, data=form(spoken, model="m"))
        assert status == 200, body

        names = sorted(path.name for path in worker.staging.rglob("*") if path.is_file() and ".sha256" not in path.name)
        assert [name.partition("-")[0] for name in names] == ["localai", "sound.wav"], "both were there"
        await sounds.until_nothing_is_left()
        await asyncio.to_thread(wait_until, lambda: not sizes(worker.staging), "nothing to be left there")


def sizes(staging: Path) -> list[int]:
    """Bytes of what lies there, but for hashes."""
    files = [path for path in staging.rglob("*") if path.is_file() and ".sha256" not in path.name]
    return [size for path in files if (size := path.stat().st_size)]


async def test_a_cancelled_request_leaves_nothing_on_another_machine(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    async with AsyncExitStack() as stack:
        worker = await stack.enter_async_context(open_file_worker(tmp_path / "worker", secret=TOKEN))
        sounds = await stack.enter_async_context(serving(scratch, "pocketsphinx_stt", files_url=worker.url))
        long = form(wave_file(bytes(2 * 16_000 * 600)), model="m")
        asking = asyncio.create_task(sounds.ask("pocketsphinx_stt", TRANSCRIPTIONS, data=long))
        await asyncio.to_thread(wait_until, lambda: bool(sizes(worker.staging)), "the sound to be there")
        asking.cancel()
        await asyncio.wait([asking])
        await asyncio.to_thread(wait_until, lambda: not sizes(worker.staging), "nothing to be left there")
        await sounds.until_nothing_is_left()


async def test_sounds_pass_through_an_object_storage_to_a_machine_without_a_file_server(
    tmp_path: Path, s3_server: S3Server, bus: Bus
) -> None:
    scratch, node = tmp_path / "scratch", NodeId("n1")
    scratch.mkdir()

    async def admitted(_: NodeId) -> None: ...

    async with AsyncExitStack() as stack:
        bucket = await stack.enter_async_context(open_bucket(s3_server.config()))
        await stack.enter_async_context(object_node(bus, node, tmp_path / "worker", bucket))
        files = RequestFiles(bucket, NodeStorage(bus, admitted), SystemClock())
        folders = ("espeak_tts", "pocketsphinx_stt")
        pass_file = partial(files.passed, node)
        sounds = await stack.enter_async_context(serving(scratch, *folders, on_file=pass_file))

        spoken = await sounds.say()
        assert spoken[:4] == b"RIFF"
        status, _, body = await sounds.ask("pocketsphinx_stt", TRANSCRIPTIONS, data=form(spoken, model="m"))
        assert status == 200, body
        cached = tmp_path / "worker" / "cache"
        names = {path.name.partition("-")[0] for path in cached.rglob("*") if path.is_file() and path.suffix}
        assert names == {"localai", "sound.wav"}, "both were there"
        old = bucket.older_than("ephemeral/", datetime.now(UTC) + timedelta(hours=1))
        assert not [key async for keys in old for key in keys if "sound.wav" in key or str(tmp_path) in key]
        await sounds.until_nothing_is_left()


async def test_a_result_that_is_too_large_is_not_fetched(tmp_path: Path, s3_server: S3Server, bus: Bus) -> None:
    async def admitted(_: NodeId) -> None: ...

    node, target = NodeId("n1"), tmp_path / "fetched"
    async with (
        open_bucket(s3_server.config()) as bucket,
        object_node(bus, node, tmp_path / "worker", bucket),
    ):
        files = RequestFiles(bucket, NodeStorage(bus, admitted), SystemClock())
        place = (await files.passed(node, FileWish(number=1, key="k", verb=FileVerb.PLACE))).path
        fetch = FileWish(number=2, key="k", verb=FileVerb.FETCH, path=place, target=str(target))
        os.truncate(place, PASSED_BYTES + 1)
        refused = await files.passed(node, fetch)
        assert (bool(refused.error), refused.path, target.stat().st_size) == (True, "", 0)
        os.truncate(place, 1000)
        assert (await files.passed(node, fetch)).path == str(target)
        assert target.stat().st_size == 1000


async def test_a_machine_that_files_cannot_get_to_is_told(tmp_path: Path, bus: Bus) -> None:
    async def admitted(_: NodeId) -> None: ...

    files = RequestFiles(None, NodeStorage(bus, admitted), SystemClock())
    async with serving(tmp_path, "espeak_tts", on_file=partial(files.passed, NodeId("n1"))) as sounds:
        status, _, body = await sounds.ask("espeak_tts", SPEECH, json={"input": SENTENCE})

        error = json.loads(body)["error"]
        assert (status, error["code"]) == (502, "node_files_unusable")
        assert error["message"].endswith("there is no way to it")


async def test_a_file_server_that_is_away_is_told_without_its_address(tmp_path: Path) -> None:
    async with serving(tmp_path, "espeak_tts", files_url="http://127.0.0.1:1") as sounds:
        status, _, body = await sounds.ask("espeak_tts", SPEECH, json={"input": SENTENCE})

        assert (status, json.loads(body)["error"]["code"]) == (502, "node_files_unusable")
        assert b"127.0.0.1" not in body


async def test_what_cannot_be_spoken_is_refused_in_openais_shape(tmp_path: Path) -> None:
    bad: list[tuple[Any, str | None, str]] = [
        ({}, "input", "is missing"),
        ({"input": " "}, "input", "must not be empty"),
        ({"input": "a" * 4097}, "input", "4096 are the most"),
        ({"input": "a", "response_format": "mp3"}, "response_format", "mp3 is not offered, but wav"),
        ({"input": "a", "stream_format": "sse"}, "stream_format", "not offered"),
        ({"input": "a", "speed": 9}, "speed", "must be between 0.25 and 4.0"),
        ({"input": "a", "voice": 3}, "voice", "expected"),
        ({"input": "a", "voice": "darth"}, None, "the voice darth is not known: there are alloy, ash"),
        ({"input": "a", "language": "zz", "stream": True}, None, "the language zz is not known: there are af"),
    ]
    async with serving(tmp_path, "espeak_tts", "silero_vad") as sounds:
        for body, param, words in bad:
            error = await sounds.refused("espeak_tts", SPEECH, json=body)
            assert error["param"] == param
            assert words in error["message"]
        status, _, body = await sounds.ask("silero_vad", SPEECH, json={"input": "a"})
        assert (status, json.loads(body)["error"]["code"]) == (400, "unsupported_by_model")
        assert (await sounds.ask("nobody", SPEECH, json={"input": "a"}))[0] == 401
        await sounds.until_nothing_is_left()

        error = await sounds.refused("silero_vad", "/v1/vad", json={"audio": []})
        assert (error["param"], "must not be empty" in error["message"]) == ("audio", True)
        error = await sounds.refused("silero_vad", "/v1/vad", json={"audio": "UklGRg=="})
        assert error["param"] == "audio"
        status, _, body = await sounds.ask("silero_vad", "/v1/vad", json={"audio": [0.0] * 16_000})
        assert (status, json.loads(body)) == (200, {"segments": []})


async def test_a_sound_is_written_down_whole_or_as_a_stream(tmp_path: Path) -> None:
    async with serving(tmp_path, "espeak_tts", "pocketsphinx_stt") as sounds:
        said = await sounds.say()
        seconds = len(samples_of(said)) / 22050

        async def written(response_format: str, **more: str) -> tuple[str, str]:
            data = form(said, model="x", response_format=response_format, **more)
            status, kind, body = await sounds.ask("pocketsphinx_stt", TRANSCRIPTIONS, data=data)
            assert status == 200, body
            return kind, body.decode()

        kind, body = await written("verbose_json", **{"timestamp_granularities[]": "word"})
        verbose = json.loads(body)
        text = verbose["text"]
        assert UNDERSTOOD in text
        assert (kind, verbose["language"], verbose["task"]) == ("application/json", "en", "transcribe")
        assert verbose["duration"] == pytest.approx(seconds, abs=0.01)
        assert [word["word"] for word in verbose["words"]] == text.split()
        assert "segments" not in verbose

        kind, body = await written("json", stream="true")
        assert kind.startswith("text/event-stream")
        events = [json.loads(event.removeprefix("data: ")) for event in body.strip().split("\n\n")]
        assert [event["type"] for event in events] == ["transcript.text.delta", "transcript.text.done"]
        assert events[0]["delta"] == events[1]["text"] == text
        await sounds.until_nothing_is_left()


async def test_what_is_no_sound_is_refused_in_openais_shape(tmp_path: Path) -> None:
    good = wave_file(bytes(3200))
    without_file = aiohttp.FormData()
    without_file.add_field("model", "x")
    bad: list[tuple[Any, str | None, str]] = [
        ({"json": {"model": "x"}}, None, "must be multipart/form-data, and is application/json"),
        ({"data": without_file}, None, "must be multipart/form-data"),
        ({"data": form(b"")}, "file", "is empty"),
        ({"data": form(b"hello")}, None, "is not a WAV file"),
        ({"data": form(b"ID3\x04", name="../../x.mp3")}, None, "this is MP3"),
        ({"data": form(good, response_format="docx")}, "response_format", "but json, text, srt, verbose_json, vtt"),
        ({"data": form(good, temperature="hot")}, "temperature", "from 0 to 1, and is hot"),
        ({"data": form(good, language="de")}, None, "the language de is not known"),
        ({"data": form(good, timestamp_granularities="letter")}, "timestamp_granularities", "but word, segment"),
        ({"data": form(good, prompt="x" * 70_000)}, "prompt", "longer than 65536 bytes"),
        ({"data": form(good, stream="true", language="xx")}, None, "the language xx is not known"),
    ]
    async with serving(tmp_path, "pocketsphinx_stt") as sounds:
        for given, param, words in bad:
            error = await sounds.refused("pocketsphinx_stt", TRANSCRIPTIONS, **given)
            assert words in error["message"]
            assert error["param"] == param
        cut = {"data": b"--b\r\nContent-Dis", "headers": {"Content-Type": "multipart/form-data; boundary=b"}}
        headers = {"Authorization": "Bearer pocketsphinx_stt", **cut.pop("headers")}  # type: ignore[dict-item]
        async with sounds.session.post(sounds.adapter.url + TRANSCRIPTIONS, headers=headers, **cut) as answer:
            assert (answer.status, "error" in await answer.json()) == (400, True)
        large = form(wave_file(bytes(49 * 1024 * 1024)))
        status, _, body = await sounds.ask("pocketsphinx_stt", TRANSCRIPTIONS, data=large)
        assert (status, json.loads(body)["error"]["code"]) == (413, "request_too_large")
        await sounds.until_nothing_is_left()


async def test_who_leaves_ends_the_work_and_leaves_no_file(tmp_path: Path) -> None:
    async with serving(tmp_path, "espeak_tts", "pocketsphinx_stt") as sounds:
        said = await sounds.say()
        long = wave_file((said[44:] + bytes(30_000)) * 30, rate=rate_of(said))
        async with sounds.post("pocketsphinx_stt", TRANSCRIPTIONS, data=form(long, stream="true")) as answer:
            assert b"delta" in await answer.content.readline()
            assert len(sounds.left()) == 2
            answer.close()
        await until_idle(sounds.backends["pocketsphinx_stt"])
        await sounds.until_nothing_is_left()
        sounds.adapter.process.terminate()
        assert await sounds.adapter.process.wait() == 0
        assert list_of(tmp_path) == []


async def test_what_a_killed_adapter_left_is_removed_by_the_next(tmp_path: Path) -> None:
    async with serving(tmp_path, "espeak_tts") as sounds:
        await sounds.say()
        sounds.adapter.process.kill()
        await sounds.adapter.process.wait()
        [left] = list_of(tmp_path)
    async with serving(tmp_path, "espeak_tts") as sounds:
        await sounds.say()
        [home] = list_of(tmp_path)
        assert home != left


async def until_idle(backend: RunningBackend) -> None:
    async with asyncio.timeout(SOON.total_seconds()):
        while (await backend.client.status(timeout=SOON)).state != StatusResponse.READY:
            pass


def list_of(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir()]
