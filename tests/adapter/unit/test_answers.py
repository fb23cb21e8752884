"""Replies of backends as OpenAI's answers."""

import base64
import itertools
import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.adapter.dialects.answers import (
    DONE,
    ChatEvents,
    CompletionEvents,
    Stamp,
    chat_answer,
    completion_answer,
    embedding_answer,
    finish_reason,
)
from corral.adapter.responses import error_response
from corral.base.errors import InvalidInput
from corral.rpc.messages import ChatDelta, EmbeddingLayout, EmbeddingResult, Reply, ToolCallDelta

STAMP = Stamp(id="chatcmpl-1", created=7, model='a "model"', limit=3, include_usage=True)


def decoded(events: bytes) -> list[Any]:
    return [json.loads(event[6:]) for event in events.split(b"\n\n") if event and event != DONE.strip()]


def content_of(events: bytes) -> str:
    choices = [choice for event in decoded(events) for choice in event["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


@given(st.text(), st.lists(st.integers(0, 200), max_size=8))
def test_a_text_survives_whatever_its_bytes_are_split_into(text: str, cuts: list[int]) -> None:
    whole = text.encode()
    edges = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    parts = [whole[start:end] for start, end in itertools.pairwise(edges)]
    events = ChatEvents(STAMP)
    stream = b"".join(
        [events.opening(), *(events.part(Reply(message=part)) for part in parts), events.ending() + events.closing()]
    )
    assert content_of(stream) == text
    assert stream.endswith(DONE)


def test_bytes_that_are_no_text_do_not_break_the_stream() -> None:
    events = ChatEvents(STAMP)
    assert content_of(events.part(Reply(message=b"a\xff")) + events.ending() + events.closing()) == "a\ufffd"
    unfinished = ChatEvents(STAMP)
    assert unfinished.part(Reply(message=b"\xe2\x82")) == b""
    assert content_of(unfinished.ending() + unfinished.closing()) == "\ufffd"


def test_the_last_counts_are_the_valid_ones() -> None:
    events = ChatEvents(STAMP)
    for reply in (Reply(tokens=1, prompt_tokens=5), Reply(tokens=3), Reply()):
        events.part(reply)
    ending, usage = decoded(events.ending() + events.closing())
    assert ending["choices"][0]["finish_reason"] == "length"
    assert usage["usage"] == {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    assert usage["choices"] == []
    assert ending["timings"] == {"prompt_n": 5, "predicted_n": 3}


def test_counts_that_the_backend_does_not_tell_are_not_invented() -> None:
    events = ChatEvents(STAMP)
    events.part(Reply(message=b"x"))
    assert len(decoded(events.ending() + events.closing())) == 1
    assert "usage" not in json.loads(chat_answer([Reply(message=b"x")], STAMP))


def test_deltas_are_preferred_to_the_message() -> None:
    events = ChatEvents(STAMP)
    first = ToolCallDelta(index=0, id="c1", name="look", arguments='{"a"')
    (one,) = decoded(events.part(Reply(message=b"raw", chat_deltas=[ChatDelta(tool_calls=[first])])))
    (two,) = decoded(events.part(Reply(chat_deltas=[ChatDelta(tool_calls=[ToolCallDelta(index=0, arguments=":1}")])])))
    assert one["choices"][0]["delta"]["tool_calls"] == [
        {"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a"'}}
    ]
    assert two["choices"][0]["delta"]["tool_calls"] == [{"index": 0, "function": {"arguments": ":1}"}}]
    assert decoded(events.ending() + events.closing())[0]["choices"][0]["finish_reason"] == "tool_calls"


def test_calls_without_an_id_get_one_each() -> None:
    calls = [ToolCallDelta(index=index, name="look", arguments="{}") for index in (0, 1)]
    late = ToolCallDelta(index=0, id="late")

    def whole(*deltas: ToolCallDelta) -> list[dict[str, Any]]:
        answer = json.loads(chat_answer([Reply(chat_deltas=[ChatDelta(tool_calls=deltas)])], STAMP))
        return list(answer["choices"][0]["message"]["tool_calls"])

    (event,) = decoded(ChatEvents(STAMP).part(Reply(chat_deltas=[ChatDelta(tool_calls=calls)])))
    for made in (event["choices"][0]["delta"]["tool_calls"], whole(*calls)):
        ids = {call["id"] for call in made}
        assert len(ids) == 2
        assert all(id.startswith("call-") for id in ids)
    assert whole(*calls, late)[0]["id"] == "late"


def test_a_whole_answer_joins_its_deltas() -> None:
    deltas = [
        ChatDelta(reasoning_content="hm"),
        ChatDelta(tool_calls=[ToolCallDelta(index=0, id="c", name="f", arguments="{")]),
        ChatDelta(tool_calls=[ToolCallDelta(index=0, arguments="}")]),
    ]
    (choice,) = json.loads(chat_answer([Reply(chat_deltas=deltas)], STAMP))["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "reasoning_content": "hm",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }
    assert choice["finish_reason"] == "tool_calls"


def test_a_streamed_completion_counts_all_its_prompts() -> None:
    events = CompletionEvents(STAMP)
    stream = events.part(Reply(message=b"a", tokens=1, prompt_tokens=1)) + events.ending()
    stream += events.part(Reply(message=b"b", tokens=3, prompt_tokens=1)) + events.ending() + events.closing()
    *choices, usage = decoded(stream)
    shown = [
        (one["choices"][0]["index"], one["choices"][0]["text"], one["choices"][0]["finish_reason"]) for one in choices
    ]
    assert shown == [(0, "a", None), (0, "", "stop"), (1, "b", None), (1, "", "length")]
    assert usage["usage"]["total_tokens"] == 6
    whole = json.loads(completion_answer([Reply(message=b"a", tokens=1), Reply(message=b"b", tokens=3)], STAMP))
    assert [choice["text"] for choice in whole["choices"]] == ["a", "b"]


def test_of_several_vectors_in_a_result_the_first_is_the_embedding() -> None:
    result = EmbeddingResult(embeddings=[1.0, 2.0, 3.0, 4.0], dim=2, tokens=2, prompt_tokens=9)
    plain = json.loads(embedding_answer([result], model="m", as_base64=False))
    assert plain["data"][0]["embedding"] == [1.0, 2.0]
    assert plain["usage"] == {"prompt_tokens": 9, "total_tokens": 9}
    packed = json.loads(embedding_answer([result], model="m", as_base64=True))
    assert struct.unpack("<2f", base64.b64decode(packed["data"][0]["embedding"])) == (1.0, 2.0)


def test_the_vector_of_a_text_is_the_mean_of_those_of_its_tokens() -> None:
    layout = EmbeddingLayout.EMBEDDING_LAYOUT_PER_TOKEN
    result = EmbeddingResult(embeddings=[1.0, 8.0, 5.0, 0.0], dim=2, tokens=2, layout=layout)
    plain = json.loads(embedding_answer([result], model="m", as_base64=False))
    assert plain["data"][0]["embedding"] == pytest.approx([0.6, 0.8])
    short = json.loads(embedding_answer([result], model="m", as_base64=False, dimensions=1))
    assert short["data"][0]["embedding"] == [1.0]


@pytest.mark.parametrize("size", [0, 2])
def test_vectors_of_tokens_without_a_length_are_refused(size: int) -> None:
    layout = EmbeddingLayout.EMBEDDING_LAYOUT_PER_TOKEN
    with pytest.raises(InvalidInput, match="how long they are"):
        embedding_answer([EmbeddingResult(embeddings=[1.0], dim=size, layout=layout)], model="m", as_base64=False)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(message=b"hi", logprobs=b'{"content":\n[]}'),
        Reply(chat_deltas=[ChatDelta(content="h"), ChatDelta(content="i")], logprobs=b'{"content":\n[]}'),
        Reply(logprobs=b'{"content":\n[]}'),
    ],
)
def test_likelihoods_are_told_once_with_what_they_belong_to(reply: Reply) -> None:
    events = decoded(ChatEvents(STAMP).part(reply))
    told = [choice.get("logprobs") for event in events for choice in event["choices"]]
    assert told == [{"content": []}, *[None] * (len(events) - 1)]
    assert json.loads(chat_answer([reply], STAMP))["choices"][0]["logprobs"] == {"content": []}


def test_likelihoods_that_are_no_json_break_nothing() -> None:
    odd = Reply(message=b"hi", logprobs=b"{")
    assert content_of(ChatEvents(STAMP).part(odd)) == "hi"
    assert json.loads(chat_answer([odd], STAMP))["choices"][0]["logprobs"] is None


@pytest.mark.parametrize(
    ("tokens", "limit", "reason"), [(3, 3, "length"), (2, 3, "stop"), (9, 0, "stop"), (0, 0, "stop")]
)
def test_why_an_answer_ended_is_concluded_from_its_tokens(tokens: int, limit: int, reason: str) -> None:
    assert finish_reason(tokens, limit) == reason


def test_an_error_has_all_four_fields_of_openais_shape() -> None:
    response = error_response(InvalidInput("n", "must be 1"))
    error = {"message": "n: must be 1", "type": "invalid_request_error", "param": "n", "code": "invalid_input"}
    assert (response.status, json.loads(response.body)) == (400, {"error": error})
