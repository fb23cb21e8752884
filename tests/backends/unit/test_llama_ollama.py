"""Ollama's requests in the words of llama.cpp's server, and its answers as Ollama's."""

import importlib
from datetime import UTC, datetime
from typing import Any

import pytest

HELLO = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
CALL = {"id": "c1", "function": {"name": "look", "arguments": {"at": "it"}}}


def module() -> Any:
    return importlib.import_module("llama_ollama")


def question(path: str, **body: Any) -> Any:
    return module().question_for(path, body)


def answering(path: str = "/api/chat") -> Any:
    begun = datetime(2026, 11, 19, 12, tzinfo=UTC)
    return module().OllamaAnswer(path=path, model="m", begun=begun, elapsed=lambda: 5)


def test_a_chat_streams_when_nothing_is_said_and_keeps_its_options() -> None:
    wishes = {"num_predict": 7, "temperature": 0.5, "num_keep": 2, "num_ctx": 4096, "top_p": None}
    asked = question("/api/chat", **HELLO, options=wishes, tools=[], keep_alive=0)
    assert (asked.path, asked.streams) == ("/v1/chat/completions", True)
    assert asked.body == {
        "messages": HELLO["messages"],
        "max_tokens": 7,
        "temperature": 0.5,
        "n_keep": 2,
        "stream": True,
    }
    assert not question("/api/chat", **HELLO, stream=False).streams
    assert question("/api/chat", **HELLO, options={"num_predict": -2}).body["max_tokens"] == -1


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"format": "json"}, "response_format", {"type": "json_object"}),
        (
            {"format": {"type": "object"}},
            "response_format",
            {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}},
        ),
        ({"think": False}, "chat_template_kwargs", {"enable_thinking": False}),
        ({"think": "high"}, "chat_template_kwargs", {"reasoning_effort": "high"}),
    ],
)
def test_wishes_are_said_in_the_engines_words(given: Any, field: str, value: Any) -> None:
    assert question("/api/chat", **HELLO, **given).body[field] == value


def test_results_of_tools_name_the_calls_that_they_answer() -> None:
    other = {"function": {"name": "see", "arguments": {}}}
    messages = [
        {"role": "user", "content": "look", "images": ["QUJD"]},
        {"role": "assistant", "thinking": "hm", "tool_calls": [CALL, other]},
        {"role": "tool", "tool_name": "look", "content": "a"},
        {"role": "tool", "content": "b"},
    ]
    user, asking, *results = question("/api/chat", messages=messages).body["messages"]
    assert user["content"][1]["image_url"]["url"] == "data:image/png;base64,QUJD"
    assert (asking["content"], asking["reasoning_content"]) == ("", "hm")
    assert asking["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at": "it"}'}
    ids = [call["id"] for call in asking["tool_calls"]]
    assert ids[0] == "c1"
    assert [result["tool_call_id"] for result in results] == ids
    assert results[0]["name"] == "look"


def test_a_prompt_is_a_chat_unless_it_is_raw_or_empty() -> None:
    asked = question("/api/generate", prompt="hi", system="be kind")
    assert [message["role"] for message in asked.body["messages"]] == ["system", "user"]
    raw = question("/api/generate", prompt="hi", raw=True, stream=False)
    assert (raw.path, raw.body) == ("/v1/completions", {"prompt": "hi", "stream": False})
    assert question("/api/generate", model="m") is None
    for chat in ({}, {"messages": None}, {"messages": []}):
        assert question("/api/chat", model="m", **chat) is None
    assert answering("/api/chat").loaded()["message"] == {"role": "assistant", "content": ""}
    assert answering("/api/generate").loaded() == {
        "model": "m",
        "created_at": "2026-11-19T12:00:00Z",
        "response": "",
        "done": True,
        "done_reason": "load",
    }


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/api/chat", {"messages": "hi"}, "messages"),
        ("/api/chat", {"messages": ["hi"]}, "messages[0]"),
        ("/api/chat", {"messages": [{"role": "user", "images": "x"}]}, "messages[0].images"),
        ("/api/chat", {"messages": [{"role": "user", "images": [1]}]}, "messages[0].images"),
        (
            "/api/chat",
            {"messages": [{"role": "assistant", "tool_calls": [{}]}]},
            "messages[0].tool_calls[0].function.name",
        ),
        ("/api/chat", HELLO | {"format": "xml"}, "format"),
        ("/api/chat", HELLO | {"think": 1}, "think"),
        ("/api/chat", HELLO | {"stream": "yes"}, "stream"),
        ("/api/chat", HELLO | {"logprobs": True}, "logprobs"),
        ("/api/chat", HELLO | {"options": []}, "options"),
        ("/api/chat", HELLO | {"options": {"num_predict": 0}}, "options.num_predict"),
        ("/api/generate", {"prompt": 1}, "prompt"),
        ("/api/generate", {"prompt": "a", "suffix": "b"}, "suffix"),
        ("/api/generate", {"prompt": "a", "template": "b"}, "template"),
        ("/api/generate", {"prompt": "a", "raw": True, "format": "json"}, "format"),
        ("/api/embed", {}, "input"),
        ("/api/embeddings", {}, "prompt"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(path: str, body: dict[str, Any], param: str) -> None:
    refused = importlib.import_module("llama_refusals").Refused
    with pytest.raises(refused) as caught:
        module().question_for(path, body)
    assert caught.value.param == param


def test_events_become_lines_and_a_call_is_whole_in_one() -> None:
    answer = answering()
    deltas: list[Any] = [
        {"role": "assistant", "content": None},
        {"reasoning_content": "hm"},
        {"content": "so"},
        {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "look", "arguments": '{"at"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ': "it"}'}}]},
    ]
    lines = [answer.event({"choices": [{"delta": delta, "finish_reason": None}]}) for delta in deltas]
    last = {"choices": [{"delta": {}, "finish_reason": "tool_calls"}], "timings": {"prompt_ms": 1.5, "predicted_ms": 2}}
    assert answer.event(last) is None
    assert answer.event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}) is None
    said = [line["message"] for line in lines if line is not None]
    assert said == [
        {"role": "assistant", "content": "", "thinking": "hm"},
        {"role": "assistant", "content": "so"},
    ]
    calls, end = answer.last()
    assert calls["message"]["tool_calls"] == [CALL]
    assert (calls["done"], end["done"], end["done_reason"]) == (False, True, "stop")
    assert (end["prompt_eval_duration"], end["eval_duration"]) == (1_500_000, 2_000_000)
    assert list(end)[-2:] == ["prompt_eval_count", "eval_count"]
    assert answering().event({"error": {"code": 500, "message": "it broke"}}) == {"error": "it broke"}


def test_a_whole_answer() -> None:
    message = {"content": "so", "tool_calls": [{"id": "c2", "function": {"name": "look", "arguments": "{"}}]}
    usage = {"prompt_tokens": 3, "completion_tokens": 4}
    whole = answering().whole({"choices": [{"message": message, "finish_reason": "length"}], "usage": usage})
    calls = [{"id": "c2", "function": {"name": "look", "arguments": {"arguments": "{"}}}]
    assert whole["message"] == {"role": "assistant", "content": "so", "tool_calls": calls}
    assert (whole["done"], whole["done_reason"], whole["eval_count"]) == (True, "length", 4)
    text = answering("/api/generate").whole({"choices": [{"text": "so", "finish_reason": "stop"}], "usage": usage})
    assert text["response"] == "so"
    vectors = {"data": [{"embedding": [1.0]}], "usage": {"prompt_tokens": 3, "total_tokens": 3}}
    embedded = answering("/api/embed").whole(vectors)
    assert (embedded["embeddings"], embedded["prompt_eval_count"]) == ([[1.0]], 3)
    assert answering("/api/embeddings").whole(vectors) == {"embedding": [1.0]}
