"""Ollama's requests as chats, and replies of backends as lines of Ollama's answers."""

import json
from typing import Any

import msgspec
import pytest

from corral.adapter.dialects import ollama, openai, requests
from corral.base.errors import InvalidInput
from corral.rpc.messages import ChatDelta, PredictOptions, Reply, ToolCallDelta
from corral.wire.adapter import AdapterModel

STAMP = ollama.OllamaStamp(model='a "model"', created_at="2026-11-19T12:00:00Z", elapsed=lambda: 5, limit=3)
MODEL = AdapterModel(name="m", identity="m.bin", use_tokenizer_template=True)
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def chat(*messages: Any, **more: Any) -> requests.ChatRequest:
    body = {"model": "m", "messages": messages or [{"role": "user", "content": "hi"}], **more}
    return ollama.chat_request(requests.parse(msgspec.json.encode(body), ollama.OllamaChat))


def generate(**body: Any) -> ollama.OllamaGenerate:
    return requests.parse(msgspec.json.encode({"model": "m", "prompt": "hi", **body}), ollama.OllamaGenerate)


def options(request: requests.ChatRequest) -> PredictOptions:
    requests.check_chat(request)
    return openai.chat_options(request, MODEL)


def streamed(*replies: Reply, stamp: ollama.OllamaStamp = STAMP) -> list[Any]:
    lines = ollama.OllamaLines(stamp, ollama.ChatForm())
    parts = [lines.opening(), *map(lines.part, replies), lines.ending(), lines.closing()]
    return [json.loads(line) for line in b"".join(parts).splitlines()]


def called(*fragments: ToolCallDelta) -> Reply:
    reply = Reply()
    reply.chat_deltas.append(ChatDelta(tool_calls=fragments))
    return reply


def test_options_are_honoured_and_those_of_a_load_are_ignored() -> None:
    wishes = {"num_predict": 7, "temperature": 0.5, "top_k": 3, "seed": 4, "stop": ["x"], "num_keep": 2, "num_ctx": 9}
    told = options(chat(options=wishes, keep_alive="5m"))
    assert (told.Tokens, told.Temperature, told.TopK, told.Seed, told.NKeep) == (7, 0.5, 3, 4, 2)
    assert list(told.StopPrompts) == ["x"]
    assert options(chat(options={"num_predict": -2})).Tokens == 0


@pytest.mark.parametrize(
    ("think", "metadata"), [(True, {"enable_thinking": "true"}), ("low", {"reasoning_effort": "low"}), (None, {})]
)
def test_thinking_is_passed_on(think: Any, metadata: dict[str, str]) -> None:
    assert dict(options(chat(think=think)).Metadata) == metadata


def test_results_of_tools_name_the_calls_that_they_answer() -> None:
    functions = [{"function": {"name": name, "arguments": {"city": name}}} for name in ("a", "b")]
    request = chat(
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": functions},
        {"role": "tool", "tool_name": "a", "content": "sun"},
        {"role": "tool", "tool_name": "b", "content": "rain"},
        tools=[TOOL],
    )
    _, asking, *results = options(request).Messages
    calls = json.loads(asking.tool_calls)
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [{"city": "a"}, {"city": "b"}]
    assert [(result.role, result.name, result.content) for result in results] == [
        ("tool", "a", "sun"),
        ("tool", "b", "rain"),
    ]
    assert [result.tool_call_id for result in results] == [call["id"] for call in calls]
    assert len({call["id"] for call in calls}) == 2
    assert asking.reasoning_content == "hm"


def test_pictures_are_passed_on() -> None:
    told = options(chat({"role": "user", "content": "what?", "images": ["QUJD", "REVG"]}))
    assert list(told.Images) == ["QUJD", "REVG"]
    assert told.Messages[0].content == "what?"


def test_a_prompt_is_a_chat_unless_it_is_raw() -> None:
    told = options(ollama.prompt_request(generate(system="be kind")))
    assert [(message.role, message.content) for message in told.Messages] == [("system", "be kind"), ("user", "hi")]
    raw = ollama.raw_request(generate(raw=True, options={"num_predict": 2}))
    assert (raw.prompt, raw.max_tokens) == ("hi", 2)


@pytest.mark.parametrize(
    ("wanted", "form"),
    [("json", "json_object"), ({"type": "object"}, "json_schema"), ("", None), (None, None)],
)
def test_the_form_of_an_answer(wanted: Any, form: str | None) -> None:
    found = chat(format=wanted).response_format
    assert (None if found is None else found.type) == form


@pytest.mark.parametrize(
    ("ask", "field"),
    [
        (lambda: chat(format="xml"), "format"),
        (lambda: chat(logprobs=True), "logprobs"),
        (lambda: chat(options={"num_predict": 0}), "options.num_predict"),
        (lambda: chat(options={"temperature": "hot"}), "options.temperature"),
        (lambda: ollama.prompt_request(generate(template="{{ .Prompt }}")), "template"),
        (lambda: ollama.prompt_request(generate(suffix="}")), "suffix"),
        (lambda: ollama.raw_request(generate(system="x")), "system"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(ask: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        ask()
    assert caught.value.field == field


def test_lines_end_with_the_reason_and_the_counts() -> None:
    halves = ["ä".encode()[:1], "ä".encode()[1:]]
    last = Reply(message=b"!", tokens=3, prompt_tokens=4, timing_prompt_processing=1.5, timing_token_generation=2)
    *lines, end = streamed(Reply(message=b"hi "), *(Reply(message=half) for half in halves), last)
    assert [line["message"] for line in lines] == [{"role": "assistant", "content": text} for text in ("hi ", "ä", "!")]
    assert {line["done"] for line in lines} == {False}
    assert end == {
        "model": 'a "model"',
        "created_at": "2026-11-19T12:00:00Z",
        "message": {"role": "assistant", "content": ""},
        "done": True,
        "done_reason": "length",
        "total_duration": 5,
        "load_duration": 0,
        "prompt_eval_duration": 1_500_000,
        "eval_duration": 2_000_000,
        "prompt_eval_count": 4,
        "eval_count": 3,
    }


def test_counts_that_nobody_told_are_left_out() -> None:
    (end,) = streamed(Reply())
    assert not {"prompt_eval_count", "eval_count", "eval_duration"} & end.keys()
    assert end["done_reason"] == "stop"


def test_a_call_is_whole_in_one_line() -> None:
    fragments = [ToolCallDelta(id="c1", name="weather", arguments='{"ci'), ToolCallDelta(arguments='ty": "Rome"}')]
    other = ToolCallDelta(index=1, name="look", arguments="not JSON")
    thought = Reply(chat_deltas=[ChatDelta(reasoning_content="hm")])
    first, calls, end = streamed(thought, *map(called, fragments), called(other))
    assert first["message"] == {"role": "assistant", "content": "", "thinking": "hm"}
    expected = [
        {"id": "c1", "function": {"name": "weather", "arguments": {"city": "Rome"}}},
        {"function": {"name": "look", "arguments": {"arguments": "not JSON"}}},
    ]
    assert calls["message"]["tool_calls"] == expected
    assert (calls["done"], end["done"], end["done_reason"]) == (False, True, "stop")
    reply = Reply(chat_deltas=[ChatDelta(content="so", reasoning_content="hm"), *called(*fragments).chat_deltas])
    whole = json.loads(ollama.OllamaLines(STAMP, ollama.ChatForm()).whole(reply))
    assert whole["message"] == {"role": "assistant", "content": "so", "thinking": "hm", "tool_calls": expected[:1]}
    assert whole["done"] is True


def test_the_prefix_of_answers_comes_first() -> None:
    stamp = msgspec.structs.replace(STAMP, prefix="Well, ")
    lines = streamed(Reply(message=b"yes"), stamp=stamp)
    assert [line["message"]["content"] for line in lines] == ["Well, ", "yes", ""]
    whole = json.loads(ollama.OllamaLines(stamp, ollama.TextForm()).whole(Reply(message=b"yes")))
    assert whole["response"] == "Well, yes"
