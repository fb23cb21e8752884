"""Downloads inside this process, from a real server that behaves in every way."""

import asyncio
import hashlib
import os
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from corral.base.clock import SystemClock
from corral.base.own_network import is_private_address
from corral.hubs.downloads import attempts, transfers
from corral.hubs.downloads.download import Download
from corral.hubs.downloads.orders import (
    DestinationUnusable,
    DownloadDamaged,
    DownloadError,
    DownloadInvalid,
    DownloadLimits,
    DownloadOrder,
    DownloadRefused,
    DownloadResult,
    DownloadTooLarge,
    FileMissing,
    FileOrder,
    FileState,
    RemoteFileChanged,
    ServerUnavailable,
    TooLittleDisk,
)
from corral.hubs.downloads.partial_files import FOLDER, PartialFolder, key_of
from corral.hubs.downloads.prefix_hash import PrefixHash
from corral.hubs.downloads.receipts import Receipts
from corral.hubs.downloads.transfers import RangeTransfers
from corral.oci.limits import Network
from tests.kit.certificates import Authority
from tests.kit.file_server import FileHandler, FileServer, ServedFile, Stall, answering, cutting, endless, lying

CONTENT = random.Random(16).randbytes(1_000_003)
SHA256 = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
NETWORK = Network(first_pause_seconds=0.01, attempts=3)
LIMITS = DownloadLimits(piece_bytes=64 * 1024, connections=4, free_bytes=0)
ONE_CONNECTION = DownloadLimits(piece_bytes=64 * 1024, connections=1, free_bytes=0)
PATH = "/model.gguf"


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer() as server:
        yield server


def an_order(
    folder: Path, *files: FileOrder, limits: DownloadLimits = LIMITS, network: Network = NETWORK
) -> DownloadOrder:
    return DownloadOrder(files=files, directory=str(folder), limits=limits, network=network)


async def fetch(order: DownloadOrder) -> DownloadResult:
    with RangeTransfers(order.network, order.limits) as transfers:
        return await Download(order, clock=SystemClock()).run(transfers)


def a_file(url: str, *, destination: str = "model.gguf", digest: str = SHA256, **changes: object) -> FileOrder:
    return FileOrder(url=url, destination=destination, digest=digest, **changes)  # type: ignore[arg-type]


def leftovers(folder: Path) -> list[str]:
    return sorted(path.suffix for path in folder.joinpath(*FOLDER).iterdir())


async def test_a_file_comes_in_parallel_ranges(server: FileServer, tmp_path: Path) -> None:
    url = server.add(PATH, CONTENT)

    (file,) = (await fetch(an_order(tmp_path, a_file(url, size=len(CONTENT))))).files

    assert (tmp_path / "model.gguf").read_bytes() == CONTENT
    assert (file.size, file.sha256, file.fetched_bytes) == (len(CONTENT), SHA256[7:], len(CONTENT))
    assert {request.status for request in server.requests} == {206}
    assert len(server.requests) >= 4
    assert leftovers(tmp_path) == []
    assert (tmp_path / "model.gguf").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("size", [0, 1, 64 * 1024 - 1, 64 * 1024, 64 * 1024 + 1])
@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("has_ranges", [True, False])
@pytest.mark.parametrize("has_length", [True, False])
async def test_every_kind_of_server_gives_the_file(
    server: FileServer, tmp_path: Path, size: int, is_known: bool, has_ranges: bool, has_length: bool
) -> None:
    content = CONTENT[:size]
    url = server.add(PATH, content, has_ranges=has_ranges, has_length=has_length)
    digest = f"git-sha1:{hashlib.sha1(b'blob %d' % size + bytes(1) + content).hexdigest()}" if is_known else ""

    (file,) = (await fetch(an_order(tmp_path, a_file(url, digest=digest, size=size if is_known else None)))).files

    assert (tmp_path / "model.gguf").read_bytes() == content
    assert (file.sha256, file.size, file.fetched_bytes) == (hashlib.sha256(content).hexdigest(), size, size)
    assert leftovers(tmp_path) == []


async def test_what_is_there_already_is_not_fetched(server: FileServer, tmp_path: Path) -> None:
    url = server.add(PATH, CONTENT)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "model.gguf").write_bytes(CONTENT)

    (file,) = (await fetch(an_order(tmp_path, a_file(url, destination="sub/model.gguf")))).files

    assert (server.requests, file.fetched_bytes) == ([], 0)


async def test_another_file_of_that_name_is_replaced(server: FileServer, tmp_path: Path) -> None:
    url = server.add(PATH, CONTENT)
    (tmp_path / "model.gguf").write_bytes(bytes(len(CONTENT)))

    await fetch(an_order(tmp_path, a_file(url)))

    assert (tmp_path / "model.gguf").read_bytes() == CONTENT


async def test_a_file_that_nobody_touched_is_not_hashed_again(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server.add(PATH, CONTENT)
    await fetch(an_order(tmp_path, a_file(url)))
    receipt = Receipts(tmp_path).find("model.gguf")
    assert receipt is not None
    assert receipt.proves(SHA256, len(CONTENT), "")
    monkeypatch.setattr(PrefixHash, "run", lambda _: pytest.fail("it was hashed"))

    (file,) = (await fetch(an_order(tmp_path, a_file(url)))).files

    assert (file.sha256, file.size, file.fetched_bytes) == (SHA256.removeprefix("sha256:"), len(CONTENT), 0)
    (tmp_path / "model.gguf").write_bytes(CONTENT)
    assert Receipts(tmp_path).find("model.gguf") is None


async def test_a_file_without_a_digest_comes_once_for_each_purpose(server: FileServer, tmp_path: Path) -> None:
    url = server.add(PATH, CONTENT)

    async def fetched(purpose: str) -> int:
        (file,) = (await fetch(an_order(tmp_path, a_file(url, digest="", purpose=purpose)))).files
        assert (tmp_path / "model.gguf").read_bytes() == CONTENT
        return file.fetched_bytes

    whole = len(CONTENT)
    assert [await fetched(purpose) for purpose in ("one", "one", "two", "", "")] == [whole, 0, whole, whole, whole]


async def test_a_file_of_this_machine_is_copied(tmp_path: Path) -> None:
    source, models = tmp_path / "with space.gguf", tmp_path / "models"
    source.write_bytes(CONTENT)
    models.mkdir()
    order = a_file(source.as_uri(), destination="m/model.gguf", size=len(CONTENT))

    (file,) = (await fetch(an_order(models, order))).files

    assert (models / "m" / "model.gguf").read_bytes() == CONTENT
    assert (file.size, file.fetched_bytes) == (len(CONTENT), 0)
    assert leftovers(models) == []
    (again,) = (
        await fetch(an_order(models, a_file((models / "m/model.gguf").as_uri(), destination="m/model.gguf")))
    ).files
    assert again == file
    there = (models / "m" / "model.gguf").stat()
    order = a_file((models / "m/model.gguf").as_uri(), destination="m/model.gguf", digest="")
    assert (await fetch(an_order(models, order))).files == (file,)
    assert (models / "m" / "model.gguf").stat().st_ino == there.st_ino


@pytest.mark.parametrize(
    ("content", "size", "error", "words"),
    [
        (None, None, FileMissing, "is not there"),
        (b"other", None, DownloadDamaged, "was promised"),
        (b"other", 6, DownloadDamaged, "has 5 bytes where 6 belong"),
    ],
)
async def test_a_file_of_this_machine_must_be_what_was_promised(
    tmp_path: Path, content: bytes | None, size: int | None, error: type[DownloadError], words: str
) -> None:
    source, models = tmp_path / "source", tmp_path / "models"
    if content is not None:
        source.write_bytes(content)
    with pytest.raises(error, match=words):
        await fetch(an_order(models, a_file(source.as_uri(), size=size)))
    with pytest.raises(DownloadRefused, match="is not a file"):
        await fetch(an_order(models, a_file(models.as_uri(), destination="directory")))
    assert leftovers(models) == []


async def test_several_files_come_together(server: FileServer, tmp_path: Path) -> None:
    parts = {f"model-0000{number}-of-00006.gguf": CONTENT[number * 1000 :] for number in range(6)}
    files = [
        a_file(server.add(f"/{name}", part), destination=f"new/folder/{name}", digest="")
        for name, part in parts.items()
    ]

    result = await fetch(an_order(tmp_path, *files))

    assert {name: (tmp_path / "new" / "folder" / name).read_bytes() for name in parts} == parts
    assert [file.destination for file in result.files] == [file.destination for file in files]


async def test_connections_that_break_are_resumed(server: FileServer, tmp_path: Path) -> None:
    url = server.add(PATH, CONTENT)
    server.faults[PATH] += [cutting(50_000), answering(500), cutting(1), cutting(0), cutting(70_000)]

    (file,) = (await fetch(an_order(tmp_path, a_file(url, size=len(CONTENT))))).files

    assert (tmp_path / "model.gguf").read_bytes() == CONTENT
    assert file.fetched_bytes == len(CONTENT)


async def test_a_stream_that_breaks_begins_again(server: FileServer, tmp_path: Path) -> None:
    url = server.add(PATH, CONTENT, has_ranges=False)
    server.faults[PATH] += [cutting(300_000)]

    (file,) = (await fetch(an_order(tmp_path, a_file(url)))).files

    assert file.fetched_bytes == len(CONTENT) + 300_000


async def test_a_stream_is_no_beginning_for_another(server: FileServer, tmp_path: Path) -> None:
    url = server.add(PATH, CONTENT, has_ranges=False)
    order = an_order(tmp_path, a_file(url, size=len(CONTENT)))
    stall = Stall(300_000)
    server.faults[PATH].append(stall)
    fetching = asyncio.ensure_future(fetch(order))
    try:
        await asyncio.to_thread(stall.reached.wait, 60)
        fetching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetching
    finally:
        stall.let_go()

    (file,) = (await fetch(order)).files

    assert file.fetched_bytes == len(CONTENT)
    assert len(server.requests) == 2


async def test_one_whole_answer_among_ranges_costs_nothing(server: FileServer, tmp_path: Path) -> None:
    url = server.add(PATH, CONTENT)
    whole = ServedFile(content=CONTENT, has_ranges=False)
    server.faults[PATH] += [lambda handler, file: handler.give(file), lambda handler, _: handler.give(whole)]

    (file,) = (await fetch(an_order(tmp_path, a_file(url)))).files

    assert (tmp_path / "model.gguf").read_bytes() == CONTENT
    assert file.fetched_bytes == len(CONTENT)


async def test_a_stream_that_always_breaks_is_given_up(server: FileServer, tmp_path: Path) -> None:
    url = server.add(PATH, CONTENT, has_ranges=False)
    server.faults[PATH] += [cutting(300_000)] * 9

    with pytest.raises(ServerUnavailable, match="broke off"):
        await fetch(an_order(tmp_path, a_file(url)))

    assert len(server.requests) == NETWORK.attempts
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        (401, DownloadRefused, "answered 401; put a token into HF_TOKEN"),
        (403, DownloadRefused, "answered 403; put a token into HF_TOKEN"),
        (404, FileMissing, "answered 404"),
        (418, DownloadRefused, "answered 418"),
        (500, ServerUnavailable, "answered 500"),
        (429, ServerUnavailable, "answered 429"),
    ],
)
async def test_refusals_say_what_to_do(
    server: FileServer, tmp_path: Path, status: int, error: type[DownloadError], words: str
) -> None:
    url = server.add(PATH, CONTENT)
    server.faults[PATH] += [answering(status)] * 9

    with pytest.raises(error, match=words) as caught:
        await fetch(an_order(tmp_path, a_file(url + "?secret=1", advice="put a token into HF_TOKEN")))

    assert "secret" not in str(caught.value)
    assert caught.value.retryable == (error is ServerUnavailable)
    assert len(server.requests) == (NETWORK.attempts if error is ServerUnavailable else 1)
    assert leftovers(tmp_path) == []


async def test_a_crowded_server_gets_fewer_connections(server: FileServer, tmp_path: Path) -> None:
    url = server.add(PATH, CONTENT)
    busy = refused = 0

    def at_most_two(handler: FileHandler, file: ServedFile) -> None:
        nonlocal busy, refused
        busy += 1
        try:
            if busy > 2:
                refused += 1
                handler.answer(429, {"Retry-After": "0"})
            else:
                handler.give(file)
        finally:
            busy -= 1

    server.faults[PATH] += [at_most_two] * 200

    await fetch(an_order(tmp_path, a_file(url)))

    assert (tmp_path / "model.gguf").read_bytes() == CONTENT
    assert refused <= LIMITS.connections


async def test_a_server_that_asks_for_a_long_wait_is_not_waited_for(server: FileServer, tmp_path: Path) -> None:
    url = server.add(PATH, CONTENT)
    server.faults[PATH] += [answering(429, retry_after="3600")]

    with pytest.raises(ServerUnavailable, match="429"):
        await fetch(an_order(tmp_path, a_file(url)))


@pytest.mark.parametrize(
    ("headers", "error", "words"),
    [
        ({"content_range": "bytes 5-9/1000003"}, ServerUnavailable, "another part"),
        ({"content_range": "bytes 0-99999999/1000003"}, ServerUnavailable, "another part"),
        ({"content_range": "nonsense"}, ServerUnavailable, "another part"),
        ({"content_range": "bytes 0-65535/1000004"}, DownloadDamaged, "announces 1000004 bytes where 1000003 belong"),
        ({"content_encoding": "gzip"}, DownloadRefused, "packed as gzip"),
    ],
)
async def test_lies_are_noticed(
    server: FileServer, tmp_path: Path, headers: dict[str, str], error: type[DownloadError], words: str
) -> None:
    url = server.add(PATH, CONTENT)
    server.faults[PATH] += [lying(**headers)] * 9

    with pytest.raises(error, match=words):
        await fetch(an_order(tmp_path, a_file(url, size=len(CONTENT))))

    assert not (tmp_path / "model.gguf").exists()


async def test_a_body_without_end_ends(server: FileServer, tmp_path: Path) -> None:
    url = server.add(PATH, CONTENT)
    server.faults[PATH] += [endless()] * 2

    with pytest.raises(DownloadDamaged, match="goes on after byte 1000003"):
        await fetch(an_order(tmp_path, a_file(url, size=len(CONTENT))))
    limits = DownloadLimits(largest_bytes=5_000_000, free_bytes=0)
    with pytest.raises(DownloadDamaged, match="goes on after byte 5000000"):
        await fetch(an_order(tmp_path, a_file(url, destination="other"), limits=limits))


async def test_a_file_that_is_too_large_is_refused(server: FileServer, tmp_path: Path) -> None:
    url = server.add(PATH, CONTENT)

    with pytest.raises(DownloadTooLarge, match="more than 1000 bytes"):
        await fetch(an_order(tmp_path, a_file(url), limits=DownloadLimits(largest_bytes=1000)))


async def test_a_wrong_digest_is_fetched_once_more_and_then_told(server: FileServer, tmp_path: Path) -> None:
    url = server.add(PATH, CONTENT)
    promised = "sha256:" + 64 * "0"

    with pytest.raises(DownloadDamaged, match=f"{promised} was promised, and {SHA256} came"):
        await fetch(an_order(tmp_path, a_file(url, digest=promised, size=len(CONTENT))))

    assert server.sent == 2 * len(CONTENT)
    assert not (tmp_path / "model.gguf").exists()
    assert leftovers(tmp_path) == []


async def test_bytes_that_were_damaged_on_the_way_come_again(server: FileServer, tmp_path: Path) -> None:
    url = server.add(PATH, CONTENT)
    server.faults[PATH] += [lambda handler, file: handler.give(ServedFile(content=bytes(len(CONTENT)), etag=file.etag))]

    (file,) = (await fetch(an_order(tmp_path, a_file(url)))).files

    assert (tmp_path / "model.gguf").read_bytes() == CONTENT
    assert file.fetched_bytes == 2 * len(CONTENT)


async def test_a_file_that_changes_meanwhile_is_begun_again(server: FileServer, tmp_path: Path) -> None:
    url = server.add(PATH, CONTENT)
    newer = CONTENT[::-1]

    def change(handler: FileHandler, file: ServedFile) -> None:
        handler.give(file)
        server.add(PATH, newer)

    server.faults[PATH] += [change]

    await fetch(an_order(tmp_path, a_file(url, digest="")))

    assert (tmp_path / "model.gguf").read_bytes() == newer


async def test_a_file_that_changes_all_the_time_is_given_up(server: FileServer, tmp_path: Path) -> None:
    url = server.add(PATH, CONTENT)

    def change(handler: FileHandler, file: ServedFile) -> None:
        handler.give(file)
        server.add(PATH, file.content[1:] + file.content[:1])

    server.faults[PATH] += [change] * 100

    with pytest.raises(RemoteFileChanged):
        await fetch(an_order(tmp_path, a_file(url, digest="")))


async def interrupted(server: FileServer, order: DownloadOrder) -> None:
    """Leave the first piece of the file behind, and nothing else."""
    server.faults[PATH] += [lambda handler, file: handler.give(file), *[answering(500)] * 20]
    with pytest.raises(ServerUnavailable):
        await fetch(order)
    server.faults.clear()


@pytest.mark.parametrize(
    ("digest", "etag", "is_same_boot", "is_resumed"),
    [
        (SHA256, '"one"', True, True),
        (SHA256, "", False, True),  # if bytes are missing, the digest will tell
        ("", '"one"', True, True),
        ("", '"one"', False, False),
        ("", "", True, False),
        ("", 'W/"weak"', True, False),
    ],
)
async def test_what_is_resumed_must_be_what_was_begun(
    server: FileServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    digest: str,
    etag: str,
    is_same_boot: bool,
    is_resumed: bool,
) -> None:
    url = server.add(PATH, CONTENT, etag=etag)
    order = an_order(tmp_path / "models", a_file(url, digest=digest), limits=ONE_CONNECTION)
    await interrupted(server, order)
    if not is_same_boot:
        (tmp_path / "boot").write_text("another")
        monkeypatch.setattr(attempts, "_BOOT_ID", tmp_path / "boot")

    (file,) = (await fetch(order)).files

    assert (tmp_path / "models" / "model.gguf").read_bytes() == CONTENT
    assert file.fetched_bytes == len(CONTENT) - (LIMITS.piece_bytes if is_resumed else 0)


@pytest.mark.parametrize("newer", [CONTENT[::-1], CONTENT[:-1], CONTENT[:10], CONTENT + b"!"])
async def test_a_file_that_changed_between_two_attempts_is_begun_again(
    server: FileServer, tmp_path: Path, newer: bytes
) -> None:
    order = an_order(tmp_path, a_file(server.add(PATH, CONTENT), digest=""), limits=ONE_CONNECTION)
    await interrupted(server, order)
    server.add(PATH, newer)

    await fetch(order)

    assert (tmp_path / "model.gguf").read_bytes() == newer


async def test_bytes_that_were_damaged_on_the_disk_are_noticed(server: FileServer, tmp_path: Path) -> None:
    order = an_order(tmp_path, a_file(server.add(PATH, CONTENT)), limits=ONE_CONNECTION)
    await interrupted(server, order)
    part = tmp_path.joinpath(*FOLDER, f"{key_of('model.gguf')}.part")
    with part.open("r+b") as file:
        file.write(b"damage")

    await fetch(order)

    assert (tmp_path / "model.gguf").read_bytes() == CONTENT


async def test_a_silent_server_is_left(server: FileServer, tmp_path: Path) -> None:
    url = server.add(PATH, CONTENT)
    stalls = [Stall() for _ in range(50)]
    server.faults[PATH] += stalls
    network = Network(first_pause_seconds=0.01, attempts=2, stall_seconds=0.05, connect_seconds=0.2, answer_seconds=0.1)

    try:
        with pytest.raises(ServerUnavailable, match="too slowly"):
            await fetch(an_order(tmp_path, a_file(url), network=network))
    finally:
        for stall in stalls:
            stall.let_go()


async def test_no_server_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(ServerUnavailable, match="no connection"):
        await fetch(an_order(tmp_path, a_file("http://127.0.0.1:1/model.gguf")))


async def test_credentials_stay_with_their_host(server: FileServer, tmp_path: Path) -> None:
    with FileServer() as other:
        target = other.add("/cdn", CONTENT)
        server.redirect("/hop", target)
        url = server.redirect(PATH, "/hop")

        await fetch(an_order(tmp_path, a_file(url, authorization="Bearer secret-word")))

        assert {request.headers.get("Authorization") for request in server.requests} == {"Bearer secret-word"}
        assert {request.headers.get("Authorization") for request in other.requests} == {None}
        assert len(server.requests) == 2, "where the URL leads to is remembered"


async def test_an_address_that_has_expired_is_asked_for_again(server: FileServer, tmp_path: Path) -> None:
    server.add("/signed", CONTENT)
    url = server.redirect(PATH, "/signed")
    served: list[int] = []

    def expire(handler: FileHandler, file: ServedFile) -> None:
        served.append(1)
        if len(served) % 3 == 0:
            handler.answer(403)
        else:
            handler.give(file)

    server.faults["/signed"] += [expire] * 100

    (file,) = (
        await fetch(an_order(tmp_path, a_file(url), limits=DownloadLimits(piece_bytes=65536, connections=1)))
    ).files

    assert file.fetched_bytes == len(CONTENT)
    assert len(server.asked(PATH)) > 2


async def test_redirects_have_an_end(server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(ServerUnavailable, match="redirects more than 8 times"):
        await fetch(an_order(tmp_path, a_file(server.redirect(PATH, PATH))))


@pytest.mark.parametrize("location", ["ftp://127.0.0.1/x", "http://example.org/x", "http://[/x", "file:///etc/passwd"])
async def test_redirects_to_elsewhere_are_refused(server: FileServer, tmp_path: Path, location: str) -> None:
    with pytest.raises(DownloadRefused, match="redirects to where we do not go"):
        await fetch(an_order(tmp_path, a_file(server.redirect(PATH, location))))


async def test_tls_is_checked_and_never_left(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path / "authority")
    with FileServer(certificate=authority.issue("127.0.0.1")) as secure:
        url = secure.add(PATH, CONTENT)
        with pytest.raises(DownloadRefused, match="certificate is not trusted"):
            await fetch(an_order(tmp_path, a_file(url)))
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
        await fetch(an_order(tmp_path, a_file(url)))
        assert (tmp_path / "model.gguf").read_bytes() == CONTENT
        downwards = secure.redirect("/down", server.add(PATH, CONTENT))
        with pytest.raises(DownloadRefused, match="redirects from HTTPS to HTTP"):
            await fetch(an_order(tmp_path, a_file(downwards, destination="other")))


async def test_a_public_host_leads_to_no_private_address(server: FileServer, tmp_path: Path) -> None:
    with FileServer(host="127.0.0.2") as inside:
        secret = inside.add("/metadata", CONTENT)
        order = an_order(tmp_path, a_file(server.redirect(PATH, secret)))
        for is_public, is_allowed in ((True, False), (False, True)):

            def is_private(address: str, is_public: bool = is_public) -> bool:
                return not (is_public and address == "127.0.0.1")

            with RangeTransfers(NETWORK, LIMITS, is_private=is_private) as transfers:
                if is_allowed:
                    await Download(order, clock=SystemClock()).run(transfers)
                else:
                    with pytest.raises(DownloadRefused, match=r"redirects to the private address 127\.0\.0\.2"):
                        await Download(order, clock=SystemClock()).run(transfers)
                    assert inside.requests == []


@pytest.mark.parametrize("is_redirected", [False, True])
async def test_nobody_is_sent_to_an_address_that_no_server_may_have(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_redirected: bool
) -> None:
    """Such as those where clouds tell machines their secrets: also where private addresses are fine."""
    monkeypatch.setattr(transfers, "forbidden_address", lambda address: "of a test" * (address == "127.0.0.2"))
    with FileServer(host="127.0.0.2") as inside:
        secret = inside.add(PATH, CONTENT)
        url = server.redirect(PATH, secret) if is_redirected else secret
        with pytest.raises(DownloadRefused, match=r"has the address 127\.0\.0\.2, of a test"):
            await fetch(an_order(tmp_path, a_file(url)))
        assert inside.requests == []


@pytest.mark.parametrize("has_other_address", [True, False])
async def test_a_host_with_a_forbidden_ipv6_address_is_asked_at_its_other_ones(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_other_address: bool
) -> None:
    """Machines of the own network often have a link-local address besides, as with the names that mDNS gives."""
    monkeypatch.setattr(transfers, "forbidden_address", lambda address: "of a test" * (address == "::1"))
    host = urlsplit(server.add(PATH, CONTENT)).netloc.replace(
        "127.0.0.1", "localhost" if has_other_address else "[::1]"
    )
    with socket.create_server(("::1", server.port), family=socket.AF_INET6) as forbidden:
        order = an_order(tmp_path, a_file(f"http://{host}{PATH}"), limits=ONE_CONNECTION)
        if has_other_address:
            await fetch(order)
        else:
            with pytest.raises(DownloadRefused, match="has the address ::1, of a test"):
                await fetch(order)
        connection, _ = forbidden.accept()
        with connection:
            assert connection.recv(1) == b""
    assert (tmp_path / "model.gguf").exists() is has_other_address


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        *[("127.0.0.1", True), ("10.1.2.3", True), ("169.254.169.254", True), ("::1", True), ("fe80::1%eth0", True)],
        *[("::ffff:10.0.0.1", True), ("100.64.0.1", True), ("8.8.8.8", False), ("2606:4700::1111", False)],
    ],
)
def test_which_addresses_are_private(address: str, expected: bool) -> None:
    assert is_private_address(address) is expected


async def test_a_proxy_is_asked_where_settings_name_one(server: FileServer, tmp_path: Path) -> None:
    server.add("/proxied", CONTENT)
    network = Network(http_proxy=server.url(""), plain_hosts=("hub.example",), attempts=1)

    await fetch(an_order(tmp_path, a_file("http://hub.example/proxied"), network=network))

    assert (tmp_path / "model.gguf").read_bytes() == CONTENT
    assert {request.headers["Host"] for request in server.requests} == {"hub.example"}


async def test_a_tunnel_through_a_proxy_is_not_the_answer(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path / "authority")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    network = Network(https_proxy=server.url(""), attempts=1)
    with FileServer(certificate=authority.issue("hub", host="hub.example")) as hub:
        hub.add(PATH, CONTENT)
        server.tunnel_port = hub.port
        file = a_file(f"https://hub.example{PATH}", authorization="secret-word")

        await fetch(an_order(tmp_path, file, network=network))

        assert {request.headers["Authorization"] for request in hub.requests} == {"secret-word"}
    assert (tmp_path / "model.gguf").read_bytes() == CONTENT
    assert {request.method for request in server.requests} == {"CONNECT"}
    assert not any("Authorization" in request.headers for request in server.requests)


async def test_the_disk_is_looked_at_before_the_first_byte(server: FileServer, tmp_path: Path) -> None:
    url = server.add(PATH, CONTENT)
    limits = DownloadLimits(piece_bytes=64 * 1024, free_bytes=1 << 60)

    with pytest.raises(TooLittleDisk, match="shall stay free") as caught:
        await fetch(an_order(tmp_path, a_file(url, size=len(CONTENT)), limits=limits))
    assert server.requests == []
    assert caught.value.retryable

    with pytest.raises(TooLittleDisk, match="shall stay free"):
        await fetch(an_order(tmp_path, a_file(url), limits=limits))
    assert server.sent <= 64 * 1024


@pytest.mark.parametrize(
    ("destination", "words"),
    [
        ("../outside", "outside of"),
        ("/../../etc/passwd", "outside of"),
        ("link/model", "leads out"),
        ("folder", "is not a file"),
        (".corral/partial/x", "names no file"),
        ("", "names no file"),
        ("a\0b", "outside of"),
        ("x" * 300, "File name too long|cannot be used"),
        ("file/model", "Not a directory"),
    ],
)
async def test_no_destination_leads_out(server: FileServer, tmp_path: Path, destination: str, words: str) -> None:
    models = tmp_path / "models"
    (models / "folder").mkdir(parents=True)
    (models / "link").symlink_to(tmp_path)
    (models / "file").touch()

    with pytest.raises(DestinationUnusable, match=words):
        await fetch(an_order(models, a_file(server.add(PATH, CONTENT), destination=destination)))

    assert server.requests == []


async def test_a_link_that_appears_meanwhile_is_not_followed(server: FileServer, tmp_path: Path) -> None:
    models, outside = tmp_path / "models", tmp_path / "outside"
    outside.mkdir()
    url = server.add(PATH, CONTENT)

    def swap(_: FileServer) -> None:
        if (models / "folder").is_dir() and not (models / "folder").is_symlink():
            (models / "folder").rmdir()
            (models / "folder").symlink_to(outside)

    server.before_chunk = swap
    with pytest.raises(DestinationUnusable):
        await fetch(an_order(models, a_file(url, destination="folder/model.gguf")))

    assert list(outside.iterdir()) == []


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([], "without files"),
        ([a_file("http://127.0.0.1/x", digest="md5:0")], "digest: 'md5:0'"),
        ([a_file("http://127.0.0.1/x", size=-1)], "size: -1"),
        ([a_file("http://127.0.0.1/x"), a_file("http://127.0.0.1/y")], "named twice"),
        ([a_file("http://example.org/x")], "not asked over HTTP"),
        ([a_file("ftp://example.org/x")], "scheme 'ftp'"),
        ([a_file("http://127.0.0.1/a b")], "characters that no URL has"),
        ([a_file("http://127.0.0.1/x", authorization="a\r\nHost: b")], "authorization"),
    ],
)
async def test_orders_that_cannot_be_are_refused(tmp_path: Path, files: list[FileOrder], words: str) -> None:
    with pytest.raises(DownloadInvalid, match=words):
        await fetch(an_order(tmp_path, *files))


@pytest.mark.parametrize("piece_bytes", [64 * 1024, 1024 * 1024])
async def test_the_bandwidth_is_held(server: FileServer, tmp_path: Path, piece_bytes: int) -> None:
    """Also by transfers that begin while others pause, and by large pieces, which lie in sockets already."""
    content = CONTENT * (8 * 1024 * 1024 // len(CONTENT))
    url = server.add(PATH, content)
    limits = DownloadLimits(piece_bytes=piece_bytes, bytes_per_second=4_000_000, free_bytes=0)
    file = a_file(url, digest=f"sha256:{hashlib.sha256(content).hexdigest()}", size=len(content))
    began = asyncio.get_running_loop().time()

    await fetch(an_order(tmp_path, file, limits=limits))

    assert asyncio.get_running_loop().time() - began >= 0.9 * len(content) / 4_000_000


async def test_progress_only_grows(server: FileServer, tmp_path: Path) -> None:
    url = server.add(PATH, CONTENT)
    server.faults[PATH] += [lambda handler, file: handler.give(ServedFile(content=bytes(len(CONTENT)), etag=file.etag))]
    order = an_order(tmp_path, a_file(url))
    download = Download(order, clock=SystemClock())
    seen, one_at_a_time = [download.reading()], threading.Lock()

    def look(_: FileServer) -> None:
        with one_at_a_time:  # several connections send at once
            seen.append(download.reading())

    server.before_chunk = look
    with RangeTransfers(order.network, order.limits) as transfers:
        await download.run(transfers)
    seen.append(download.reading())

    bytes_seen = [reading.files[0].current_bytes for reading in seen]
    assert bytes_seen == sorted(bytes_seen)
    assert (seen[0].files[0].state, seen[-1].files[0].state) == (FileState.WAITING, FileState.DONE)
    assert (seen[-1].files[0].current_bytes, seen[-1].files[0].total_bytes) == (len(CONTENT), len(CONTENT))
    assert [reading.sequence for reading in seen] == sorted({reading.sequence for reading in seen})


async def test_what_nobody_came_back_for_is_swept(server: FileServer, tmp_path: Path) -> None:
    url = server.add(PATH, CONTENT)
    server.faults[PATH] += [cutting(100_000), *[answering(500)] * 50]
    with pytest.raises(ServerUnavailable):
        await fetch(an_order(tmp_path, a_file(url, size=len(CONTENT))))
    assert leftovers(tmp_path) == [".ledger", ".part"]
    written = tmp_path.joinpath(*FOLDER, f"{key_of('model.gguf')}.part").stat().st_mtime

    with PartialFolder(tmp_path) as folder:
        assert folder.sweep(written - 1) == 0
        assert folder.sweep(written + 1) == 1
    assert leftovers(tmp_path) == []


async def test_a_cancelled_download_leaves_what_it_has(server: FileServer, tmp_path: Path) -> None:
    url = server.add(PATH, CONTENT)
    stalls = [Stall(40_000) for _ in range(4)]
    server.faults[PATH] += stalls
    fetching = asyncio.ensure_future(fetch(an_order(tmp_path, a_file(url, size=len(CONTENT)))))
    try:
        await asyncio.to_thread(stalls[0].reached.wait, 60)
        fetching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetching
    finally:
        for stall in stalls:
            stall.let_go()

    server.faults.clear()
    (file,) = (await fetch(an_order(tmp_path, a_file(url, size=len(CONTENT))))).files
    assert (tmp_path / "model.gguf").read_bytes() == CONTENT
    assert file.fetched_bytes <= len(CONTENT)


async def test_two_askers_fetch_a_file_once(server: FileServer, tmp_path: Path) -> None:
    url = server.add(PATH, CONTENT)

    first, second = await asyncio.gather(
        fetch(an_order(tmp_path, a_file(url, digest=""))), fetch(an_order(tmp_path, a_file(url, digest="")))
    )

    assert server.sent == len(CONTENT)
    assert sorted([first.files[0].fetched_bytes, second.files[0].fetched_bytes]) == [0, len(CONTENT)]
    assert first.files[0].sha256 == second.files[0].sha256
    assert os.listdir(tmp_path.joinpath(*FOLDER)) == []
