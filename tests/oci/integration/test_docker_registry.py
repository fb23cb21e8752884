"""Pulls from a real registry, Debian's docker-registry; cross-checked with skopeo where it is installed."""

import asyncio
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from corral.base.clock import SystemClock
from corral.imaging.layouts import LayoutWriter
from corral.oci.auth import Credential, read_stored
from corral.oci.config import ImagesConfig
from corral.oci.errors import ImageNotFound, PlatformMissing, RegistryRefused
from corral.oci.manifests import ImagePlatform, this_platform
from corral.oci.orders import PullOrder, PullResult
from corral.oci.puller import Puller
from corral.oci.references import digest_of
from corral.oci.registry import ImageLooks
from tests.kit.docker_registry import PASSWORD, USERNAME, DockerRegistry
from tests.kit.images import a_file, a_layer, gzipped, tar_of

NAME = "backends/echo"
OURS = this_platform()
OTHER = ImagePlatform(architecture="s390x")
BIG = a_layer({"weights": os.urandom(3_000_000)})
SMALL = a_layer({"run.sh": b"#!/bin/sh\n"})
ENVIRONMENT = {"PATH": os.defpath}


@pytest.fixture
def registry() -> Iterator[DockerRegistry]:
    with DockerRegistry() as registry:
        yield registry


@pytest.fixture
def guarded() -> Iterator[DockerRegistry]:
    with DockerRegistry(needs_login=True) as registry:
        yield registry


def order_for(source: str, folder: Path) -> PullOrder:
    return PullOrder(sources=(source,), target=str(folder / "target"), cache=str(folder / "cache"), platform=OURS)


async def pulled(order: PullOrder) -> PullResult:
    async with Puller(order, environment=ENVIRONMENT) as puller:
        return await puller.result()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "target").iterdir())


async def test_an_image_for_several_platforms(registry: DockerRegistry, tmp_path: Path) -> None:
    ours = registry.push_image(NAME, [SMALL, BIG], platform=OURS, tag="ours")
    other = registry.push_image(NAME, [SMALL], platform=OTHER, tag="other")
    index = registry.push_index(NAME, [other, ours])

    result = await pulled(order_for(registry.reference(NAME), tmp_path))

    assert (result.digest, result.platform_digest) == (index.digest, ours.digest)
    assert names(tmp_path) == ["run.sh", "weights"]


async def test_an_image_for_other_platforms(registry: DockerRegistry, tmp_path: Path) -> None:
    registry.push_index(NAME, [registry.push_image(NAME, [SMALL], platform=OTHER, tag="other")])

    with pytest.raises(PlatformMissing, match="there are images for linux/s390x"):
        await pulled(order_for(registry.reference(NAME), tmp_path))


async def test_a_layer_is_gone_on_with_by_range(registry: DockerRegistry, tmp_path: Path) -> None:
    registry.push_image(NAME, [SMALL, BIG], platform=OURS)
    order = order_for(registry.reference(NAME), tmp_path)
    await pulled(msgspec.structs.replace(order, keep_layers=True, target=str(tmp_path / "first")))
    for layer in (tmp_path / "cache").iterdir():
        if layer.stat().st_size == len(BIG):
            os.truncate(layer, 1_200_000)
            layer.rename(layer.with_name(f"{layer.name}.part"))

    result = await pulled(order)

    assert result.downloaded_bytes == len(BIG) - 1_200_000
    assert names(tmp_path) == ["run.sh", "weights"]
    assert (tmp_path / "target/weights").read_bytes() == (tmp_path / "first/weights").read_bytes()


async def test_a_moved_tag_and_the_digest_behind_it(registry: DockerRegistry, tmp_path: Path) -> None:
    old = registry.push_image(NAME, [SMALL], platform=OURS)
    new = registry.push_image(NAME, [BIG], platform=OURS)

    moved = await pulled(order_for(registry.reference(NAME), tmp_path))
    kept = await pulled(
        msgspec.structs.replace(
            order_for(f"{registry.address}/{NAME}@{old.digest}", tmp_path), target=str(tmp_path / "old")
        )
    )

    assert (moved.digest, kept.digest) == (new.digest, old.digest)


async def test_what_is_not_there(registry: DockerRegistry, tmp_path: Path) -> None:
    with pytest.raises(ImageNotFound):
        await pulled(order_for(registry.reference(NAME), tmp_path))


async def test_a_login_of_a_docker_configuration(guarded: DockerRegistry, tmp_path: Path) -> None:
    guarded.push_image(NAME, [SMALL, BIG], platform=OURS)
    config = {"auths": {guarded.address: {"username": USERNAME, "password": PASSWORD}}}
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(config))
    order = order_for(guarded.reference(NAME), tmp_path)

    with pytest.raises(RegistryRefused, match="wants a login"):
        await pulled(order)
    wrong = Credential(place=guarded.address, username=USERNAME, password="wrong-word")
    with pytest.raises(RegistryRefused) as caught:
        await pulled(msgspec.structs.replace(order, credentials=(wrong,)))
    assert "wrong-word" not in str(caught.value)
    right = read_stored([tmp_path / "config.json"]).credentials
    await pulled(msgspec.structs.replace(order, credentials=right))

    assert names(tmp_path) == ["run.sh", "weights"]


async def check_with_skopeo(registry: DockerRegistry, tmp_path: Path) -> None:
    plain = tar_of(a_file("run.sh", b"#!/bin/sh\n", mode=0o755))
    writer = LayoutWriter(tmp_path / "layout")
    layer = writer.add_blob(gzipped(plain))
    image = writer.add_image([layer], platform=OURS, diff_ids=[digest_of(plain)])
    writer.finish([image])
    target = f"docker://{registry.reference(NAME)}"
    copy = await asyncio.create_subprocess_exec(
        *("skopeo", "--insecure-policy", "copy", "--dest-tls-verify=false", f"oci:{tmp_path}/layout", target)
    )
    assert await copy.wait() == 0

    result = await pulled(order_for(registry.reference(NAME), tmp_path))

    assert result.digest == image.digest
    assert names(tmp_path) == ["run.sh"]


if shutil.which("skopeo"):
    test_skopeo_takes_what_we_write = check_with_skopeo


async def test_a_look_tells_what_a_pull_then_brings(guarded: DockerRegistry, tmp_path: Path) -> None:
    ours = guarded.push_image(NAME, [SMALL, BIG], platform=OURS, tag="ours")
    other = guarded.push_image(NAME, [SMALL], platform=OTHER, tag="other")
    guarded.push_index(NAME, [other, ours])
    login = Credential(place=guarded.address, username=USERNAME, password=PASSWORD)

    look = await ImageLooks(ImagesConfig(credentials=(login,)), SystemClock()).at(guarded.reference(NAME))
    result = await pulled(msgspec.structs.replace(order_for(guarded.reference(NAME), tmp_path), credentials=(login,)))

    assert look is not None
    assert (look.digest, look.is_index) == (result.digest, True)
    assert [(one.platform, one.download_bytes) for one in look.members] == [
        (OTHER, len(SMALL)),
        (OURS, result.downloaded_bytes),
    ]
    assert look.members[1].digest == result.platform_digest
