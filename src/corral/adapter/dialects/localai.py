"""LocalAI's own routes: converts rerank and token requests to gRPC messages, and the results back. Pure."""

import msgspec

from corral.base.errors import InvalidInput
from corral.rpc.messages import PredictOptions, RerankRequest, RerankResult
from corral.wire.adapter import AdapterModel


class RankingRequest(msgspec.Struct, kw_only=True):
    query: str
    documents: list[str]
    model: str | None = None
    top_n: int | None = None

    def check(self) -> None:
        """Check what the types do not express."""
        if not self.query:
            raise InvalidInput("query", "must not be empty")
        if not self.documents:
            raise InvalidInput("documents", "must not be empty")
        if self.top_n is not None and not 0 <= self.top_n < 2**31:
            raise InvalidInput("top_n", "must be a number of documents")


def ranking_options(request: RankingRequest, model: AdapterModel) -> RerankRequest:
    """Build the message. A `top_n` of 0 asks for all documents."""
    return RerankRequest(
        query=request.query,
        documents=request.documents,
        top_n=len(request.documents) if request.top_n is None else request.top_n,
        ModelIdentity=model.identity,
    )


def ranking_answer(result: RerankResult, *, model: str) -> bytes:
    results = [
        {"index": ranked.index, "document": {"text": ranked.text}, "relevance_score": ranked.relevance_score}
        for ranked in result.results
    ]
    usage = {"total_tokens": result.usage.total_tokens, "prompt_tokens": result.usage.prompt_tokens}
    return msgspec.json.encode({"model": model, "usage": usage, "results": results})


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
