"""The worker's file server and its logs as LocalAI's own binaries speak them."""

import json
import re
from collections.abc import AsyncIterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from corral.worker.processes.backend_logs import OutputStream
from tests.kit.file_worker import FileAnswer, FileWorker, open_file_worker
from tests.kit.golden import GoldenMessage, read_recording

VECTORS = Path(__file__).parent / "vectors" / "files.json"

DELIBERATE = {
    "client restarts at 0: livelock": "all bytes are there and right: the file gets its name",
    "NATS down": "which of two things is missing is told in our own words",
}
"""Every answer that differs from LocalAI's on purpose, and why. There are no others."""

ROOT = re.compile(r"/srv/w\d")


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[FileWorker]:
    async with open_file_worker(tmp_path / "cluster" / "node") as worker:
        (worker.models / "esc").symlink_to("/etc")
        yield worker


async def play(worker: FileWorker, recording: list[GoldenMessage]) -> dict[str, list[str]]:
    """By note: where the answers differ."""
    found = {}
    for recorded in recording:
        note = recorded.message.get("note", "")
        worker.link.connected = note != "NATS down"
        if note.startswith("all bytes present"):
            leave_as_after_a_crash(worker.models / "m" / "l.bin", b"0123456789")
        answer = await send(worker, recorded.message)
        if differences := list(compared(worker, recorded.message, answer)):
            found[note or str(recorded)] = differences
    return found


def leave_as_after_a_crash(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    path.with_name(f"{path.name}.sha256.target").write_text(sha256(data).hexdigest())


async def send(worker: FileWorker, message: Mapping[str, Any]) -> FileAnswer:
    headers = dict(message.get("headers", {}))
    token = headers.pop("Authorization", "Bearer tok")
    return await worker.ask(
        message["method"],
        message["path"],
        headers=headers,
        body=body_of(message),
        token=None if token == "<none>" else token.removeprefix("Bearer "),
    )


def body_of(message: Mapping[str, Any]) -> bytes | None:
    """Recordings hold how long a body was. What it was can be told by the hashes that were answered."""
    if "body_length" not in message:
        return None
    length = message["body_length"]
    if message["path"].endswith("/l.bin"):
        return b"0123456789"[:length]
    if message["path"].endswith("/x.bin") and length == 5:
        return b"hello"
    stated = re.match(r"bytes (\d+)-\d+/\d+$", message.get("headers", {}).get("Content-Range", ""))
    start = int(stated[1]) if stated else 0
    return bytes(number % 256 for number in range(start, start + length))


def compared(worker: FileWorker, message: Mapping[str, Any], answer: FileAnswer) -> list[str]:
    differences = []
    if answer.status != message["status"]:
        differences.append(f"status {answer.status} instead of {message['status']}")
    for name, value in message.get("response_headers", {}).items():
        depends = name == "Content-Length" and "/" in str(message.get("response", "")) and answer.status != 307
        if not depends and answer.headers.get(name) != ROOT.sub(str(worker.root), value):
            differences.append(f"{name}: {answer.headers.get(name)!r} instead of {value!r}")
    if "response" in message and normal(worker, message["response"]) != ours(worker, answer, message["response"]):
        differences.append(f"{answer.body!r} instead of {message['response']!r}")
    return differences


def normal(worker: FileWorker, wanted: Any) -> str:
    """With our paths, and without what cannot be known: bytes that were not stored, and random names."""
    text = wanted if isinstance(wanted, str) else json.dumps(wanted, separators=(",", ":")) + "\n"
    if text.startswith("<") and not text.startswith("<a "):
        return ""
    text = re.sub("/srv/(secret|interop)", "SOMEWHERE", ROOT.sub(str(worker.root), text))
    return re.sub(r"-\d+\.tmp", "-N.tmp", text)


def ours(worker: FileWorker, answer: FileAnswer, wanted: Any) -> str:
    if isinstance(wanted, str) and wanted.startswith("<") and not wanted.startswith("<a "):
        return ""
    text = answer.body.decode().replace(f"{worker.root.parent.parent}/secret", "SOMEWHERE")
    text = text.replace(f"{worker.root.parent}/secret", "SOMEWHERE").replace(f'"{worker.root.parent}"', '"SOMEWHERE"')
    return re.sub(r"-\d+\.tmp", "-N.tmp", text)


def answered_by_localai(path: Path) -> list[GoldenMessage]:
    return [one for one in read_recording(path) if one.message["direction"] == "Python frontend -> LocalAI worker"]


async def test_our_own_vectors_are_answered_alike(worker: FileWorker) -> None:
    assert await play(worker, read_recording(VECTORS)) == {}


async def test_every_recorded_request_for_a_file_is_answered_alike(worker: FileWorker, golden: Path) -> None:
    recording = answered_by_localai(golden / "http_files.json")
    assert len(recording) == 92

    found = await play(worker, recording)

    assert set(found) == set(DELIBERATE), found


async def test_whatever_a_localai_frontend_stages_arrives(worker: FileWorker, golden: Path) -> None:
    """Its own requests, sent to a LocalAI worker or to a peer of ours; the bodies were not kept."""
    recording = [
        one for one in read_recording(golden / "http_files.json") if one.message["direction"].startswith("LocalAI")
    ]
    assert len(recording) == 19
    body = b"x" * 3_000_000

    for recorded in recording:
        message = recorded.message
        headers = {name: value for name, value in message["headers"].items() if name != "Content-Length"}
        if message["method"] == "PUT":
            start, size = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", headers["Content-Range"]).groups()  # type: ignore[union-attr]
            headers["X-Content-Sha256"] = sha256(body[: int(size)]).hexdigest()
            answer = await worker.ask("PUT", message["path"], headers=headers, body=body[int(start) : int(size)])
            assert answer.status in (200, 416)  # 416: the recorded peer had taken less of it than we did
        else:
            answer = await worker.ask(message["method"], message["path"], headers=headers)
            assert answer.status in (200, 404)


async def test_every_recorded_request_for_logs_is_answered_alike(worker: FileWorker, golden: Path) -> None:
    for key in ("custom#0", "dirb#0", "img2#0", "m1#0", "m1#1", "m2#0", "m3#0", "m4#0", "mock#0"):
        worker.logs.of(key).add(OutputStream.STDOUT, f"this is {key}")
    recording = [one for one in read_recording(golden / "http_logs.json") if one.message["method"] != "WS"]
    assert len(recording) == 7

    for recorded in recording:
        message = recorded.message
        token = message["headers"].get("Authorization", "").removeprefix("Bearer ")
        answer = await worker.ask(message["method"], message["path"], token=token or None)
        assert answer.status == message["status"], str(recorded)
        if message["response"].startswith("<"):
            for line in json.loads(answer.body):
                assert set(line) == {"timestamp", "stream", "text"}
        else:
            assert answer.body.decode() == message["response"], str(recorded)


async def test_every_recorded_live_log_is_answered_alike(worker: FileWorker, golden: Path) -> None:
    log = worker.logs.of("m1#0")
    log.add(OutputStream.STDOUT, "first")
    recording = [one.message for one in read_recording(golden / "http_logs.json") if one.message["method"] == "WS"]
    first, live, *refused = recording

    async with worker.session.ws_connect(worker.url + first["path"], headers=first["headers"]) as socket:
        initial = json.loads(await socket.receive_str())
        log.add(OutputStream.STDOUT, "second")
        line = json.loads(await socket.receive_str())

    assert set(initial) == set(first["first_frame"])
    assert [set(one) for one in initial["lines"]] == [set(first["first_frame"]["lines"][0])]
    assert (initial["type"], line["type"]) == (first["first_frame"]["type"], live["frame"]["type"])
    assert set(line["line"]) == set(live["frame"]["line"])
    assert [message["status"] for message in refused] == [401, 403]
    for message in refused:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
            await worker.session.ws_connect(worker.url + message["path"], headers=message["headers"])
        assert refusal.value.status == message["status"]
