"""The models that Corral itself names."""

import hashlib
from pathlib import Path

import pytest

from corral.galleries.config import BUILT_IN
from corral.galleries.index_document import LocalIndexes
from corral.galleries.model_check import CheckRules, ProblemSeverity, check_gallery
from corral.galleries.model_entries import ModelContent, plan_model
from corral.galleries.model_galleries import MODELS
from corral.galleries.places import read_place
from corral.hubs.references import HuggingFaceReference, parse_reference
from corral.processes.first_model import NAME, configuration

PROVIDED = sorted((Path(__file__).parents[3] / ".build").glob("models-*/SmolLM2-135M-Instruct.gguf"))


@pytest.fixture(scope="module")
def built_in() -> ModelContent:
    return LocalIndexes(MODELS, 2**20).read(read_place(BUILT_IN.url), BUILT_IN)


def test_all_of_it_can_be_installed(built_in: ModelContent) -> None:
    assert built_in.skipped == ()
    check = check_gallery(built_in, {}, CheckRules(backends=frozenset({"llama-cpp"})))
    assert [problem for problem in check.problems if problem.severity is ProblemSeverity.ERROR] == []
    assert all(entry.description and entry.license for entry in built_in.entries)


def test_the_first_model_is_the_one_that_up_gives(built_in: ModelContent) -> None:
    entry = built_in.entries[0]
    (file,) = plan_model(entry).files
    assert entry.name == NAME
    assert f"model: {file.filename}\n" in configuration()
    assert file.uri == "corral:first-model"


@pytest.mark.skipif(not PROVIDED, reason="the setup has not downloaded the model")
def test_its_hash_is_that_of_the_file_that_the_setup_downloads(built_in: ModelContent) -> None:
    (file,) = built_in.entries[0].files
    assert hashlib.sha256(PROVIDED[0].read_bytes()).hexdigest() == file.sha256


def test_the_others_come_from_a_hub_that_tells_their_hashes(built_in: ModelContent) -> None:
    for entry in built_in.entries[1:]:
        for file in entry.files:
            reference = parse_reference(file.uri)
            assert isinstance(reference, HuggingFaceReference)
            assert reference.path == file.filename
