"""What of a model decides how much memory it takes: the sizes of its layers, its heads, its windows. Pure.

A shape is kept in the database beside the file that it was read from, so that frontends without the file know it too.
Metadata may be hostile: every number is bounded before it is used.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

import msgspec

MetadataValue = str | int | float | bool | list[int]

MOST_BLOCKS: Final = 1024
_LARGEST: Final = 1 << 40
_FLOAT: Final = 4
_ALL: Final = 0

_WITHOUT_CACHE: Final = frozenset(
    ("bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "modern-bert", "jina-bert-v2", "jina-bert-v3", "t5encoder")
)
"""Architectures without a cache: they read a text once and keep nothing of it."""
_WINDOW_PATTERNS: Final[Mapping[str, int]] = {
    "gemma2": 2, "gemma3": 6, "gemma3n": 5, "gemma-embedding": 6, "cohere2": 4, "gpt-oss": 2, "exaone4": 4,
    "olmo2": 4, "llama4": 4, "smallthinker": 4, "afmoe": 4,
}  # fmt: skip
"""By architecture, the number of blocks of which all but one keep only a window of the last tokens. Used where the file
does not say which blocks do."""
_FULL_FIRST: Final = frozenset(("smallthinker",))
_BUILT_IN_WINDOWS: Final[Mapping[str, int]] = {"llama4": 8192}
_CACHED_BLOCKS: Final[Mapping[str, int]] = {"gemma3n": 20}
"""Later blocks use what these have kept."""
_FULL_ATTENTION: Final[Mapping[str, int]] = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4}
"""One of so many blocks looks at all tokens, the others keep a state of a fixed size."""
_RECURRENT: Final = frozenset(("mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"))
_BOTH: Final = frozenset(("falcon-h1",))
"""Each block keeps a state and a cache."""


class BlockShape(msgspec.Struct, frozen=True, array_like=True):
    """Blocks (layers) in a row that are alike."""

    count: int
    bytes: int
    """The weights of one block."""
    keys: int = 0
    """Numbers that one block keeps of one token for its keys."""
    values: int = 0
    window: int = _ALL
    """Tokens that it keeps; 0: all of the context."""
    state: int = 0
    """Bytes that it keeps of one sequence, however long that is."""


class WeightShape(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one file of weights says about the memory that it takes. Zero where it says nothing."""

    architecture: str = ""
    context: int = 0
    """Tokens that it was trained with."""
    width: int = 0
    """Numbers that stand for one token between blocks."""
    heads: int = 0
    head_width: int = 0
    feed_forward: int = 0
    """Numbers of one token inside of a block, at the widest place."""
    experts_used: int = 0
    """Experts that work on one token; 0: it has none."""
    expert_width: int = 0
    """The width `feed_forward` of one expert."""
    is_gated: bool = True
    """Whether one half of what is inside of a block decides about the other."""
    state_width: int = 0
    """Numbers of one token inside of a recurrent block."""
    vocabulary: int = 0
    embedding_bytes: int = 0
    """Weights that turn words into numbers; they stay in RAM."""
    output_bytes: int = 0
    """Weights after the last block, and all others that belong to none."""
    is_tied: bool = False
    """Whether the embedding is also the output; on a GPU it is there twice."""
    is_causal: bool = True
    """Whether it keeps what it has read. Others read a text at once, and have no cache."""
    blocks: tuple[BlockShape, ...] = ()
    parts: int = 1
    """Files that hold the model. The weights of the others are not in these numbers."""

    @property
    def weights(self) -> int:
        """Bytes of all tensors: blocks, embedding and output."""
        return self.embedding_bytes + self.output_bytes + sum(run.count * run.bytes for run in self.blocks)

    @property
    def block_count(self) -> int:
        return sum(run.count for run in self.blocks)

    def each_block(self) -> Iterator[BlockShape]:
        for run in self.blocks:
            yield from (msgspec.structs.replace(run, count=1) for _ in range(run.count))

    def resized(self, size: int) -> "WeightShape":
        """The shape of weights of this many bytes in all: another quantisation, or all files of a split model."""
        blocks = sum(run.count * run.bytes for run in self.blocks)
        if self.parts > 1:
            more = max(0, size - self.weights)
            each = (blocks + more) // max(1, self.block_count)
            even = tuple(msgspec.structs.replace(run, bytes=each) for run in self.blocks)
            return msgspec.structs.replace(self, blocks=even, parts=1)
        weight_bytes = self.weights
        if weight_bytes <= 0:
            return msgspec.structs.replace(self, output_bytes=max(0, size))
        return msgspec.structs.replace(
            self,
            embedding_bytes=self.embedding_bytes * size // weight_bytes,
            output_bytes=self.output_bytes * size // weight_bytes,
            blocks=tuple(msgspec.structs.replace(run, bytes=run.bytes * size // weight_bytes) for run in self.blocks),
        )


@dataclass(slots=True, kw_only=True)
class TensorSizes:
    """Sums over the tensors of a file."""

    parameters: int = 0
    bytes: int = 0
    embedding: int = 0
    has_output: bool = False
    has_gate: bool = False
    blocks: dict[int, int] = field(default_factory=dict)

    def add(self, name: str, elements: int, size: int) -> None:
        self.parameters += elements
        self.bytes += size
        kind, _, rest = name.partition(".")
        number = rest.partition(".")[0]
        if kind == "token_embd":
            self.embedding += size
        elif kind == "output" and rest == "weight":
            self.has_output = True
        elif kind == "blk" and number.isdecimal() and len(number) <= 4 and int(number) < MOST_BLOCKS:
            self.has_gate = self.has_gate or ".ffn_gate" in name
            self.blocks[int(number)] = self.blocks.get(int(number), 0) + size


def number_at(metadata: Mapping[str, MetadataValue], key: str, default: int = 0) -> int:
    """A number that is not negative; the default for anything else."""
    value = metadata.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default


def shape_of(architecture: str, metadata: Mapping[str, MetadataValue], tensors: TensorSizes) -> WeightShape:
    """What metadata and tensors of a GGUF file tell."""
    keys = _Keys(architecture, metadata)
    block_sizes = {block: size for block, size in tensors.blocks.items() if block < keys.number("block_count")}
    used = keys.number("expert_used_count")
    wide = keys.largest("feed_forward_length")
    return WeightShape(
        architecture=architecture[:64],
        context=keys.number("context_length"),
        width=keys.number("embedding_length"),
        heads=keys.largest("attention.head_count"),
        head_width=max(keys.head_width("key"), keys.head_width("value")),
        feed_forward=wide,
        experts_used=used,
        expert_width=(keys.number("expert_feed_forward_length") or wide) if used else 0,
        is_gated=tensors.has_gate or architecture not in _WITHOUT_CACHE,
        state_width=keys.number("ssm.inner_size"),
        vocabulary=min(number_at(metadata, "tokenizer.ggml.tokens#"), _LARGEST),
        embedding_bytes=tensors.embedding,
        output_bytes=tensors.bytes - tensors.embedding - sum(block_sizes.values()),
        is_tied=not tensors.has_output,
        is_causal=architecture not in _WITHOUT_CACHE,
        blocks=tuple(_runs(_blocks(keys, block_sizes))),
        parts=max(1, min(number_at(metadata, "split.count"), MOST_BLOCKS)),
    )


class _Keys:
    """The keys of an architecture, and what its kind means for them."""

    def __init__(self, architecture: str, metadata: Mapping[str, MetadataValue]) -> None:
        self.architecture = architecture
        self._metadata = metadata
        self._numbers: dict[str, Sequence[int]] = {}

    def number(self, key: str) -> int:
        return min(number_at(self._metadata, f"{self.architecture}.{key}"), _LARGEST)

    def numbers(self, key: str) -> Sequence[int]:
        """A number for each block.

        A single number counts for all blocks; the result is empty where the key is missing.
        """
        if key not in self._numbers:
            value = self._metadata.get(f"{self.architecture}.{key}")
            values = value if isinstance(value, list) else [value] if isinstance(value, int) else []
            self._numbers[key] = [min(max(0, number), _LARGEST) for number in values]
        return self._numbers[key]

    def largest(self, key: str) -> int:
        return max(self.numbers(key), default=0)

    def at(self, key: str, block: int, default: int = 0) -> int:
        """The number for one block."""
        values = self.numbers(key)
        if not values:
            return default
        return values[block] if block < len(values) else values[0] if len(values) == 1 else default

    def head_width(self, kind: str) -> int:
        heads = self.largest("attention.head_count")
        return self.number(f"attention.{kind}_length") or (self.number("embedding_length") // heads if heads else 0)


def _blocks(keys: _Keys, sizes: Mapping[int, int]) -> Iterator[BlockShape]:
    count = min(keys.number("block_count"), MOST_BLOCKS)
    cached = _CACHED_BLOCKS.get(keys.architecture, count) - keys.number("attention.shared_kv_layers")
    state = _state(keys)
    for block in range(count):
        size = sizes.get(block, 0)
        is_recurrent = bool(state) and _is_recurrent(keys, block)
        has_cache = block < cached and (not is_recurrent or keys.architecture in _BOTH)
        if keys.architecture in _WITHOUT_CACHE or not has_cache:
            yield BlockShape(1, size, state=state if is_recurrent else 0)
        else:
            yield _cached_block(keys, block, size, state if is_recurrent else 0)


def _cached_block(keys: _Keys, block: int, size: int, state: int) -> BlockShape:
    heads = keys.at("attention.head_count_kv", block, keys.at("attention.head_count", block))
    window = _window(keys, block)
    width, values = keys.head_width("key"), keys.head_width("value")
    if window:
        width = keys.number("attention.key_length_swa") or width
        values = keys.number("attention.value_length_swa") or values
    if keys.number("attention.key_length_mla"):
        values = 0  # they are a part of the keys
    return BlockShape(1, size, min(heads * width, _LARGEST), min(heads * values, _LARGEST), window, state)


def _window(keys: _Keys, block: int) -> int:
    window = keys.number("attention.sliding_window") or _BUILT_IN_WINDOWS.get(keys.architecture, 0)
    if not window:
        return _ALL
    stated = keys.numbers("attention.sliding_window_pattern")
    if len(stated) > 1:
        return window if keys.at("attention.sliding_window_pattern", block) else _ALL
    pattern = stated[0] if stated else _WINDOW_PATTERNS.get(keys.architecture, 1)
    full = 0 if keys.architecture in _FULL_FIRST else pattern - 1
    return _ALL if pattern <= 1 or block % pattern == full else window


def _is_recurrent(keys: _Keys, block: int) -> bool:
    if keys.architecture in _RECURRENT or keys.architecture in _BOTH:
        return True
    interval = keys.number("full_attention_interval") or _FULL_ATTENTION.get(keys.architecture, 0)
    if interval:
        return (block + 1) % interval != 0
    return len(keys.numbers("attention.head_count_kv")) > 1 and not keys.at("attention.head_count_kv", block)


def _state(keys: _Keys) -> int:
    """Bytes that a recurrent block keeps of one sequence."""
    width = keys.number("embedding_length")
    inner, state = keys.number("ssm.inner_size"), keys.number("ssm.state_size")
    if head := keys.number("wkv.head_size"):
        numbers = width * (keys.number("token_shift_count") or 2) + width * head
    elif kernel := keys.number("shortconv.l_cache"):
        numbers = width * (kernel - 1)
    else:
        columns = max(0, keys.number("ssm.conv_kernel") - 1)
        numbers = columns * (inner + 2 * keys.number("ssm.group_count") * state) + state * inner
    return min(numbers * _FLOAT, _LARGEST)


def _runs(blocks: Iterator[BlockShape]) -> Iterator[BlockShape]:
    """Join those in a row that are alike."""
    for shape, alike in groupby(blocks):
        yield msgspec.structs.replace(shape, count=sum(1 for _ in alike))
