"""Calls of tools in the text of an answer."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.adapter.dialects.answers import Stamp, chat_answer
from corral.adapter.dialects.calls import (
    CallRules,
    OfferedCalls,
    call_rules,
    offered_calls,
    whole_with_calls,
    with_calls,
)
from corral.adapter.dialects.requests import ChatRequest
from corral.rpc.messages import ChatDelta, Reply, ToolCallDelta
from corral.wire.adapter import AdapterModel, PromptTemplates

OFFERED = OfferedCalls(names=frozenset({"f", "g"}))
STAMP = Stamp(id="x", created=0, model="m")
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "f"}}]


def choice(text: str) -> dict[str, Any]:
    answer = json.loads(chat_answer([with_calls(Reply(message=text.encode()), OFFERED)], STAMP))
    (choice,) = answer["choices"]
    assert isinstance(choice, dict)
    return choice


@pytest.mark.parametrize(
    ("text", "calls", "content"),
    [
        ('{"name": "f", "arguments": {"a": "é"}}', [("f", {"a": "é"})], None),
        ('[{"name": "f", "arguments": {}}, {"name": "g", "parameters": {"b": 1}}]', [("f", {}), ("g", {"b": 1})], None),
        ('<tool_call>\n{"name": "f", "arguments": "{\\"a\\": 1}"}\n</tool_call>', [("f", {"a": 1})], None),
        ('[TOOL_CALLS] [{"name": "f", "arguments": {}}]', [("f", {})], None),
        ('Let me see.\n```json\n{"function": "f", "arguments": {}}\n```', [("f", {})], "Let me see."),
        ('<tool_call>{"name": "f", "arguments": {}}</tool_call><tool_call>{"name": "g", "arguments": {}}</tool_call>',
         [("f", {}), ("g", {})], None),
    ],
)  # fmt: skip
def test_calls_are_found_in_what_models_write(text: str, calls: list[tuple[str, Any]], content: str | None) -> None:
    found = choice(text)
    assert found["finish_reason"] == "tool_calls"
    made = [
        (call["function"]["name"], json.loads(call["function"]["arguments"])) for call in found["message"]["tool_calls"]
    ]
    assert made == calls
    assert found["message"]["content"] == content
    assert all(call["id"].startswith("call-") for call in found["message"]["tool_calls"])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain",
        '{"name": "h", "arguments": {}}',
        '{"name": "f"}',
        '{"name": "f", "arguments": 1}',
        '{"a": [',
        "{" * 9,
    ],
)
def test_anything_else_stays_text(text: str) -> None:
    found = choice(text)
    assert (found["finish_reason"], found["message"]) == ("stop", {"role": "assistant", "content": text})


async def test_a_streamed_answer_is_gathered_first() -> None:
    async def parts() -> AsyncIterator[Sequence[Reply]]:
        text = '{"name": "f", "arguments": {"a": "é"}}'.encode()
        for place in range(len(text)):
            yield [Reply(message=text[place : place + 1], tokens=place)]

    ((reply,),) = [batch async for batch in whole_with_calls(parts(), OFFERED)]
    (delta,) = reply.chat_deltas
    assert (delta.tool_calls[0].name, json.loads(delta.tool_calls[0].arguments)) == ("f", {"a": "é"})
    assert reply.tokens == 38


def test_the_call_that_calls_nothing_is_the_answer() -> None:
    found = choice('{"name": "answer", "arguments": {"message": "Hello!"}}')
    assert (found["finish_reason"], found["message"]["content"]) == ("stop", "Hello!")


def test_what_the_backend_found_itself_is_kept() -> None:
    reply = Reply(chat_deltas=[ChatDelta(tool_calls=[ToolCallDelta(index=0, name="f", arguments="{}")])])
    assert with_calls(reply, OFFERED) is reply


def test_only_answers_to_prompts_of_ours_are_looked_through() -> None:
    templates = PromptTemplates(function="x", no_action_name="talk")
    ours = AdapterModel(name="m", templates=templates)
    request = ChatRequest(messages=[], tools=TOOLS)
    assert offered_calls(request, ours) == OfferedCalls(names=frozenset({"f"}), no_action="talk")
    assert offered_calls(request, AdapterModel(name="m", use_tokenizer_template=True)) is None
    assert offered_calls(ChatRequest(messages=[], tools=TOOLS, tool_choice="none"), ours) is None
    assert offered_calls(ChatRequest(messages=[]), ours) is None


def arguments(*replies: Reply) -> list[tuple[int, str]]:
    return [
        (call.index, call.arguments) for reply in replies for delta in reply.chat_deltas for call in delta.tool_calls
    ]


async def test_where_parallel_calls_are_refused_only_the_first_is_passed_on() -> None:
    parts = [
        Reply(
            chat_deltas=[ChatDelta(content="I look."), ChatDelta(tool_calls=[ToolCallDelta(index=1, arguments="{")])]
        ),
        Reply(
            chat_deltas=[
                ChatDelta(tool_calls=[ToolCallDelta(index=2, arguments="{}"), ToolCallDelta(index=1, arguments="}")])
            ],
            tokens=3,
        ),
    ]

    async def streamed() -> AsyncGenerator[Sequence[Reply], None]:
        for part in parts:
            yield [part]

    rules = call_rules(ChatRequest(messages=[], parallel_tool_calls=False), AdapterModel(name="m"))
    replies = [reply async for batch in rules.applied_to_parts(streamed()) for reply in batch]
    assert arguments(*replies) == [(1, "{"), (1, "}")]
    assert (replies[0].chat_deltas[0].content, replies[1].tokens) == ("I look.", 3)
    whole = Reply()
    for part in parts:
        whole.MergeFrom(part)
    assert arguments(rules.applied(whole)) == [(1, "{"), (1, "}")]
    assert arguments(whole) == [(1, "{"), (2, "{}"), (1, "}")]


async def test_of_calls_in_a_text_one_may_be_wanted_as_well() -> None:
    text = Reply(message=b'[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]')

    async def streamed() -> AsyncGenerator[Sequence[Reply], None]:
        yield [text]

    rules = CallRules(offered=OFFERED, only_first=True)
    assert arguments(rules.applied(text)) == [(0, '{"a": 1}')]
    replies = [reply async for batch in rules.applied_to_parts(streamed()) for reply in batch]
    assert arguments(*replies) == [(0, '{"a": 1}')]


@pytest.mark.parametrize("parallel", [None, True])
def test_parallel_calls_are_passed_on_unless_refused(parallel: bool | None) -> None:
    rules = call_rules(ChatRequest(messages=[], parallel_tool_calls=parallel), AdapterModel(name="m"))
    reply = Reply(chat_deltas=[ChatDelta(tool_calls=[ToolCallDelta(index=0), ToolCallDelta(index=1)])])
    assert rules.applied(reply) is reply


PIECES = st.sampled_from(['{"name": "f", "arguments": ', "{", "}", "[", "]", '"', "null", '{"a": 1}', "\\", ",", "é"])


@settings(max_examples=200, deadline=None)
@given(st.lists(PIECES, max_size=12).map("".join))
def test_any_answer_is_read(text: str) -> None:
    found = choice(text)
    assert ("tool_calls" in found["message"]) == (found["finish_reason"] == "tool_calls")


@pytest.mark.parametrize("text", ['{"a":' * 100_000, "[1," * 100_000, "[" + "1, [" * 100_000, '{"name": "' * 100_000])
def test_an_answer_of_braces_takes_no_time(text: str) -> None:
    assert choice(text)["message"]["content"] == text
