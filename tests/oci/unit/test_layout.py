"""Images as files."""

import json
import tarfile
from pathlib import Path

import msgspec
import pytest

from corral.imaging.layouts import LayoutWriter
from corral.oci.contents import is_layout, read_image
from corral.oci.errors import ContentMismatch, ImageNotFound, LimitExceeded, ManifestUnusable, PlatformMissing
from corral.oci.limits import UnpackLimits
from corral.oci.manifests import ImagePlatform
from corral.oci.orders import PullOrder, PullResult, Scale
from corral.oci.pull import Pull
from corral.oci.references import digest_of
from tests.kit.clock import HurriedClock
from tests.kit.images import a_file, a_symlink, gzipped, tar_of

AMD = ImagePlatform(architecture="amd64")
ARM = ImagePlatform(architecture="arm64")
LIMITS = UnpackLimits()


def write_layout(folder: Path, *platforms: ImagePlatform, is_nested: bool = False) -> list[str]:
    """One image per platform, with a file that tells which; their digests."""
    writer = LayoutWriter(folder)
    images = []
    for platform in platforms:
        plain = tar_of(a_file("which", str(platform).encode()))
        layer = writer.add_blob(gzipped(plain))
        images.append(writer.add_image([layer], platform=platform, diff_ids=[digest_of(plain)]))
    writer.finish([writer.add_index(images)] if is_nested else images)
    return [image.digest for image in images]


async def pulled(source: object, tmp_path: Path, platform: ImagePlatform = AMD) -> PullResult:
    order = PullOrder(
        sources=(str(source),),
        target=str(tmp_path / "target"),
        cache=str(tmp_path / "cache"),
        platform=platform,
        is_durable=False,
    )
    return await Pull(order, scale=Scale(), clock=HurriedClock()).run()


def packed(folder: Path, archive: Path) -> Path:
    with tarfile.open(archive, "w") as tar:
        tar.add(folder, arcname=".")
    return archive


@pytest.mark.parametrize("is_nested", [False, True])
async def test_a_layout_is_unpacked_for_the_platform(is_nested: bool, tmp_path: Path) -> None:
    _, arm = write_layout(tmp_path / "layout", AMD, ARM, is_nested=is_nested)

    result = await pulled(tmp_path / "layout", tmp_path, ARM)

    assert (tmp_path / "target" / "which").read_text() == "linux/arm64"
    assert result.platform_digest == arm
    assert (result.digest == arm) is not is_nested
    assert result.downloaded_bytes == 0


@pytest.mark.parametrize("scheme", ["ocifile://", "file://"])
async def test_a_layout_directory_by_its_uri(scheme: str, tmp_path: Path) -> None:
    write_layout(tmp_path / "layout", AMD)

    await pulled(f"{scheme}{tmp_path}/layout", tmp_path)

    assert (tmp_path / "target" / "which").exists()


async def test_a_layout_in_an_archive(tmp_path: Path) -> None:
    (digest,) = write_layout(tmp_path / "layout", AMD)

    result = await pulled(f"ocifile://{packed(tmp_path / 'layout', tmp_path / 'x.tar')}", tmp_path)

    assert result.digest == digest
    assert (tmp_path / "target" / "which").exists()
    assert (tmp_path / "x.tar").exists()


def docker_save(path: Path, *, images: int = 1) -> Path:
    """As older versions of Docker write it: a directory per layer, and equal layers as links."""
    layers = ["one/layer.tar", "two/layer.tar"]
    table = [{"Config": "config.json", "RepoTags": ["echo:latest"], "Layers": layers}] * images
    path.write_bytes(
        tar_of(
            a_file("one/layer.tar", tar_of(a_file("x", b"hello"))),
            a_symlink("two/layer.tar", "../one/layer.tar"),
            a_file("config.json", b"{}"),
            a_file("manifest.json", json.dumps(table).encode()),
        )
    )
    return path


async def test_what_docker_save_writes(tmp_path: Path) -> None:
    result = await pulled(f"ocifile://{docker_save(tmp_path / 'x.tar')}", tmp_path)

    assert (tmp_path / "target" / "x").read_text() == "hello"
    assert result.digest == ""


def test_several_images_in_one_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestUnusable, match="holds 2 images; expected is exactly one"):
        read_image(docker_save(tmp_path / "x.tar", images=2), AMD, LIMITS)


async def test_a_blob_that_was_changed_is_noticed(tmp_path: Path) -> None:
    write_layout(tmp_path / "layout", AMD)
    largest = max((tmp_path / "layout/blobs/sha256").iterdir(), key=lambda path: path.read_bytes()[:2] == b"\x1f\x8b")
    data = largest.read_bytes()
    largest.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))

    with pytest.raises(ContentMismatch):
        await pulled(tmp_path / "layout", tmp_path)

    assert not (tmp_path / "target").exists()


def test_a_manifest_that_was_changed_is_noticed(tmp_path: Path) -> None:
    (digest,) = write_layout(tmp_path / "layout", AMD)
    (tmp_path / "layout/blobs/sha256" / digest.partition(":")[2]).write_text("{}")

    with pytest.raises(ContentMismatch):
        read_image(tmp_path / "layout", AMD, LIMITS)


def test_what_is_missing_is_told(tmp_path: Path) -> None:
    (digest,) = write_layout(tmp_path / "layout", AMD)
    (tmp_path / "layout/blobs/sha256" / digest.partition(":")[2]).unlink()

    with pytest.raises(ImageNotFound, match=digest):
        read_image(tmp_path / "layout", AMD, LIMITS)
    with pytest.raises(ImageNotFound):
        read_image(tmp_path / "nothing", AMD, LIMITS)


def test_what_is_no_image_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(tar_of(a_file("x")))

    with pytest.raises(ManifestUnusable, match="neither an OCI layout nor what `docker save` writes"):
        read_image(tmp_path / "x.tar", AMD, LIMITS)
    with pytest.raises(LimitExceeded):
        read_image(docker_save(tmp_path / "y.tar"), AMD, UnpackLimits(entries=1))


def test_another_platform_is_told(tmp_path: Path) -> None:
    write_layout(tmp_path / "layout", AMD, ARM)

    with pytest.raises(PlatformMissing, match="linux/s390x; there are images for linux/amd64, linux/arm64"):
        read_image(tmp_path / "layout", ImagePlatform(architecture="s390x"), LIMITS)


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_layout(tmp_path / name, AMD, ARM, is_nested=True)

    assert is_layout(tmp_path / "one")
    one, two = (
        {
            path.relative_to(tmp_path / name): path.read_bytes()
            for path in (tmp_path / name).rglob("*")
            if path.is_file()
        }
        for name in ("one", "two")
    )
    assert one == two


def test_what_is_written_says_what_it_is(tmp_path: Path) -> None:
    (digest,) = write_layout(tmp_path, AMD)

    manifest = msgspec.json.decode((tmp_path / "blobs/sha256" / digest.partition(":")[2]).read_bytes())

    assert manifest["schemaVersion"] == 2
    assert manifest["config"]["mediaType"] == "application/vnd.oci.image.config.v1+json"
    assert manifest["layers"][0]["mediaType"] == "application/vnd.oci.image.layer.v1.tar+gzip"
