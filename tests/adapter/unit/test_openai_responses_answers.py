"""Replies of backends as OpenAI's responses, whole and streamed."""

import json
from itertools import count, pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.adapter.dialects import requests
from corral.adapter.dialects.answers import Failure, Stamp
from corral.adapter.dialects.openai_responses import ResponsesRequest
from corral.adapter.dialects.openai_responses_answers import ResponseEvents
from corral.rpc.messages import ChatDelta, Reply, ToolCallDelta

STAMP = Stamp(id="resp_1", created=7, model='a "model"', limit=3)
BEGUN = ["response.created", "response.in_progress"]
TEXT = {"type": "output_text", "annotations": [], "logprobs": []}


def events(stamp: Stamp = STAMP, **asked: Any) -> ResponseEvents:
    body = msgspec.json.encode({"input": "hi", **asked})
    return ResponseEvents(stamp, requests.parse(body, ResponsesRequest), lambda: 9)


def decoded(stream: bytes) -> list[Any]:
    parts = [event.split(b"\n") for event in stream.split(b"\n\n") if event]
    documents = [json.loads(data.removeprefix(b"data: ")) for _, data in parts]
    assert [name.removeprefix(b"event: ").decode() for name, _ in parts] == [each["type"] for each in documents]
    assert [each["sequence_number"] for each in documents] == list(range(len(documents)))
    return documents


def streamed(*replies: Reply, stamp: Stamp = STAMP, **asked: Any) -> list[Any]:
    stream = events(stamp, **asked)
    parts = [stream.opening(), *map(stream.part, replies), stream.ending(), stream.closing()]
    return decoded(b"".join(parts))


def whole(reply: Reply, stamp: Stamp = STAMP, **asked: Any) -> Any:
    return json.loads(events(stamp, **asked).whole(reply))


def without_ids(response: Any) -> Any:
    """The response, and its items without the ids that are random."""
    return {**response, "output": [{**item, "id": None} for item in response["output"]]}


def gathered(stream: list[Any]) -> list[Any]:
    """The items that a client puts together of the events, which must agree with those that end each item."""
    output: list[Any] = []
    for event in stream:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert (event["output_index"], event["item"]["status"]) == (len(output), "in_progress")
            output.append(event["item"])
        elif kind == "output_item.done":
            item = output[event["output_index"]]
            assert item.pop("status") == "in_progress"
            item["status"] = event["item"]["status"]
            assert event["item"] == item
        elif "item_id" in event:
            item = output[event["output_index"]]
            assert (item["id"], event.get("content_index", 0)) == (event["item_id"], 0)
            grow(item, kind, event)
    assert all(item["status"] != "in_progress" for item in output)
    assert stream[-1]["response"]["output"] == output
    return output


def grow(item: Any, kind: str, event: Any) -> None:
    """What one event says about a part of an item, or about the arguments of a call."""
    match kind:
        case "content_part.added":
            assert (item["content"], event["part"]["text"]) == ([], "")
            item["content"].append(event["part"])
        case "output_text.delta":
            item["content"][0]["text"] += event["delta"]
            item["content"][0]["logprobs"] += event["logprobs"]
        case "reasoning_text.delta":
            item["content"][0]["text"] += event["delta"]
        case "function_call_arguments.delta":
            item["arguments"] += event["delta"]
        case "output_text.done" | "reasoning_text.done":
            assert event["text"] == item["content"][0]["text"]
        case "function_call_arguments.done":
            assert (event["arguments"], event["name"]) == (item["arguments"], item["name"])
        case "content_part.done":
            assert event["part"] == item["content"][0]
        case _:
            raise AssertionError(kind)


def call(index: int, arguments: str, *, id: str = "", name: str = "") -> ChatDelta:
    return ChatDelta(tool_calls=[ToolCallDelta(index=index, id=id, name=name, arguments=arguments)])


def token(text: str, **more: Any) -> dict[str, Any]:
    return {"token": text, "logprob": -0.5, **more}


class TestWhole:
    def test_a_text(self) -> None:
        asked = {"instructions": "be kind", "temperature": 0.5, "metadata": {"a": "b"}, "reasoning": {"effort": "low"}}
        tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
        answer = whole(
            Reply(message="wörld".encode(), tokens=2, prompt_tokens=5),
            **asked,
            tools=[tool],
            tool_choice={"type": "function", "name": "f"},
            parallel_tool_calls=False,
            store=True,
        )
        [item] = answer["output"]
        assert item.pop("id").startswith("msg_")
        assert item == {
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [{**TEXT, "text": "wörld"}],
        }
        assert answer.pop("usage") == {
            "input_tokens": 5,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 2,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 7,
        }
        [told] = answer.pop("tools")
        assert told == told | tool
        assert answer == {
            "id": "resp_1",
            "object": "response",
            "created_at": 7,
            "completed_at": 9,
            "status": "completed",
            "error": None,
            "incomplete_details": None,
            "model": 'a "model"',
            "output": [item],
            "instructions": "be kind",
            "max_output_tokens": None,
            "max_tool_calls": None,
            "prompt_cache_key": None,
            "safety_identifier": None,
            "temperature": 0.5,
            "top_p": None,
            "user": None,
            "background": False,
            "metadata": {"a": "b"},
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "reasoning": {"effort": "low", "summary": None},
            "service_tier": "default",
            "store": False,
            "text": {"format": {"type": "text"}},
            "tool_choice": {"type": "function", "name": "f"},
            "top_logprobs": 0,
            "truncation": "disabled",
        }

    def test_usage_comes_last_and_only_where_it_is_known(self) -> None:
        encoded = events().whole(Reply(message=b"x", tokens=1))
        assert list(json.loads(encoded))[-1] == "usage"
        assert whole(Reply(message=b"x"))["usage"] is None

    def test_nothing_is_an_empty_text(self) -> None:
        for output in (whole(Reply())["output"], gathered(streamed())):
            assert [item["content"] for item in output] == [[{**TEXT, "text": ""}]]

    def test_an_answer_at_its_limit_says_so(self) -> None:
        answer = whole(Reply(message=b"a b c", tokens=3))
        assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert (answer["completed_at"], answer["output"][-1]["status"]) == (None, "incomplete")

    @pytest.mark.parametrize(
        ("arguments", "status"), [('{"a": 1}', "completed"), ("", "completed"), ('{"a', "incomplete")]
    )
    def test_a_call_at_the_limit_was_cut_if_its_arguments_are(self, arguments: str, status: str) -> None:
        answer = whole(Reply(chat_deltas=[call(0, arguments, id="c1", name="f")], tokens=3))
        assert (answer["status"], [item["status"] for item in answer["output"]]) == (status, [status])

    def test_thoughts_text_and_calls_are_items_in_this_order(self) -> None:
        deltas = [
            ChatDelta(reasoning_content="hm"),
            ChatDelta(content="I look."),
            call(0, "{}", id="c1", name="f"),
            call(1, '{"a": 1}', name="g"),
        ]
        thoughts, text, first, second = whole(Reply(chat_deltas=deltas))["output"]
        assert thoughts["id"].startswith("rs_")
        assert (thoughts["summary"], thoughts["content"]) == ([], [{"type": "reasoning_text", "text": "hm"}])
        assert text["content"] == [{**TEXT, "text": "I look."}]
        assert [first[name] for name in ("type", "call_id", "name", "arguments")] == ["function_call", "c1", "f", "{}"]
        assert first["id"].startswith("fc_")
        assert second["call_id"].startswith("call_")
        assert second["call_id"] != second["id"]

    def test_a_call_needs_no_text(self) -> None:
        output = whole(Reply(chat_deltas=[call(0, "{}", id="c1", name="f")]))["output"]
        assert [item["type"] for item in output] == ["function_call"]

    def test_an_answer_begins_with_the_prefix_of_the_model(self) -> None:
        stamp = msgspec.structs.replace(STAMP, prefix="<think>")
        reply = Reply(message=b"x")
        for output in (whole(reply, stamp)["output"], gathered(streamed(reply, stamp=stamp))):
            assert [item["content"][0]["text"] for item in output] == ["<think>x"]


class TestStreams:
    def test_the_events_of_a_text_in_their_order(self) -> None:
        stream = streamed(Reply(message=b"he", tokens=1), Reply(message=b"llo", tokens=2, prompt_tokens=4))
        assert [event["type"] for event in stream] == [
            *BEGUN,
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
        assert [event["delta"] for event in stream if event["type"].endswith("delta")] == ["he", "llo"]
        begun = stream[0]["response"]
        assert (begun["status"], begun["output"], begun["usage"]) == ("in_progress", [], None)
        assert stream[-1]["response"]["usage"]["total_tokens"] == 6
        [item] = gathered(stream)
        assert item["content"] == [{**TEXT, "text": "hello"}]

    def test_the_events_of_thoughts_and_a_call_in_their_order(self) -> None:
        stream = streamed(
            Reply(chat_deltas=[ChatDelta(reasoning_content="hm")]),
            Reply(chat_deltas=[call(0, '{"a"', id="c1", name="f")]),
            Reply(chat_deltas=[call(0, ":1}")]),
        )
        assert [event["type"].removeprefix("response.") for event in stream[2:]] == [
            "output_item.added",
            "content_part.added",
            "reasoning_text.delta",
            "reasoning_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
            "completed",
        ]
        assert [item["type"] for item in gathered(stream)] == ["reasoning", "function_call"]

    def test_a_stream_says_what_the_whole_answer_says(self) -> None:
        deltas = [
            ChatDelta(reasoning_content="h"),
            ChatDelta(reasoning_content="m"),
            ChatDelta(content="I "),
            ChatDelta(content="look."),
            call(0, '{"at"', id="c1", name="weather"),
            call(0, ':"Köln"}'),
            call(1, "{}", id="c2", name="time"),
        ]
        reply = Reply(chat_deltas=deltas, tokens=2, prompt_tokens=4)
        parts = [Reply(chat_deltas=[delta], tokens=2, prompt_tokens=4) for delta in deltas]
        for stream in (streamed(*parts), streamed(reply)):
            gathered(stream)
            assert without_ids(stream[-1]["response"]) == without_ids(whole(reply))

    def test_an_answer_at_its_limit_ends_as_incomplete(self) -> None:
        stream = streamed(Reply(chat_deltas=[ChatDelta(reasoning_content="h")]), Reply(message=b"a b c", tokens=3))
        assert (stream[-1]["type"], stream[-1]["response"]["status"]) == ("response.incomplete", "incomplete")
        assert [item["status"] for item in gathered(stream)] == ["completed", "incomplete"]

    def test_arguments_that_come_after_the_next_call_began_are_not_lost(self) -> None:
        late = [call(0, '{"a":', id="c1", name="f"), call(1, "{}", id="c2", name="g"), call(0, "1}")]
        assert [item["arguments"] for item in gathered(streamed(Reply(chat_deltas=late)))] == ['{"a":1}', "{}"]

    def test_a_call_begins_when_its_name_is_known(self) -> None:
        late = [call(1, '{"a":'), call(0, "{}", id="c1", name="f"), call(1, "1}", id="c2", name="g"), call(2, "{}")]
        first, second, nameless = gathered(streamed(Reply(chat_deltas=late)))
        assert (first["name"], second["name"], nameless["name"]) == ("f", "g", "")
        assert (second["call_id"], second["arguments"], nameless["arguments"]) == ("c2", '{"a":1}', "{}")

    def test_text_after_a_call_is_an_item_of_its_own(self) -> None:
        mixed = [
            ChatDelta(content="a"),
            call(0, "{}", id="c1", name="f"),
            ChatDelta(content="b"),
            ChatDelta(content="c"),
        ]
        output = gathered(streamed(Reply(chat_deltas=mixed)))
        assert [item["type"] for item in output] == ["message", "function_call", "message"]
        assert [output[place]["content"][0]["text"] for place in (0, 2)] == ["a", "bc"]

    @given(st.text(), st.lists(st.integers(0, 200), max_size=8))
    def test_a_text_survives_whatever_its_bytes_are_split_into(self, text: str, cuts: list[int]) -> None:
        data = text.encode()
        places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
        stream = streamed(*(Reply(message=data[start:end]) for start, end in pairwise(places)))
        [item] = gathered(stream)
        assert item["content"][0]["text"] == text

    @given(st.lists(st.sampled_from(["think", "say", "f0", "f1", "f2"]), max_size=12))
    def test_clients_gather_what_the_response_has_whatever_comes_after_what(self, kinds: list[str]) -> None:
        numbers = count()
        deltas = {
            "think": lambda: ChatDelta(reasoning_content=f"t{next(numbers)}"),
            "say": lambda: ChatDelta(content=f"s{next(numbers)}"),
            **{f"f{at}": lambda at=at: call(at, f"a{next(numbers)}", id=f"c{at}", name="f") for at in range(3)},
        }
        output = gathered(streamed(*(Reply(chat_deltas=[deltas[kind]()]) for kind in kinds)))
        told = "".join(item["arguments"] if "arguments" in item else item["content"][0]["text"] for item in output)
        assert sorted(told) == sorted(
            "".join(f"{'a' if kind[0] == 'f' else kind[0]}{number}" for number, kind in enumerate(kinds))
        )


class TestLogprobs:
    ASKED: Any = {"include": ["message.output_text.logprobs"]}  # noqa: RUF012 - nobody changes it

    def test_probabilities_of_tokens_are_told_with_the_text(self) -> None:
        best = [{"token": "he", "logprob": -0.5, "bytes": [104, 101]}]
        replies = [
            Reply(message=b"he", logprobs=json.dumps({"content": [token("he", top_logprobs=best)]}).encode()),
            Reply(
                message="é".encode()[:1],
                logprobs=json.dumps({"content": [token("\N{REPLACEMENT CHARACTER}")]}).encode(),
            ),
            Reply(message="é".encode()[1:], logprobs=json.dumps({"content": [token("é", bytes=[195, 169])]}).encode()),
        ]
        stream = streamed(*replies, **self.ASKED)
        [item] = gathered(stream)
        assert [each["token"] for each in item["content"][0]["logprobs"]] == ["he", "\N{REPLACEMENT CHARACTER}", "é"]
        assert item["content"][0]["logprobs"][0] == {"bytes": [], **token("he", top_logprobs=best)}
        deltas = [event for event in stream if event["type"] == "response.output_text.delta"]
        assert [len(event["logprobs"]) for event in deltas] == [1, 2]

    def test_they_are_told_only_if_asked_for_and_only_those_of_text(self) -> None:
        told = json.dumps({"content": [token("x")]}).encode()
        assert whole(Reply(message=b"x", logprobs=told))["output"][0]["content"][0]["logprobs"] == []
        thought = Reply(chat_deltas=[ChatDelta(reasoning_content="x")], logprobs=told)
        for item in gathered(streamed(thought, Reply(message=b"x", logprobs=told), **self.ASKED)):
            assert len(item["content"][0].get("logprobs", [0])) == 1

    @pytest.mark.parametrize(
        "told", [b"no", b"[]", b"null", b'{"content": null}', b'{"tokens": ["x"]}', b'{"content": ["x"]}']
    )
    def test_what_is_no_list_of_tokens_is_left_out(self, told: bytes) -> None:
        answer = whole(Reply(message=b"x", logprobs=told), **self.ASKED)
        assert answer["output"][0]["content"] == [{**TEXT, "text": "x"}]


class TestFailures:
    @pytest.mark.parametrize(("status", "code"), [(503, "server_error"), (400, "invalid_prompt")])
    def test_a_failure_is_told_as_an_error_and_as_a_failed_response(self, status: int, code: str) -> None:
        stream = events()
        sent = [
            stream.opening(),
            stream.part(Reply(message=b"he", tokens=1)),
            stream.failed(Failure(status=status, message="gone", type="t", code="backend_gone", param="x")),
        ]
        *_, error, failed = decoded(b"".join(sent))
        told = {"code": "backend_gone", "message": "gone", "param": None}
        assert error == {"type": "error", "sequence_number": 5, **told, "error": {"type": "t", **told}}
        response = failed["response"]
        assert (failed["type"], response["status"]) == ("response.failed", "failed")
        assert response["error"] == {"code": code, "message": "gone"}
        assert response["output"][0]["status"] == "incomplete"
        assert response["output"][0]["content"] == [{**TEXT, "text": "he"}]
