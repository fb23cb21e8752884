"""Pulls against a registry that misbehaves on demand."""

import asyncio
import errno
import hashlib
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO

import pytest
from aiohttp import web

from corral.base.tasks import start_task, task_group
from corral.oci import pull as pull_module
from corral.oci.auth import Credential
from corral.oci.blobs import BlobCache, Body, WantedBlob, prune
from corral.oci.errors import (
    ContentMismatch,
    DiskFull,
    ImageError,
    ImageNotFound,
    LimitExceeded,
    ManifestUnusable,
    PlatformMissing,
    RegistryRefused,
    RegistryUnavailable,
    SourceInvalid,
    TargetUnusable,
    UnpackRefused,
)
from corral.oci.limits import Network, UnpackLimits
from corral.oci.manifests import ImagePlatform, this_platform
from corral.oci.orders import PullOrder, PullResult, Scale
from corral.oci.pull import Pull
from tests.kit.clock import HurriedClock
from tests.kit.images import a_file, a_layer, a_symlink, gzipped, tar_of, zstandardised
from tests.kit.loop_time import let_loop_time_pass
from tests.kit.registry import FakeRegistry, answering, cutting, endless, lying, silent, stalling
from tests.kit.waiting import eventually

NAME = "backends/echo"
BIG = a_layer({"weights": os.urandom(700_000)})
SMALL = a_layer({"run.sh": b"#!/bin/sh\n"})
FEW = Network(attempts=3)
HASTY = Network(answer_seconds=0.2, attempts=3)
WITHIN = 30.0


class Place:
    """A target and a cache, and pulls into them."""

    def __init__(self, folder: Path) -> None:
        self.target = folder / "target"
        self.cache = folder / "cache"
        self.clock = HurriedClock()
        self.scale = Scale()

    async def pull(self, *sources: str, **changes: object) -> PullResult:
        order = PullOrder(
            sources=sources,
            target=str(self.target),
            cache=str(self.cache),
            platform=this_platform(),
            is_durable=False,
        )
        changed = PullOrder(**{**{name: getattr(order, name) for name in order.__struct_fields__}, **changes})  # type: ignore[arg-type]
        return await Pull(changed, scale=self.scale, clock=self.clock).run()

    def files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.target.rglob("*") if path.is_file()}

    def cached(self) -> list[str]:
        return sorted(path.name for path in self.cache.glob("*"))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
async def registry() -> AsyncIterator[FakeRegistry]:
    async with FakeRegistry() as registry:
        yield registry


async def test_an_image_is_fetched_and_unpacked(registry: FakeRegistry, place: Place) -> None:
    image = registry.add_image(NAME, [SMALL, BIG])

    result = await place.pull(registry.reference(NAME))

    assert sorted(place.files()) == ["run.sh", "weights"]
    assert (result.digest, result.platform_digest) == (image.digest, image.digest)
    assert result.downloaded_bytes == len(SMALL) + len(BIG)
    assert result.entries == 2
    assert result.size_bytes == 700_010
    assert place.cached() == []
    assert os.access(place.target / "run.sh", os.X_OK)


@pytest.mark.parametrize("squeeze", [bytes, gzipped, zstandardised])
async def test_layers_of_any_compression(squeeze: object, registry: FakeRegistry, place: Place) -> None:
    assert callable(squeeze)
    registry.add_image(NAME, [squeeze(tar_of(a_file("x", b"hello")))])

    await place.pull(f"oci://{registry.reference(NAME)}")

    assert place.files() == {"x": b"hello"}


async def test_an_index_gives_both_digests(registry: FakeRegistry, place: Place) -> None:
    ours = registry.add_image(NAME, [SMALL], tag="ours")
    other = registry.add_image(NAME, [BIG], tag="other", platform=ImagePlatform(architecture="s390x"))
    index = registry.add_index(NAME, [other, ours])

    result = await place.pull(registry.reference(NAME))

    assert (result.digest, result.platform_digest) == (index.digest, ours.digest)
    assert list(place.files()) == ["run.sh"]


async def test_a_platform_that_is_missing_is_told_with_those_that_are_there(
    registry: FakeRegistry, place: Place
) -> None:
    images = [
        registry.add_image(NAME, [SMALL], platform=ImagePlatform(architecture="arm", variant=variant))
        for variant in ("v6", "v7")
    ]
    attestation = registry.add_image(NAME, [SMALL], platform=ImagePlatform(os="unknown", architecture="unknown"))
    registry.add_index(NAME, [*images, attestation])

    with pytest.raises(PlatformMissing) as caught:
        await place.pull(registry.reference(NAME), platform=ImagePlatform(architecture="amd64"))

    assert str(caught.value).endswith(
        "there is no image for linux/amd64; there are images for linux/arm/v6, linux/arm/v7"
    )
    assert not place.target.exists()


async def test_a_tag_that_moves_between_manifest_and_layers_is_harmless(registry: FakeRegistry, place: Place) -> None:
    old = registry.add_image(NAME, [SMALL])
    index = registry.add_index(NAME, [old])
    moved = asyncio.Event()

    async def move(request: object, good: bytes) -> object:
        registry.add_image(NAME, [BIG])
        moved.set()
        return await answering(200, body=good)(request, good)  # type: ignore[arg-type]

    registry.faults[old.digest].append(move)  # type: ignore[arg-type]
    result = await place.pull(registry.reference(NAME))

    assert moved.is_set()
    assert result.digest == index.digest
    assert list(place.files()) == ["run.sh"]


async def test_an_expected_digest_is_found_behind_a_moved_tag(registry: FakeRegistry, place: Place) -> None:
    old = registry.add_image(NAME, [SMALL])
    registry.add_image(NAME, [BIG])

    result = await place.pull(registry.reference(NAME), expected_digest=old.digest)

    assert result.digest == old.digest


async def test_another_digest_than_the_expected_one_is_refused(registry: FakeRegistry, place: Place) -> None:
    registry.add_image(NAME, [SMALL])

    with pytest.raises(ImageNotFound):
        await place.pull(registry.reference(NAME), expected_digest="sha256:" + "0" * 64)


# Breaks, lies and delays.


async def test_a_layer_that_breaks_off_is_gone_on_with(registry: FakeRegistry, place: Place) -> None:
    registry.add_image(NAME, [BIG])
    digest = next(iter(registry.blobs))
    registry.faults[digest] += [cutting(300_000), cutting(100_000)]

    await place.pull(registry.reference(NAME))

    ranges = [one.range for one in registry.asked_for(digest)]
    assert ranges == ["", "bytes=300000-", "bytes=400000-"]
    assert len(place.files()["weights"]) == 700_000


async def test_a_later_pull_goes_on_where_an_earlier_one_ended(registry: FakeRegistry, place: Place) -> None:
    registry.add_image(NAME, [SMALL, BIG])
    small, big = registry.blobs
    small_name = small.partition(":")[2]

    async def is_complete() -> bool:
        return small_name in place.cached()

    async def fail_once_the_other_is_complete(*_: object) -> web.StreamResponse:
        await eventually(is_complete, "the small layer to be complete")
        return web.Response(status=503)

    registry.faults[big] += [cutting(300_000), *[fail_once_the_other_is_complete] * 2]
    with pytest.raises(RegistryUnavailable):
        await place.pull(registry.reference(NAME), network=FEW)
    assert place.cached() == sorted([small_name, big.partition(":")[2] + ".part"])
    assert not place.target.exists()
    registry.heard.clear()

    result = await place.pull(registry.reference(NAME))

    assert [one.range for one in registry.asked_for("/blobs/")] == ["bytes=300000-"]
    assert result.downloaded_bytes == len(BIG) - 300_000
    assert place.cached() == []


async def test_layers_of_an_image_that_is_refused_are_not_kept(registry: FakeRegistry, place: Place) -> None:
    registry.add_image(NAME, [SMALL, gzipped(tar_of(a_symlink("out", "..")))])

    with pytest.raises(UnpackRefused):
        await place.pull(registry.reference(NAME))

    assert place.cached() == []


async def test_what_nobody_came_back_for_is_removed(registry: FakeRegistry, place: Place) -> None:
    registry.add_image(NAME, [SMALL])
    await place.pull(registry.reference(NAME), keep_layers=True)
    (kept,) = place.cache.iterdir()
    (place.cache / "old.part").touch()
    os.utime(place.cache / "old.part", (1, 1))

    prune(place.cache, before=kept.stat().st_mtime)
    prune(place.cache / "missing", before=kept.stat().st_mtime)

    assert list(place.cache.iterdir()) == [kept]


async def test_a_registry_without_ranges_gives_all_of_it_again(registry: FakeRegistry, place: Place) -> None:
    registry.add_image(NAME, [BIG])
    registry.knows_ranges = False
    registry.faults[next(iter(registry.blobs))].append(cutting(300_000))

    await place.pull(registry.reference(NAME))

    assert len(place.files()["weights"]) == 700_000


async def test_rubbish_in_the_cache_is_fetched_anew(registry: FakeRegistry, place: Place) -> None:
    registry.add_image(NAME, [BIG, SMALL])
    big, small = (digest.partition(":")[2] for digest in registry.blobs)
    place.cache.mkdir()
    (place.cache / big).write_bytes(b"x" * len(BIG))
    (place.cache / f"{small}.part").write_bytes(b"x" * len(SMALL))

    await place.pull(registry.reference(NAME))

    assert sorted(place.files()) == ["run.sh", "weights"]


async def test_a_part_that_is_wrong_is_fetched_anew(registry: FakeRegistry, place: Place) -> None:
    registry.add_image(NAME, [BIG])
    digest = next(iter(registry.blobs))
    place.cache.mkdir()
    (place.cache / f"{digest.partition(':')[2]}.part").write_bytes(b"x" * 1000)

    await place.pull(registry.reference(NAME))

    assert [one.range for one in registry.asked_for(digest)] == ["bytes=1000-", ""]


@pytest.mark.parametrize(
    "wrong",
    [lying(b"x" * len(BIG)), lying(b"short"), lying(b"x" * (len(BIG) + 1)), endless(), answering(206, body=b"x" * 500)],
    ids=["digest", "shorter", "longer", "endless", "another part"],
)
async def test_a_registry_that_lies_is_not_believed(wrong: object, registry: FakeRegistry, place: Place) -> None:
    registry.add_image(NAME, [BIG])
    registry.faults["/blobs/"] += [wrong] * 3  # type: ignore[list-item]

    with pytest.raises(ContentMismatch):
        await place.pull(registry.reference(NAME))

    assert not place.target.exists()
    assert place.cached() == []


async def test_one_lie_is_forgiven(registry: FakeRegistry, place: Place) -> None:
    registry.add_image(NAME, [BIG])
    registry.faults["/blobs/"].append(lying(b"x" * len(BIG)))

    await place.pull(registry.reference(NAME))

    assert len(registry.asked_for("/blobs/")) == 2


async def test_a_manifest_that_is_not_what_was_asked_for_is_refused(registry: FakeRegistry, place: Place) -> None:
    image = registry.add_image(NAME, [SMALL])
    registry.add_index(NAME, [image])
    registry.faults[image.digest].append(lying(b"{}"))

    with pytest.raises(ContentMismatch, match="gave a manifest"):
        await place.pull(registry.reference(NAME))


async def test_a_manifest_without_end_is_not_read_to_the_end(registry: FakeRegistry, place: Place) -> None:
    registry.faults["/manifests/"].append(endless())

    with pytest.raises(ContentMismatch, match="more than 4194304 bytes"):
        await place.pull(registry.reference(NAME))


async def test_a_registry_that_says_nothing_is_given_up(registry: FakeRegistry, place: Place) -> None:
    never = asyncio.Event()
    registry.faults["/manifests/"] += [silent(never)] * 3

    with pytest.raises(RegistryUnavailable, match="does not answer in time"):
        await place.pull(registry.reference(NAME), network=HASTY)

    never.set()


async def test_a_layer_that_stands_still_is_asked_for_again(registry: FakeRegistry, place: Place) -> None:
    registry.add_image(NAME, [BIG])
    never = asyncio.Event()
    reached = asyncio.Event()
    registry.faults["/blobs/"].append(stalling(300_000, never, reached=reached))

    pulling = asyncio.create_task(place.pull(registry.reference(NAME), network=FEW))
    await reached.wait()
    for _ in range(500):  # until all that was sent has been read
        await asyncio.sleep(0)
    let_loop_time_pass(timedelta(seconds=FEW.stall_seconds))
    await pulling

    assert [one.range for one in registry.asked_for("/blobs/")] == ["", "bytes=300000-"]
    never.set()


async def test_a_busy_registry_is_given_the_time_that_it_wants(registry: FakeRegistry, place: Place) -> None:
    registry.add_image(NAME, [SMALL])
    registry.faults["/manifests/"].append(answering(429, {"Retry-After": "7"}))
    registry.faults["/blobs/"].append(answering(503, {"Retry-After": "12"}))

    await place.pull(registry.reference(NAME))

    assert place.clock.slept == [7.0, 12.0]


async def test_a_registry_that_wants_hours_is_unavailable(registry: FakeRegistry, place: Place) -> None:
    registry.faults["/manifests/"].append(answering(429, {"Retry-After": "7200"}))

    with pytest.raises(RegistryUnavailable) as caught:
        await place.pull(registry.reference(NAME))

    assert caught.value.retryable
    assert place.clock.slept == []


async def test_attempts_without_progress_are_counted(registry: FakeRegistry, place: Place) -> None:
    registry.add_image(NAME, [SMALL])
    registry.faults["/blobs/"] += [answering(500)] * 9

    with pytest.raises(RegistryUnavailable, match="answered 500"):
        await place.pull(registry.reference(NAME))

    assert len(registry.asked_for("/blobs/")) == 5
    assert place.clock.slept == sorted(place.clock.slept)


@pytest.mark.parametrize(
    ("status", "kind"), [(401, RegistryRefused), (403, RegistryRefused), (404, ImageNotFound), (400, RegistryRefused)]
)
async def test_what_will_not_change_is_not_asked_again(
    status: int, kind: type[ImageError], registry: FakeRegistry, place: Place
) -> None:
    registry.add_image(NAME, [SMALL])
    registry.faults["/blobs/"] += [answering(status, {"WWW-Authenticate": "Negotiate"})]

    with pytest.raises(kind) as caught:
        await place.pull(registry.reference(NAME))

    assert not caught.value.retryable
    assert len(registry.asked_for("/blobs/")) == 1


async def test_what_the_registry_says_is_passed_on(registry: FakeRegistry, place: Place) -> None:
    with pytest.raises(ImageNotFound, match=r"answered 404 for 127.0.0.1:\d+/backends/echo:latest: nothing there"):
        await place.pull(registry.reference(NAME))


async def test_nobody_there_is_worth_another_try(place: Place) -> None:
    with pytest.raises(RegistryUnavailable, match="no connection"):
        await place.pull("127.0.0.1:1/x", network=FEW)


# Logins and redirects.


@pytest.mark.parametrize("uses_tokens", [False, True], ids=["basic", "bearer"])
async def test_a_login_is_shown_when_it_is_asked_for(uses_tokens: bool, place: Place) -> None:
    async with FakeRegistry(username="me", password="pass:word", uses_tokens=uses_tokens) as registry:
        registry.add_image(NAME, [SMALL, BIG])
        login = Credential(place=registry.address, username="me", password="pass:word")

        await place.pull(registry.reference(NAME), credentials=(login,))

        assert "Authorization" not in registry.heard[0].headers
        assert len(registry.asked_for("/token")) == (1 if uses_tokens else 0)


async def test_a_token_that_expires_is_replaced(place: Place) -> None:
    async with FakeRegistry(uses_tokens=True) as registry:
        registry.add_image(NAME, [SMALL])

        async def expire(request: object, good: bytes) -> object:
            registry.tokens.clear()
            registry.tokens.add("placeholder")
            return await answering(503)(request, good)  # type: ignore[arg-type]

        registry.faults["/blobs/"].append(expire)  # type: ignore[arg-type]
        await place.pull(registry.reference(NAME))

        assert len(registry.asked_for("/token")) == 2


@pytest.mark.parametrize("uses_tokens", [False, True], ids=["basic", "bearer"])
async def test_a_wrong_login_is_refused_for_good(uses_tokens: bool, place: Place) -> None:
    async with FakeRegistry(username="me", password="right", uses_tokens=uses_tokens) as registry:
        registry.add_image(NAME, [SMALL])
        login = Credential(place=registry.address, username="me", password="wrong")

        with pytest.raises(RegistryRefused) as caught:
            await place.pull(registry.reference(NAME), credentials=(login,))

        assert "wrong" not in str(caught.value)


async def test_a_missing_login_is_told_with_what_to_do(place: Place) -> None:
    async with FakeRegistry(username="me", password="right") as registry:
        with pytest.raises(RegistryRefused, match="wants a login, and there is none for it: add it to"):
            await place.pull(registry.reference(NAME))


async def test_a_redirect_to_another_host_gets_no_credentials(place: Place) -> None:
    async with FakeRegistry(username="me", password="secret") as registry, FakeRegistry() as elsewhere:
        registry.add_image(NAME, [SMALL])
        digest = next(iter(registry.blobs))
        elsewhere.blobs["/files/layer"] = SMALL
        location = {"Location": f"http://{elsewhere.address}/files/layer?signature=x"}
        registry.faults[digest].append(answering(307, location))
        login = Credential(place=registry.address, username="me", password="secret")

        await place.pull(registry.reference(NAME), credentials=(login,))

        assert registry.asked_for(digest)[0].headers["Authorization"] == registry.basic()
        assert [one.path for one in elsewhere.heard] == ["/files/layer?signature=x"]
        assert "Authorization" not in elsewhere.heard[0].headers


async def test_a_login_that_a_redirect_asks_for_is_not_given(place: Place) -> None:
    async with FakeRegistry() as registry, FakeRegistry(username="any", password="any") as thief:
        registry.add_image(NAME, [SMALL])
        registry.faults["/blobs/"].append(answering(302, {"Location": f"http://{thief.address}/v2/x/blobs/y"}))
        login = Credential(place=registry.address, username="me", password="secret")

        with pytest.raises(RegistryRefused):
            await place.pull(registry.reference(NAME), credentials=(login,))

        assert all("Authorization" not in one.headers for one in thief.heard)


@pytest.mark.parametrize("location", ["http://registry.example/x", "file:///etc/passwd", "ftp://x/y", "http://[::1"])
async def test_redirects_lead_only_where_we_go(location: str, registry: FakeRegistry, place: Place) -> None:
    registry.add_image(NAME, [SMALL])
    registry.faults["/blobs/"].append(answering(302, {"Location": location}))

    with pytest.raises(RegistryRefused, match="redirects to where we do not go"):
        await place.pull(registry.reference(NAME))


async def test_redirects_in_a_circle_end(registry: FakeRegistry, place: Place) -> None:
    registry.faults["/manifests/"] += [answering(302, {"Location": "/v2/x/manifests/y"})] * 99

    with pytest.raises(RegistryUnavailable, match="redirects more than"):
        await place.pull(registry.reference(NAME), network=FEW)


async def test_tokens_are_not_fetched_where_others_read_along(place: Place) -> None:
    async with FakeRegistry() as registry:
        realm = 'Bearer realm="http://auth.example/token",service="x"'
        registry.faults["/manifests/"].append(answering(401, {"WWW-Authenticate": realm}))

        with pytest.raises(RegistryRefused, match="sends us for a token where we do not go"):
            await place.pull(registry.reference(NAME))


async def test_a_proxy_is_used_for_others_than_loopback(place: Place) -> None:
    async with FakeRegistry() as proxy:
        network = Network(plain_hosts=("registry.example",), http_proxy=f"http://{proxy.address}", attempts=1)

        with pytest.raises(ImageNotFound):
            await place.pull("registry.example/backends/echo", network=network)

        assert [one.headers["Host"] for one in proxy.heard] == ["registry.example"]


# Sources.


async def test_mirrors_are_tried_in_order(registry: FakeRegistry, place: Place) -> None:
    registry.add_image("mirror/echo", [SMALL])

    result = await place.pull("not a reference!", registry.reference(NAME), registry.reference("mirror/echo"))

    assert result.source == registry.reference("mirror/echo")


async def test_when_all_mirrors_fail_each_reason_is_told(registry: FakeRegistry, place: Place) -> None:
    registry.faults["/v2/b/"] += [answering(500)] * 9

    with pytest.raises(RegistryUnavailable) as caught:
        await place.pull(registry.reference("a"), registry.reference("b"), network=FEW)

    assert "answered 404" in str(caught.value)
    assert "answered 500" in str(caught.value)


async def test_a_mirror_begins_with_an_empty_target(registry: FakeRegistry, place: Place) -> None:
    registry.add_image(NAME, [SMALL, gzipped(tar_of(a_symlink("out", "..")))])
    registry.add_image("mirror/echo", [BIG])

    await place.pull(registry.reference(NAME), registry.reference("mirror/echo"))

    assert list(place.files()) == ["weights"]


async def test_an_archive_behind_a_url(registry: FakeRegistry, place: Place) -> None:
    registry.blobs["/files/echo.tar.gz"] = BIG
    registry.faults["/files/"].append(cutting(1000))

    result = await place.pull(f"http://{registry.address}/files/echo.tar.gz?token=secret")

    assert len(place.files()["weights"]) == 700_000
    assert result.digest == ""


async def test_an_archive_with_its_hash_is_checked_and_gone_on_with(registry: FakeRegistry, place: Place) -> None:
    url = f"http://{registry.address}/files/echo.tar.gz"
    registry.blobs["/files/echo.tar.gz"] = BIG
    registry.faults["/files/"].append(cutting(1000))
    right = hashlib.sha256(BIG).hexdigest()

    result = await place.pull(url, sha256=right)

    assert result.digest == f"sha256:{right}"
    assert [one.range for one in registry.heard] == ["", "bytes=1000-"]
    with pytest.raises(ContentMismatch):
        await Place(place.target).pull(url, sha256="0" * 64)


@pytest.mark.parametrize("uri", ["http://registry.example/x.tar", "ftp://x/y", "quay.io/UPPER", "ocifile://relative"])
async def test_uris_that_cannot_be_used(uri: str, place: Place) -> None:
    with pytest.raises(SourceInvalid):
        await place.pull(uri)


async def test_an_archive_on_this_machine(tmp_path: Path, place: Place) -> None:
    (tmp_path / "echo.tar").write_bytes(SMALL)

    await place.pull(f"file://{tmp_path}/echo.tar")

    assert list(place.files()) == ["run.sh"]


async def test_a_directory_is_copied(tmp_path: Path, place: Place) -> None:
    source = tmp_path / "source"
    (source / "lib").mkdir(parents=True)
    (source / "run.sh").write_text("#!")
    (source / "run.sh").chmod(0o4777)
    (source / "lib" / "inside").symlink_to(source / "run.sh")

    await place.pull(str(source))

    assert (place.target / "run.sh").stat().st_mode & 0o7777 == 0o755
    assert os.readlink(place.target / "lib" / "inside") == "../run.sh"


@pytest.mark.parametrize("target", ["/etc/passwd", "../../.."])
async def test_a_directory_with_links_out_is_refused(target: str, tmp_path: Path, place: Place) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "out").symlink_to(target)

    with pytest.raises(UnpackRefused):
        await place.pull(str(source))


# What is no image, and what is too large.


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"schemaVersion": 1, "fsLayers": []}, "Docker's first form"),
        ({"hello": 1}, "neither an image nor a list"),
        ([], "cannot be read"),
        ({"manifests": []}, "is empty"),
        ({"layers": [{"digest": "sha256:x", "size": 1}]}, "is not a digest"),
        ({"layers": [{"digest": "sha256:" + "0" * 64, "size": -1}]}, "a size of -1"),
        ({"layers": [{"digest": "sha256:" + "0" * 64, "size": 1, "mediaType": "text/plain"}]}, "cannot be unpacked"),
        ({"layers": [{"digest": "sha256:" + "0" * 64, "size": 1}] * 999}, "999 layers"),
    ],
)
async def test_manifests_that_cannot_be_used(
    document: object, words: str, registry: FakeRegistry, place: Place
) -> None:
    registry.add_manifest(NAME, document, "application/json", tag="latest")

    with pytest.raises(ManifestUnusable, match=words):
        await place.pull(registry.reference(NAME))


async def test_a_list_that_holds_itself_ends(registry: FakeRegistry, place: Place) -> None:
    inner = registry.add_index(NAME, [registry.add_image(NAME, [SMALL])])
    for _ in range(5):
        inner = registry.add_index(NAME, [inner])

    with pytest.raises(ManifestUnusable, match="lists in lists"):
        await place.pull(registry.reference(NAME))


async def test_a_layer_larger_than_allowed_is_not_even_asked_for(registry: FakeRegistry, place: Place) -> None:
    registry.add_image(NAME, [BIG])

    with pytest.raises(LimitExceeded, match=r"images\.unpack_max_bytes"):
        await place.pull(registry.reference(NAME), limits=UnpackLimits(total_bytes=1000))

    assert registry.asked_for("/blobs/") == []


async def test_too_little_room_is_noticed_before_the_first_byte(registry: FakeRegistry, place: Place) -> None:
    registry.add_image(NAME, [BIG])

    with pytest.raises(DiskFull, match="shall stay free"):
        await place.pull(registry.reference(NAME), limits=UnpackLimits(free_bytes=1 << 60))

    assert registry.asked_for("/blobs/") == []
    assert not place.target.exists()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("at", ["fetching", "unpacking"])
async def test_a_disk_that_fills_up_is_left_as_it_was(
    number: int, at: str, registry: FakeRegistry, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    registry.add_image(NAME, [SMALL, BIG])
    if at == "unpacking":
        monkeypatch.setattr("corral.oci.unpack._write_all", full)
    else:
        monkeypatch.setattr("corral.oci.blobs._Download._write", full)

    with pytest.raises(DiskFull, match="no room left"):
        await place.pull(registry.reference(NAME), keep_layers=True)

    assert not place.target.exists()
    assert place.cached() == []


async def test_a_target_that_is_there_is_not_touched(registry: FakeRegistry, place: Place) -> None:
    place.target.mkdir()
    (place.target / "precious").write_text("mine")

    with pytest.raises(TargetUnusable):
        await place.pull(registry.reference(NAME))

    assert list(place.files()) == ["precious"]


async def test_an_empty_target_is_taken_and_given_back_empty(registry: FakeRegistry, place: Place) -> None:
    place.target.mkdir()
    with pytest.raises(ImageNotFound):
        await place.pull(registry.reference(NAME))
    registry.add_image(NAME, [SMALL, gzipped(tar_of(a_symlink("out", "..")))])
    with pytest.raises(UnpackRefused):
        await place.pull(registry.reference(NAME))
    assert list(place.target.iterdir()) == []

    registry.add_image(NAME, [SMALL])
    await place.pull(registry.reference(NAME))

    assert list(place.files()) == ["run.sh"]


async def test_a_target_that_is_no_directory_is_refused(tmp_path: Path, place: Place) -> None:
    place.target.symlink_to(tmp_path)

    with pytest.raises(TargetUnusable, match="is not a directory"):
        await place.pull("quay.io/a/b")


async def test_a_cancelled_pull_leaves_only_what_can_be_gone_on_with(registry: FakeRegistry, place: Place) -> None:
    registry.add_image(NAME, [BIG])
    never, reached = asyncio.Event(), asyncio.Event()
    registry.faults["/blobs/"].append(stalling(300_000, never, reached=reached))
    task = start_task(place.pull(registry.reference(NAME)), name="pull")
    await reached.wait()

    task.cancel()
    with suppress(asyncio.CancelledError):
        await task

    assert not place.target.exists()
    assert all(name.endswith(".part") for name in place.cached())
    never.set()


async def test_equal_layers_are_fetched_once(registry: FakeRegistry, place: Place) -> None:
    registry.add_image(NAME, [BIG, SMALL, BIG])

    await place.pull(registry.reference(NAME))

    assert len(registry.asked_for("/blobs/")) == 2


class LateCache(BlobCache):
    """A cache that is slow after its first look at what is there: somebody else finishes the blob meanwhile."""

    looked = threading.Event()
    finished_elsewhere = threading.Event()

    def _finished(self, blob: WantedBlob) -> BinaryIO | None:
        file = super()._finished(blob)
        self.looked.set()
        assert self.finished_elsewhere.wait(WITHIN)
        return file


async def test_a_blob_that_is_finished_right_after_the_look_is_not_fetched_again(tmp_path: Path) -> None:
    blob = WantedBlob(key="blob", digest=f"sha256:{hashlib.sha256(SMALL).hexdigest()}", size=len(SMALL), most=1 << 20)
    fetches = 0

    @asynccontextmanager
    async def opener(offset: int) -> AsyncIterator[Body]:
        async def pieces() -> AsyncIterator[bytes]:
            yield SMALL

        nonlocal fetches
        fetches += 1
        yield Body(start=offset, length=len(SMALL), pieces=pieces())

    late = LateCache(tmp_path, network=FEW, clock=HurriedClock())
    first = BlobCache(tmp_path, network=FEW, clock=HurriedClock())
    async with task_group() as group:
        waiting = group.create_task(late.get(blob, opener, lambda position: None))
        assert await asyncio.to_thread(late.looked.wait, WITHIN)
        with await first.get(blob, opener, lambda position: None):
            pass
        late.finished_elsewhere.set()
        with await waiting as file:
            file.seek(0)
            assert file.read() == SMALL

    assert fetches == 1
    assert os.listdir(tmp_path) == ["blob"]


class WaitedClock(HurriedClock):
    """Tells when somebody has waited."""

    def __init__(self) -> None:
        super().__init__()
        self.waited = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.waited.set()
        await super().sleep(seconds)


async def test_a_blob_that_is_still_read_is_given_to_those_who_waited_for_it(tmp_path: Path) -> None:
    """Layers are unpacked in order: the first of two equal ones must not wait until the second was unpacked."""
    blob = WantedBlob(key="blob", digest=f"sha256:{hashlib.sha256(SMALL).hexdigest()}", size=len(SMALL), most=1 << 20)
    asked, clock = asyncio.Event(), WaitedClock()

    @asynccontextmanager
    async def opener(offset: int) -> AsyncIterator[Body]:
        async def pieces() -> AsyncIterator[bytes]:
            asked.set()
            await clock.waited.wait()
            yield SMALL

        yield Body(start=offset, length=len(SMALL), pieces=pieces())

    cache = BlobCache(tmp_path, network=FEW, clock=clock)
    async with asyncio.timeout(WITHIN), task_group() as group:
        fetching = group.create_task(cache.get(blob, opener, lambda position: None))
        await asked.wait()
        waiting = group.create_task(cache.get(blob, opener, lambda position: None))
        with await fetching as file, await waiting as same:
            for each in (file, same):
                each.seek(0)
                assert each.read() == SMALL


async def test_two_pulls_with_one_cache_fetch_once(registry: FakeRegistry, tmp_path: Path) -> None:
    registry.add_image(NAME, [BIG])
    one, two = Place(tmp_path), Place(tmp_path)
    two.target = tmp_path / "other"

    async with task_group() as group:
        for place in (one, two):
            group.create_task(place.pull(registry.reference(NAME), keep_layers=True))

    assert len(registry.asked_for("/blobs/")) == 1
    assert one.files() == two.files()


async def test_layers_that_are_kept_are_not_fetched_again(registry: FakeRegistry, place: Place) -> None:
    registry.add_image(NAME, [BIG, SMALL])
    await place.pull(registry.reference(NAME), keep_layers=True)
    registry.heard.clear()

    place.target = place.target.with_name("again")

    result = await place.pull(registry.reference(NAME))

    assert registry.asked_for("/blobs/") == []
    assert result.downloaded_bytes == 0


async def test_what_is_written_is_on_the_disk(
    registry: FakeRegistry, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(pull_module, "_sync", synced.append)
    registry.add_image(NAME, [SMALL])

    await place.pull(registry.reference(NAME), is_durable=True)

    assert synced == [place.target]
