"""all-MiniLM-L6-v2 with numpy alone: six layers of BERT, then the mean over a text's tokens, of length one.

Small enough that plain matrix products are fast: a sentence takes some milliseconds. Texts that are asked for together
are computed one by one, since each is then as fast as its own length allows.
"""

import json
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

DIMENSIONS: Final = 384
_LAYERS: Final = 6
_HEADS: Final = 12
_EPSILON: Final = 1e-12

Array = Any
Weights = Mapping[str, Array]


def read_weights(path: Path) -> Weights:
    """The tensors of a safetensors file: a length, a JSON document of places, and the numbers."""
    with path.open("rb") as file:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    start = 8 + int.from_bytes(content[:8], "little")
    described = json.loads(content[8:start])
    described.pop("__metadata__", None)
    weights = {}
    for name, tensor in described.items():
        if tensor["dtype"] != "F32":
            continue  # the numbers of positions, which are 0, 1, 2 …
        first, last = tensor["data_offsets"]
        flat = np.frombuffer(content, np.float32, count=(last - first) // 4, offset=start + first)
        weights[name] = flat.reshape(tensor["shape"])
    return weights


class MiniLM:
    """The network. Safe to use from several threads at once."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._layers = [f"encoder.layer.{number}." for number in range(_LAYERS)]
        if weights["embeddings.word_embeddings.weight"].shape[1] != DIMENSIONS:
            raise ValueError(f"the weights are not those of a network of width {DIMENSIONS}")

    @property
    def vocabulary(self) -> int:
        return int(self._weights["embeddings.word_embeddings.weight"].shape[0])

    def embed(self, tokens: list[int]) -> Array:
        """Return the vector of one text, given its tokens with the opening and closing one."""
        hidden = self._looked_up(tokens)
        for layer in self._layers:
            hidden = self._layer(layer, hidden)
        mean = hidden.mean(axis=0)
        return mean / max(float(np.linalg.norm(mean)), _EPSILON)

    def _looked_up(self, tokens: list[int]) -> Array:
        words = self._weights["embeddings.word_embeddings.weight"][tokens]
        places = self._weights["embeddings.position_embeddings.weight"][: len(tokens)]
        kind = self._weights["embeddings.token_type_embeddings.weight"][0]
        return self._normal("embeddings.LayerNorm", words + places + kind)

    def _layer(self, layer: str, hidden: Array) -> Array:
        attended = self._linear(layer + "attention.output.dense", self._attention(layer, hidden))
        hidden = self._normal(layer + "attention.output.LayerNorm", hidden + attended)
        inner = _gelu(self._linear(layer + "intermediate.dense", hidden))
        return self._normal(layer + "output.LayerNorm", hidden + self._linear(layer + "output.dense", inner))

    def _attention(self, layer: str, hidden: Array) -> Array:
        parts = ("query", "key", "value")
        query, key, value = (self._heads(f"{layer}attention.self.{part}", hidden) for part in parts)
        scores = query @ key.transpose(0, 2, 1) / np.float32(np.sqrt(DIMENSIONS // _HEADS))
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return (weights @ value).transpose(1, 0, 2).reshape(len(hidden), DIMENSIONS)

    def _heads(self, name: str, hidden: Array) -> Array:
        return self._linear(name, hidden).reshape(len(hidden), _HEADS, DIMENSIONS // _HEADS).transpose(1, 0, 2)

    def _linear(self, name: str, hidden: Array) -> Array:
        return hidden @ self._weights[name + ".weight"].T + self._weights[name + ".bias"]

    def _normal(self, name: str, hidden: Array) -> Array:
        centred = hidden - hidden.mean(axis=-1, keepdims=True)
        spread = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + np.float32(_EPSILON))
        return centred / spread * self._weights[name + ".weight"] + self._weights[name + ".bias"]


def _gelu(numbers: Array) -> Array:
    return numbers * (1 + _erf(numbers / np.float32(np.sqrt(2)))) / 2


def _erf(numbers: Array) -> Array:
    """By the rational approximation 7.1.26 of Abramowitz and Stegun, right to seven digits: as good as 32 bits are."""
    size = np.abs(numbers)
    part = 1 / (1 + np.float32(0.3275911) * size)
    factors = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
    total = np.zeros_like(part)
    for factor in factors:
        total = (total + np.float32(factor)) * part
    return np.sign(numbers) * (1 - total * np.exp(-size * size))
