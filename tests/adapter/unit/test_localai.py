"""Documents ranked, between LocalAI's words and the contract's."""

import json

import pytest

from corral.adapter.dialects.localai import RankingRequest, ranking_answer, ranking_options
from corral.adapter.dialects.requests import parse
from corral.base.errors import InvalidInput
from corral.rpc.messages import DocumentResult, RerankResult, Usage
from corral.wire.adapter import AdapterModel

MODEL = AdapterModel(name="m", identity="m.bin")


@pytest.mark.parametrize(("said", "top_n"), [({}, 2), ({"top_n": 1}, 1), ({"top_n": 0}, 0)])
def test_a_ranking_asks_for_all_unless_told_otherwise(said: dict[str, int], top_n: int) -> None:
    request = parse(json.dumps({"query": "q", "documents": ["a", "b"], **said}).encode(), RankingRequest)
    request.check()
    options = ranking_options(request, MODEL)
    assert (options.query, list(options.documents), options.top_n) == ("q", ["a", "b"], top_n)
    assert options.ModelIdentity == "m.bin"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"query": "", "documents": ["a"]}, "query"),
        ({"query": "q", "documents": []}, "documents"),
        ({"query": "q", "documents": [1]}, "documents[0]"),
        ({"query": "q", "documents": ["a"], "top_n": -1}, "top_n"),
    ],
)
def test_what_cannot_be_ranked_is_named(body: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse(json.dumps(body).encode(), RankingRequest).check()
    assert refused.value.field == field


def test_an_answer_has_localais_shape() -> None:
    results = [DocumentResult(index=1, text="b", relevance_score=0.5)]
    answer = ranking_answer(RerankResult(usage=Usage(total_tokens=7, prompt_tokens=6), results=results), model="m")
    assert json.loads(answer) == {
        "model": "m",
        "usage": {"total_tokens": 7, "prompt_tokens": 6},
        "results": [{"index": 1, "document": {"text": "b"}, "relevance_score": 0.5}],
    }
