"""What llama.cpp is asked instead of what it would drop, and how its answers become one."""

import importlib
import json
from typing import Any

import pytest

CHAT, COMPLETION, EMBEDDING = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("look", "listen")
]
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


def careful() -> Any:
    return importlib.import_module("llama_careful")


def plan(path: str, body: dict[str, Any], *, offers_tools: bool = True) -> Any:
    return careful().plan_for(path, body, offers_tools=offers_tools)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, HELLO | {"functions": []}, "functions"),
        (CHAT, HELLO | {"function_call": "auto"}, "function_call"),
        (CHAT, HELLO | {"modalities": ["text", "audio"]}, "modalities"),
        (CHAT, HELLO | {"max_tokens": 0}, "max_tokens"),
        (CHAT, HELLO | {"max_completion_tokens": 0}, "max_completion_tokens"),
        (CHAT, HELLO | {"n": 0}, "n"),
        (CHAT, HELLO | {"n": 129}, "n"),
        (CHAT, HELLO | {"n": "two"}, "n"),
        (CHAT, HELLO | {"tools": "look"}, "tools"),
        (CHAT, HELLO | {"tools": [1]}, "tools[0].type"),
        (CHAT, HELLO | {"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        (
            CHAT,
            HELLO | {"tools": [{"type": "function", "function": {"name": "f", "parameters": 1}}]},
            "tools[0].function.parameters",
        ),
        (CHAT, HELLO | {"tools": TOOLS, "tool_choice": "sometimes"}, "tool_choice"),
        (CHAT, HELLO | {"tools": TOOLS, "tool_choice": {"function": {"name": "smell"}}}, "tool_choice"),
        (CHAT, HELLO | {"tool_choice": "required"}, "tool_choice"),
        (COMPLETION, {"prompt": "a", "suffix": "b"}, "suffix"),
        (COMPLETION, {"prompt": "a", "best_of": 2}, "best_of"),
        (COMPLETION, {"prompt": "a", "max_tokens": 0}, "max_tokens"),
        (COMPLETION, {"prompt": [1, 2], "echo": True}, "echo"),
        (COMPLETION, {"prompt": "a", "echo": True, "logprobs": 2}, "logprobs"),
        (COMPLETION, {"prompt": "a", "logprobs": "2"}, "logprobs"),
        (COMPLETION, {"prompt": "a", "logprobs": -1}, "logprobs"),
        (EMBEDDING, {"input": "a", "dimensions": -1}, "dimensions"),
        (RESPONSES, {"input": "a", "max_output_tokens": 0}, "max_output_tokens"),
        (RESPONSES, {"input": "a", "background": True}, "background"),
        (RESPONSES, {"input": "a", "text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        (RESPONSES, {"input": "a", "tool_choice": {"type": "function", "name": "smell"}}, "tool_choice"),
        (MESSAGES, HELLO | {"tool_choice": {"type": "tool", "name": "smell"}}, "tool_choice"),
        (EMBEDDING, {"input": "a", "dimensions": "8"}, "dimensions"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(path: str, body: dict[str, Any], param: str) -> None:
    with pytest.raises(careful().Refused) as refused:
        plan(path, body)
    error = json.loads(refused.value.document())["error"]
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert error["message"].startswith(param)


@pytest.mark.parametrize("path", [CHAT, "/v1/responses", "/v1/messages"])
def test_tools_need_a_place_in_the_template(path: str) -> None:
    with pytest.raises(careful().Refused, match="no place for tools"):
        plan(path, HELLO | {"tools": TOOLS}, offers_tools=False)
    assert plan(path, HELLO | {"tools": TOOLS, "tool_choice": "none"}, offers_tools=False).is_plain
    assert plan(path, HELLO | {"tools": TOOLS}).requests == (HELLO | {"tools": TOOLS},)


def test_a_named_tool_is_the_only_one_and_must_be_used() -> None:
    named = {"type": "function", "function": {"name": "listen"}}
    (request,) = plan(CHAT, HELLO | {"tools": TOOLS, "tool_choice": named}).requests
    assert (request["tools"], request["tool_choice"]) == ([TOOLS[1]], "required")


@pytest.mark.parametrize(
    ("path", "type", "must"), [(RESPONSES, "function", "required"), (MESSAGES, "tool", {"type": "any"})]
)
def test_a_tool_that_is_named_in_another_form_is_the_only_one_too(path: str, type: str, must: Any) -> None:
    tools = [{"name": "look"}, {"name": "listen"}]
    (request,) = plan(path, {"tools": tools, "tool_choice": {"type": type, "name": "listen"}}).requests
    assert (request["tools"], request["tool_choice"]) == ([{"name": "listen"}], must)


@pytest.mark.parametrize(
    ("wanted", "understood"),
    [
        ({"type": "json_object"}, {"type": "json_object"}),
        ({"type": "text"}, {"type": "text"}),
        (
            {"type": "json_schema", "name": "x", "schema": SCHEMA},
            {"type": "json_schema", "json_schema": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
        ),
    ],
)
def test_the_format_of_a_response_is_told_where_the_engine_looks(wanted: Any, understood: Any) -> None:
    (request,) = plan(RESPONSES, {"input": "a", "text": {"format": wanted}}).requests
    assert request["response_format"] == understood


def test_nulls_are_not_given() -> None:
    message = {"role": "assistant", "content": None, "name": None, "tool_call_id": None, "reasoning_content": None}
    (request,) = plan(CHAT, {"messages": [message], "n": None, "tools": None, "temperature": None}).requests
    assert request == {"messages": [{"role": "assistant", "content": None}]}
    assert plan(EMBEDDING, {"input": "a", "encoding_format": None, "dimensions": None}).requests == ({"input": "a"},)


def test_several_answers_are_asked_for_one_after_another_with_seeds_of_their_own() -> None:
    assert [one.get("seed") for one in plan(CHAT, HELLO | {"n": 3, "seed": 7}).requests] == [7, 8, 9]
    assert plan(CHAT, HELLO | {"n": 2}).requests == (HELLO, HELLO)


def test_whole_numbers_may_be_written_with_a_point() -> None:
    assert plan(CHAT, HELLO | {"n": 2.0, "seed": 7.0}).requests == (HELLO | {"seed": 7}, HELLO | {"seed": 8})
    assert plan(COMPLETION, {"prompt": "x", "logprobs": 2.0}).alternatives == 2
    assert plan(EMBEDDING, {"input": "a", "dimensions": 8.0}).dimensions == 8
    with pytest.raises(careful().Refused):
        plan(CHAT, HELLO | {"n": 1.5})


def test_a_joined_stream_tells_the_counts_of_all_its_parts() -> None:
    joining = careful().Joining(plan(CHAT, HELLO | {"n": 2, "stream": True}))
    told = []
    for joining.number in range(2):
        timings = {"prompt_n": 1, "cache_n": 30, "predicted_n": 5, "predicted_ms": 9}
        event = {"id": f"c{joining.number}", "choices": [{"index": 0, "delta": {}}], "timings": timings}
        told.append(joining.event(event))
        assert joining.event({"choices": [], "usage": {"prompt_tokens": 31, "completion_tokens": 5}}) is None
    assert [event["timings"] for event in told] == [{"prompt_n": 31, "predicted_n": count} for count in (5, 10)]
    assert [event["choices"][0]["index"] for event in told] == [0, 1]
    assert {event["id"] for event in told} == {"c0"}
    assert joining.usage() == {"prompt_tokens": 31, "completion_tokens": 10, "total_tokens": 41}


@pytest.mark.parametrize(("asked", "others"), [(2, [{"a": -1.0, "b": -2.0}, {"cd": -0.5}]), (0, None)])
def test_probabilities_of_completions_are_told_in_lists(asked: int, others: Any) -> None:
    made = plan(COMPLETION, {"prompt": "x", "logprobs": asked})
    assert (made.is_plain, made.requests[0]["logprobs"]) == (False, max(1, asked))
    content = [
        {
            "token": "a",
            "logprob": -1.0,
            "top_logprobs": [{"token": "a", "logprob": -1.0}, {"token": "b", "logprob": -2.0}],
        },
        {"token": "cd", "logprob": -0.5, "top_logprobs": [{"token": "cd", "logprob": -0.5}]},
    ]
    joining = careful().Joining(made)
    answer = {"choices": [{"index": 0, "text": "acd", "logprobs": {"content": content}}], "usage": {}}
    assert joining.whole([answer])["choices"][0]["logprobs"] == {
        "tokens": ["a", "cd"],
        "token_logprobs": [-1.0, -0.5],
        "top_logprobs": others,
        "text_offset": [0, 1],
    }
    event = {"choices": [{"index": 0, "text": "a", "logprobs": {"content": content[:1]}}]}
    assert joining.event(event)["choices"][0]["logprobs"]["text_offset"] == [3]
    assert joining.event({"choices": [{"index": 0, "text": "", "logprobs": None}]})["choices"][0]["logprobs"] is None


def test_joined_answers_are_numbered_and_counted_as_one() -> None:
    made = plan(COMPLETION, {"prompt": ["a", "b"], "n": 2, "echo": True})
    answers = [
        {
            "id": f"c{number}",
            "choices": [{"index": index, "text": f"{number}{index}"} for index in range(2)],
            "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8},
            "timings": {},
        }
        for number in range(2)
    ]
    joined = careful().Joining(made).whole(answers)
    assert [(one["index"], one["text"]) for one in joined["choices"]] == [
        (0, "a00"),
        (1, "a10"),
        (2, "b01"),
        (3, "b11"),
    ]
    assert joined["usage"] == {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}
    assert "timings" not in joined
