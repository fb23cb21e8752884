"""Files are grouped into builds, the best that fits is chosen, and what is made of it is always a usable model."""

import string

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from corral.base.errors import InvalidInput
from corral.frontend.models.decide.model import read_model
from corral.galleries.model_key_checks import unknown_keys, unknown_words
from corral.hubs.choose import (
    MachineMemory,
    PullWish,
    choose_build,
    choose_projector,
    default_build,
    directory_files,
    group_builds,
    parts_of,
    quantisation_in,
    without_quantisation,
)
from corral.hubs.configure import check_name, clean_name, configure_directory, configure_gguf
from corral.hubs.gguf import GgufFacts, GgufKind
from corral.hubs.listings import HubFile


def files(**sizes: int) -> list[HubFile]:
    return [HubFile(path=path, url=f"https://x/{path}", size=size) for path, size in sizes.items()]


def repository(*paths: str) -> list[HubFile]:
    return files(**{path: 1000 - number for number, path in enumerate(paths)})


@pytest.mark.parametrize(
    ("name", "quantisation", "rest"),
    [
        ("Qwen3-8B-Q4_K_M", "Q4_K_M", "Qwen3-8B"),
        ("qwen2.5-0.5b-instruct-q4_k_m", "Q4_K_M", "qwen2.5-0.5b-instruct"),
        ("model.Q5_K_S", "Q5_K_S", "model"),
        ("Model-UD-Q4_K_XL", "UD-Q4_K_XL", "Model"),
        ("gemma-IQ3_XXS", "IQ3_XXS", "gemma"),
        ("x-Q4_0_4_4", "Q4_0_4_4", "x"),
        ("x-fp16", "F16", "x"),
        ("x.BF16", "BF16", "x"),
        ("gpt-oss-20b-MXFP4", "MXFP4", "gpt-oss-20b"),
        ("big-Q8_0-00001-of-00003", "Q8_0", "big"),
        ("Q4-lover-7b", "Q4", "Q4-lover-7b"),
        ("llama-3.2-1b", "", "llama-3.2-1b"),
        ("Q4_K_M", "Q4_K_M", "Q4_K_M"),
    ],
)
def test_names_of_files_tell_the_quantisation(name: str, quantisation: str, rest: str) -> None:
    assert (quantisation_in(name), without_quantisation(name)) == (quantisation, rest)


def test_parts_are_one_build_and_other_files_are_none() -> None:
    builds = group_builds(
        repository(
            "a-Q8_0-00001-of-00002.gguf",
            "a-Q8_0-00002-of-00002.gguf",
            "a-F16-00001-of-00002.gguf",
            "a-Q4_K_M.GGUF",
            "mmproj-F16.gguf",
            "a-imatrix.gguf",
            "config.json",
        )
    )
    assert [(build.name, len(build.files)) for build in builds] == [("Q8_0", 2), ("Q4_K_M", 1)]


def test_builds_of_one_quantisation_are_told_apart() -> None:
    builds = group_builds(repository("a-Q4_0.gguf", "b-Q4_0.gguf", "x/c.gguf", "y/c.gguf", "UD-Q2_K_XL/d.gguf"))
    assert [build.name for build in builds] == ["a-Q4_0", "b-Q4_0", "x/c.gguf", "y/c.gguf", "UD-Q2_K_XL"]
    with pytest.raises(InvalidInput, match=r"'q4_0' fits several builds; there are a-Q4_0, b-Q4_0"):
        choose_build(builds, PullWish(text="", build="q4_0"), lambda build: build.bytes)
    assert choose_build(builds, PullWish(text="", build="B-q4_0.gguf"), lambda build: 0)[0].name == "b-Q4_0"


@pytest.mark.parametrize(
    ("names", "memory", "chosen"),
    [
        (["F16", "Q8_0", "Q4_K_M", "Q2_K"], 0, "Q4_K_M"),
        (["F16", "Q8_0", "Q4_K_M", "Q2_K"], 10_000, "Q4_K_M"),
        (["F16", "Q8_0", "Q4_K_M", "Q3_K_M", "Q2_K"], 997, "Q3_K_M"),
        (["F16", "Q8_0", "Q6_K"], 10_000, "Q8_0"),
        (["F16", "Q8_0", "Q6_K"], 998, "Q6_K"),
        (["F16"], 10_000, "F16"),
        (["F16", "Q8_0"], 1, "Q8_0"),
    ],
)
def test_the_best_that_fits_is_chosen(names: list[str], memory: int, chosen: str) -> None:
    builds = group_builds(repository(*(f"m-{name}.gguf" for name in names)))
    wish = PullWish(text="", machines=(MachineMemory(vram_bytes=memory), MachineMemory(ram_bytes=memory // 2)))
    build, notes = choose_build(builds, wish, lambda build: build.bytes)
    assert build.name == chosen
    assert bool(notes) is (memory == 1)


def test_the_projector_beside_the_build_is_taken() -> None:
    candidates = repository("mmproj-F32.gguf", "mmproj-f16.gguf", "x/mmproj-Q8_0.gguf", "m-Q4_0.gguf", "x/n-Q4_0.gguf")
    top, inner = group_builds(candidates)
    assert getattr(choose_projector(candidates, top), "path", "") == "mmproj-f16.gguf"
    assert getattr(choose_projector(candidates, inner), "path", "") == "x/mmproj-Q8_0.gguf"
    assert choose_projector(candidates[3:], top) is None


def test_a_directory_needs_a_configuration_and_weights() -> None:
    assert directory_files(repository("model.safetensors")) == ()
    assert directory_files(repository("config.json", "pytorch_model.bin")) == ()


PIECES = st.sampled_from([*"aQ4_-0125.g/8", "Q4_K_M", "-00001-of-00002", "-00002-of-00002", ".gguf", "mmproj"])
PATHS = st.lists(PIECES, max_size=8).map(lambda pieces: f"{''.join(pieces)}.gguf")
BYTES = st.integers(0, 1 << 50)


@given(st.dictionaries(PATHS, BYTES, max_size=12), BYTES)
def test_every_grouping_has_a_choice(sizes: dict[str, int], memory: int) -> None:
    listing = files(**sizes)
    builds = group_builds(listing)
    assert len({build.name for build in builds}) == len(builds)
    assert {file.path for build in builds for file in build.files} <= set(sizes)
    if not builds:
        return
    assert default_build(builds) in builds
    wish = PullWish(text="", machines=(MachineMemory(vram_bytes=memory),))
    build, notes = choose_build(builds, wish, lambda build: build.bytes)
    fits = [other for other in builds if other.bytes <= memory]
    assert bool(notes) is (memory > 0 and not fits)
    assert memory == 0 or build in (fits or builds)
    assert choose_build(builds, PullWish(text="", build=build.name), lambda build: 0)[0] is build


@given(st.text(max_size=60))
def test_parts_lead_to_each_other(name: str) -> None:
    for part in parts_of(name)[:3]:
        assert parts_of(part) == parts_of(name)


@given(st.text(max_size=300))
def test_a_cleaned_name_is_a_good_name_for_model_and_directory(text: str) -> None:
    name = clean_name(text)
    assert check_name(name) == name
    assert set(name) <= set(string.ascii_lowercase + string.digits + "._-")
    assert clean_name(name) == name
    assert ".." not in name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Qwen2.5-0.5B-Instruct-GGUF", "qwen2.5-0.5b-instruct"),
        ("my model #1", "my-model-1"),
        ("Größe", "grosse"),
        ("../../etc", "etc"),
        ("模型", "model-"),
        ("X-i1-GGUF", "x"),
    ],
)
def test_names_are_cleaned(text: str, name: str) -> None:
    assert clean_name(text).startswith(name)


FACTS = st.builds(
    GgufFacts,
    architecture=st.text(max_size=5),
    name=st.text(max_size=20),
    kind=st.sampled_from([GgufKind.CHAT, GgufKind.COMPLETION, GgufKind.EMBEDDING, GgufKind.RERANK]),
    context_length=st.integers(0, 1 << 62),
    chat_template=st.text(max_size=5),
)


@given(FACTS, st.text(min_size=1, max_size=30), st.booleans())
def test_every_configuration_is_one_that_corral_accepts(facts: GgufFacts, name: str, has_projector: bool) -> None:
    name = clean_name(name)
    projector = f"{name}/mmproj.gguf" if has_projector else ""
    configured = configure_gguf(name, f"{name}/m.gguf", facts, context=8192, projector=projector)
    config = yaml.safe_load(configured.text)
    assert read_model(config, source="x").name == name
    assert not unknown_keys(config)
    assert not list(unknown_words(config))
    assert 0 < config["context_size"] <= 8192


@given(
    st.dictionaries(st.sampled_from(["max_position_embeddings", "x"]), st.one_of(st.integers(), st.text(), st.none()))
)
def test_every_directory_is_one_that_corral_accepts(facts: dict[str, object]) -> None:
    for tags in (frozenset[str](), frozenset(("sentence-transformers",))):
        made = configure_directory("d", "d", facts=facts, tags=tags, context=8192, has_gpu=True)
        config = yaml.safe_load(made.text)
        assert read_model(config, source="x").name == "d"
        assert not unknown_keys(config)


@pytest.mark.parametrize(("kind", "word"), [(GgufKind.PROJECTOR, "a projector"), (GgufKind.ADAPTER, "an adapter")])
def test_what_cannot_be_asked_alone_is_refused(kind: GgufKind, word: str) -> None:
    with pytest.raises(InvalidInput, match=word):
        configure_gguf("x", "x/m.gguf", GgufFacts(architecture="clip", kind=kind), context=1)
