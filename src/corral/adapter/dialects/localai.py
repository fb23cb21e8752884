"""LocalAI's own routes: ranks, tokens and voice activity, as requests, gRPC messages and answers. Pure."""

import msgspec

from corral.base.errors import InvalidInput
from corral.rpc.messages import RerankRequest, RerankResult, VADRequest, VADResponse
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


class VoiceActivityRequest(msgspec.Struct, kw_only=True):
    """LocalAI's request: samples from -1 to 1, mono, 16,000 per second."""

    audio: list[float]
    model: str | None = None


def voice_activity_options(request: VoiceActivityRequest, model: AdapterModel) -> VADRequest:
    if not request.audio:
        raise InvalidInput("audio", "must not be empty")
    return VADRequest(audio=request.audio, ModelIdentity=model.identity)


def voice_activity_answer(response: VADResponse) -> bytes:
    """Return the segments in seconds, rounded to milliseconds: the contract's floats are not more exact."""
    segments = [{"start": round(segment.start, 3), "end": round(segment.end, 3)} for segment in response.segments]
    return msgspec.json.encode({"segments": segments})
