"""Objects in a real S3 server."""

import io
import os
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pytest

from corral.files.s3 import S3Objects
from corral.files.s3_bucket import S3Bucket, open_bucket
from corral.files.storage import ObjectMissing, StorageConfig, StorageUnavailable
from tests.kit.ports import lasting_port
from tests.kit.s3 import S3Server

LARGE = 40 * 1024 * 1024
"""More than one part."""


@pytest.fixture
def objects(s3_server: S3Server) -> S3Objects:
    return S3Objects(s3_server.config())


def written(path: Path, content: bytes) -> BinaryIO:
    path.write_bytes(content)
    return path.open("rb")


def full_disk() -> BinaryIO:
    return open("/dev/full", "wb", buffering=0)


async def stored(objects: S3Objects, folder: Path, key: str, content: bytes) -> None:
    with written(folder / "source", content) as source:
        await objects.upload(source, key, created_at="2026-01-02T03:04:05Z")


@pytest.mark.parametrize(
    ("key", "size"),
    [
        ("models/m/empty", 0),
        ("models/m/small.bin", 5),
        ("models/m/large.bin", LARGE),
        ("models/a b#c%d/ü?&.bin", 5),
        ("ephemeral/fetch//srv/cache/staging-tmp/x.tmp/output", 5),
        ("ephemeral/fetch//a//b c/output", 5),
    ],
)
async def test_what_is_stored_is_found_again(objects: S3Objects, tmp_path: Path, key: str, size: int) -> None:
    content = os.urandom(size)
    await stored(objects, tmp_path, key, content)

    assert (await objects.look(key)).size == size
    target = io.BytesIO()
    await objects.download(key, target)
    assert target.getvalue() == content


async def test_another_content_has_another_mark(objects: S3Objects, tmp_path: Path) -> None:
    await stored(objects, tmp_path, "models/m/changing", b"one")
    before = await objects.look("models/m/changing")
    await stored(objects, tmp_path, "models/m/changing", b"two")

    assert (await objects.look("models/m/changing")).etag != before.etag != ""


@pytest.mark.parametrize("key", ["models/none", "../secret", "a/../b", "a//../b"])
async def test_what_is_not_there_is_missing(objects: S3Objects, tmp_path: Path, key: str) -> None:
    with pytest.raises(ObjectMissing, match="object"):
        await objects.look(key)
    with pytest.raises(ObjectMissing, match="object"):
        await objects.download(key, io.BytesIO())


@pytest.mark.parametrize("key", ["../stolen//x", "ephemeral/../../stolen//x", "..//x", "a/./b//x", "a\nb//x", ""])
async def test_no_key_leads_to_another_bucket(key: str) -> None:
    """Clients resolve addresses, and what is above a bucket is the next one. Nobody is asked, so nobody need answer."""
    config = StorageConfig(url=f"http://127.0.0.1:{lasting_port()}", access_key="a", secret_key="b", retries=0)

    for objects in (S3Objects(config), S3Bucket(config, None)):
        with pytest.raises(ObjectMissing, match="cannot be the name of an object"):
            await objects.upload(io.BytesIO(b"secret"), key, created_at="")
    async with open_bucket(config) as bucket:
        with pytest.raises(ObjectMissing):
            await bucket.delete([key])


async def test_wrong_keys_are_told_without_being_told(s3_server: S3Server) -> None:
    wrong = S3Objects(replace(s3_server.config(), secret_key="this-is-wrong"))

    with pytest.raises(StorageUnavailable, match="403") as caught:
        await wrong.look("models/x")
    assert "this-is-wrong" not in str(caught.value)
    assert "this-is-wrong" not in repr(s3_server.config())


async def test_a_server_that_is_away_is_told(s3_server: S3Server, tmp_path: Path) -> None:
    nobody = S3Objects(replace(s3_server.config(), url=f"http://127.0.0.1:{lasting_port()}"))

    with pytest.raises(StorageUnavailable):
        await nobody.look("models/x")
    with pytest.raises(StorageUnavailable):
        await nobody.upload(io.BytesIO(b"x"), "models/x", created_at="")


async def test_a_full_disk_is_not_blamed_on_the_storage(objects: S3Objects, tmp_path: Path) -> None:
    await stored(objects, tmp_path, "models/m/y", b"content")
    with full_disk() as full, pytest.raises(OSError, match="No space left"):
        await objects.download("models/m/y", full)
