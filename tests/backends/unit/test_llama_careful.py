"""What llama.cpp is asked instead of what it would drop, and how its answers become one."""

import importlib
import json
import tracemalloc
from typing import Any

import pytest

CHAT, COMPLETION, EMBEDDING = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("look", "listen")
]
ALLOWED: dict[str, Any] = {
    "type": "allowed_tools",
    "mode": "required",
    "tools": [{"type": "function", "name": "listen"}],
}
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
OFFERS: dict[str, dict[str, Any]] = {
    CHAT: HELLO | {"tools": TOOLS},
    RESPONSES: {"input": "hi", "tools": [{"type": "function", "name": name} for name in ("look", "listen")]},
    MESSAGES: HELLO | {"tools": [{"name": name, "input_schema": {}} for name in ("look", "listen")]},
}
"""A request with the same two tools, in the form of each route."""


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
        (COMPLETION, {"prompt": ["a"] * 2049}, "prompt"),
        (COMPLETION, {"prompt": [[1, 2]] * 2049, "n": 128}, "prompt"),
        (COMPLETION, {"prompt": [{"prompt_string": "a"}] * 2049}, "prompt"),
        (COMPLETION, {"prompt": ["a"] * 2049, "echo": True}, "prompt"),
        (COMPLETION, {"prompt": ["a", ["a", "b"]]}, "prompt[1]"),
        (COMPLETION, {"prompt": [""] * 2000, "n": 128}, "n"),
        (COMPLETION, {"prompt": ["a"] * 17, "n": 128}, "n"),
        (COMPLETION, {"prompt": ["a", "b"], "n": 129}, "n"),
        (EMBEDDING, {"input": "a", "dimensions": -1}, "dimensions"),
        (RESPONSES, {"input": "a", "max_output_tokens": 0}, "max_output_tokens"),
        (RESPONSES, {"input": "a", "background": True}, "background"),
        (RESPONSES, {"input": "a", "text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        (RESPONSES, {"input": "a", "tool_choice": {"type": "function", "name": "smell"}}, "tool_choice"),
        (MESSAGES, HELLO | {"tool_choice": {"type": "tool", "name": "smell"}}, "tool_choice"),
        (EMBEDDING, {"input": "a", "dimensions": "8"}, "dimensions"),
        (EMBEDDING, {"input": "a", "dimensions": 0}, "dimensions"),
        (EMBEDDING, {"input": "a", "dimensions": True}, "dimensions"),
        (EMBEDDING, {"input": "a", "dimensions": False}, "dimensions"),
        (EMBEDDING, {"input": "a", "dimensions": 8, "encoding_format": "hex"}, "encoding_format"),
        (CHAT, HELLO | {"web_search_options": {}}, "web_search_options"),
        (CHAT, HELLO | {"verbosity": "low"}, "verbosity"),
        (CHAT, HELLO | {"logit_bias": {"5": "much"}}, "logit_bias"),
        (CHAT, HELLO | {"logit_bias": {"5": True}}, "logit_bias"),
        (CHAT, HELLO | {"logit_bias": [5]}, "logit_bias"),
        (COMPLETION, {"prompt": "a", "logit_bias": {"5": None}}, "logit_bias"),
        (RESPONSES, {"input": "a", "logit_bias": "much"}, "logit_bias"),
        (COMPLETION, {"prompt": "a", "echo": "yes"}, "echo"),
        (COMPLETION, {"prompt": "a", "response_format": {"type": "json_object"}}, "response_format"),
        (COMPLETION, {"prompt": "a", "response_format": "json"}, "response_format"),
        (RESPONSES, {"input": "a", "tool_choice": "required"}, "tool_choice"),
        (RESPONSES, {"input": "a", "tool_choice": "sometimes"}, "tool_choice"),
        (RESPONSES, {"input": "a", "tool_choice": {"type": "file_search"}}, "tool_choice.type"),
        (RESPONSES, OFFERS[RESPONSES] | {"tool_choice": {"type": "allowed_tools"}}, "tool_choice.mode"),
        (RESPONSES, OFFERS[RESPONSES] | {"tool_choice": ALLOWED | {"tools": []}}, "tool_choice.tools"),
        (RESPONSES, OFFERS[RESPONSES] | {"tool_choice": ALLOWED | {"tools": [{}]}}, "tool_choice.tools[0]"),
        (RESPONSES, {"input": "a", "tools": [{"type": "web_search"}]}, "tools[0].type"),
        (RESPONSES, {"input": "a", "tools": [{"type": "function"}]}, "tools[0].name"),
        (RESPONSES, {}, "input"),
        (RESPONSES, {"input": ""}, "input"),
        (RESPONSES, {"input": []}, "input"),
        (RESPONSES, {"input": ["a"]}, "input[0]"),
        (RESPONSES, {"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        (RESPONSES, {"input": [{"id": "x"}]}, "input[0].type"),
        (RESPONSES, {"input": [{"type": "web_search_call", "id": "x"}]}, "input[0].type"),
        (RESPONSES, {"input": [{"type": ["message"], "role": "user"}]}, "input[0].type"),
        (RESPONSES, {"input": [{"role": "user", "content": ["a"]}]}, "input[0].content[0]"),
        (RESPONSES, {"input": [{"role": "user", "content": [{"type": ["x"]}]}]}, "input[0].content[0].type"),
        (RESPONSES, {"input": [{"role": "user", "content": [{"type": {}}]}]}, "input[0].content[0].type"),
        (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0].type"),
        (
            RESPONSES,
            {"input": [{"role": "assistant", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
        ),
        (RESPONSES, {"input": "a", "conversation": "c"}, "conversation"),
        (RESPONSES, {"input": "a", "prompt": {"id": "p"}}, "prompt"),
        (RESPONSES, {"input": "a", "previous_response_id": "r"}, "previous_response_id"),
        (RESPONSES, {"input": "a", "truncation": "auto"}, "truncation"),
        (RESPONSES, {"input": "a", "text": 5}, "text"),
        (RESPONSES, {"input": "a", "text": {"format": 5}}, "text.format"),
        (RESPONSES, {"input": "a", "text": {"format": {"type": "xml"}}}, "text.format.type"),
        (RESPONSES, {"input": "a", "text": {"verbosity": "low"}}, "text.verbosity"),
        (RESPONSES, {"input": "a", "reasoning": {"summary": "detailed"}}, "reasoning.summary"),
        (RESPONSES, {"input": "a", "instructions": 5}, "instructions"),
        (RESPONSES, {"input": "a", "max_output_tokens": "5"}, "max_output_tokens"),
        (RESPONSES, {"input": "a", "top_logprobs": 2}, "top_logprobs"),
        (RESPONSES, {"input": "a", "include": "reasoning.encrypted_content"}, "include"),
        (RESPONSES, {"input": "a", "include": ["message.output_text.logprobs"]}, "include[0]"),
        (RESPONSES, {"input": "a", "include": [["x"]]}, "include[0]"),
        (MESSAGES, HELLO | {"tool_choice": {"type": "any"}}, "tool_choice"),
        (MESSAGES, HELLO | {"tool_choice": {"type": "tool", "name": "look"}}, "tool_choice"),
        (MESSAGES, HELLO | {"tool_choice": {"type": "sometimes"}}, "tool_choice"),
        (MESSAGES, HELLO | {"tool_choice": {}}, "tool_choice"),
        (MESSAGES, HELLO | {"tool_choice": "tool"}, "tool_choice"),
        (COUNT_TOKENS, HELLO | {"tool_choice": {"type": "any"}}, "tool_choice"),
        (MESSAGES, HELLO | {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        (MESSAGES, HELLO | {"tools": [5]}, "tools[0]"),
        (MESSAGES, HELLO | {"tools": "look"}, "tools"),
        (MESSAGES, HELLO | {"mcp_servers": [{"name": "x"}]}, "mcp_servers"),
        (MESSAGES, HELLO | {"container": "c"}, "container"),
        (MESSAGES, HELLO | {"output_format": {"type": "json_schema"}}, "output_format"),
        (MESSAGES, HELLO | {"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
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
        plan(path, OFFERS[path], offers_tools=False)
    assert plan(path, OFFERS[path] | {"tool_choice": "none"}, offers_tools=False).is_plain
    assert tuple(plan(path, OFFERS[path]).requests) == (OFFERS[path],)


def test_a_named_tool_is_the_only_one_and_must_be_used() -> None:
    named = {"type": "function", "function": {"name": "listen"}}
    (request,) = plan(CHAT, HELLO | {"tools": TOOLS, "tool_choice": named}).requests
    assert (request["tools"], request["tool_choice"]) == ([TOOLS[1]], "required")


@pytest.mark.parametrize(
    ("path", "type", "must"), [(RESPONSES, "function", "required"), (MESSAGES, "tool", {"type": "any"})]
)
def test_a_tool_that_is_named_in_another_form_is_the_only_one_too(path: str, type: str, must: Any) -> None:
    (request,) = plan(path, OFFERS[path] | {"tool_choice": {"type": type, "name": "listen"}}).requests
    assert (request["tools"], request["tool_choice"]) == (OFFERS[path]["tools"][1:], must)


def test_of_a_list_of_allowed_tools_the_others_are_not_offered() -> None:
    (request,) = plan(RESPONSES, OFFERS[RESPONSES] | {"tool_choice": ALLOWED}).requests
    assert (request["tools"], request["tool_choice"]) == (OFFERS[RESPONSES]["tools"][1:], "required")


@pytest.mark.parametrize("choice", ["none", {"type": "none"}])
def test_a_message_without_any_call_has_no_tools(choice: Any) -> None:
    """The engine knows no such choice, and would call one."""
    for path in (MESSAGES, COUNT_TOKENS):
        assert plan(path, OFFERS[MESSAGES] | {"tool_choice": choice}).requests == (HELLO,)


TEXT = {"type": "text", "text": "The sky is green."}
DOCUMENT = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "The sky is green."}}
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
USE = {"type": "tool_use", "id": "a", "name": "look", "input": {}}


def said(*blocks: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": list(blocks)}]}


def result(*blocks: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "a", "content": list(blocks)}


@pytest.mark.parametrize("path", [MESSAGES, COUNT_TOKENS])
def test_a_document_of_plain_text_is_a_text(path: str) -> None:
    """The engine drops documents, and answers as if there were none."""
    (request,) = plan(path, said(DOCUMENT, PICTURE, result(DOCUMENT)) | {"system": [DOCUMENT]}).requests
    assert request == said(TEXT, PICTURE, result(TEXT)) | {"system": [TEXT]}


@pytest.mark.parametrize(
    "body",
    [
        said(TEXT, PICTURE | {"source": {"type": "url", "url": "http://127.0.0.1/a.png"}}),
        said({"type": "thinking", "thinking": "hm"}, {"type": "redacted_thinking", "data": "x"}, USE, role="assistant"),
        said(result(TEXT, PICTURE), {"type": "tool_result", "tool_use_id": "a", "content": "x"}),
        HELLO | {"system": "Be brief.", "tool_choice": {"type": "auto"}, "output_config": {"effort": "low"}},
    ],
)
def test_blocks_that_the_engine_knows_are_left_to_it(body: dict[str, Any]) -> None:
    assert plan(MESSAGES, body).requests == (body,)


@pytest.mark.parametrize("path", [MESSAGES, COUNT_TOKENS])
@pytest.mark.parametrize(
    ("body", "param"),
    [
        (said(DOCUMENT | {"source": {"type": "base64", "data": "AAAA"}}), "messages[0].content[0].source"),
        (said(TEXT, {"type": "search_result", "content": [TEXT]}), "messages[0].content[1].type"),
        (said(result(TEXT, {"type": "document"})), "messages[0].content[0].content[1].source"),
        (said({"type": "image"}), "messages[0].content[0].source"),
        (said({"type": "image", "source": {"type": "file", "file_id": "f"}}), "messages[0].content[0].source"),
        (said({"text": "hi"}), "messages[0].content[0].type"),
        (said("hi"), "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        (HELLO | {"system": [PICTURE]}, "system[0].type"),
        (HELLO | {"system": ["Be brief."]}, "system[0]"),
    ],
)
def test_a_block_that_the_engine_drops_is_refused_by_its_place(path: str, body: dict[str, Any], param: str) -> None:
    with pytest.raises(careful().Refused) as refused:
        plan(path, body)
    assert refused.value.param == param


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
    assert tuple(plan(CHAT, HELLO | {"n": 2}).requests) == (HELLO, HELLO)


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ({"prompt": ["a"] * 2048}, 2048),
        ({"prompt": ["a"] * 16, "n": 128}, 2048),
        ({"prompt": "a", "n": 128}, 128),
        ({"prompt": [1] * 10_000}, 1),
        ({"prompt": ["a", *[1] * 10_000]}, 1),
    ],
)
def test_as_many_answers_as_are_offered_may_be_asked_for(body: dict[str, Any], count: int) -> None:
    assert len(plan(COMPLETION, body).requests) == count


def test_the_refusal_of_too_many_answers_tells_the_limit() -> None:
    told = {}
    for name, body in {"prompt": {"prompt": [""] * 2049}, "n": {"prompt": [""] * 17, "n": 128}}.items():
        with pytest.raises(careful().Refused) as refused:
            plan(COMPLETION, body)
        told[name] = json.loads(refused.value.document())["error"]["message"]
    assert told == {
        "prompt": "prompt: must have at most 2048 prompts, and has 2049",
        "n": "n: times the number of prompts must be at most 2048, and is 2176",
    }


def test_a_list_of_millions_of_prompts_is_refused_without_a_copy() -> None:
    body = {"prompt": [""] * 5_000_000, "n": 128, "echo": True}
    tracemalloc.start()
    try:
        with pytest.raises(careful().Refused):
            plan(COMPLETION, body)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 8 * 1024 * 1024  # a copy would take 40 MB


def test_copies_of_a_large_body_are_made_one_at_a_time() -> None:
    body = {"prompt": ["a"] * 16, "n": 128, "seed": 7, **{f"field{number}": 0 for number in range(10_000)}}
    tracemalloc.start()
    try:
        seeds = [request["seed"] for request in plan(COMPLETION, body).requests]
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(seeds), set(seeds)) == (2048, set(range(7, 135)))
    assert most < 16 * 1024 * 1024


def test_prompts_beside_a_chat_are_not_several_chats() -> None:
    body = HELLO | {"prompt": ["a", "b"]}
    assert tuple(plan(CHAT, body).requests) == (body,)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, HELLO | {"logit_bias": {"5": 1, "6": -100.0, "hello": False}, "verbosity": "medium"}),
        (CHAT, HELLO | {"logit_bias": [[5, 1], ["hello", False]]}),
        (COMPLETION, {"prompt": "a", "response_format": {"type": "text"}}),
        (EMBEDDING, {"input": "a", "encoding_format": "base64"}),
    ],
)
def test_what_the_engine_honours_is_left_to_it(path: str, body: dict[str, Any]) -> None:
    assert tuple(plan(path, body).requests) == (body,)


def test_a_conversation_may_be_told_as_clients_tell_it() -> None:
    output = [{"type": "output_text", "text": "ok"}]
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    picture = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    told = [
        {"role": "user", "content": [{"type": "text", "text": "hi"}, picture]},
        {"role": "assistant", "content": "ok"},
        {"role": "assistant", "content": [{"type": "input_text", "text": "ok", "annotations": None}], "id": None},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "ok"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "content": None},
        {"type": "reasoning", "summary": [], "encrypted_content": "x"},
        {**call, "id": None, "status": None},
    ]
    (request,) = plan(RESPONSES, {"input": told}).requests
    user, *answers, thoughts, called = request["input"]
    assert user["content"] == [{"type": "input_text", "text": "hi"}, picture]
    assert [answer["content"] for answer in answers] == ["ok", output, output]
    assert {item["type"] for item in (user, *answers)} == {"message"}
    assert thoughts["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert called == call


def test_a_thought_whose_text_is_null_has_no_text() -> None:
    absent = {"type": "summary_text", "text": None}
    there = {"type": "summary_text", "text": "hm"}
    told = [{"type": "reasoning", "summary": [absent]}, {"type": "reasoning", "summary": [absent, there]}]
    (request,) = plan(RESPONSES, {"input": told}).requests
    (thoughts,) = request["input"]
    assert thoughts["content"] == [{"type": "reasoning_text", "text": "hm"}]


def test_whole_numbers_may_be_written_with_a_point() -> None:
    chats = tuple(plan(CHAT, HELLO | {"n": 2.0, "seed": 7.0}).requests)
    assert chats == (HELLO | {"seed": 7}, HELLO | {"seed": 8})
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
    made = plan(COMPLETION, {"prompt": ["a", "b"], "n": 2, "echo": True, "seed": 7})
    assert [(asked["prompt"], asked["seed"]) for asked in made.requests] == [("a", 7), ("a", 8), ("b", 7), ("b", 8)]
    answers = [
        {
            "id": f"c{number}",
            "choices": [{"index": 0, "text": str(number)}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8},
            "timings": {},
        }
        for number in range(4)
    ]
    joined = careful().Joining(made).whole(answers)
    assert [(one["index"], one["text"]) for one in joined["choices"]] == [(0, "a0"), (1, "a1"), (2, "b2"), (3, "b3")]
    assert joined["usage"] == {"prompt_tokens": 10, "completion_tokens": 12, "total_tokens": 22}
    assert "timings" not in joined


@pytest.mark.parametrize(
    ("prompt", "asked"),
    [
        ([[1, 2], [3]], [[1, 2], [3]]),
        ([1, 2], [[1, 2]]),
        ([1, "a"], [[1, "a"]]),
        ([["a", 1], "b"], [["a", 1], "b"]),
        ([{"prompt_string": "a"}, "b"], [{"prompt_string": "a"}, "b"]),
        (["a"], ["a"]),
        ([], [[]]),
        ("a", ["a"]),
    ],
)
def test_each_prompt_is_asked_by_itself_and_tokens_are_one(prompt: Any, asked: list[Any]) -> None:
    assert [request["prompt"] for request in plan(COMPLETION, {"prompt": prompt}).requests] == asked
