"""What of a model's metadata and tensors decides how much memory it takes."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from corral.hubs.weight_shape import (
    MOST_BLOCKS,
    BlockShape,
    MetadataValue,
    TensorSizes,
    WeightShape,
    shape_of,
)

COMMON: dict[str, MetadataValue] = {
    "block_count": 4,
    "embedding_length": 64,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "feed_forward_length": 128,
}


def shape(architecture: str = "llama", *tensors: tuple[str, int], **more: MetadataValue) -> WeightShape:
    """`attention__key_length=…` is the key of that architecture with dots."""
    keys = {**COMMON, **{key.replace("__", "."): value for key, value in more.items()}}
    sizes = TensorSizes()
    for name, size in tensors:
        sizes.add(name, size, size)
    return shape_of(architecture, {f"{architecture}.{key}": value for key, value in keys.items()}, sizes)


def windows(found: WeightShape) -> list[int]:
    return [block.window for block in found.each_block()]


def test_blocks_that_are_alike_are_one_entry() -> None:
    assert shape().blocks == (BlockShape(4, 0, 2 * 16, 2 * 16),)
    assert (shape().block_count, shape().heads, shape().head_width) == (4, 4, 16)


def test_tensors_are_counted_where_they_are_loaded() -> None:
    found = shape(
        "llama", ("token_embd.weight", 100), ("output.weight", 70), ("output_norm.weight", 1),
        ("blk.0.attn_q.weight", 5), ("blk.0.ffn_up.weight", 6), ("blk.3.attn_q.weight", 7), ("blk.x.odd", 2),
    )  # fmt: skip
    assert (found.embedding_bytes, found.output_bytes, found.is_tied) == (100, 73, False)
    assert [block.bytes for block in found.each_block()] == [11, 0, 0, 7]
    assert found.weights == 191
    assert shape("llama", ("token_embd.weight", 1)).is_tied


def test_heads_may_differ_from_block_to_block() -> None:
    found = shape(attention__head_count_kv=[4, 0, 2, 2], attention__key_length=8, attention__value_length=4)
    assert [(block.keys, block.values) for block in found.each_block()] == [(32, 16), (0, 0), (16, 8), (16, 8)]


def test_windows_are_where_the_architecture_has_them() -> None:
    assert windows(shape("gemma2", attention__sliding_window=512)) == [512, 0, 512, 0]
    assert windows(shape("smallthinker", attention__sliding_window=512)) == [0, 512, 512, 512]
    assert windows(shape("x", attention__sliding_window=9, attention__sliding_window_pattern=[0, 1, 1, 0])) == [
        0,
        9,
        9,
        0,
    ]
    assert windows(shape("x", attention__sliding_window=9, attention__sliding_window_pattern=2)) == [9, 0, 9, 0]
    assert windows(shape("llama", attention__sliding_window=512)) == [0, 0, 0, 0], (
        "it is trained with one, and has none"
    )
    assert windows(shape("llama4", block_count=5)) == [8192, 8192, 8192, 0, 8192]


def test_later_blocks_may_use_what_earlier_ones_keep() -> None:
    found = shape("gemma4", attention__shared_kv_layers=3)
    assert [bool(block.keys) for block in found.each_block()] == [True, False, False, False]


def test_values_that_are_a_part_of_the_keys_are_kept_once() -> None:
    mla = {"attention__key_length": 576, "attention__value_length": 512, "attention__key_length_mla": 192}
    found = shape("deepseek2", attention__head_count_kv=1, **mla)
    assert found.blocks == (BlockShape(4, 0, 576, 0),)


def test_recurrent_blocks_keep_a_state_whatever_the_context() -> None:
    ssm: dict[str, MetadataValue] = {"ssm__conv_kernel": 4, "ssm__inner_size": 128, "ssm__state_size": 16}
    state = (3 * 128 + 16 * 128) * 4
    assert shape("mamba", **ssm).blocks == (BlockShape(4, 0, state=state),)
    hybrid = shape("jamba", attention__head_count_kv=[0, 2, 0, 0], **ssm)
    assert [(block.keys, block.state) for block in hybrid.each_block()] == [(0, state), (32, 0), (0, state), (0, state)]
    assert [bool(block.keys) for block in shape("qwen3next", **ssm).each_block()] == [False, False, False, True]
    assert shape("falcon-h1", **ssm).blocks == (BlockShape(4, 0, 32, 32, 0, state),)
    assert shape("rwkv7", wkv__head_size=64).blocks == (BlockShape(4, 0, state=(2 * 64 + 64 * 64) * 4),)
    assert shape("lfm2", shortconv__l_cache=3, attention__head_count_kv=[0, 2, 0, 2]).blocks[0].state == 64 * 2 * 4


def test_what_reads_a_text_at_once_keeps_nothing() -> None:
    assert (shape("bert").is_causal, shape("bert").blocks) == (False, (BlockShape(4, 0),))


def test_another_quantisation_has_the_same_shape_in_another_size() -> None:
    found = shape("llama", ("token_embd.weight", 100), ("blk.0.x", 50), ("blk.1.x", 50)).resized(400)
    assert (found.embedding_bytes, found.weights) == (200, 400)
    assert [block.bytes for block in found.each_block()] == [100, 100, 0, 0]


def test_the_other_parts_of_a_split_model_hold_the_rest_of_its_blocks() -> None:
    first = msgspec.structs.replace(shape("llama", ("token_embd.weight", 100), ("blk.0.x", 50)), parts=3)
    found = first.resized(350)
    assert (found.embedding_bytes, found.weights, found.parts) == (100, 348, 1)
    assert [block.bytes for block in found.each_block()] == [62, 62, 62, 62]


VALUES = st.one_of(
    st.integers(-(1 << 63), 1 << 64), st.lists(st.integers(-5, 1 << 40), max_size=6), st.booleans(), st.text(max_size=3)
)
KEYS = st.sampled_from(
    [
        "block_count",
        "embedding_length",
        "context_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "attention.shared_kv_layers",
        "attention.key_length_mla",
        "expert_used_count",
        "expert_feed_forward_length",
        "ssm.conv_kernel",
        "ssm.inner_size",
        "ssm.state_size",
        "ssm.group_count",
        "wkv.head_size",
        "shortconv.l_cache",
        "full_attention_interval",
    ]
)
ARCHITECTURES = st.sampled_from(["llama", "gemma3", "gemma3n", "mamba", "falcon-h1", "qwen3next", "bert", "deepseek2"])
NAMES = st.one_of(
    st.sampled_from(["token_embd.weight", "output.weight", "blk.1.x", "blk.9999.x", "blk.99999999999.x", "blk..x"]),
    st.text(max_size=12),
)


@given(ARCHITECTURES, st.dictionaries(KEYS, VALUES), st.lists(st.tuples(NAMES, st.integers(0, 1 << 48)), max_size=6))
def test_no_metadata_makes_a_shape_that_is_negative_or_endless(
    architecture: str, metadata: dict[str, MetadataValue], tensors: list[tuple[str, int]]
) -> None:
    sizes = TensorSizes()
    for name, size in tensors:
        sizes.add(name, size, size)
    found = shape_of(architecture, {f"{architecture}.{key}": value for key, value in metadata.items()}, sizes)
    assert found.block_count <= MOST_BLOCKS
    assert all(min(run.count, run.bytes, run.keys, run.values, run.window, run.state) >= 0 for run in found.blocks)
    assert min(found.embedding_bytes, found.output_bytes, found.width, found.heads, found.expert_width) >= 0
    assert msgspec.json.decode(msgspec.json.encode(found), type=WeightShape) == found
