"""Files that are stored in parts in a real S3 server, and what becomes of one that was interrupted."""

import asyncio
import io
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import psutil
import pytest
from aiohttp import web

from corral.files.file_peer import LocalFileChanged
from corral.files.s3_bucket import S3Bucket, open_bucket
from corral.files.s3_uploads import PART
from corral.files.sending import FileMark
from corral.files.storage import FileToStore, ObjectMissing, StorageConfig, StorageRefused, StorageUnavailable
from tests.kit.ports import lasting_port
from tests.kit.relay import Relay
from tests.kit.s3 import S3Server
from tests.kit.waiting import eventually, within_timeout

SIZE: Final = 8 * PART + 17
LANES: Final = 4
NOW: Final = "2026-01-02T03:04:05Z"


async def until_sent(counter: "Counter", task: "asyncio.Task[None]") -> None:
    """Wait until enough was sent, unless it failed before."""
    waiting = asyncio.create_task(counter.reached.wait())
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if task.done():
        task.result()


class Counter:
    """Counts, and says when so many bytes were sent."""

    def __init__(self, *, after: int = 0) -> None:
        self.sent_bytes = 0
        self.present_bytes = 0
        self._after = after
        self.reached = asyncio.Event()

    def present(self, count: int) -> None:
        self.present_bytes = count

    def sent(self, count: int) -> None:
        self.sent_bytes += count
        if self.sent_bytes >= self._after:
            self.reached.set()


@pytest.fixture
async def bucket(s3_server: S3Server) -> AsyncIterator[S3Bucket]:
    async with open_bucket(s3_server.config()) as opened:
        yield opened


async def store(bucket: S3Bucket, path: Path, key: str, counter: Counter, *, digest: str = "") -> None:
    """Without a digest the last part of the key is taken for it, as of objects that are kept by their content."""
    with ExitStack() as stack:
        source = stack.enter_context(path.open("rb"))
        mark = FileMark.of(os.fstat(source.fileno()))
        file = FileToStore(name=path.name, descriptor=source.fileno(), mark=mark, listener=counter)
        await bucket.store(file, key, digest=digest or key.rpartition("/")[2], created_at=NOW)


async def content_of(bucket: S3Bucket, key: str) -> bytes:
    target = io.BytesIO()
    await bucket.download(key, target)
    return target.getvalue()


def written(path: Path, size: int = SIZE) -> bytes:
    content = random.randbytes(size)
    path.write_bytes(content)
    return content


@pytest.mark.parametrize("size", [0, 5, PART, SIZE])
async def test_what_is_stored_is_found_again_with_its_digest(bucket: S3Bucket, tmp_path: Path, size: int) -> None:
    content, counter = written(tmp_path / "file", size), Counter()
    key = f"corral/tests/ü #&<>{size}"

    await store(bucket, tmp_path / "file", key, counter, digest="abc")

    assert counter.sent_bytes == size
    assert ((await bucket.look(key)).size, (await bucket.look(key)).digest) == (size, "abc")
    assert await content_of(bucket, key) == content
    assert b"".join([piece async for piece in bucket.read(key, size // 2)] if size else []) == content[size // 2 :]


async def test_an_upload_that_was_cancelled_goes_on_where_it_was(bucket: S3Bucket, tmp_path: Path) -> None:
    content, first, second = written(tmp_path / "file"), Counter(after=6 * PART), Counter()
    task = asyncio.create_task(store(bucket, tmp_path / "file", "corral/tests/cancelled", first))
    await until_sent(first, task)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    await store(bucket, tmp_path / "file", "corral/tests/cancelled", second)

    assert await content_of(bucket, "corral/tests/cancelled") == content
    assert first.sent_bytes + second.sent_bytes <= SIZE + LANES * PART
    assert second.sent_bytes < SIZE


async def test_parts_of_another_content_do_not_count(bucket: S3Bucket, tmp_path: Path) -> None:
    written(tmp_path / "file")
    task = asyncio.create_task(
        store(bucket, tmp_path / "file", "corral/tests/changed", counter := Counter(after=6 * PART))
    )
    await until_sent(counter, task)
    task.cancel()
    await asyncio.wait([task])
    content = written(tmp_path / "file")

    await store(bucket, tmp_path / "file", "corral/tests/changed", counter := Counter())

    assert await content_of(bucket, "corral/tests/changed") == content
    assert counter.sent_bytes == SIZE


@pytest.mark.parametrize("sent", [0, 6 * PART])
async def test_an_object_by_name_never_gets_the_digest_of_a_file_that_was_begun_before(
    bucket: S3Bucket, tmp_path: Path, sent: int
) -> None:
    """Whether parts of the first file are there already, or only what begins the upload."""
    written(tmp_path / "file")
    key = f"models/m/begun-{sent}.gguf"
    assert bucket._requests is not None
    if sent:
        task = asyncio.create_task(
            store(bucket, tmp_path / "file", key, counter := Counter(after=sent), digest="first")
        )
        await until_sent(counter, task)
        task.cancel()
        await asyncio.wait([task])
    else:
        headers = {"x-amz-meta-corral-sha256": "first"}
        await bucket._requests.ask("POST", key, {"uploads": ""}, headers=headers)
    content = written(tmp_path / "file")

    await store(bucket, tmp_path / "file", key, Counter(), digest="second")

    assert (await bucket.look(key)).digest == "second"
    assert await content_of(bucket, key) == content


async def test_what_nobody_would_continue_is_not_left_in_the_storage(bucket: S3Bucket, tmp_path: Path) -> None:
    written(tmp_path / "file")
    key, counter = "models/m/left.gguf", Counter(after=PART)
    task = asyncio.create_task(store(bucket, tmp_path / "file", key, counter, digest="first"))
    await until_sent(counter, task)
    task.cancel()
    await asyncio.wait([task])

    assert bucket._requests is not None
    answer = await bucket._requests.ask("GET", "", {"uploads": "", "prefix": key})
    assert "<Upload>" not in answer.text


async def test_a_file_that_changes_is_not_stored(bucket: S3Bucket, tmp_path: Path) -> None:
    written(tmp_path / "file")
    counter = Counter(after=PART)
    task = asyncio.create_task(store(bucket, tmp_path / "file", "corral/tests/changing", counter))
    await until_sent(counter, task)
    os.truncate(tmp_path / "file", PART)
    with pytest.raises(LocalFileChanged):
        await task
    with pytest.raises(ObjectMissing):
        await bucket.look("corral/tests/changing")


async def test_a_cancelled_upload_ends_after_the_read_of_its_file(bucket: S3Bucket, tmp_path: Path) -> None:
    inside, let_go = threading.Event(), threading.Event()

    class HeldFile(FileToStore):
        def read(self, offset: int, size: int) -> bytes:
            inside.set()
            let_go.wait()
            return super().read(offset, size)

    written(tmp_path / "file", 5)
    with (tmp_path / "file").open("rb") as source:
        mark = FileMark.of(os.fstat(source.fileno()))
        file = HeldFile(name="file", descriptor=source.fileno(), mark=mark, listener=Counter())
        task = asyncio.create_task(bucket.store(file, "corral/tests/held", digest="held", created_at=NOW))
        try:
            await asyncio.to_thread(inside.wait)
            task.cancel()
            ended, _ = await asyncio.wait({task}, timeout=0.2)
            assert not ended  # the thread still reads from the open file
        finally:
            let_go.set()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_no_connection_to_a_storage_that_reads_nothing_outlives_the_bucket(tmp_path: Path) -> None:
    asked, over = asyncio.Event(), asyncio.Event()

    async def read_nothing(request: web.Request) -> web.Response:
        asked.set()
        await over.wait()
        return web.Response()

    app, listening = web.Application(), socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # so that a part does not fit into the kernel
    listening.bind(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    app.router.add_put("/{key:.*}", read_nothing)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.SockSite(runner, listening).start()
    written(tmp_path / "file", PART)
    try:
        url = f"http://127.0.0.1:{port}"
        async with open_bucket(StorageConfig(url=url, bucket="b", access_key="a", secret_key="s")) as bucket:
            task = asyncio.create_task(store(bucket, tmp_path / "file", "corral/tests/unread", Counter()))
            await within_timeout(asked.wait(), lambda: "the storage to be asked")
            await asyncio.wait([task], timeout=0.5)  # until the kernel takes no more
            task.cancel()
            await asyncio.wait([task])

        async def none_is_left() -> bool:
            connections = psutil.Process().net_connections(kind="tcp")
            return not [one for one in connections if one.raddr and one.raddr.port == port and one.status != "NONE"]

        await eventually(none_is_left, "the end of the connection", seconds=5)
    finally:
        over.set()
        await runner.cleanup()


async def test_two_who_store_the_same_at_once_both_succeed(bucket: S3Bucket, tmp_path: Path) -> None:
    content = written(tmp_path / "file")
    key = "corral/tests/twice"
    await asyncio.gather(*(store(bucket, tmp_path / "file", key, Counter()) for _ in range(2)))
    assert await content_of(bucket, key) == content


ROOT: Final = Path(__file__).parents[3]
CHILD: Final = """
import asyncio, os, sys
from pathlib import Path
from corral.files.s3_bucket import open_bucket
from corral.files.storage import StorageConfig
from tests.files.integration.test_s3_uploads import Counter, store

class Telling(Counter):
    def sent(self, count):
        super().sent(count)
        print(self.sent_bytes, flush=True)

async def main():
    url, bucket, path, key = sys.argv[1:5]
    config = StorageConfig(url=url, bucket=bucket, access_key=os.environ["ACCESS"], secret_key=os.environ["SECRET"])
    async with open_bucket(config) as opened:
        await store(opened, Path(path), key, Telling())

asyncio.run(main())
"""


async def test_a_sender_that_is_killed_on_the_way_costs_one_part_per_lane(
    s3_server: S3Server, bucket: S3Bucket, tmp_path: Path
) -> None:
    content, key = written(tmp_path / "file"), "corral/tests/killed"
    config = s3_server.config()
    environment = {**os.environ, "ACCESS": config.access_key, "SECRET": config.secret_key}
    command = [sys.executable, "-c", CHILD, config.url, config.bucket, str(tmp_path / "file"), key]

    def sent_until_killed() -> int:
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd=ROOT) as child:
            assert child.stdout is not None
            counts = []
            for line in child.stdout:
                counts.append(int(line))
                if counts[-1] > SIZE * 3 // 4:
                    child.send_signal(signal.SIGKILL)
            return counts[-1]

    sent = await asyncio.to_thread(sent_until_killed)
    await store(bucket, tmp_path / "file", key, counter := Counter())

    assert await content_of(bucket, key) == content
    assert sent + counter.sent_bytes <= SIZE + LANES * PART


async def test_a_server_that_is_started_anew_half_way_costs_one_part_per_lane(tmp_path: Path) -> None:
    content = written(tmp_path / "file")
    server = S3Server()
    with server:
        async with open_bucket(server.config()) as bucket:
            counter = Counter(after=6 * PART)
            task = asyncio.create_task(store(bucket, tmp_path / "file", "corral/tests/restarted", counter))
            await until_sent(counter, task)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            await within_timeout(task, lambda: "the upload to go on")
            assert await content_of(bucket, "corral/tests/restarted") == content
    assert counter.sent_bytes <= SIZE + 2 * LANES * PART


async def test_a_slow_storage_is_given_up(s3_server: S3Server, tmp_path: Path) -> None:
    written(tmp_path / "file")
    config = s3_server.config()
    async with Relay(int(config.url.rpartition(":")[2])) as relay:
        moment = timedelta(seconds=0.5)
        slow = replace(config, url=f"http://127.0.0.1:{relay.port}", stall_timeout=moment, patience=moment)
        async with open_bucket(slow) as bucket:
            relay.freeze()
            with pytest.raises(StorageUnavailable, match="no progress for"):
                await store(bucket, tmp_path / "file", "corral/tests/slow", Counter())


async def test_a_storage_that_stays_silent_keeps_nobody_waiting(s3_server: S3Server) -> None:
    config = s3_server.config()
    async with Relay(int(config.url.rpartition(":")[2])) as relay:
        relay.freeze()
        silent = replace(config, url=f"http://127.0.0.1:{relay.port}", stall_timeout=timedelta(seconds=0.2))
        async with open_bucket(silent) as bucket:
            removal = within_timeout(bucket.delete(["corral/tests/x"]), lambda: "the removal to be given up")
            with pytest.raises(StorageUnavailable, match="does not answer"):
                await removal
            listing = anext(aiter(bucket.older_than("ephemeral/", datetime.now(UTC))))
            with pytest.raises(StorageUnavailable, match="does not answer"):
                await within_timeout(listing, lambda: "the listing to be given up")


async def test_nobody_there_is_told(s3_server: S3Server, tmp_path: Path) -> None:
    written(tmp_path / "file", 10)
    config = replace(s3_server.config(), url=f"http://127.0.0.1:{lasting_port()}", patience=timedelta(seconds=0.1))
    async with open_bucket(config) as bucket:
        with pytest.raises(StorageUnavailable, match="connection refused"):
            await store(bucket, tmp_path / "file", "corral/tests/x", Counter())


async def test_wrong_keys_are_told_at_once_and_not_shown(s3_server: S3Server, tmp_path: Path) -> None:
    written(tmp_path / "file", 10)
    async with open_bucket(replace(s3_server.config(), secret_key="this-is-wrong")) as bucket:
        with pytest.raises(StorageRefused, match=r"refuses the keys.*storage_secret_key") as failed:
            await store(bucket, tmp_path / "file", "corral/tests/x", Counter())
    assert "this-is-wrong" not in str(failed.value)


async def test_a_connection_that_is_cut_on_the_way_costs_one_part_per_lane(s3_server: S3Server, tmp_path: Path) -> None:
    content, key, counter = written(tmp_path / "file"), "corral/tests/cut", Counter(after=4 * PART)
    config = s3_server.config()
    async with (
        Relay(int(config.url.rpartition(":")[2])) as relay,
        open_bucket(replace(config, url=f"http://127.0.0.1:{relay.port}")) as bucket,
    ):
        task = asyncio.create_task(store(bucket, tmp_path / "file", key, counter))
        await until_sent(counter, task)
        await relay.cut()
        await relay.mend()
        await within_timeout(task, lambda: "the upload to go on")
        assert await content_of(bucket, key) == content
    assert counter.sent_bytes <= SIZE + LANES * PART
    assert counter.present_bytes <= SIZE


@pytest.mark.parametrize(
    ("status", "code", "words", "is_refused"),
    [
        (404, "NoSuchBucket", "has no bucket localai: see storage_bucket", True),
        (403, "InvalidAccessKeyId", r"refuses the keys \(403 InvalidAccessKeyId\)", True),
        (403, "RequestTimeTooSkewed", "clock", True),
        (400, "EntityTooLarge", "answers 400 EntityTooLarge", True),
        (200, "InternalError", "no progress for .*: the object storage answers 200 InternalError", False),
        (400, "RequestTimeout", "no progress for .*: the object storage answers 400 RequestTimeout", False),
        (403, "SlowDown", "answers 403 SlowDown", False),
        (400, "ServiceUnavailable", "answers 400 ServiceUnavailable", False),
        (503, "SlowDown", "no progress for .*: the object storage answers 503 SlowDown", False),
        (507, "InsufficientStorage", "answers 507 InsufficientStorage", False),
    ],
)
async def test_what_a_storage_says_is_told_in_a_sentence(
    tmp_path: Path, status: int, code: str, words: str, *, is_refused: bool
) -> None:
    async def answer(_: web.BaseRequest) -> web.Response:
        return web.Response(status=status, text=f"<Error><Code>{code}</Code><Message>secret-host</Message></Error>")

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    config = StorageConfig(url=url, access_key="a", secret_key="b", patience=timedelta(seconds=0.1))
    written(tmp_path / "file", 10)
    try:
        async with open_bucket(config) as bucket:
            with pytest.raises(StorageUnavailable, match=words) as failed:
                await store(bucket, tmp_path / "file", "k", Counter())
    finally:
        await runner.cleanup()
    assert isinstance(failed.value, StorageRefused) == is_refused


async def test_old_objects_are_found_and_removed(bucket: S3Bucket, tmp_path: Path) -> None:
    keys = ["ephemeral/inputs/1/a b.wav", "ephemeral/fetch//srv/x.tmp/output", "ephemeral/inputs/2/ü#.wav"]
    for key in keys:
        await bucket.upload(io.BytesIO(b"x"), key, created_at=NOW)

    young = [
        key async for found in bucket.older_than("ephemeral/", datetime.now(UTC) - timedelta(hours=1)) for key in found
    ]
    old = [
        key async for found in bucket.older_than("ephemeral/", datetime.now(UTC) + timedelta(hours=1)) for key in found
    ]
    await bucket.delete([*old, "ephemeral/never/there"])

    assert not set(young) & set(keys)
    assert {key.replace("//", "/") for key in keys} <= {key.replace("//", "/") for key in old}, "some servers collapse"
    for key in keys:
        with pytest.raises(ObjectMissing):
            await bucket.look(key)


async def test_the_role_of_a_machine_needs_no_keys_here(s3_server: S3Server) -> None:
    config = StorageConfig(url=s3_server.url)
    async with open_bucket(config) as bucket:
        assert bucket._uploads is None
