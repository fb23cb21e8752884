"""Texts to tokens and back, in the words of LocalAI and of llama.cpp's own server. Pure."""

import msgspec

from corral.base.errors import InvalidInput
from corral.rpc.messages import PredictOptions
from corral.wire.adapter import AdapterModel


class TokenizeRequest(msgspec.Struct, kw_only=True):
    content: str
    model: str | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    tokens: list[int]
    model: str | None = None

    def check(self) -> None:
        if any(not 0 <= token < 2**31 for token in self.tokens):
            raise InvalidInput("tokens", "must be numbers of tokens")


def tokenize_options(request: TokenizeRequest, model: AdapterModel) -> PredictOptions:
    return PredictOptions(Prompt=request.content, ModelIdentity=model.identity)
