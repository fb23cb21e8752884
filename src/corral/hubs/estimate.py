"""How much memory llama.cpp takes for a model, by what its file says about itself and how it is loaded. Pure.

Weights and caches are sums that it allocates exactly so. The buffer for computing is where most of its graph is alive
at once; which place that is depends on the model, so several are tried. `make bench ARGS=estimates` holds all this
against what llama.cpp allocates.

Not counted is what grows with use: prompts that it remembers, up to half a gigabyte in RAM.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from corral.hubs.weight_shape import BlockShape, WeightShape

ALL_LAYERS: Final = 99_999_999
_MIB: Final = 1 << 20
_FLOAT: Final = 4
_HALF: Final = 2
_PADDED: Final = 256
"""Contexts and windows are rounded up to a multiple of it."""
_PROGRAM: Final = 56 * _MIB
"""The program itself and its libraries."""
_WORD: Final = 384
"""Bytes of one word of the vocabulary, in all the tables that have it."""
_DRIVER: Final = 400 * _MIB
"""What a GPU's driver takes of it for each process. Assumed, as nothing tells it before."""
_ALIVE: Final = 5
"""Copies of what stands for a token that are alive wherever the graph is."""
_RECURRENT: Final = 5
"""Copies of what the state of a recurrent block is made of."""
_MOST: Final = 1 << 62
"""Metadata may be hostile: no sum is larger than this."""
_CACHE_TYPES: Final[Mapping[str, tuple[int, int]]] = {
    "f32": (1, 4), "f16": (1, 2), "bf16": (1, 2), "q8_0": (32, 34), "q4_0": (32, 18), "q4_1": (32, 20),
    "q5_0": (32, 22), "q5_1": (32, 24), "iq4_nl": (32, 18),
}  # fmt: skip
"""Numbers and bytes of one block of a cache, by the name of its type."""


class LoadSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a model is loaded, as far as it matters for memory."""

    context: int = 0
    """Tokens; 0: as many as it was trained with."""
    batch: int = 512
    """Tokens that are processed at once."""
    slots: int = 1
    """Requests that share the context."""
    key_type: str = "f16"
    value_type: str = "f16"
    has_flash: bool = True
    """Whether attention is computed piece by piece, and not kept as a whole."""
    makes_vectors: bool = False
    """Whether every token of a text has a result, as embeddings need it."""
    gpu_layers: int = ALL_LAYERS
    """On a machine with a GPU: its last layers, counted with the output, that are put there."""
    has_cache_on_gpu: bool = True


class MemoryNeed(msgspec.Struct, frozen=True, kw_only=True):
    """Memory in one place, in bytes."""

    weights: int = 0
    cache: int = 0
    """What is kept of tokens that were read, for the whole context."""
    compute: int = 0
    """Buffers for computing."""
    program: int = 0
    """What is taken whatever the model is."""

    @property
    def total(self) -> int:
        return min(_MOST, self.weights + self.cache + self.compute + self.program)


def estimate_memory(shape: WeightShape, settings: LoadSettings) -> MemoryNeed:
    """What a model takes on a machine without a GPU."""
    return MemoryNeed(
        weights=shape.weights,
        cache=_cache(shape, settings, shape.each_block()),
        compute=_compute(shape, settings) + _results(shape, settings),
        program=_PROGRAM + shape.vocabulary * _WORD,
    )


def estimate_by_size(size: int) -> MemoryNeed:
    """What weights take of which only the size is known."""
    return MemoryNeed(weights=size, compute=size // 10)


class OffloadedNeed(msgspec.Struct, frozen=True, kw_only=True):
    """Memory on a machine with GPUs."""

    ram: MemoryNeed
    vram: MemoryNeed
    """What is needed on all GPUs together."""
    per_card: int = 0
    """What of `vram` every further GPU takes again."""


def estimate_offloaded(shape: WeightShape, settings: LoadSettings) -> OffloadedNeed:
    """What a model takes in RAM and on GPUs. The embedding stays in RAM; the output leaves it first, then the last
    blocks."""
    whole = estimate_memory(shape, settings)
    if settings.gpu_layers <= 0:
        return OffloadedNeed(ram=whole, vram=MemoryNeed())
    blocks = list(shape.each_block())
    first = max(0, len(blocks) + 1 - settings.gpu_layers)
    offloaded_bytes = shape.output_bytes + sum(block.bytes for block in blocks[first:])
    cache = _cache(shape, settings, blocks[first:]) if settings.has_cache_on_gpu else 0
    compute = _compute(shape, settings)
    vram = MemoryNeed(
        weights=offloaded_bytes + (shape.embedding_bytes if shape.is_tied else 0),
        cache=cache,
        compute=compute,
        program=_DRIVER,
    )
    ram = replace(
        whole,
        weights=whole.weights - offloaded_bytes,
        cache=whole.cache - cache,
        compute=_inputs(shape, settings) + _results(shape, settings) if first == 0 else whole.compute,
    )
    return OffloadedNeed(ram=ram, vram=vram, per_card=compute + _DRIVER)


def cache_bytes(count: int, kind: str) -> int:
    """Bytes of so many numbers in a cache of this type; of a type that is not known, as 16 bits each."""
    block, size = _CACHE_TYPES.get(kind.lower(), _CACHE_TYPES["f16"])
    return min(_MOST, -(-count // block) * size)


def _padded(count: int) -> int:
    return -(-count // _PADDED) * _PADDED


def _context(shape: WeightShape, settings: LoadSettings) -> int:
    return _padded(settings.context if settings.context > 0 else shape.context)


def _tokens(shape: WeightShape, settings: LoadSettings) -> int:
    """Tokens that one run of the graph has at most."""
    return max(1, min(settings.batch, _context(shape, settings)))


def _cells(shape: WeightShape, settings: LoadSettings, window: int) -> int:
    """Tokens that a block keeps."""
    context = _context(shape, settings)
    window_tokens = window * settings.slots + _tokens(shape, settings)
    return min(context, _padded(window_tokens)) if window else context


def _cache(shape: WeightShape, settings: LoadSettings, blocks: Iterable[BlockShape]) -> int:
    if not shape.is_causal:
        return 0
    total = 0
    for block in blocks:
        cells = _cells(shape, settings, block.window)
        total += cells * cache_bytes(block.keys, settings.key_type)
        total += cells * cache_bytes(block.values, settings.value_type)
        total += block.state * max(1, settings.slots)
    return min(_MOST, total)


def _masks(shape: WeightShape, settings: LoadSettings) -> int:
    """Which token may look at which: one table for each length of windows."""
    tokens = _tokens(shape, settings)
    each = _HALF if settings.has_flash else _FLOAT
    if not shape.is_causal:
        return tokens * tokens * each
    windows = {run.window for run in shape.blocks if run.keys}
    return sum(_cells(shape, settings, window) for window in windows) * tokens * each


def _inputs(shape: WeightShape, settings: LoadSettings) -> int:
    """What is handed over to a GPU for one run."""
    return min(_MOST, _tokens(shape, settings) * shape.width * _FLOAT + _masks(shape, settings))


def _results(shape: WeightShape, settings: LoadSettings) -> int:
    """Where the last results are kept."""
    return max(1, settings.slots) * (shape.vocabulary + (shape.width if settings.makes_vectors else 0)) * _FLOAT


def _compute(shape: WeightShape, settings: LoadSettings) -> int:
    """What is always alive, and the largest of the places of the graph where more is."""
    tokens = _tokens(shape, settings)
    outputs = tokens if settings.makes_vectors else max(1, settings.slots)
    last = outputs * shape.vocabulary if shape.is_causal else 0
    widest = max(tokens * _attention(shape, settings), tokens * _feed_forward(shape), last)
    return min(_MOST, (tokens * _ALIVE * shape.width + widest) * _FLOAT + _masks(shape, settings))


def _attention(shape: WeightShape, settings: LoadSettings) -> int:
    """Numbers of one token that are alive where it is compared with others: queries, keys, values, and the scores, or
    the result where scores are not kept."""
    queries = shape.heads * shape.head_width
    keys_and_values = max((run.keys + run.values for run in shape.blocks), default=0)
    return queries + keys_and_values + (queries if settings.has_flash else shape.heads * _widest(shape, settings))


def _widest(shape: WeightShape, settings: LoadSettings) -> int:
    """Tokens that a token is compared with at most."""
    if not shape.is_causal:
        return _tokens(shape, settings)
    return max((_cells(shape, settings, run.window) for run in shape.blocks if run.keys), default=0)


def _feed_forward(shape: WeightShape) -> int:
    """Numbers of one token that are alive between attention and the next block: with a gate, it, what it gates, and
    their product; in a recurrent block, what its state is made of."""
    wide = max(shape.feed_forward if not shape.experts_used else 0, shape.experts_used * shape.expert_width)
    return max(wide * (3 if shape.is_gated else 1), _RECURRENT * shape.state_width)
