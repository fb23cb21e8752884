"""Finds calls of tools in the text of an answer: backends whose prompts we render often give nothing but text. Pure.

Models write a call as JSON with a name and arguments, alone, in a list, or between words of their own.
"""

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from corral.adapter.dialects.requests import ChatRequest
from corral.base.ids import new_answer_id
from corral.rpc.messages import ChatDelta, Reply, ToolCallDelta
from corral.templates.prompts import NO_ACTION
from corral.wire.adapter import AdapterModel

_JSON: Final = json.JSONDecoder()
_START: Final = re.compile(r"[{\[]")
_MOST_PASSES: Final = 4
"""How often an answer is read, all places together where JSON seems to begin but does not end."""
_CHARACTERS_COUNTED: Final = 200
"""An error of the decoder counts the lines before it, which is that much faster than decoding."""
_NAMES: Final = ("name", "function")
_ARGUMENTS: Final = ("arguments", "parameters")
_MARK: Final = re.compile(r"(?:<[^<>\s]{1,40}>|\[[A-Z_]{1,40}\]|```(?:json)?)\s*\Z")
"""What models write before a call, such as <tool_call>."""


class OfferedCalls(msgspec.Struct, frozen=True, kw_only=True):
    """What a call in an answer may name."""

    names: frozenset[str]
    no_action: str = NO_ACTION
    """The function by which the model says that it calls none: its message is the answer."""


class _FoundCall(msgspec.Struct, frozen=True):
    name: str
    arguments: Mapping[str, object]


def offered_calls(request: ChatRequest, model: AdapterModel) -> OfferedCalls | None:
    """What to look for in the answer; None if the request has no tools, or the backend itself finds calls."""
    if model.use_tokenizer_template or not request.tools or request.tool_choice == "none":
        return None
    names = frozenset(str(tool["function"]["name"]) for tool in request.tools)
    return OfferedCalls(names=names, no_action=model.templates.no_action_name or NO_ACTION)


def with_calls(reply: Reply, offered: OfferedCalls) -> Reply:
    """Return the reply with the calls in its text as calls; unchanged if there are none, or the backend found some."""
    if any(delta.tool_calls for delta in reply.chat_deltas):
        return reply
    text = "".join(delta.content for delta in reply.chat_deltas) or reply.message.decode(errors="replace")
    start, calls = _calls_in(text, offered)
    if not calls:
        return reply
    made = [call for call in calls if call.name in offered.names]
    spoken = "" if made else "\n".join(str(call.arguments.get("message", "")) for call in calls)
    changed = Reply()
    changed.CopyFrom(reply)
    changed.ClearField("chat_deltas")
    for delta in reply.chat_deltas:
        if delta.reasoning_content:
            changed.chat_deltas.append(ChatDelta(reasoning_content=delta.reasoning_content))
    content = spoken or _MARK.sub("", text[:start]).strip()
    changed.chat_deltas.append(ChatDelta(content=content, tool_calls=map(_delta, range(len(made)), made)))
    return changed


class CallRules(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of the calls in an answer."""

    offered: OfferedCalls | None = None
    """What to look for in the text; None where the backend itself finds calls, or nothing may be called."""
    only_first: bool = False
    """Whether calls beside the first one are dropped, for requests that refuse several."""

    def applied(self, reply: Reply) -> Reply:
        reply = with_calls(reply, self.offered) if self.offered else reply
        return _FirstCall().alone_in(reply) if self.only_first else reply

    def applied_to_parts(self, batches: AsyncGenerator[Sequence[Reply], None]) -> AsyncGenerator[Sequence[Reply], None]:
        """Return the replies of a stream. The caller closes both generators."""
        whole = whole_with_calls(batches, self.offered) if self.offered else batches
        return _first_call_only(whole) if self.only_first else whole


def call_rules(request: ChatRequest, model: AdapterModel) -> CallRules:
    return CallRules(offered=offered_calls(request, model), only_first=request.parallel_tool_calls is False)


class _FirstCall:
    """Lets the first call of one answer through, and drops those beside it."""

    def __init__(self) -> None:
        self._index: int | None = None

    def alone_in(self, reply: Reply) -> Reply:
        """Return the reply, or the part of one, without other calls."""
        indices = [call.index for delta in reply.chat_deltas for call in delta.tool_calls]
        if indices and self._index is None:
            self._index = indices[0]
        return reply if all(index == self._index for index in indices) else self._without_others(reply)

    def _without_others(self, reply: Reply) -> Reply:
        changed = Reply()
        changed.CopyFrom(reply)
        for delta in changed.chat_deltas:
            kept = [call for call in delta.tool_calls if call.index == self._index]
            delta.ClearField("tool_calls")
            delta.tool_calls.extend(kept)
        return changed


async def _first_call_only(batches: AsyncIterator[Sequence[Reply]]) -> AsyncGenerator[Sequence[Reply], None]:
    first = _FirstCall()
    async for replies in batches:
        yield [first.alone_in(reply) for reply in replies]


async def whole_with_calls(
    batches: AsyncIterator[Sequence[Reply]], offered: OfferedCalls
) -> AsyncGenerator[Sequence[Reply], None]:
    """Gather the parts of an answer, and yield it whole: only then it can be known what is a call."""
    whole, texts = Reply(), list[bytes]()
    async for replies in batches:
        for reply in replies:
            texts.append(reply.message)
            whole.MergeFrom(reply)
    whole.message = b"".join(texts)
    yield [with_calls(whole, offered)]


def _delta(index: int, call: _FoundCall) -> ToolCallDelta:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return ToolCallDelta(index=index, id=new_answer_id("call"), name=call.name, arguments=arguments)


def _calls_in(text: str, offered: OfferedCalls) -> tuple[int, list[_FoundCall]]:
    """Return where the first call begins, and all calls."""
    first, calls, position = 0, list[_FoundCall](), 0
    patience = _MOST_PASSES * len(text)
    while patience >= 0 and (start := _START.search(text, position)):
        value, position, work = _value_at(text, start.start())
        patience -= work
        calls_here = [call for item in (value if isinstance(value, list) else [value]) for call in _call(item, offered)]
        first = first if calls or not calls_here else start.start()
        calls += calls_here
    return first, calls


def _value_at(text: str, position: int) -> tuple[object, int, int]:
    """Return the value, where to go on, and how many characters were read in vain."""
    try:
        return *_JSON.raw_decode(text, position), 0
    except json.JSONDecodeError as error:
        return None, position + 1, error.pos - position + error.pos // _CHARACTERS_COUNTED
    except (ValueError, RecursionError):
        return None, position + 1, len(text) - position


def _call(value: object, offered: OfferedCalls) -> Iterator[_FoundCall]:
    if not isinstance(value, dict):
        return
    name = next((value[key] for key in _NAMES if isinstance(value.get(key), str)), "")
    arguments = next((value[key] for key in _ARGUMENTS if key in value), None)
    if isinstance(arguments, str):
        arguments = _value_at(arguments, 0)[0]
    if isinstance(arguments, dict) and name in (*offered.names, offered.no_action):
        yield _FoundCall(name, arguments)
