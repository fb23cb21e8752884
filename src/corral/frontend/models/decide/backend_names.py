"""Names that model files have for backends which are called otherwise, as LocalAI understands them."""

from collections.abc import Mapping
from typing import Final, NamedTuple


class Meant(NamedTuple):
    """What a name stands for."""

    backend: str
    type: str = ""
    """The kind of model that the backend is told, where the name says that as well."""


_OTHER_NAMES: Final[Mapping[str, Meant]] = {
    "go-llama": Meant("llama-cpp"),
    "llama": Meant("llama-cpp"),
    "ik_llama": Meant("ik-llama-cpp"),
    "ik-llama": Meant("ik-llama-cpp"),
    "embedded-store": Meant("local-store"),
    "valkey": Meant("valkey-store"),
    "huggingface-embeddings": Meant("transformers", "SentenceTransformer"),
    "sentencetransformers": Meant("transformers", "SentenceTransformer"),
    "transformers-musicgen": Meant("transformers", "MusicgenForConditionalGeneration"),
    "mamba": Meant("transformers", "Mamba"),
    "stablediffusion": Meant("stablediffusion-ggml"),
}


def meant_by(name: str) -> Meant:
    """Whatever its letter case; any other name stands for itself."""
    return _OTHER_NAMES.get(name.lower(), Meant(name))
