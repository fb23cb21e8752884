"""Documents in the order in which they fit a question."""

from corral.adapter.dialects.requests import parse
from corral.adapter.dialects.rerank import RankingRequest, ranking_answer, ranking_options
from corral.adapter.replicas import Served
from corral.base.clock import Clock


async def rerank(served: Served, body: bytes, _: Clock) -> bytes:
    request = parse(body, RankingRequest)
    request.check()
    return ranking_answer(await served.backend.rerank(ranking_options(request, served.model)), model=served.model.name)
