"""Images of a backend, made with real tools: the same again, for several machines, and as the puller unpacks them."""

import asyncio
import json
import os
import shutil
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from corral.base.errors import PathNotUsable
from corral.base.tasks import start_task
from corral.imaging.errors import BuildFailed, PackagesMissing
from corral.imaging.layers import Compression, Packing
from corral.imaging.layouts import write_archive
from corral.imaging.packages import InstallerKind, PackageInstaller
from corral.imaging.targets import this_python
from corral.oci.contents import is_layout
from corral.oci.manifests import ImagePlatform, this_platform
from corral.oci.orders import PullOrder, Scale
from corral.oci.pull import Pull
from tests.kit.clock import ManualClock
from tests.kit.waiting import wait_until
from tests.kit.wheels import a_wheel, lock_of

from .conftest import Workbench

AMD, ARM, APPLE = (
    ImagePlatform(),
    ImagePlatform(architecture="arm64"),
    ImagePlatform(os="darwin", architecture="arm64"),
)


async def unpacked(source: str | Path, target: Path) -> dict[str, bytes | str]:
    """What a pull makes of an image: files with their contents, links with where they lead."""
    order = PullOrder(
        sources=(str(source),), target=str(target), cache=str(target.parent / "cache"), platform=this_platform()
    )
    await Pull(order, scale=Scale(), clock=ManualClock()).run()
    return contents_of(target)


def contents_of(folder: Path) -> dict[str, bytes | str]:
    return {
        str(path.relative_to(folder)): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


async def test_an_image_holds_the_backend_and_its_packages(workbench: Workbench, tmp_path: Path) -> None:
    built = await workbench.build(tmp_path / "image")

    files = await unpacked(tmp_path / "image", tmp_path / "target")

    packages = f"packages/{this_python()}"
    assert sorted(files) == [
        "corral.json",
        f"{packages}/first-1.0.dist-info/METADATA",
        f"{packages}/first-1.0.dist-info/WHEEL",
        f"{packages}/first-1.0.dist-info/entry_points.txt",
        f"{packages}/first/__init__.py",
        f"{packages}/second-1.0.dist-info/METADATA",
        f"{packages}/second-1.0.dist-info/WHEEL",
        f"{packages}/second/__init__.py",
        f"{packages}/second/data.txt",
        "requirements.txt",
        "run.sh",
    ]
    assert os.access(tmp_path / "target" / "run.sh", os.X_OK)
    assert [layer.title for layer in built.images[0].layers] == [f"packages for Python {this_python()}", "the backend"]


async def test_the_same_input_gives_the_same_image(workbench: Workbench, tmp_path: Path) -> None:
    """From another checkout, with other times and rights, in another place, by way of another cache."""
    first = await workbench.build(tmp_path / "image")
    checkout = tmp_path / "elsewhere" / "checkout" / "tiny"
    shutil.copytree(workbench.directory, checkout)
    for path in checkout.iterdir():
        os.utime(path, (1_234_567_890, 1_234_567_890))
        path.chmod(0o600)
    environment = {**workbench.environment, "UV_CACHE_DIR": str(tmp_path / "another-cache")}

    second = await workbench.build(tmp_path / "far" / "image", directory=checkout, environment=environment)
    write_archive(tmp_path / "image", tmp_path / "first.tar")
    write_archive(tmp_path / "far" / "image", tmp_path / "second.tar")

    assert first.digest == second.digest
    assert (tmp_path / "first.tar").read_bytes() == (tmp_path / "second.tar").read_bytes()


async def test_a_change_of_the_backend_leaves_the_lower_layers_alone(workbench: Workbench, tmp_path: Path) -> None:
    before = await workbench.build(tmp_path / "image")
    (workbench.directory / "more.py").write_text("more")

    after = await workbench.build(tmp_path / "image")

    digests = [[layer.written.descriptor.digest for layer in one.images[0].layers] for one in (before, after)]
    assert digests[0][0] == digests[1][0]
    assert digests[0][1] != digests[1][1]


async def test_several_platforms_make_a_list_and_share_what_they_can(workbench: Workbench, tmp_path: Path) -> None:
    wheels = [
        a_wheel(workbench.wheels, "native", tag=f"cp312-cp312-{tag}", files={"native/which": tag})
        for tag in ("manylinux_2_17_x86_64", "manylinux_2_28_aarch64", "macosx_11_0_arm64")
    ]
    (workbench.directory / "requirements.txt").write_text(lock_of(wheels))

    built = await workbench.build(tmp_path / "image", platforms=(AMD, ARM, APPLE), python_versions=("3.12",))

    layers = [[layer.written.descriptor.digest for layer in image.layers] for image in built.images]
    assert len({packages for packages, _ in layers}) == 3
    assert len({own for _, own in layers}) == 1
    top = json.loads((tmp_path / "image" / "index.json").read_text())["manifests"][0]
    index = json.loads((tmp_path / "image" / "blobs" / top["digest"].replace(":", "/")).read_text())
    assert [entry["platform"] for entry in index["manifests"]] == [
        {"os": "linux", "architecture": "amd64"},
        {"os": "linux", "architecture": "arm64"},
        {"os": "darwin", "architecture": "arm64"},
    ]
    assert index["annotations"]["org.opencontainers.image.title"] == "tiny"
    if this_platform() == AMD:
        files = await unpacked(tmp_path / "image", tmp_path / "target")
        assert files["packages/3.12/native/which"] == b"manylinux_2_17_x86_64"


async def test_a_wheel_that_a_platform_lacks_is_named(workbench: Workbench, tmp_path: Path) -> None:
    wheel = a_wheel(workbench.wheels, "native", tag="cp312-cp312-manylinux_2_34_x86_64")
    (workbench.directory / "requirements.txt").write_text(lock_of([wheel]))
    wish = {"python_versions": ("3.12",), "platforms": (AMD,)}

    with pytest.raises(PackagesMissing) as caught:
        await workbench.build(tmp_path / "image", **wish)

    for words in (str(workbench.directory / "requirements.txt"), "linux/amd64", "3.12", "--glibc", "native"):
        assert words in str(caught.value)
    assert not (tmp_path / "image").exists()
    assert (await workbench.build(tmp_path / "image", glibc="2.34", **wish)).images


async def test_a_wheel_that_was_changed_is_refused(workbench: Workbench, tmp_path: Path) -> None:
    a_wheel(workbench.wheels, "first", files={"first/evil.py": "evil"})

    with pytest.raises(PackagesMissing, match=r"(?i)hash mismatch"):
        await workbench.build(tmp_path / "image")


async def test_an_interpreter_goes_below_the_packages(workbench: Workbench, tmp_path: Path) -> None:
    tree = tmp_path / "interpreter"
    (tree / "bin").mkdir(parents=True)
    (tree / "lib" / "python3.12" / "__pycache__").mkdir(parents=True)
    (tree / "bin" / "python3.12").write_text("#!/bin/sh\n")
    (tree / "bin" / "python3.12").chmod(0o755)
    (tree / "bin" / "python3").symlink_to("python3.12")
    (tree / "lib" / "python3.12" / "os.py").write_text("os")
    (tree / "lib" / "python3.12" / "__pycache__" / "os.pyc").write_text("os")

    built = await workbench.build(tmp_path / "image", interpreters={this_platform(): tree})

    files = await unpacked(tmp_path / "image", tmp_path / "target")
    titles = [layer.title for layer in built.images[0].layers]
    assert titles == ["Python 3.12", "packages for Python 3.12", "the backend"]
    assert files["python/bin/python3"] == "python3.12"
    assert "python/lib/python3.12/os.py" in files
    assert "packages/3.12/first/__init__.py" in files
    assert not [name for name in files if name.endswith(".pyc")]


async def test_libraries_and_words_go_in_as_they_are_given(workbench: Workbench, tmp_path: Path) -> None:
    (tmp_path / "libreal.so.1.2").write_bytes(b"library")
    (tmp_path / "libreal.so.1").symlink_to("libreal.so.1.2")

    built = await workbench.build(
        tmp_path / "image",
        libraries={this_platform(): (tmp_path / "libreal.so.1",)},
        annotations={"org.example.colour": "blue", "org.opencontainers.image.version": "2.0"},
        created=datetime(2026, 1, 31, 12, tzinfo=UTC),
    )

    assert (await unpacked(tmp_path / "image", tmp_path / "target"))["lib/libreal.so.1"] == b"library"
    manifest = json.loads((tmp_path / "image" / "blobs" / built.digest.replace(":", "/")).read_text())
    assert manifest["annotations"]["org.example.colour"] == "blue"
    assert manifest["annotations"]["org.opencontainers.image.version"] == "2.0"
    assert manifest["annotations"]["org.opencontainers.image.created"] == "2026-01-31T12:00:00Z"
    config = json.loads((tmp_path / "image" / "blobs" / manifest["config"]["digest"].replace(":", "/")).read_text())
    assert config["config"]["Labels"] == manifest["annotations"]
    assert len(config["rootfs"]["diff_ids"]) == len(config["history"]) == len(manifest["layers"]) == 3


@pytest.mark.parametrize("compression", list(Compression))
async def test_an_archive_is_unpacked_to_the_same_tree(
    workbench: Workbench, tmp_path: Path, compression: Compression
) -> None:
    await workbench.build(tmp_path / "image", packing=Packing(compression=compression, level=1))
    write_archive(tmp_path / "image", tmp_path / "image.tar")

    from_layout = await unpacked(tmp_path / "image", tmp_path / "one")
    from_archive = await unpacked(f"ocifile://{tmp_path / 'image.tar'}", tmp_path / "other")

    assert from_layout == from_archive
    with tarfile.open(tmp_path / "image.tar") as archive:
        assert "manifest.json" in archive.getnames()


async def test_a_layout_is_replaced_and_nothing_else(workbench: Workbench, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis").touch()

    with pytest.raises(PathNotUsable, match="precious is there already and is no OCI layout; --output"):
        await workbench.build(tmp_path / "precious")
    await workbench.build(tmp_path / "image")
    await workbench.build(tmp_path / "image")

    assert [path.name for path in (tmp_path / "precious").iterdir()] == ["thesis"]
    assert is_layout(tmp_path / "image")
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


async def test_a_place_that_cannot_be_written_is_named(workbench: Workbench, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(PathNotUsable, match="--output names another place"):
        await workbench.build(tmp_path / "file" / "image")
    with pytest.raises(PathNotUsable, match="--archive names another place"):
        write_archive(tmp_path, tmp_path / "file" / "image.tar")


async def test_a_build_that_is_interrupted_leaves_nothing(workbench: Workbench, tmp_path: Path) -> None:
    started, installer = tmp_path / "started", tmp_path / "uv"
    installer.write_text(f"#!/bin/sh\ntouch {started}\nexec sleep 600\n")
    installer.chmod(0o755)
    slow = Workbench(
        directory=workbench.directory,
        wheels=workbench.wheels,
        installer=PackageInstaller(kind=InstallerKind.UV, words=[str(installer)]),
        environment=workbench.environment,
    )

    building = start_task(slow.build(tmp_path / "out" / "image"), name="build")
    await asyncio.to_thread(wait_until, started.exists, "the installer")
    building.cancel()
    with pytest.raises(asyncio.CancelledError):
        await building

    assert list((tmp_path / "out").iterdir()) == []


async def test_pip_says_what_it_cannot_do(workbench: Workbench, tmp_path: Path) -> None:
    other = ARM if this_platform() == AMD else AMD
    with_pip = Workbench(
        directory=workbench.directory,
        wheels=workbench.wheels,
        installer=PackageInstaller(kind=InstallerKind.PIP, words=["pip"]),
        environment=workbench.environment,
    )

    with pytest.raises(BuildFailed, match=r"pip cannot get packages for .* install uv"):
        await with_pip.build(tmp_path / "image", platforms=(other,))
