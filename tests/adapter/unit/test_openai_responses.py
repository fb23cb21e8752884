"""Requests of OpenAI's responses as chats."""

import json
from typing import Any

import msgspec
import pytest

from corral.adapter.dialects import openai, openai_responses, requests
from corral.base.errors import InvalidInput
from corral.rpc.messages import PredictOptions
from corral.wire.adapter import AdapterModel
from tests.kit.gbnf import Grammar, read_grammar

MODEL = AdapterModel(name="m", identity="m.bin", use_tokenizer_template=True)
WEATHER = {"type": "function", "name": "weather", "description": "of a place", "parameters": {"type": "object"}}
TIME = {"type": "function", "name": "time"}
PICTURE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather", "arguments": '{"at": "Köln"}'}


def chat(input: Any = "hi", **more: Any) -> requests.ChatRequest:
    body = msgspec.json.encode({"model": "m", "input": input, **more})
    request = openai_responses.chat_request(requests.parse(body, openai_responses.ResponsesRequest))
    requests.check_chat(request)
    return request


def options(input: Any = "hi", **more: Any) -> PredictOptions:
    return openai.chat_options(chat(input, **more), MODEL)


def said(input: Any, **more: Any) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in options(input, **more).Messages]


def refused_field(body: Any) -> str:
    with pytest.raises(InvalidInput) as refused:
        options(**{"input": "hi", **body})
    return refused.value.field


class TestFields:
    def test_a_text_is_what_the_user_says(self) -> None:
        assert said("hi", instructions="be kind") == [("system", "be kind"), ("user", "hi")]

    def test_fields_that_chats_have_as_well(self) -> None:
        found = options(max_output_tokens=9, temperature=0.5, top_p=0.25, reasoning={"effort": "low"}, top_k=4, seed=3)
        assert (found.Tokens, found.Temperature, found.TopP, found.TopK, found.Seed) == (9, 0.5, 0.25, 4, 3)
        assert dict(found.Metadata) == {"reasoning_effort": "low"}
        assert list(options(stop="\n").StopPrompts) == ["\n"]
        assert options(metadata={"enable_thinking": "false"}).Metadata["enable_thinking"] == "false"

    def test_fewer_tokens_than_openai_allows_are_a_limit_as_in_chats(self) -> None:
        assert [options(max_output_tokens=limit).Tokens for limit in (1, 15, -1, None)] == [1, 15, 0, 0]

    def test_nulls_mean_not_given(self) -> None:
        nothing = dict.fromkeys(set(openai_responses.ResponsesRequest.__struct_fields__) - {"input"})
        assert said("hi", **nothing) == [("user", "hi")]

    @pytest.mark.parametrize(
        "without_influence",
        [
            {"store": True},
            {"store": False},
            {"background": False},
            {"truncation": "disabled"},
            {"service_tier": "flex", "user": "u", "safety_identifier": "s", "prompt_cache_key": "k"},
            {"prompt_cache_options": {"mode": "implicit"}, "prompt_cache_retention": "24h"},
            {"max_tool_calls": 3, "context_management": [], "client_metadata": {"a": "b"}},
            {"text": {"format": {"type": "text"}, "verbosity": "medium"}},
            {"text": {"format": {}}},
            {"reasoning": {"summary": "auto", "context": "auto", "mode": "standard"}},
            {"stream_options": {"include_obfuscation": False}},
            {"include": ["reasoning.encrypted_content", "web_search_call.action.sources"]},
        ],
    )
    def test_fields_that_change_no_answer_are_accepted(self, without_influence: Any) -> None:
        assert options(**without_influence) == options()

    @pytest.mark.parametrize(
        ("more", "expected"),
        [
            ({"include": ["message.output_text.logprobs"]}, (1, 0)),
            ({"include": ["message.output_text.logprobs"], "top_logprobs": 2}, (1, 2)),
            ({"top_logprobs": 2}, (1, 2)),
            ({"top_logprobs": 0}, (0, 0)),
        ],
    )
    def test_probabilities_are_asked_for(self, more: Any, expected: Any) -> None:
        found = options(**more)
        assert (found.Logprobs, found.TopLogprobs) == expected

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({"previous_response_id": "resp_1", "input": None}, "previous_response_id"),
            ({"conversation": "conv_1"}, "conversation"),
            ({"prompt": {"id": "p"}}, "prompt"),
            ({"background": True}, "background"),
            ({"truncation": "auto"}, "truncation"),
            ({"moderation": {"model": "m"}}, "moderation"),
            ({"context_management": [{"type": "compaction"}]}, "context_management"),
            ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
            ({"reasoning": {"generate_summary": "concise"}}, "reasoning.generate_summary"),
            ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
            ({"reasoning": {"context": "current_turn"}}, "reasoning.context"),
            ({"text": {"format": {"type": "json_object"}}}, "text.format.type"),
            ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {}}}}, "text.format.type"),
            ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
            ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
            ({"text": {"format": {"type": "json_object"}}, "tools": [TIME]}, "text.format.type"),
            ({"text": {"verbosity": "low"}}, "text.verbosity"),
            ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
            ({"include": ["message.output_text.logprobs", "x"]}, "include[1]"),
            ({"top_logprobs": 21}, "top_logprobs"),
            ({"max_output_tokens": 0}, "max_output_tokens"),
            ({"max_output_tokens": 2**31}, "max_output_tokens"),
            ({"max_output_tokens": "9"}, "max_output_tokens"),
            ({"temperature": 3}, "temperature"),
            ({"max_tokens": 9}, "max_tokens"),
            ({"response_format": {"type": "json_object"}}, "response_format"),
            ({"n": 2}, "n"),
            ({"messages": []}, "messages"),
            ({"input": ""}, "input"),
            ({"input": []}, "input"),
            ({"input": None}, "input"),
            ({"input": 3}, "input"),
            ({"input": [{"type": "reasoning", "id": "rs_1", "encrypted_content": "x"}]}, "input"),
        ],
    )
    def test_what_cannot_be_honoured_is_named(self, body: Any, field: str) -> None:
        assert refused_field(body) == field


class TestForms:
    MODEL = AdapterModel(name="m", use_tokenizer_template=True, takes_grammars=True)

    def grammar(self, **form: Any) -> Grammar:
        return read_grammar(openai.chat_options(chat(text={"format": form}), self.MODEL).Grammar)

    def test_a_form_becomes_a_grammar(self) -> None:
        assert self.grammar(type="json_object").matches('{"a": 1}')
        fitting = self.grammar(type="json_schema", name="n", strict=True, schema={"enum": ["x"]})
        assert (fitting.matches('"x"'), fitting.matches('"y"')) == (True, False)

    def test_what_cannot_be_said_is_named_as_in_the_request(self) -> None:
        with pytest.raises(InvalidInput) as refused:
            self.grammar(type="json_schema", name="n", schema={"items": {"format": "regex"}})
        assert refused.value.field == "text.format.schema.items.format"


class TestTools:
    def test_tools_have_another_form_in_chats(self) -> None:
        tools = json.loads(options(tools=[WEATHER, TIME | {"strict": True}]).Tools)
        about = {"name": "weather", "description": "of a place", "parameters": {"type": "object"}}
        assert tools == [
            {"type": "function", "function": about},
            {"type": "function", "function": {"name": "time", "parameters": {}, "strict": True}},
        ]

    @pytest.mark.parametrize(
        ("choice", "expected"),
        [
            ("auto", "auto"),
            ("none", "none"),
            ("required", "required"),
            ({"type": "function", "name": "time"}, {"type": "function", "function": {"name": "time"}}),
        ],
    )
    def test_every_choice_of_tools(self, choice: Any, expected: Any) -> None:
        found = options(tools=[WEATHER, TIME], tool_choice=choice)
        assert (json.loads(found.ToolChoice), len(json.loads(found.Tools))) == (expected, 2)

    @pytest.mark.parametrize("mode", ["auto", "required"])
    def test_of_allowed_tools_the_model_hears_no_others(self, mode: str) -> None:
        allowed = {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "time"}]}
        found = options(tools=[WEATHER, TIME], tool_choice=allowed)
        assert json.loads(found.ToolChoice) == mode
        assert [tool["function"]["name"] for tool in json.loads(found.Tools)] == ["time"]

    @pytest.mark.parametrize(("wish", "expected"), [(None, None), (True, True), (False, False)])
    def test_parallel_calls_are_wanted_or_not(self, wish: Any, expected: Any) -> None:
        assert chat(tools=[TIME], parallel_tool_calls=wish).parallel_tool_calls is expected

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({"tools": [{"type": "web_search", "filters": {}}]}, "tools[0].type"),
            ({"tools": [TIME, {"type": "custom", "name": "c"}]}, "tools[1].type"),
            ({"tools": [{"type": "function"}]}, "tools[0].name"),
            ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].name"),
            ({"tools": [TIME | {"parameters": "x"}]}, "tools[0].parameters"),
            ({"tools": [TIME | {"defer_loading": True}]}, "tools[0].defer_loading"),
            ({"tools": [TIME | {"allowed_callers": ["programmatic"]}]}, "tools[0].allowed_callers"),
            ({"tool_choice": "some"}, "tool_choice"),
            ({"tool_choice": "required"}, "tool_choice"),
            ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
            ({"tool_choice": {"type": "function", "function": {"name": "time"}}, "tools": [TIME]}, "tool_choice.name"),
            ({"tool_choice": {"type": "web_search_preview"}}, "tool_choice.type"),
            ({"tool_choice": {"type": "mcp", "server_label": "x"}}, "tool_choice.type"),
            ({"tool_choice": {"type": "custom", "name": "time"}, "tools": [TIME]}, "tool_choice.type"),
            ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice.tools"),
            ({"tool_choice": {"type": "allowed_tools", "mode": "none", "tools": [TIME]}}, "tool_choice.mode"),
            (
                {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [TIME]}, "tools": [WEATHER]},
                "tool_choice.tools[0].name",
            ),
            (
                {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]}},
                "tool_choice.tools[0].type",
            ),
        ],
    )
    def test_faulty_tools_and_choices_are_named(self, body: Any, field: str) -> None:
        assert refused_field(body) == field


class TestItems:
    def test_messages_with_and_without_a_type(self) -> None:
        assert said(
            [
                {"role": "developer", "content": "be kind"},
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                {
                    "type": "message",
                    "id": "msg_1",
                    "status": "completed",
                    "role": "assistant",
                    "content": [
                        {"type": "output_text", "text": "yes", "annotations": [], "logprobs": []},
                        {"type": "refusal", "refusal": "no"},
                    ],
                },
                {"role": "assistant", "content": "and?"},
                {"role": "user", "content": ""},
            ]
        ) == [("system", "be kind"), ("user", "hi"), ("assistant", "yesno"), ("assistant", "and?"), ("user", "")]

    def test_what_the_model_thought_said_and_called_is_one_message_before_the_results(self) -> None:
        found = options(
            [
                {"role": "user", "content": "weather?"},
                {
                    "type": "reasoning",
                    "id": "rs_1",
                    "summary": [],
                    "content": [{"type": "reasoning_text", "text": "hm"}],
                },
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
                {"type": "reasoning", "id": "rs_2", "summary": [{"type": "summary_text", "text": "twice"}]},
                {"type": "reasoning", "id": "rs_3", "summary": [], "encrypted_content": "x"},
                CALL,
                CALL | {"call_id": "c2", "arguments": ""},
                {"type": "function_call_output", "call_id": "c1", "output": "rain"},
                {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "sun"}]},
                {
                    "type": "reasoning",
                    "id": "rs_4",
                    "summary": [],
                    "content": [{"type": "reasoning_text", "text": "so"}],
                },
                {"type": "message", "role": "assistant", "content": "Both."},
            ]
        )
        _, turn, first, second, last = found.Messages
        assert (turn.role, turn.content, turn.reasoning_content) == ("assistant", "I look.", "hm\ntwice")
        assert json.loads(turn.tool_calls) == [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"at": "Köln"}'}},
            {"id": "c2", "type": "function", "function": {"name": "weather", "arguments": "{}"}},
        ]
        assert [(one.role, one.tool_call_id, one.content) for one in (first, second)] == [
            ("tool", "c1", "rain"),
            ("tool", "c2", "sun"),
        ]
        assert (last.role, last.content, last.reasoning_content) == ("assistant", "Both.", "so")

    def test_nothing_stands_between_calls_and_their_results(self) -> None:
        later = {"type": "message", "role": "assistant", "content": "I look."}
        result = {"type": "function_call_output", "call_id": "c1", "output": "rain"}
        assert said([CALL, later, result]) == [("assistant", "I look."), ("tool", "rain")]

    def test_thoughts_of_an_answer_that_was_cut_are_kept(self) -> None:
        thoughts = {"type": "reasoning", "id": "rs_1", "content": [{"type": "reasoning_text", "text": "hm"}]}
        turn, user = options([thoughts, {"role": "user", "content": "go on"}]).Messages
        assert (turn.role, turn.reasoning_content, user.content) == ("assistant", "hm", "go on")

    def test_pictures_and_sounds(self) -> None:
        sound = {"type": "input_audio", "input_audio": {"data": "BBBB", "format": "wav"}}
        found = options(
            [
                {"role": "user", "content": [PICTURE, {"type": "input_text", "text": "what?"}, sound]},
                CALL,
                {"type": "function_call_output", "call_id": "c1", "output": [PICTURE]},
            ]
        )
        assert (list(found.Images), list(found.Audios)) == (["AAAA", "AAAA"], ["BBBB"])
        assert found.Messages[0].content == "what?"

    @pytest.mark.parametrize(
        ("item", "field"),
        [
            ({"type": "item_reference", "id": "msg_1"}, "type"),
            ({"id": "msg_1"}, "id"),
            ({"type": None, "id": "msg_1"}, "id"),
            ({"type": "web_search_call", "id": "ws_1", "status": "completed"}, "type"),
            ({"type": "custom_tool_call", "call_id": "c", "name": "n", "input": "x"}, "type"),
            ({}, "role"),
            ({"role": "tool", "content": "x"}, "role"),
            ({"role": "user"}, "content"),
            ({"role": "user", "content": 3}, "content"),
            ({"role": "user", "content": [{"text": "x"}]}, "content[0].type"),
            ({"role": "user", "content": [{"type": "input_text"}]}, "content[0].text"),
            ({"role": "assistant", "content": [{"type": "refusal"}]}, "content[0].refusal"),
            ({"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}, "content[0].type"),
            ({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}, "content[0].image_url"),
            (
                {"role": "user", "content": [{"type": "input_image", "image_url": "https://x/y.png"}]},
                "content[0].image_url",
            ),
            ({"role": "user", "content": [{"type": "input_image", "image_url": "data:,x"}]}, "content[0].image_url"),
            ({"role": "user", "content": [{"type": "input_audio"}]}, "content[0].input_audio"),
            ({"role": "assistant", "content": [PICTURE]}, "content[0].type"),
            ({"type": "function_call", "name": "f", "arguments": "{}"}, "call_id"),
            ({"type": "function_call", "call_id": "c", "arguments": "{}"}, "name"),
            ({"type": "function_call_output", "output": "x"}, "call_id"),
            ({"type": "function_call_output", "call_id": "other", "output": "x"}, "call_id"),
            ({"type": "function_call_output", "call_id": "c1"}, "output"),
            ({"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_file"}]}, "output[0].type"),
        ],
    )
    def test_items_that_cannot_be_used_are_named(self, item: Any, field: str) -> None:
        assert refused_field({"input": [CALL, item]}) == f"input[1].{field}"
