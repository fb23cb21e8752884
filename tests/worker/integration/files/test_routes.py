"""What the recordings do not show: other spellings, odd files, waiting clients, ranges to fetch."""

import asyncio
import json
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from corral.worker.files.threads import Threads
from tests.kit.file_worker import TOKEN, FileWorker, open_file_worker

BIG = bytes(range(256)) * 4096
PART = {"Content-Range": "bytes 0-4/10", "X-Content-SHA256": "ab" * 32}


@pytest.mark.parametrize("path", ["/v1/files/models/a", "/v1/files-list/models/a", "/v1/corral/files/a", "/v1/files"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("token", [None, "", "wrong", "tok2", "own-secre", "TOK"])
async def test_nothing_is_told_without_a_token(worker: FileWorker, method: str, path: str, token: str | None) -> None:
    answer = await worker.ask(method, path, token=token, body=b"x" if method == "PUT" else None)

    assert (answer.status, answer.headers["Content-Length"]) == (401, "13")


@pytest.mark.parametrize("token", ["own-secret", "tok"])
async def test_both_tokens_open(worker: FileWorker, token: str) -> None:
    assert (await worker.ask("HEAD", "/v1/files/models/a", token=token)).status == 404


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 262_143, 262_144, 262_145, len(BIG)])
async def test_a_file_comes_back_as_it_was_sent(worker: FileWorker, size: int) -> None:
    await worker.ask("PUT", "/v1/files/models/f", body=BIG[:size])

    answer = await worker.ask("GET", "/v1/files/models/f")

    assert (answer.status, answer.body) == (200, BIG[:size])
    assert ("Content-Length" in answer.headers) == (size < 512)
    head = await worker.ask("HEAD", "/v1/files/models/f")
    assert head.headers["X-Content-SHA256"] == sha256(BIG[:size]).hexdigest()


async def test_a_small_file_that_comes_with_its_head_is_handed_to_one_thread_once(
    worker: FileWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Handing a file from thread to thread costs more than writing a small one."""
    begun: list[object] = []
    begin = Threads.begin

    def counted(threads: Threads, work: Callable[[], object]) -> "asyncio.Future[object]":
        begun.append(work)
        return begin(threads, work)

    monkeypatch.setattr(Threads, "begin", counted)
    reader, writer = await worker.connect()
    head = ["PUT /v1/files/models/f HTTP/1.1", "Host: w", f"Authorization: Bearer {TOKEN}", "Content-Length: 5"]
    head += ["Content-Range: bytes 0-4/5", f"X-Content-SHA256: {sha256(b'12345').hexdigest()}"]
    writer.write(("\r\n".join(head) + "\r\n\r\n12345").encode())

    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.close()
    assert ((worker.models / "f").read_bytes(), len(begun)) == (b"12345", 1)


async def test_an_unfinished_file_is_served_and_listed_as_far_as_it_goes(worker: FileWorker) -> None:
    await worker.ask("PUT", "/v1/files/models/m/f", body=b"01234", headers=PART)

    assert (await worker.ask("GET", "/v1/files/models/m/f")).body == b"01234"
    listing = json.loads((await worker.ask("GET", "/v1/files-list/models/m")).body)
    assert listing == {"files": ["f", "f.sha256.target"]}


async def test_an_upload_that_was_begun_hides_the_file_it_will_replace(worker: FileWorker) -> None:
    """To frontends, which must see where to go on. Backends go on reading the old file until the new one is there."""
    await worker.ask("PUT", "/v1/files/models/f", body=b"old")
    await worker.ask("PUT", "/v1/files/models/f", body=b"01234", headers=PART)

    head = await worker.ask("HEAD", "/v1/files/models/f")

    assert (head.headers["X-File-Size"], head.headers["X-Target-SHA256"]) == ("5", "ab" * 32)
    assert (worker.models / "f").read_bytes() == b"old"


async def test_a_listing_is_in_the_order_of_a_walk(worker: FileWorker) -> None:
    for name in ("b", "a/z", "a/b/c", "a.txt", "A", "é"):
        path = worker.data / "d" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    (worker.data / "d" / "link").symlink_to("b")
    os.mkfifo(worker.data / "d" / "pipe")

    answer = await worker.ask("GET", "/v1/files-list/data/d")

    assert json.loads(answer.body) == {"files": ["A", "a/b/c", "a/z", "a.txt", "b", "é"]}


async def test_a_listing_of_nothing_is_null(worker: FileWorker) -> None:
    (worker.data / "empty" / "deep").mkdir(parents=True)

    assert (await worker.ask("GET", "/v1/files-list/data/empty")).body == b'{"files":null}\n'


async def test_temporary_files_are_new_and_can_be_written_and_fetched(worker: FileWorker) -> None:
    answers = [await worker.ask("POST", "/v1/files/temp") for _ in range(20)]
    paths = [Path(json.loads(answer.body)["local_path"]) for answer in answers]

    assert len(set(paths)) == 20
    assert all(path.parent == worker.staging and path.read_bytes() == b"" for path in paths)
    paths[0].write_bytes(b"speech")
    assert (await worker.ask("GET", f"/v1/files/{paths[0].name}")).body == b"speech"


@pytest.mark.parametrize("length", [200, 241, 242, 248, 249, 255])
async def test_a_long_name_is_a_name(worker: FileWorker, length: int) -> None:
    """Where there is no room for a suffix, a file has no hash beside it, and cannot be resumed; that is all."""
    name = "n" * length
    headers = {"Content-Range": "bytes 0-9/10", "X-Content-SHA256": sha256(b"0123456789").hexdigest()}

    assert (await worker.ask("PUT", f"/v1/files/models/{name}", body=b"0123456789", headers=headers)).status == 200
    assert (await worker.ask("PUT", f"/v1/files/models/{name}", body=b"x")).status == 200

    head = await worker.ask("HEAD", f"/v1/files/models/{name}")
    assert head.headers["X-Content-SHA256"] == sha256(b"x").hexdigest()


async def test_a_file_in_place_of_a_directory_is_told(worker: FileWorker) -> None:
    (worker.models / "f").write_bytes(b"")

    assert (await worker.ask("GET", "/v1/files/models/f/g")).status == 404
    assert (await worker.ask("HEAD", "/v1/files/models/f/g")).status == 404
    assert (await worker.ask("PUT", "/v1/files/models/f/g", body=b"x")).status == 500


async def test_a_path_with_odd_characters_is_told_in_a_header(worker: FileWorker) -> None:
    await worker.ask("PUT", "/v1/files/models/a%0d%0ab%c3%a9%ff", body=b"x")

    head = await worker.ask("HEAD", "/v1/files/models/a%0d%0ab%c3%a9%ff")

    assert head.status == 200
    assert head.headers["X-Local-Path"].startswith(f"{worker.models}/a  bé")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("PUT", "/v1/files/models/%ff", 500),
        ("HEAD", "/v1/files/models/%ff", 400),
        ("PUT", "/v1/files/models/%2e%2e/%2e%2e/%ff", 400),
        ("GET", "/v1/files/models/%2e%2e/%2e%2e/%ff", 400),
        ("PUT", "/v1/files/models/.corral-part-%ff", 400),
        ("GET", "/v1/backend-logs/%ff", 200),
    ],
)
async def test_a_name_that_is_no_text_is_told_as_far_as_it_is(
    worker: FileWorker, method: str, path: str, status: int
) -> None:
    os.mkdir(os.fsencode(worker.models) + b"/\xff")

    answer = await worker.ask(method, path, body=b"x" if method == "PUT" else None)

    assert answer.status == status
    assert b"trouble" not in answer.body
    assert b"internal error" not in answer.body


@pytest.mark.parametrize(
    ("asked", "status", "body", "stated"),
    [
        ("", 200, b"0123456789", None),
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=8-", 206, b"89", "bytes 8-9/10"),
        ("bytes=-2", 206, b"89", "bytes 8-9/10"),
        ("bytes=10-", 416, b"the range bytes=10- is not in the file\n", "bytes */10"),
    ],
)
async def test_corral_frontends_may_fetch_a_part(
    worker: FileWorker, asked: str, status: int, body: bytes, stated: str | None
) -> None:
    (worker.models / "f").write_bytes(b"0123456789")

    answer = await worker.ask("GET", "/v1/corral/files/models/f", headers={"Range": asked} if asked else {})

    assert (answer.status, answer.body, answer.headers.get("Content-Range")) == (status, body, stated)
    assert (await worker.ask("GET", "/v1/corral/files/models/none")).status == 404
    assert (await worker.ask("PUT", "/v1/corral/files/models/f", body=b"")).status == 405


# Clients that ask before they send.


async def exchange(worker: FileWorker, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await worker.connect()
    writer.write(request)
    await writer.drain()
    return reader, writer


def head_of(path: str, token: str = "tok", **headers: str) -> bytes:
    lines = {"Host": "a", "Authorization": f"Bearer {token}", **headers}
    text = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
    return f"PUT {path} HTTP/1.1\r\n{text}\r\n".encode("latin-1")


@pytest.mark.parametrize("stated", [{}, {"Content_Range": "bytes 0-2/3"}], ids=["whole", "ranged"])
@pytest.mark.parametrize("digest", ["\xff\xfe", "\xe9", "zz", "../../x", "a" * 5000])
async def test_a_hash_that_is_none_is_a_wrong_one(worker: FileWorker, digest: str, stated: dict[str, str]) -> None:
    request = head_of("/v1/files/models/f", X_Content_SHA256=digest, Content_Length="3", **stated)
    reader, writer = await exchange(worker, request + b"abc")

    assert (await reader.readline()).startswith(b"HTTP/1.1 400")
    assert list(worker.models.iterdir()) == []
    writer.close()


async def test_a_client_that_asks_first_is_invited(worker: FileWorker) -> None:
    request = head_of("/v1/files/models/f", Expect="100-continue", Content_Length="3")
    reader, writer = await exchange(worker, request)

    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"abc")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.close()


@pytest.mark.parametrize(
    ("token", "path", "status"), [("bad", "models/f", b"401"), ("tok", "", b"400"), ("tok", "models/%2e%2e/x", b"400")]
)
async def test_a_client_that_asks_first_need_not_send_what_is_refused(
    worker: FileWorker, token: str, path: str, status: bytes
) -> None:
    request = head_of(f"/v1/files/{path}", token, Expect="100-continue", Content_Length="3")
    reader, writer = await exchange(worker, request)

    answer = await reader.read()

    assert answer.split()[1] == status
    writer.close()


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_client_that_leaves_in_the_middle_harms_nobody(worker: FileWorker, method: str) -> None:
    (worker.models / "f").write_bytes(BIG * 8)
    request = head_of("/v1/files/models/f").replace(b"PUT", method.encode())
    reader, writer = await exchange(worker, request)
    await reader.readline()
    writer.transport.abort()

    assert (await worker.ask("GET", "/v1/files/models/f")).status == 200


async def test_directories_are_made_at_the_start(tmp_path: Path) -> None:
    async with open_file_worker(tmp_path / "new" / "node") as worker:
        assert [path.is_dir() for path in (worker.models, worker.staging, worker.data)] == [True] * 3


async def test_a_directory_that_cannot_be_made_is_told_and_the_rest_works(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "staging").write_bytes(b"in the way")

    async with open_file_worker(tmp_path) as worker:
        assert (await worker.ask("PUT", "/v1/files/in.wav", body=b"x")).status == 400
        assert (await worker.ask("PUT", "/v1/files/models/f", body=b"x")).status == 200

    assert [record.__dict__["event"] for record in caplog.records if record.levelname == "WARNING"] == [
        "files.unusable"
    ]
