"""Finding a backend by its names, and listing what is there."""

import json
from pathlib import Path

import msgspec
import pytest

from corral.base.errors import PathNotUsable
from corral.imaging.layouts import LayoutWriter
from corral.oci.manifests import ImagePlatform
from corral.worker.installing.backend_directory import BackendDirectory, identity_of, make_executable


class Disk:
    """Two places with backends."""

    def __init__(self, folder: Path) -> None:
        self.user = folder / "user"
        self.system = folder / "system"

    def add(self, path: Path, *, run: bool = True, **metadata: str) -> Path:
        path.mkdir(parents=True)
        if run:
            (path / "run.sh").write_text("#!/bin/sh\n")
        if metadata:
            (path / "metadata.json").write_text(json.dumps(metadata))
        return path

    def directory(self, capability: str = "default") -> BackendDirectory:
        return BackendDirectory(installed=self.user, system=(self.system,), capability=capability)

    def find(self, name: str, capability: str = "default") -> Path | None:
        home = self.directory(capability).find(name)
        return None if home is None else home.executable

    def listing(self) -> list[object]:
        return sorted(msgspec.to_builtins(self.directory().listing()), key=lambda entry: str(entry["name"]))


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


def test_nothing_is_found_where_there_is_nothing(disk: Disk) -> None:
    assert disk.find("mock") is None
    assert disk.listing() == []


def test_a_directory_with_a_run_script_is_a_backend(disk: Disk) -> None:
    path = disk.add(disk.user / "mock")
    assert disk.find("mock") == path / "run.sh"
    assert disk.listing() == [{"name": "mock", "is_system": False, "is_meta": False}]


def test_an_installed_backend_hides_a_system_s_one(disk: Disk) -> None:
    disk.add(disk.system / "mock")
    path = disk.add(disk.user / "mock")
    assert disk.find("mock") == path / "run.sh"
    assert len(disk.listing()) == 1


def test_an_installed_build_hides_the_system_s_backend_of_its_alias(disk: Disk) -> None:
    """A build for a GPU is called by the alias of its family, which is the name of what ships with Corral."""
    system = disk.add(disk.system / "llama-cpp")
    build = disk.add(disk.user / "cuda12-llama-cpp", name="cuda12-llama-cpp", alias="llama-cpp")
    directory = disk.directory("nvidia-cuda-12")

    assert disk.find("llama-cpp", "nvidia-cuda-12") == build / "run.sh"
    located = directory.locate("llama-cpp")
    assert located is not None
    assert (located.concrete, located.is_system) == (build, False)
    assert directory.identity("llama-cpp") == directory.identity("cuda12-llama-cpp")

    (build / "run.sh").unlink()
    assert disk.find("llama-cpp", "nvidia-cuda-12") == system / "run.sh", "what cannot run hides nothing"


def test_a_system_s_backend_says_only_its_name(disk: Disk) -> None:
    disk.add(disk.system / "sysmock", name="sysmock", uri="oci://x", version="1")
    assert disk.listing() == [{"name": "sysmock", "is_system": True, "is_meta": False}]


def test_metadata_is_listed_and_aliases_are_not(disk: Disk) -> None:
    told = {"installed_at": "2026-11-15T19:38:17Z", "uri": "oci://x", "version": "1.0.0", "gallery_url": "http://g"}
    disk.add(disk.user / "custom", name="custom", alias="my-alias", **told)
    assert disk.listing() == [{"name": "custom", "is_system": False, "is_meta": False, **told}]
    assert disk.find("my-alias") == disk.user / "custom" / "run.sh"


def test_what_came_from_an_image_on_this_disk_is_listed_with_what_that_image_is_now(disk: Disk, tmp_path: Path) -> None:
    source = tmp_path / "image"
    writer = LayoutWriter(source)
    first = writer.add_image([], platform=ImagePlatform(os="linux", architecture="amd64"), diff_ids=[])
    writer.finish([first])
    disk.add(disk.user / "echo", name="echo", uri=str(source), digest=first.digest)
    disk.add(disk.user / "far", name="far", uri="oci://r/far", digest="sha256:1")

    def told() -> dict[str, object]:
        return {one.name: one.corral and one.corral.source_digest for one in disk.directory().listing()}

    assert told() == {"echo": first.digest, "far": None}
    second = writer.add_image(
        [], platform=ImagePlatform(os="linux", architecture="amd64"), diff_ids=[], annotations={"version": "2"}
    )
    writer.finish([second])
    assert told() == {"echo": second.digest, "far": None}


def test_a_meta_backend_leads_to_its_build(disk: Disk) -> None:
    disk.add(disk.user / "cpu-mockm", name="cpu-mockm")
    disk.add(disk.user / "metamock", run=False, name="metamock", meta_backend_for="cpu-mockm")
    assert disk.find("metamock") == disk.user / "cpu-mockm" / "run.sh"
    assert [entry["is_meta"] for entry in disk.listing()] == [False, True]


@pytest.mark.parametrize("target", ["../elsewhere", "/etc", "gone", ""])
def test_a_meta_backend_leads_nowhere_else(disk: Disk, target: str) -> None:
    disk.add(disk.user.parent / "elsewhere")
    disk.add(disk.user / "meta", run=False, name="meta", meta_backend_for=target)
    assert disk.find("meta") is None


@pytest.mark.parametrize(
    ("capability", "chosen"),
    [
        ("nvidia-cuda-12", "cuda12-whisper"),
        ("amd", "vulkan-whisper"),
        ("intel", "cpu-whisper"),
        ("vulkan", "vulkan-whisper"),
        ("default", "cpu-whisper"),
    ],
)
def test_an_alias_means_the_build_that_fits(disk: Disk, capability: str, chosen: str) -> None:
    for name in ("cpu-whisper", "cuda12-whisper", "vulkan-whisper"):
        disk.add(disk.user / name, name=name, alias="whisper")
    assert disk.find("whisper", capability) == disk.user / chosen / "run.sh"


@pytest.mark.parametrize("name", ["cuda12-whisper", "whisper", "speech"])
def test_a_backend_knows_every_name_that_leads_to_it(disk: Disk, name: str) -> None:
    disk.add(disk.user / "cuda12-whisper", name="cuda12-whisper", alias="whisper")
    disk.add(disk.user / "speech", run=False, name="speech", meta_backend_for="cuda12-whisper")
    disk.add(disk.user / "other", run=False, name="other", meta_backend_for="cpu-whisper")
    home = disk.directory().find(name)

    assert home is not None
    assert home.names == {"cuda12-whisper"}
    assert home.shared_names == {"whisper", "speech"}


def test_a_manifest_names_a_backend_and_its_port(disk: Disk) -> None:
    path = disk.add(disk.system / "llama_cpp")
    (path / "corral.json").write_text('{"name": "llama-cpp", "http": {"protocol": "openai"}}')
    home = disk.directory().find("llama-cpp")
    assert home is not None
    assert (home.name, home.names, home.manifest.has_openai_port) == ("llama-cpp", {"llama-cpp", "llama_cpp"}, True)
    assert home == disk.directory().find("llama_cpp")


def test_a_manifest_says_which_routes_the_port_answers(disk: Disk) -> None:
    path = disk.add(disk.user / "engine")
    manifest = '{"http": {"protocol": "openai", "front": true, "routes": ["/v1/responses", "/v1/messages", "/x"]}}'
    (path / "corral.json").write_text(manifest)
    disk.add(disk.user / "silent")
    homes = [disk.directory().find(name) for name in ("engine", "silent")]
    assert [home and home.manifest.has_front for home in homes] == [True, False]
    assert [home and home.manifest.http_routes for home in homes] == [("/v1/messages", "/v1/responses"), None]


def test_an_unknown_kind_of_port_is_none(disk: Disk) -> None:
    path = disk.add(disk.user / "odd")
    (path / "corral.json").write_text('{"http": {"protocol": "gopher"}}')
    home = disk.directory().find("odd")
    assert home is not None
    assert not home.manifest.has_openai_port


@pytest.mark.parametrize("text", ["{bad", "[]", '{"name": 5}', "\xff"])
def test_damaged_metadata_hides_neither_the_backend_nor_others(disk: Disk, text: str) -> None:
    path = disk.add(disk.user / "mock")
    (path / "metadata.json").write_text(text, encoding="latin-1")
    disk.add(disk.user / "other")
    assert disk.find("mock") == path / "run.sh"
    assert len(disk.listing()) == 2


@pytest.mark.parametrize("name", [".corral", "mock.install-tmp", "mock.install-backup"])
def test_unfinished_installs_are_no_backends(disk: Disk, name: str) -> None:
    disk.add(disk.user / name)
    assert disk.listing() == []


@pytest.mark.parametrize("where", ["plain", "plain/plain"])
def test_a_bare_executable_is_found_as_well(disk: Disk, where: str) -> None:
    path = disk.system / where
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n")
    assert disk.find("plain") == path
    assert disk.listing() == []


@pytest.mark.parametrize("name", ["", ".", "..", "../user/mock", "a\0b", "é" * 200])
def test_a_path_is_not_a_name(disk: Disk, name: str) -> None:
    disk.add(disk.user / "mock")
    assert disk.find(name) is None


def test_vulkan_drivers_that_come_along_are_found(disk: Disk) -> None:
    path = disk.add(disk.user / "v")
    drivers = path / "vulkan" / "icd.d"
    drivers.mkdir(parents=True)
    for name in ("b.json", "a.json", "readme"):
        (drivers / name).touch()
    home = disk.directory().find("v")
    assert home is not None
    assert home.vulkan_drivers == (drivers / "a.json", drivers / "b.json")


def test_a_directory_that_took_the_name_of_another_is_another(disk: Disk) -> None:
    path = disk.add(disk.user / "mock")
    before = identity_of(path)
    path.rename(disk.user / "old")
    assert identity_of(path) == (0, 0)
    disk.add(path)
    assert identity_of(path) not in {before, (0, 0)}


def test_a_missing_bit_is_added(disk: Disk) -> None:
    script = disk.add(disk.user / "mock") / "run.sh"
    script.chmod(0o644)
    make_executable(script)
    assert script.stat().st_mode & 0o777 == 0o700
    script.chmod(0o755)
    make_executable(script)
    assert script.stat().st_mode & 0o777 == 0o755
    with pytest.raises(PathNotUsable):
        make_executable(disk.user / "gone")
