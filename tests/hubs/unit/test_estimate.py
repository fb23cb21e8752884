"""Memory of models: held against what llama.cpp allocated for the same shapes, and what must hold for any shape."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.hubs.estimate import (
    LoadSettings,
    cache_bytes,
    estimate_by_size,
    estimate_memory,
    estimate_offloaded,
)
from corral.hubs.weight_shape import BlockShape, WeightShape

MIB = 1 << 20

NUMBERS = st.integers(0, 1 << 40)
BLOCKS = st.builds(
    BlockShape,
    count=st.integers(1, 60),
    bytes=NUMBERS,
    keys=st.integers(0, 1 << 16),
    values=st.integers(0, 1 << 16),
    window=st.sampled_from([0, 0, 512, 4096]),
    state=st.integers(0, 1 << 24),
)
SHAPES = st.builds(
    WeightShape,
    context=st.integers(0, 1 << 20),
    width=NUMBERS,
    heads=st.integers(0, 256),
    head_width=st.integers(0, 1024),
    feed_forward=NUMBERS,
    experts_used=st.integers(0, 16),
    expert_width=NUMBERS,
    vocabulary=NUMBERS,
    embedding_bytes=NUMBERS,
    output_bytes=NUMBERS,
    is_tied=st.booleans(),
    is_causal=st.booleans(),
    blocks=st.lists(BLOCKS, max_size=4).map(tuple),
)
KINDS = st.sampled_from(["f32", "f16", "q8_0", "q4_0", "Q5_1", "new"])
SETTINGS = st.builds(
    LoadSettings,
    context=st.integers(1, 1 << 20),
    batch=st.integers(1, 8192),
    slots=st.integers(1, 64),
    key_type=KINDS,
    value_type=KINDS,
    has_flash=st.booleans(),
    makes_vectors=st.booleans(),
    gpu_layers=st.integers(0, 300),
    has_cache_on_gpu=st.booleans(),
)


@given(SHAPES, SETTINGS, st.integers(0, 1 << 20), st.integers(0, 8192))
def test_more_context_or_a_larger_batch_never_takes_less(
    shape: WeightShape, settings: LoadSettings, context: int, batch: int
) -> None:
    need = estimate_memory(shape, settings)
    assert min(need.weights, need.cache, need.compute, need.program) >= 0
    assert need.total <= 1 << 62
    longer = estimate_memory(shape, replace(settings, context=settings.context + context))
    larger = estimate_memory(shape, replace(settings, batch=settings.batch + batch))
    assert longer.cache >= need.cache
    assert longer.total >= need.total
    assert larger.total >= need.total


@given(SHAPES, SETTINGS)
def test_what_is_on_a_gpu_and_what_is_beside_it_add_up_to_the_whole(shape: WeightShape, settings: LoadSettings) -> None:
    whole, found = estimate_memory(shape, settings), estimate_offloaded(shape, settings)
    twice = shape.embedding_bytes if shape.is_tied and settings.gpu_layers else 0
    assert found.ram.weights + found.vram.weights == whole.weights + twice
    assert found.ram.cache + found.vram.cache == whole.cache
    assert min(found.ram.weights, found.ram.cache, found.vram.weights, found.vram.cache, found.per_card) >= 0
    assert found.ram.total <= whole.total
    if not settings.gpu_layers:
        assert (found.ram, found.vram.total, found.per_card) == (whole, 0, 0)
    if not settings.has_cache_on_gpu:
        assert found.vram.cache == 0


@given(SHAPES, SETTINGS, st.integers(1, 300))
def test_more_layers_on_a_gpu_move_memory_there(shape: WeightShape, settings: LoadSettings, more: int) -> None:
    fewer = estimate_offloaded(shape, settings)
    found = estimate_offloaded(shape, replace(settings, gpu_layers=settings.gpu_layers + more))
    assert found.vram.weights >= fewer.vram.weights
    assert found.vram.cache >= fewer.vram.cache
    assert found.ram.total <= fewer.ram.total


def test_the_output_goes_to_a_gpu_before_the_last_blocks() -> None:
    shape = WeightShape(embedding_bytes=1, output_bytes=10, blocks=(BlockShape(3, 100), BlockShape(1, 1000)))
    there = [estimate_offloaded(shape, LoadSettings(gpu_layers=count)).vram.weights for count in range(7)]
    assert there == [0, 10, 1010, 1110, 1210, 1310, 1310]


@pytest.mark.parametrize(
    ("kind", "size"), [("f16", 2048), ("F32", 4096), ("q8_0", 1088), ("q4_0", 576), ("of tomorrow", 2048)]
)
def test_caches_have_types(kind: str, size: int) -> None:
    assert cache_bytes(1024, kind) == size


def test_a_cache_holds_keys_and_values_of_the_whole_context() -> None:
    shape = WeightShape(context=8192, blocks=(BlockShape(32, 0, 8 * 128, 8 * 128),))
    assert estimate_memory(shape, LoadSettings(context=7900)).cache == 992 * MIB, "rounded up to 256 tokens"
    assert estimate_memory(shape, LoadSettings()).cache == 1024 * MIB
    windowed = WeightShape(context=8192, blocks=(BlockShape(32, 0, 8 * 128, 8 * 128, window=1024),))
    assert estimate_memory(windowed, LoadSettings()).cache == 1536 // 8 * MIB
    assert estimate_memory(windowed, LoadSettings(slots=4)).cache == 4608 // 8 * MIB


def test_of_what_is_not_known_a_tenth_more_than_its_size_is_assumed() -> None:
    assert estimate_by_size(1000 * MIB).total == 1100 * MIB
