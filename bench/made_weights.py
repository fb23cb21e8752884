"""GGUF files of any shape that llama.cpp loads: all weights are zero, so they take no room on the disk."""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_ALIGNED: Final = 32
_PLACES: Final = 64
"""Numbers of a head that tell its place in the text, where they are apart from the others."""
_FIRST_WORDS: Final = ("<unk>", "<s>", "</s>")
_TYPES: Final[Mapping[str, tuple[int, int, int]]] = {
    "f32": (0, 1, 4),
    "f16": (1, 1, 2),
    "q4_0": (2, 32, 18),
    "q8_0": (8, 32, 34),
    "q4_k": (12, 256, 144),
    "q6_k": (14, 256, 210),
}
"""Number, elements of a block and bytes of a block, by name."""

Tensor = tuple[str, tuple[int, ...], str]
"""Name, dimensions and type."""
Value = str | int | float | bool | Sequence[str] | Sequence[int] | Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeModel:
    """A model with a transformer's usual parts."""

    architecture: str = "llama"
    width: int = 2048
    blocks: int = 22
    heads: int = 32
    kv_heads: int = 4
    head_width: int = 64
    feed_forward: int = 5632
    vocabulary: int = 32_000
    context: int = 32_768
    kind: str = "q4_0"
    is_tied: bool = False
    experts: int = 0
    experts_used: int = 2
    window: int = 0
    state: int = 0
    """Of recurrent blocks."""
    latent: int = 0
    """Numbers that stand for keys and values of all heads together, where they are kept so; 64 more for places."""


def write_weights(path: Path, model: MadeModel) -> None:
    """Write a file that is all holes behind its head."""
    tensors = list(_tensors(model))
    metadata = dict(_metadata(model))
    fields = b"".join(_text(key) + _value(value) for key, value in metadata.items())
    entries, offset = [], 0
    for name, dimensions, kind in tensors:
        number, block, size = _TYPES[kind]
        sizes = struct.pack(f"<{len(dimensions)}Q", *dimensions)
        entries.append(_text(name) + struct.pack("<I", len(dimensions)) + sizes + struct.pack("<IQ", number, offset))
        elements = 1
        for dimension in dimensions:
            elements *= dimension
        offset = _aligned(offset + elements // block * size)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)) + fields + b"".join(entries)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(_aligned(len(head)) + offset)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def _text(value: str) -> bytes:
    content = value.encode()
    return struct.pack("<Q", len(content)) + content


def _value(value: Value) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _text(value)
    if isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(_text(str(word)) for word in value)
    letter, kind = ("f", 6) if isinstance(value[0], float) else ("i", 5)
    return struct.pack("<IIQ", 9, kind, len(value)) + struct.pack(f"<{len(value)}{letter}", *value)


def _metadata(model: MadeModel) -> Iterator[tuple[str, Value]]:
    name = model.architecture
    yield "general.architecture", name
    yield "general.file_type", 2
    yield f"{name}.context_length", model.context
    yield f"{name}.embedding_length", model.width
    yield f"{name}.block_count", model.blocks
    yield f"{name}.feed_forward_length", model.feed_forward
    yield f"{name}.attention.head_count", model.heads
    yield f"{name}.attention.head_count_kv", model.kv_heads
    if name == "bert":
        yield f"{name}.attention.layer_norm_epsilon", 1e-5
        yield f"{name}.attention.causal", False
        yield f"{name}.pooling_type", 1
    else:
        yield f"{name}.attention.layer_norm_rms_epsilon", 1e-5
        yield f"{name}.attention.key_length", model.latent + _PLACES if model.latent else model.head_width
        yield f"{name}.attention.value_length", model.latent or model.head_width
        yield f"{name}.rope.dimension_count", _PLACES if model.latent else model.head_width
    if model.latent:
        yield f"{name}.attention.q_lora_rank", model.latent
        yield f"{name}.attention.kv_lora_rank", model.latent
        yield f"{name}.attention.key_length_mla", model.head_width + _PLACES
        yield f"{name}.attention.value_length_mla", model.head_width
        yield f"{name}.leading_dense_block_count", model.blocks
        yield f"{name}.expert_feed_forward_length", 512
        yield f"{name}.expert_shared_count", 1
        yield f"{name}.expert_weights_scale", 1.0
        yield f"{name}.vocab_size", model.vocabulary
    if model.experts:
        yield f"{name}.expert_count", model.experts
        yield f"{name}.expert_used_count", model.experts_used
        yield f"{name}.expert_feed_forward_length", model.feed_forward
    if model.window:
        yield f"{name}.attention.sliding_window", model.window
    if model.state:
        yield f"{name}.ssm.conv_kernel", 4
        yield f"{name}.ssm.inner_size", 2 * model.width
        yield f"{name}.ssm.state_size", model.state
        yield f"{name}.ssm.time_step_rank", model.width // 16
    yield from _words(model)


def _words(model: MadeModel) -> Iterator[tuple[str, Value]]:
    bytes_ = [f"<0x{number:02X}>" for number in range(256)]
    own = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] if model.architecture == "bert" else [*_FIRST_WORDS, *bytes_]
    more = [f"▁w{number}" for number in range(model.vocabulary - len(own))]
    yield "tokenizer.ggml.model", "bert" if model.architecture == "bert" else "llama"
    yield "tokenizer.ggml.tokens", [*own, *more]
    yield "tokenizer.ggml.scores", [0.0] * model.vocabulary
    kinds = [2, 3, 3, *[6] * 256] if model.architecture != "bert" else [3] * len(own)
    yield "tokenizer.ggml.token_type", [*kinds, *[1] * len(more)]
    if model.architecture == "bert":
        yield "tokenizer.ggml.token_type_count", 2
        yield "tokenizer.ggml.cls_token_id", 2
        yield "tokenizer.ggml.seperator_token_id", 3
    else:
        yield "tokenizer.ggml.bos_token_id", 1
        yield "tokenizer.ggml.eos_token_id", 2


def _tensors(model: MadeModel) -> Iterator[Tensor]:
    yield "token_embd.weight", (model.width, model.vocabulary), model.kind
    if model.architecture == "bert":
        yield from _bert(model)
        return
    yield "output_norm.weight", (model.width,), "f32"
    if not model.is_tied:
        yield "output.weight", (model.width, model.vocabulary), model.kind
    for block in range(model.blocks):
        for name, dimensions, kind in _mamba(model) if model.state else _block(model):
            yield f"blk.{block}.{name}", dimensions, kind


def _block(model: MadeModel) -> Iterator[Tensor]:
    width, wide, kind = model.width, model.feed_forward, model.kind
    yield "attn_norm.weight", (width,), "f32"
    yield from _latent(model) if model.latent else _attention(model)
    if model.architecture in ("qwen3", "qwen3moe", "gemma3"):
        yield "attn_q_norm.weight", (model.head_width,), "f32"
        yield "attn_k_norm.weight", (model.head_width,), "f32"
    if model.architecture == "gemma3":
        yield "post_attention_norm.weight", (width,), "f32"
        yield "post_ffw_norm.weight", (width,), "f32"
    yield "ffn_norm.weight", (width,), "f32"
    if model.experts:
        yield "ffn_gate_inp.weight", (width, model.experts), "f32"
    suffix, each = ("_exps", (model.experts,)) if model.experts else ("", ())
    yield f"ffn_gate{suffix}.weight", (width, wide, *each), kind
    yield f"ffn_up{suffix}.weight", (width, wide, *each), kind
    yield f"ffn_down{suffix}.weight", (wide, width, *each), kind


def _attention(model: MadeModel) -> Iterator[Tensor]:
    queries, keys = model.heads * model.head_width, model.kv_heads * model.head_width
    yield "attn_q.weight", (model.width, queries), model.kind
    yield "attn_k.weight", (model.width, keys), model.kind
    yield "attn_v.weight", (model.width, keys), model.kind
    yield "attn_output.weight", (queries, model.width), model.kind


def _latent(model: MadeModel) -> Iterator[Tensor]:
    width, heads, head, kind = model.width, model.heads, model.head_width, model.kind
    yield "attn_q_a.weight", (width, model.latent), kind
    yield "attn_q_a_norm.weight", (model.latent,), "f32"
    yield "attn_q_b.weight", (model.latent, heads * (head + _PLACES)), kind
    yield "attn_kv_a_mqa.weight", (width, model.latent + _PLACES), kind
    yield "attn_kv_a_norm.weight", (model.latent,), "f32"
    yield "attn_k_b.weight", (head, model.latent, heads), kind
    yield "attn_v_b.weight", (model.latent, head, heads), kind
    yield "attn_output.weight", (heads * head, width), kind


def _mamba(model: MadeModel) -> Iterator[Tensor]:
    width, inner, rank = model.width, 2 * model.width, model.width // 16
    yield "attn_norm.weight", (width,), "f32"
    yield "ssm_in.weight", (width, 2 * inner), model.kind
    yield "ssm_conv1d.weight", (4, inner), "f32"
    yield "ssm_conv1d.bias", (inner,), "f32"
    yield "ssm_x.weight", (inner, rank + 2 * model.state), model.kind
    yield "ssm_dt.weight", (rank, inner), model.kind
    yield "ssm_dt.bias", (inner,), "f32"
    yield "ssm_a", (model.state, inner), "f32"
    yield "ssm_d", (inner,), "f32"
    yield "ssm_out.weight", (inner, width), model.kind


def _bert(model: MadeModel) -> Iterator[Tensor]:
    width, wide, kind = model.width, model.feed_forward, model.kind
    yield "position_embd.weight", (width, model.context), "f32"
    yield "token_types.weight", (width, 2), "f32"
    yield "token_embd_norm.weight", (width,), "f32"
    yield "token_embd_norm.bias", (width,), "f32"
    parts = [("attn_q", width, width), ("attn_k", width, width), ("attn_v", width, width)]
    parts += [("attn_output", width, width), ("ffn_up", width, wide), ("ffn_down", wide, width)]
    for block in range(model.blocks):
        for name, columns, rows in parts:
            yield f"blk.{block}.{name}.weight", (columns, rows), kind
            yield f"blk.{block}.{name}.bias", (rows,), "f32"
        for name in ("attn_output_norm", "layer_output_norm"):
            yield f"blk.{block}.{name}.weight", (width,), "f32"
            yield f"blk.{block}.{name}.bias", (width,), "f32"
