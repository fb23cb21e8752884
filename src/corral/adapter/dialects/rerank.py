"""How well documents fit a question, in LocalAI's words and in the contract's. Pure."""

import msgspec

from corral.base.errors import InvalidInput
from corral.rpc.messages import RerankRequest, RerankResult
from corral.wire.adapter import AdapterModel


class RankingRequest(msgspec.Struct, kw_only=True):
    query: str
    documents: list[str]
    model: str | None = None
    top_n: int | None = None

    def check(self) -> None:
        """What the types alone do not say."""
        if not self.query:
            raise InvalidInput("query", "must not be empty")
        if not self.documents:
            raise InvalidInput("documents", "must not be empty")
        if self.top_n is not None and not 0 <= self.top_n < 2**31:
            raise InvalidInput("top_n", "must be a number of documents")


def ranking_options(request: RankingRequest, model: AdapterModel) -> RerankRequest:
    """0 asks for all."""
    return RerankRequest(
        query=request.query,
        documents=request.documents,
        top_n=len(request.documents) if request.top_n is None else request.top_n,
        ModelIdentity=model.identity,
    )


def ranking_answer(result: RerankResult, *, model: str) -> bytes:
    results = [
        {"index": one.index, "document": {"text": one.text}, "relevance_score": one.relevance_score}
        for one in result.results
    ]
    usage = {"total_tokens": result.usage.total_tokens, "prompt_tokens": result.usage.prompt_tokens}
    return msgspec.json.encode({"model": model, "usage": usage, "results": results})
