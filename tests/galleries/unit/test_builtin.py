"""The gallery that ships with Corral."""

from pathlib import Path

import pytest

from corral.galleries.catalogue import BackendCatalogue
from corral.galleries.config import BUILT_IN
from corral.galleries.index_document import BACKENDS, LocalIndexes
from corral.galleries.places import read_place
from tests.kit.galleries import odd_metas


@pytest.fixture(scope="module")
def built_in() -> BackendCatalogue:
    return BackendCatalogue([LocalIndexes(BACKENDS, 2**20).read(read_place(BUILT_IN.url), BUILT_IN)])


def test_all_of_it_can_be_used(built_in: BackendCatalogue) -> None:
    assert built_in.problems == ()
    assert list(odd_metas(built_in.entries)) == []
    assert all(entry.description and entry.license for entry in built_in.entries)


def test_every_build_is_a_backend_s_directory(built_in: BackendCatalogue) -> None:
    builds = [entry for entry in built_in.entries if not entry.is_meta]
    assert builds
    for build in builds:
        assert (Path(build.artefact) / "run.sh").is_file()


@pytest.mark.parametrize("name", ["llama-cpp", "corral@llama-cpp", "cpu-llama-cpp"])
@pytest.mark.parametrize("capability", ["default", "nvidia-cuda-12", "amd", "metal"])
def test_llama_cpp_is_there_for_every_machine(built_in: BackendCatalogue, name: str, capability: str) -> None:
    assert built_in.key_of(name, capability) == "cpu-llama-cpp"
