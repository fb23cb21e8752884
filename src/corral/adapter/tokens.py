"""Texts to tokens and back."""

import msgspec

from corral.adapter.dialects.requests import parse
from corral.adapter.dialects.tokens import DetokenizeRequest, TokenizeRequest, tokenize_options
from corral.adapter.replicas import Served
from corral.base.clock import Clock


async def tokenize(served: Served, body: bytes, _: Clock) -> bytes:
    request = parse(body, TokenizeRequest)
    return msgspec.json.encode({"tokens": await served.backend.tokenize(tokenize_options(request, served.model))})


async def detokenize(served: Served, body: bytes, _: Clock) -> bytes:
    request = parse(body, DetokenizeRequest)
    request.check()
    return msgspec.json.encode({"content": await served.backend.detokenize(request.tokens)})
