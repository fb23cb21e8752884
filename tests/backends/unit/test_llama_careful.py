"""What llama.cpp is asked instead of what it would drop, and how its answers become one."""

import importlib
import json
from typing import Any

import pytest

CHAT, COMPLETION, EMBEDDING = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
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
        (EMBEDDING, {"input": "a", "dimensions": -1}, "dimensions"),
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


def test_nulls_are_not_given() -> None:
    message = {"role": "assistant", "content": None, "name": None, "tool_call_id": None, "reasoning_content": None}
    (request,) = plan(CHAT, {"messages": [message], "n": None, "tools": None, "temperature": None}).requests
    assert request == {"messages": [{"role": "assistant", "content": None}]}
    assert plan(EMBEDDING, {"input": "a", "encoding_format": None, "dimensions": None}).requests == ({"input": "a"},)


def test_several_answers_are_asked_for_one_after_another_with_seeds_of_their_own() -> None:
    assert [one.get("seed") for one in plan(CHAT, HELLO | {"n": 3, "seed": 7}).requests] == [7, 8, 9]
    assert plan(CHAT, HELLO | {"n": 2}).requests == (HELLO, HELLO)


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
