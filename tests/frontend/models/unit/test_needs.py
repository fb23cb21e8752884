"""What a replica of a model takes: by its configuration and by what its files say, or by their sizes alone."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.frontend.models.decide.model import ModelSpec, load_options, read_model
from corral.frontend.models.decide.needs import (
    UNKNOWN_NEEDS,
    ModelNeeds,
    needs_by_size,
    needs_of,
    needs_of_config,
    settings_of,
)
from corral.frontend.models.decide.stored import WeightFile
from corral.hubs.estimate import LoadSettings
from corral.hubs.weight_shape import BlockShape, WeightShape

MIB = 1 << 20
SHAPE = WeightShape(
    architecture="llama",
    context=131_072,
    width=2048,
    heads=32,
    head_width=64,
    feed_forward=5632,
    vocabulary=32_000,
    embedding_bytes=40 * MIB,
    output_bytes=40 * MIB,
    blocks=(BlockShape(20, 25 * MIB, 256, 256),),
)
WEIGHTS = WeightFile(path="m.gguf", size=582 * MIB, shape=SHAPE)


def spec(backend: str = "llama-cpp", model: str = "m.gguf", **more: Any) -> ModelSpec:
    config = {"name": "m", "backend": backend, "parameters": {"model": model}, **more}
    return read_model(config, source="")


def needs(*files: WeightFile, **more: Any) -> ModelNeeds:
    return needs_of(spec(**more), files or [WEIGHTS])


def settings(**more: Any) -> LoadSettings:
    return settings_of(load_options(spec(**more), models=PurePath(), threads=1))


def test_a_gguf_file_tells_what_it_takes() -> None:
    found = needs(context_size=4096)
    assert (found.source, found.disk, found.splits) == ("GGUF metadata", 582 * MIB, True)
    assert 580 * MIB + 80 * MIB < found.ram < 800 * MIB
    assert 540 * MIB + 80 * MIB < found.vram < 1200 * MIB
    assert 40 * MIB < found.ram_beside_gpu < 200 * MIB
    assert 0 < found.per_card < found.vram


def test_the_context_the_cache_and_the_slots_count() -> None:
    plain = needs(context_size=4096)
    assert needs(context_size=32_768).ram - plain.ram > 7 * 80 * MIB
    assert needs(context_size=-1).ram > needs(context_size=32_768).ram, "all that it was trained with"
    assert needs(context_size=32_768, cache_type_k="q8_0").ram < needs(context_size=32_768).ram
    assert needs().ram == plain.ram, "4096 tokens where nothing is said"
    assert needs(flash_attention="off").ram > plain.ram
    assert needs(embeddings=True).ram > plain.ram


def test_what_is_not_put_on_a_gpu_stays_in_memory() -> None:
    none, some, whole = needs(gpu_layers=0), needs(gpu_layers=11), needs()
    assert (none.vram, none.per_card, none.ram_beside_gpu) == (0, 0, none.ram)
    assert 0 < some.vram < whole.vram
    assert none.ram_beside_gpu > some.ram_beside_gpu > whole.ram_beside_gpu
    kept = needs(no_kv_offloading=True)
    assert kept.vram < whole.vram
    assert kept.ram_beside_gpu - whole.ram_beside_gpu == whole.vram - kept.vram


def test_what_is_loaded_beside_a_model_counts_too() -> None:
    projector = WeightFile(path="p.gguf", size=100 * MIB)
    seeing = needs(WEIGHTS, projector, mmproj="p.gguf")
    assert (seeing.ram - needs().ram, seeing.vram - needs().vram) == (125 * MIB, 125 * MIB)
    assert seeing.disk == 682 * MIB
    assert needs(WEIGHTS, projector, mmproj="p.gguf", gpu_layers=0).vram == 0
    adapter = WeightFile(path="a/l.gguf", size=10 * MIB)
    adapted = needs(
        WeightFile(path="a/m.gguf", size=WEIGHTS.size, shape=SHAPE), adapter, model="a/m.gguf", lora_adapter="l.gguf"
    )
    assert adapted.ram - needs().ram == 10 * MIB
    drafted = needs(WEIGHTS, WeightFile(path="d.gguf", size=50 * MIB), draft_model="d.gguf")
    assert drafted.ram - needs().ram >= 50 * MIB
    known = needs(WEIGHTS, WeightFile(path="d.gguf", size=582 * MIB, shape=SHAPE), draft_model="d.gguf")
    assert known.ram - needs().ram > 660 * MIB, "its cache too"
    assert needs(WEIGHTS, WeightFile(path="readme.md", size=MIB)).ram == needs().ram


def test_parts_of_a_model_are_one() -> None:
    first = WeightFile(
        path="m-00001-of-00002.gguf",
        size=300 * MIB,
        shape=WeightShape(**{name: getattr(SHAPE, name) for name in SHAPE.__struct_fields__} | {"parts": 2}),
    )
    second = WeightFile(path="m-00002-of-00002.gguf", size=900 * MIB)
    found = needs(first, second, model=first.path)
    assert (found.source, found.disk) == ("GGUF metadata", 1200 * MIB)
    assert 1200 * MIB < found.ram < 1500 * MIB


def test_tensors_of_a_type_that_nobody_knows_are_counted_by_the_size_of_the_file() -> None:
    file = WeightFile(path="m.gguf", size=2000 * MIB, shape=SHAPE)
    assert needs(file).ram > 2000 * MIB


@pytest.mark.parametrize("backend", ["vllm", "transformers", "whisper"])
def test_of_other_engines_sizes_are_known(backend: str) -> None:
    found = needs_of(spec(backend, "folder"), [WeightFile(path="folder/a.safetensors", size=1000 * MIB)])
    assert (found.source, found.splits) == ("file size", False)
    assert 1000 * MIB < found.ram == found.vram < 1200 * MIB
    spread = needs_of(spec("vllm", "folder", tensor_parallel_size=2), [WEIGHTS])
    assert (spread.splits, spread.card_count) == (True, 2)


def test_nothing_is_said_of_what_nobody_has_seen() -> None:
    assert needs_of(spec(), []) == ModelNeeds(splits=True), "only how its engine works"
    assert needs_of(read_model({"name": "a", "alias": "b"}, source=""), [WEIGHTS]) == UNKNOWN_NEEDS
    assert needs_by_size(0) == UNKNOWN_NEEDS
    assert needs_of_config({"backend": 5}, [WEIGHTS], name="m") == needs_by_size(WEIGHTS.size)
    assert needs_of_config(spec().config, [WEIGHTS], name="other") == needs()


def test_settings_are_those_that_the_backend_loads_with() -> None:
    assert settings(context_size=100) == LoadSettings(context=100)
    assert settings(context_size=0).context == 0
    assert settings(parameters={"model": "m.gguf", "batch": 64}).batch == 64
    assert settings(parameters={"model": "m.gguf", "batch": 4096}).batch == 512
    vectors = settings(context_size=8192, embeddings=True)
    assert (vectors.batch, vectors.makes_vectors) == (8192, True)
    assert settings(context_size=128, reranking=True).batch == 512
    assert settings(options=["parallel: 4", "x"]).slots == 4
    assert settings(options=["n_parallel:3"]).slots == 3
    assert settings(options=["parallel:many"]).slots == 1
    assert settings(cache_type_k="q8_0", flash_attention="off", gpu_layers=-1).gpu_layers == 0


SIZES = st.integers(0, 1 << 45)
CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "context_size": st.integers(-1, 1 << 20),
        "gpu_layers": st.integers(-1, 100),
        "embeddings": st.booleans(),
        "no_kv_offloading": st.booleans(),
        "cache_type_k": st.sampled_from(["q8_0", "f32", "?"]),
        "flash_attention": st.sampled_from(["on", "off", "auto"]),
        "options": st.lists(st.sampled_from(["parallel:4", "parallel:-1", "x"]), max_size=2),
        "mmproj": st.just("p.gguf"),
    },
)


@given(CONFIGS, SIZES, SIZES, st.sampled_from(["llama-cpp", "vllm", "cuda12-llama-cpp"]))
def test_needs_are_never_negative(config: Mapping[str, Any], size: int, other: int, backend: str) -> None:
    files = [WeightFile(path="m.gguf", size=size, shape=SHAPE), WeightFile(path="p.gguf", size=other)]
    found = needs_of(spec(backend, **config), files)
    assert found.disk == size + other
    assert min(found.ram, found.vram, found.ram_beside_gpu, found.per_card) >= 0
    assert found.ram >= size or backend != "vllm"
