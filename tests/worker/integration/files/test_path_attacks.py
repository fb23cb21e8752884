"""Nothing outside the three directories can be read, written, listed or removed, however it is asked for."""

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from pathlib import Path

import pytest

from tests.kit.file_worker import FileAnswer, FileWorker
from tests.kit.waiting import eventually

SECRET = b"nobody must see this"

UP = [
    "../secret",
    "../../secret",
    "models/../../secret",
    "models/../../../secret",
    "models/a/../../../secret",
    "models/./../../secret",
    "data/../models/../../secret",
    "..",
    "models/..",
    "./../../secret",
]
ENCODINGS: dict[str, Callable[[str], str]] = {
    "plain": lambda path: path,
    "dots encoded": lambda path: path.replace(".", "%2e"),
    "dots encoded, capitals": lambda path: path.replace(".", "%2E"),
    "slashes encoded": lambda path: path.replace("/", "%2f"),
    "all encoded": lambda path: "".join(f"%{ord(character):02x}" for character in path),
    "encoded twice": lambda path: path.replace(".", "%252e").replace("/", "%252f"),
    "encoded thrice": lambda path: path.replace(".", "%25252e"),
    "backslashes": lambda path: path.replace("/", "\\"),
    "backslashes encoded": lambda path: path.replace("/", "%5c"),
    "mixed slashes": lambda path: path.replace("/", "/%5c"),
    "overlong dots": lambda path: path.replace(".", "%c0%ae"),
    "overlong slashes": lambda path: path.replace("/", "%c0%af"),
    "full-width dots": lambda path: path.replace(".", "%ef%bc%8e"),
    "full-width slashes": lambda path: path.replace("/", "%ef%bc%8f"),
    "one-dot leaders": lambda path: path.replace(".", "%e2%80%a4"),
    "doubled slashes": lambda path: path.replace("/", "//"),
    "semicolons": lambda path: path.replace("/", ";/"),
    "trailing NUL": lambda path: path + "%00",
    "inner NUL": lambda path: path.replace("secret", "secret%00.bin"),
    "trailing dot": lambda path: path + "%2e",
    "trailing space": lambda path: path + "%20",
}
ODD = [
    "/etc/passwd",
    "%2fetc%2fpasswd",
    "%2f%2fetc/passwd",
    "models/%2fetc%2fpasswd",
    "models//etc/passwd",
    "file:%2f%2f%2fetc/passwd",
    "C:%5cWindows%5cwin.ini",
    "%5c%5chost%5cshare",
    "~/secret",
    "~root/secret",
    "$HOME/secret",
    "%00",
    "models/%00",
    "models/%00/../secret",
    "models/a%0d%0aX-Injected:%20yes",
    "models/a%0ab",
    "models/%ff%fe",
    "models/%ed%a0%80",
    "models/" + "a" * 255,
    "models/" + "a" * 256,
    "models/" + "a" * 4000,
    "models/" + "/".join(["a"] * 90),
    "models/" + "/".join(["a"] * 200),
    "models/" + "%2e%2e%2f" * 50 + "etc/passwd",
    "models/.corral-part-0",
    "models/.corral-new-0",
    "models/.corral-part-0/x",
    "proc/self/environ",
    "models/?x=../secret",
    "models/%",
    "models/%zz",
    "models/%u002e%u002e/secret",
    "models/%e2%80%ae/secret",
]
LINKS = [
    "models/to-file",
    "models/to-directory/secret",
    "models/to-directory/new",
    "models/to-root/etc/passwd",
    "models/relative/secret",
    "models/relative-file",
    "models/chain/secret",
    "models/loop",
    "models/loop/x",
    "models/self",
    "models/dangling",
    "models/into-staging/x",
    "models/sub/up/secret",
    "models/proc/self/root/etc/passwd",
    "staged-link/secret",
    "data/to-models/x",
]
KEYS = {f"{name}: {key}": encode(key) for key in UP for name, encode in ENCODINGS.items()}
KEYS |= {key[:60]: key for key in [*ODD, *LINKS]}
REQUESTS = ["GET", "HEAD", "PUT", "ranged PUT", "list", "ranges"]


@pytest.fixture
async def outside(worker: FileWorker, tmp_path: Path) -> AsyncIterator[Path]:
    """Something to steal, and every kind of link that leads to it. In the end all of it is as it was."""
    (tmp_path / "secret").write_bytes(SECRET)
    (worker.root / "secret").write_bytes(SECRET)
    treasure = tmp_path / "treasure"
    treasure.mkdir()
    (treasure / "secret").write_bytes(SECRET)
    models = worker.models
    (models / "sub").mkdir()
    for link, target in {
        models / "to-file": treasure / "secret",
        models / "to-directory": treasure,
        models / "to-root": Path("/"),
        models / "relative": Path("../../treasure"),
        models / "relative-file": Path("sub/../../../treasure/secret"),
        models / "chain": Path("chain-2"),
        models / "chain-2": models / "relative",
        models / "loop": Path("loop-2"),
        models / "loop-2": Path("loop"),
        models / "self": Path("self"),
        models / "dangling": treasure / "not-there",
        models / "into-staging": worker.staging,
        models / "sub" / "up": Path("../../../treasure"),
        models / "proc": Path("/proc"),
        worker.staging / "staged-link": treasure,
        worker.data / "to-models": worker.models,
    }.items():
        link.symlink_to(target)
    before = contents(tmp_path, worker)
    yield treasure
    assert contents(tmp_path, worker) == before


def contents(folder: Path, worker: FileWorker) -> dict[str, bytes]:
    """All files outside the three directories."""
    inside = (worker.models, worker.staging, worker.data)
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path): path.read_bytes() for path in files if not any(one in path.parents for one in inside)}


async def attack(worker: FileWorker, request: str, key: str) -> FileAnswer:
    body = b"overwritten"
    match request:
        case "PUT":
            return await worker.ask("PUT", f"/v1/files/{key}", body=body)
        case "ranged PUT":
            headers = {"Content-Range": f"bytes 0-{len(body) - 1}/{len(body)}", "X-Content-SHA256": sha(body)}
            return await worker.ask("PUT", f"/v1/files/{key}", body=body, headers=headers)
        case "list":
            return await worker.ask("GET", f"/v1/files-list/{key}")
        case "ranges":
            return await worker.ask("GET", f"/v1/corral/files/{key}", headers={"Range": "bytes=0-"})
    return await worker.ask(request, f"/v1/files/{key}")


def sha(data: bytes) -> str:
    return sha256(data).hexdigest()


@pytest.mark.parametrize("name", KEYS)
async def test_no_key_leads_outside(worker: FileWorker, outside: Path, name: str) -> None:
    """With each kind of request; the fixture looks at what is outside afterwards."""
    for request in REQUESTS:
        answer = await attack(worker, request, KEYS[name])

        assert answer.status < 500 or request.endswith("PUT")
        assert SECRET not in answer.body
        assert b"root:" not in answer.body
        assert sha(SECRET) not in answer.headers.values()
        assert "X-Injected" not in answer.headers


@pytest.mark.parametrize("key", LINKS[:-4])
@pytest.mark.parametrize("request_", ["GET", "HEAD", "PUT", "ranged PUT"])
async def test_a_link_that_leads_outside_is_refused(worker: FileWorker, outside: Path, key: str, request_: str) -> None:
    assert (await attack(worker, request_, key)).status == 400


@pytest.mark.parametrize(
    "target", ["real", "../models/real", "sub/../real", "{models}/real", "{models}/sub/../real", "link-to-real"]
)
async def test_a_link_that_stays_inside_is_followed(worker: FileWorker, target: str) -> None:
    (worker.models / "real").mkdir()
    (worker.models / "sub").mkdir()
    (worker.models / "link-to-real").symlink_to("real")
    (worker.models / "link").symlink_to(target.format(models=worker.models))

    answer = await worker.ask("PUT", "/v1/files/models/link/x", body=b"x")

    assert answer.status == 200
    assert (worker.models / "real" / "x").read_bytes() == b"x"
    assert str(worker.models / "link" / "x").encode() in answer.body
    assert (await worker.ask("GET", "/v1/files/models/link/x")).body == b"x"


async def test_a_link_to_a_file_inside_is_followed_and_stays(worker: FileWorker) -> None:
    (worker.models / "blob").write_bytes(b"old")
    (worker.models / "name").symlink_to("blob")

    assert (await worker.ask("PUT", "/v1/files/models/name", body=b"new")).status == 200

    assert (worker.models / "name").is_symlink()
    assert (worker.models / "blob").read_bytes() == b"new"


async def test_the_directories_themselves_may_be_links(worker: FileWorker, tmp_path: Path) -> None:
    worker.models.rename(tmp_path / "disk")
    worker.models.symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "absolute").symlink_to(tmp_path / "disk" / "sub")

    assert (await worker.ask("PUT", "/v1/files/models/sub/x", body=b"x")).status == 200
    assert (await worker.ask("GET", "/v1/files/models/absolute/x")).body == b"x"


@pytest.mark.parametrize("kind", ["fifo", "socket-like"])
async def test_what_is_no_file_is_not_opened(worker: FileWorker, kind: str) -> None:
    odd = worker.models / "odd"
    os.mkfifo(odd) if kind == "fifo" else os.symlink("/dev/zero", odd)

    assert (await worker.ask("GET", "/v1/files/models/odd")).status in (400, 404)
    assert (await worker.ask("HEAD", "/v1/files/models/odd")).status in (400, 404)


async def test_a_directory_that_is_missing_is_told(worker: FileWorker) -> None:
    worker.data.rmdir()

    for method in ("GET", "HEAD", "PUT"):
        assert (await worker.ask(method, "/v1/files/data/x", body=b"x" if method == "PUT" else None)).status == 400
    assert (await worker.ask("GET", "/v1/files-list/data/x")).status == 400


# Links that change while a file is being received.


async def sent_slowly(
    worker: FileWorker, meanwhile: Callable[[], None], first: bytes, rest: bytes
) -> AsyncIterator[bytes]:
    yield first
    await eventually(worker.is_receiving, "the first bytes on disk")
    meanwhile()
    yield rest


SWAPS = ["the directory", "its parent", "the name", "the hash", "the target"]


@pytest.mark.parametrize("swap", SWAPS)
@pytest.mark.parametrize("is_ranged", [False, True])
async def test_a_link_that_appears_during_an_upload_leads_nowhere(
    worker: FileWorker, outside: Path, swap: str, is_ranged: bool
) -> None:
    folder = worker.models / "a" / "b"
    folder.mkdir(parents=True)
    data = b"x" * (3 * 1024 * 1024)

    def meanwhile() -> None:
        match swap:
            case "the directory":
                folder.rename(worker.models / "moved")
                folder.symlink_to(outside)
            case "its parent":
                folder.parent.rename(worker.models / "moved")
                folder.parent.symlink_to(outside)
            case "the name":
                (folder / "f").symlink_to(outside / "secret")
            case "the hash":
                (folder / "f.sha256").symlink_to(outside / "secret")
            case "the target":
                (folder / "f.sha256.target").unlink(missing_ok=True)
                (folder / "f.sha256.target").symlink_to(outside / "secret")

    headers = {"Content-Range": f"bytes 0-{len(data) - 1}/{len(data)}"} if is_ranged else {}
    body = sent_slowly(worker, meanwhile, data[: 2 * 1024 * 1024], data[2 * 1024 * 1024 :])
    answer = await worker.ask(
        "PUT", "/v1/files/models/a/b/f", body=body, headers={**headers, "X-Content-SHA256": sha(data)}
    )

    assert answer.status == 200
    assert (outside / "secret").read_bytes() == SECRET
    assert os.listdir(outside) == ["secret"]


@pytest.mark.parametrize("link", ["part", "target"])
async def test_a_link_between_two_ranges_is_not_written_through(worker: FileWorker, outside: Path, link: str) -> None:
    data = b"0123456789"
    headers = {"X-Content-SHA256": sha(data)}
    first = await worker.ask(
        "PUT", "/v1/files/models/f", body=data[:5], headers={**headers, "Content-Range": "bytes 0-4/10"}
    )
    assert first.status == 308
    (found,) = worker.models.glob(".corral-part-*" if link == "part" else "*.target")
    found.unlink()
    found.symlink_to(outside / "secret")

    for start in (5, 0):
        answer = await worker.ask(
            "PUT",
            "/v1/files/models/f",
            body=data[start:],
            headers={**headers, "Content-Range": f"bytes {start}-9/10"},
        )

    assert answer.status == 200
    assert (worker.models / "f").read_bytes() == data


async def test_a_link_that_flickers_never_lets_anything_through(worker: FileWorker, outside: Path) -> None:
    """A real race, many times: one thread turns a directory into a link and back as fast as it can."""
    folder = worker.models / "flicker"
    folder.mkdir()
    (folder / "secret").write_bytes(b"harmless")
    stop = threading.Event()

    def flicker() -> None:
        away = worker.models / "away"
        while not stop.is_set():
            with contextlib.suppress(OSError):
                os.rename(folder, away)
                os.symlink(outside, folder)
                os.unlink(folder)
                os.rename(away, folder)

    thread = threading.Thread(target=flicker)
    thread.start()
    try:
        for _ in range(20):
            answers = await asyncio.gather(
                *(worker.ask("GET", "/v1/files/models/flicker/secret") for _ in range(5)),
                *(worker.ask("PUT", "/v1/files/models/flicker/new", body=b"new") for _ in range(3)),
                *(worker.ask("HEAD", "/v1/files/models/flicker/secret") for _ in range(2)),
                *(worker.ask("GET", "/v1/files-list/models/flicker") for _ in range(2)),
            )
            assert not any(SECRET in answer.body for answer in answers)
            assert not any(sha(SECRET) in answer.headers.values() for answer in answers)
    finally:
        stop.set()
        thread.join()
