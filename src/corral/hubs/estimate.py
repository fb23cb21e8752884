"""How much memory a model takes while it runs. Pure; an estimate, which errs on the large side."""

from dataclasses import dataclass
from typing import Final

from corral.hubs.gguf import GgufFacts

_MIB: Final = 1 << 20
_BATCH: Final = 512
"""Tokens of a prompt that are processed at once."""
_FLOAT: Final = 4
_BASE: Final = 64 * _MIB
"""The program itself and its libraries."""
_MOST: Final = 1 << 62
"""Metadata may be hostile: no sum is larger than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """Memory of one loaded model, in RAM, or on a GPU where all layers are put there."""

    weights: int
    cache: int
    """Keys and values of the whole context."""
    overhead: int
    """Buffers for computing."""

    @property
    def total(self) -> int:
        return min(_MOST, self.weights + self.cache + self.overhead)


def estimate_memory(weights: int, facts: GgufFacts | None, context: int) -> MemoryNeed:
    """Return what a model of so many bytes needs; without facts, its weights and a tenth of them."""
    if facts is None:
        return MemoryNeed(weights=weights, cache=0, overhead=_BASE + weights // 10)
    logits = _BATCH * min(facts.vocabulary, 1 << 20) * _FLOAT
    states = _BATCH * min(facts.embedding_length, 1 << 20) * _FLOAT * 8
    cache = min(_MOST, facts.kv_bytes(context))
    return MemoryNeed(weights=weights, cache=cache, overhead=_BASE + logits + states)
