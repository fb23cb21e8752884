"""Anthropic's requests as chats, and replies of backends as Anthropic's messages."""

import json
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.adapter.dialects import anthropic, openai, requests
from corral.adapter.dialects.answers import Stamp
from corral.base.errors import InvalidInput
from corral.rpc.messages import ChatDelta, Message, PredictOptions, Reply, ToolCallDelta
from corral.wire.adapter import AdapterModel

STAMP = Stamp(id="msg-1", created=7, model='a "model"', limit=3)
MODEL = AdapterModel(name="m", identity="m.bin", use_tokenizer_template=True)
WEATHER = {"name": "weather", "description": "of a place", "input_schema": {"type": "object"}}


def chat(*messages: Any, **more: Any) -> requests.ChatRequest:
    body = {"model": "m", "max_tokens": 9, "messages": messages or [{"role": "user", "content": "hi"}], **more}
    return anthropic.chat_request(requests.parse(msgspec.json.encode(body), anthropic.MessagesRequest))


def checked_chat(body: Any) -> None:
    request = requests.parse(msgspec.json.encode(body), anthropic.MessagesRequest)
    requests.check_chat(anthropic.chat_request(request))


def options(*messages: Any, **more: Any) -> PredictOptions:
    request = chat(*messages, **more)
    requests.check_chat(request)
    return openai.chat_options(request, MODEL)


def said(messages: Any) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in messages]


def decoded(stream: bytes) -> list[Any]:
    events = [event.split(b"\n") for event in stream.split(b"\n\n") if event]
    documents = [json.loads(data.removeprefix(b"data: ")) for _, data in events]
    assert [name.removeprefix(b"event: ").decode() for name, _ in events] == [each["type"] for each in documents]
    return documents


def streamed(*replies: Reply, stamp: Stamp = STAMP) -> list[Any]:
    events = anthropic.MessageEvents(stamp)
    parts = [events.opening(), *map(events.part, replies), events.ending(), events.closing()]
    return decoded(b"".join(parts))


def gathered(events: list[Any]) -> dict[str, Any]:
    """The message that a client puts together of the events."""
    message: dict[str, Any] = {}
    for event in events:
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append(dict(event["content_block"], open=True, json=""))
            case "content_block_delta":
                block, delta = message["content"][event["index"]], event["delta"]
                field = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "json"}[delta["type"]]
                given = delta["partial_json" if field == "json" else field]
                block[field] += given
            case "content_block_stop":
                assert message["content"][event["index"]].pop("open")
            case "message_delta":
                message |= event["delta"] | {"usage": event["usage"]}
    for block in message["content"]:
        assert "open" not in block
        if text := block.pop("json"):
            block["input"] = json.loads(text)
    return message


def call(index: int, arguments: str, *, id: str = "", name: str = "") -> ChatDelta:
    return ChatDelta(tool_calls=[ToolCallDelta(index=index, id=id, name=name, arguments=arguments)])


class TestRequests:
    def test_a_chat_with_all_that_it_may_have(self) -> None:
        found = options(
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "yes?"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            system="be kind",
            stop_sequences=["\n"],
            temperature=0.5,
            top_k=4,
            top_p=0.25,
        )
        assert said(found.Messages) == [("system", "be kind"), ("user", "hi"), ("assistant", "yes?"), ("user", "ab")]
        assert (found.Tokens, found.Temperature, found.TopK, found.TopP) == (9, 0.5, 4, 0.25)
        assert list(found.StopPrompts) == ["\n"]

    def test_nulls_mean_not_given(self) -> None:
        nothing = dict.fromkeys(
            ("system", "stop_sequences", "stream", "temperature", "top_k", "top_p", "tools", "tool_choice", "thinking")
        )
        assert said(options(**nothing).Messages) == [("user", "hi")]

    def test_a_system_prompt_may_come_in_blocks(self) -> None:
        found = options(system=[{"type": "text", "text": "a", "cache_control": {}}, {"type": "text", "text": "b"}])
        assert said(found.Messages)[0] == ("system", "a\nb")

    def test_calls_of_tools_and_their_results_are_messages_in_the_order_of_their_calls(self) -> None:
        found = options(
            {"role": "user", "content": "weather?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "x"},
                    {"type": "redacted_thinking", "data": "x"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "t1", "name": "weather", "input": {"at": "Köln"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "rain"}]},
                    {"type": "tool_result", "tool_use_id": "t2"},
                    {"type": "text", "text": "and now?"},
                ],
            },
            tools=[WEATHER],
        )
        assistant, first, second, last = found.Messages[1:]
        function = {"name": "weather", "arguments": '{"at": "Köln"}'}
        assert json.loads(assistant.tool_calls) == [{"id": "t1", "type": "function", "function": function}]
        assert (assistant.content, assistant.reasoning_content) == ("I look.", "hm")
        assert [(one.role, one.tool_call_id, one.content) for one in (first, second)] == [
            ("tool", "t1", "rain"),
            ("tool", "t2", ""),
        ]
        assert (last.role, last.content) == ("user", "and now?")
        about = {"name": "weather", "description": "of a place", "parameters": {"type": "object"}}
        assert json.loads(found.Tools) == [{"type": "function", "function": about}]

    @pytest.mark.parametrize(
        ("choice", "expected"),
        [
            ({"type": "auto", "disable_parallel_tool_use": True}, "auto"),
            ({"type": "any"}, "required"),
            ({"type": "none"}, "none"),
            ({"type": "tool", "name": "weather"}, {"type": "function", "function": {"name": "weather"}}),
        ],
    )
    def test_every_choice_of_tools(self, choice: Any, expected: Any) -> None:
        assert json.loads(options(tools=[WEATHER], tool_choice=choice).ToolChoice) == expected

    @pytest.mark.parametrize(("disabled", "expected"), [(True, False), (False, None), (None, None)])
    def test_parallel_calls_may_be_refused(self, disabled: Any, expected: Any) -> None:
        choice = {"type": "auto", "disable_parallel_tool_use": disabled}
        assert chat(tools=[WEATHER], tool_choice=choice).parallel_tool_calls is expected
        assert chat(tools=[WEATHER]).parallel_tool_calls is None

    def test_pictures_and_documents(self) -> None:
        source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
        document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "paper"}}
        shown = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image", "source": source}]}
        found = options({"role": "user", "content": [{"type": "image", "source": source}, document, shown]})
        assert list(found.Images) == ["AAAA", "AAAA"]
        assert said(found.Messages) == [("tool", ""), ("user", "paper")]

    @pytest.mark.parametrize(
        ("thinking", "expected"), [("enabled", "true"), ("adaptive", "true"), ("disabled", "false")]
    )
    def test_thinking_is_switched_as_asked(self, thinking: str, expected: str) -> None:
        found = options(thinking={"type": thinking, "budget_tokens": 1024})
        assert found.Metadata["enable_thinking"] == expected

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({"messages": []}, "messages"),
            ({}, "messages"),
            ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role"),
            ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "messages[0].content[0].type"),
            ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0].type"),
            ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
            (
                {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}]},
                "messages[0].content[0].source",
            ),
            ({"system": [{"type": "image"}]}, "system[0].type"),
            ({"tools": [{"name": "bash", "type": "bash_20250124"}]}, "tools[0].type"),
            ({"tools": [{"name": ""}]}, "tools[0].name"),
            ({"tools": [{"description": "x"}]}, "tools[0].name"),
            ({"tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
            ({"tool_choice": {"type": "any"}}, "tool_choice.type"),
            ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
            ({"container": "c"}, "container"),
            ({"mcp_servers": [{"name": "x"}]}, "mcp_servers"),
            ({"output_format": {"type": "json_schema"}}, "output_format"),
            ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
            ({"max_tokens": 0}, "max_tokens"),
            ({"temperature": 3}, "temperature"),
            ({"temperature": "hot"}, "temperature"),
        ],
    )
    def test_what_cannot_be_used_is_named_as_the_client_knows_it(self, body: Any, field: str) -> None:
        usual = {} if body == {} else {"messages": [{"role": "user", "content": "hi"}]}
        with pytest.raises(InvalidInput) as refused:
            checked_chat(usual | body)
        assert refused.value.field == field

    def test_a_null_and_a_missing_limit_are_the_same(self) -> None:
        said = b'{"messages": [{"role": "user", "content": "hi"}]'
        missing, null = (
            anthropic.chat_request(requests.parse(said + end, anthropic.MessagesRequest))
            for end in (b"}", b', "max_tokens": null}')
        )
        assert missing == null
        assert options(output_config={"effort": "low"}, mcp_servers=[], container=None) == options()

    def test_the_text_that_is_counted(self) -> None:
        rendered = PredictOptions(Prompt="all of it", Messages=[Message(content="x")])
        assert anthropic.counted_text(rendered) == "all of it"
        counted = anthropic.counted_text(options(system="be kind", tools=[WEATHER]))
        assert counted.startswith("system\nbe kind\nuser\nhi\n[{")


class TestAnswers:
    def test_a_text(self) -> None:
        reply = Reply(message="wörld".encode(), tokens=2, prompt_tokens=5)
        assert json.loads(anthropic.message_answer(reply, STAMP)) == {
            "id": "msg-1",
            "type": "message",
            "role": "assistant",
            "model": 'a "model"',
            "content": [{"type": "text", "text": "wörld"}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 5, "output_tokens": 2},
        }

    def test_nothing_is_an_empty_text(self) -> None:
        assert json.loads(anthropic.message_answer(Reply(), STAMP))["content"] == [{"type": "text", "text": ""}]
        assert gathered(streamed())["content"] == [{"type": "text", "text": ""}]

    def test_an_answer_at_its_limit_says_so(self) -> None:
        reply = Reply(message=b"a b c", tokens=3)
        assert json.loads(anthropic.message_answer(reply, STAMP))["stop_reason"] == "max_tokens"
        assert gathered(streamed(reply))["stop_reason"] == "max_tokens"

    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [('{"a": 1}', {"a": 1}), ("", {}), ("[1]", {"arguments": [1]}), ("{oh", {"arguments": "{oh"})],
    )
    def test_arguments_are_an_object_whatever_the_model_wrote(self, arguments: str, expected: Any) -> None:
        reply = Reply(chat_deltas=[call(0, arguments, id="t1", name="weather")])
        message = json.loads(anthropic.message_answer(reply, STAMP))
        assert message["content"] == [{"type": "tool_use", "id": "t1", "name": "weather", "input": expected}]
        assert message["stop_reason"] == "tool_use"

    def test_a_call_without_an_id_gets_one(self) -> None:
        reply = Reply(chat_deltas=[call(0, "{}", name="weather")])
        [use] = json.loads(anthropic.message_answer(reply, STAMP))["content"]
        assert use["id"].startswith("toolu-")

    def test_the_events_of_a_stream_in_their_order(self) -> None:
        events = streamed(Reply(message=b"he", tokens=1), Reply(message=b"llo", tokens=2, prompt_tokens=4))
        assert [event["type"] for event in events] == [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
        message = gathered(events)
        assert message["content"] == [{"type": "text", "text": "hello"}]
        assert message["usage"] == {"input_tokens": 4, "output_tokens": 2}

    def test_a_stream_says_what_the_whole_answer_says(self) -> None:
        deltas = [
            ChatDelta(reasoning_content="h"),
            ChatDelta(reasoning_content="m"),
            ChatDelta(content="I "),
            ChatDelta(content="look."),
            call(0, '{"at"', id="t1", name="weather"),
            call(0, ':"Köln"}'),
            call(1, "{}", id="t2", name="time"),
        ]
        whole = json.loads(anthropic.message_answer(Reply(chat_deltas=deltas, tokens=2, prompt_tokens=4), STAMP))
        parts = [Reply(chat_deltas=[delta], tokens=2, prompt_tokens=4) for delta in deltas]
        assert gathered(streamed(*parts)) == whole
        assert gathered(streamed(Reply(chat_deltas=deltas, tokens=2, prompt_tokens=4))) == whole

    def test_arguments_that_come_after_the_next_call_began_are_not_lost(self) -> None:
        late = [call(0, '{"a":', id="t1", name="x"), call(1, "{}", id="t2", name="y"), call(0, "1}")]
        assert [block["input"] for block in gathered(streamed(Reply(chat_deltas=late)))["content"]] == [{"a": 1}, {}]

    def test_an_answer_begins_with_the_prefix_of_the_model(self) -> None:
        stamp = msgspec.structs.replace(STAMP, prefix="<think>")
        reply = Reply(message=b"x")
        expected = [{"type": "text", "text": "<think>x"}]
        assert json.loads(anthropic.message_answer(reply, stamp))["content"] == expected
        assert gathered(streamed(reply, stamp=stamp))["content"] == expected

    @given(st.text(), st.lists(st.integers(0, 200), max_size=8))
    def test_a_text_survives_whatever_its_bytes_are_split_into(self, text: str, cuts: list[int]) -> None:
        data = text.encode()
        places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
        replies = [Reply(message=data[start:end]) for start, end in pairwise(places)]
        [block] = gathered(streamed(*replies))["content"]
        assert block["text"] == text

    def test_a_failure_is_the_last_event(self) -> None:
        [event] = decoded(anthropic.error_event(503, "gone"))
        assert event == {"type": "error", "error": {"type": "overloaded_error", "message": "gone"}}
