"""Anthropic's messages, for backends that only speak gRPC: requests become chats, replies become messages. Pure.

The gRPC contract does not say why an answer ended, so `stop_sequence` is never the reason: see `answers.py`.
"""

import codecs
import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from corral.adapter.dialects.answers import Counts, Failure, Stamp, finish_reason, joined, parsed_arguments
from corral.adapter.dialects.engine_errors import anthropic_error
from corral.adapter.dialects.requests import ChatMessage, ChatRequest, MediaUrl, MessagePart
from corral.base.errors import InvalidInput
from corral.base.ids import new_answer_id
from corral.rpc.messages import Message, PredictOptions, Reply, ToolCallDelta

_ROLES: Final = ("user", "assistant")
_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}
_REASONS: Final = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_OWN_TOOL: Final = (None, "custom")
"""The types of tools that the client runs itself; all others are run by Anthropic."""


class Source(msgspec.Struct):
    """Where the bytes of an image, or the text of a document are."""

    type: str
    media_type: str | None = None
    data: str | None = None


class Block(msgspec.Struct):
    """One block of a message, of any type."""

    type: str
    text: str | None = None
    source: Source | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: "str | list[Block] | None" = None
    thinking: str | None = None


class TurnMessage(msgspec.Struct):
    role: str
    content: str | list[Block]


class Tool(msgspec.Struct):
    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    type: str | None = None


class AnthropicToolChoice(msgspec.Struct):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct):
    type: str


class OutputConfig(msgspec.Struct):
    format: Any = None


class MessagesRequest(msgspec.Struct, kw_only=True):
    """Null means that a field was not given. Unknown fields are ignored, because clients send new ones."""

    messages: list[TurnMessage]
    model: str | None = None
    max_tokens: int | None = None
    system: str | list[Block] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    tools: list[Tool] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: Thinking | None = None
    # Refused, as they would change the answer.
    container: Any = None
    mcp_servers: list[Any] | None = None
    output_config: OutputConfig | None = None
    output_format: Any = None


_NOT_OFFERED: Final = ("container", "mcp_servers", "output_format")


# Requests.


def chat_request(asked: MessagesRequest) -> ChatRequest:
    """Return the same chat in OpenAI's form. Raise InvalidInput with the name that a wrong field has in Anthropic's."""
    _check(asked)
    system = _system(asked.system)
    messages = [ChatMessage(role="system", content=system)] if system else []
    for index, message in enumerate(asked.messages):
        messages += _turn(message, f"messages[{index}]")
    if not asked.messages:
        raise InvalidInput("messages", "must not be empty")
    tools = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(asked.tools or ())]
    return ChatRequest(
        messages=messages,
        model=asked.model,
        stream=asked.stream,
        max_tokens=asked.max_tokens,
        stop=asked.stop_sequences,
        temperature=asked.temperature,
        top_k=asked.top_k,
        top_p=asked.top_p,
        tools=tools or None,
        tool_choice=_choice(asked),
        parallel_tool_calls=False if asked.tool_choice and asked.tool_choice.disable_parallel_tool_use else None,
        metadata=None if asked.thinking is None else {"enable_thinking": _thinks(asked.thinking)},
    )


def _check(asked: MessagesRequest) -> None:
    for name in _NOT_OFFERED:
        if getattr(asked, name):
            raise InvalidInput(name, "is not offered by this backend")
    if asked.output_config is not None and asked.output_config.format:
        raise InvalidInput("output_config.format", "is not offered by this backend")


def counted_text(options: PredictOptions) -> str:
    """Return the text whose tokens are those of the prompt. Where the backend renders it, what it adds is missing."""
    if options.Prompt:
        return options.Prompt
    return "\n".join([*map(_spoken, options.Messages), *([options.Tools] if options.Tools else [])])


def _spoken(message: Message) -> str:
    said = (message.role, message.reasoning_content, message.content, message.tool_calls)
    return "\n".join(part for part in said if part)


def _system(system: str | list[Block] | None) -> str:
    if isinstance(system, list):
        return "\n".join(_text(block, f"system[{index}]") for index, block in enumerate(system))
    return system or ""


def _turn(message: TurnMessage, place: str) -> list[ChatMessage]:
    """Return the messages of a turn: results of tools are messages of their own in OpenAI's form, and come first."""
    if message.role not in _ROLES:
        raise InvalidInput(f"{place}.role", f"must be user or assistant, and is {message.role}")
    if isinstance(message.content, str):
        return [ChatMessage(role=message.role, content=message.content)]
    blocks = [(block, f"{place}.content[{index}]") for index, block in enumerate(message.content)]
    if message.role == "assistant":
        return [_assistant(blocks)]
    results = [_result(block, where) for block, where in blocks if block.type == "tool_result"]
    parts = [_part(block, where) for block, where in blocks if block.type != "tool_result"]
    said = [ChatMessage(role="user", content=parts)] if parts or not results else []
    return [*results, *said]


def _assistant(blocks: Sequence[tuple[Block, str]]) -> ChatMessage:
    texts, thoughts, calls = list[str](), list[str](), list[dict[str, Any]]()
    for block, where in blocks:
        match block.type:
            case "tool_use":
                function = {"name": block.name or "", "arguments": json.dumps(block.input or {}, ensure_ascii=False)}
                calls.append({"id": block.id or "", "type": "function", "function": function})
            case "thinking":
                thoughts.append(block.thinking or "")
            case "redacted_thinking":  # nobody but Anthropic can read it
                pass
            case _:
                texts.append(_text(block, where))
    return ChatMessage(
        role="assistant",
        content="".join(texts),
        reasoning_content="".join(thoughts) or None,
        tool_calls=calls or None,
    )


def _result(block: Block, place: str) -> ChatMessage:
    content = block.content or ""
    said: str | list[MessagePart] = (
        content
        if isinstance(content, str)
        else [_part(part, f"{place}.content[{index}]") for index, part in enumerate(content)]
    )
    return ChatMessage(role="tool", tool_call_id=block.tool_use_id, content=said)


def _part(block: Block, place: str) -> MessagePart:
    if block.type != "image":
        return MessagePart(type="text", text=_text(block, place))
    source = block.source
    if source is None or source.type != "base64" or not source.data:
        # Other sources are refused: this process does not fetch files for clients.
        raise InvalidInput(f"{place}.source", "must be of type base64, with data")
    url = f"data:{source.media_type or 'image/png'};base64,{source.data}"
    return MessagePart(type="image_url", image_url=MediaUrl(url=url))


def _text(block: Block, place: str) -> str:
    if block.type == "text":
        return block.text or ""
    if block.type == "document" and block.source is not None and block.source.type == "text":
        return block.source.data or ""
    raise InvalidInput(f"{place}.type", f"{block.type} is not offered by this backend in this place")


def _tool(tool: Tool, place: str) -> dict[str, Any]:
    if tool.type not in _OWN_TOOL:
        raise InvalidInput(f"{place}.type", f"{tool.type} is not offered: only tools that you run yourself are")
    if not tool.name:
        raise InvalidInput(f"{place}.name", "must not be empty")
    about = {"description": tool.description} if tool.description else {}
    return {"type": "function", "function": {"name": tool.name, **about, "parameters": tool.input_schema or {}}}


def _choice(asked: MessagesRequest) -> str | dict[str, Any] | None:
    choice = asked.tool_choice
    if choice is None:
        return None
    names = [tool.name for tool in asked.tools or ()]
    if choice.type == "tool":
        if choice.name not in names:
            raise InvalidInput("tool_choice.name", f"names {choice.name}, which is not among the tools")
        return {"type": "function", "function": {"name": choice.name}}
    if choice.type not in _CHOICES:
        raise InvalidInput("tool_choice.type", f"must be one of {', '.join((*_CHOICES, 'tool'))}")
    if choice.type == "any" and not names:
        raise InvalidInput("tool_choice.type", "any needs tools")
    return _CHOICES[choice.type]


def _thinks(thinking: Thinking) -> str:
    return "false" if thinking.type == "disabled" else "true"


# Answers.


def message_answer(reply: Reply, stamp: Stamp) -> bytes:
    said = joined(reply)
    calls = said.get("tool_calls", ())
    text = said["content"]
    blocks: list[dict[str, Any]] = []
    if thoughts := said.get("reasoning_content"):
        blocks.append({"type": "thinking", "thinking": thoughts, "signature": ""})
    if text or stamp.prefix or not calls:
        blocks.append({"type": "text", "text": stamp.prefix + (text or "")})
    blocks += [
        _use(call["id"], call["function"]["name"], parsed_arguments(call["function"]["arguments"])) for call in calls
    ]
    reason = _REASONS[finish_reason(reply.tokens, stamp.limit, called=bool(calls))]
    usage = {"input_tokens": reply.prompt_tokens, "output_tokens": reply.tokens}
    return msgspec.json.encode(_message(stamp, blocks, reason, usage))


def _message(stamp: Stamp, blocks: list[dict[str, Any]], reason: str | None, usage: dict[str, int]) -> dict[str, Any]:
    head = {"id": stamp.id, "type": "message", "role": "assistant", "model": stamp.model}
    return {**head, "content": blocks, "stop_reason": reason, "stop_sequence": None, "usage": usage}


def _use(id: str, name: str, given: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": id or new_answer_id("toolu"), "name": name, "input": given}


class MessageEvents:
    """The events of a streamed message. Its blocks follow each other, except that a call may get more of its arguments
    after the next one has begun, if the backend says so."""

    def __init__(self, stamp: Stamp) -> None:
        self._stamp = stamp
        self._counts = Counts()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._blocks = 0
        self._open = ""
        """The type of the block that the next delta belongs to; empty when there is none."""
        self._calls: dict[int, int] = {}
        """The block of each call."""

    def opening(self) -> bytes:
        begun = _message(self._stamp, [], None, {"input_tokens": 0, "output_tokens": 0})
        start = _event("message_start", message=begun)
        return start + (b"".join(self._text(self._stamp.prefix)) if self._stamp.prefix else b"")

    def part(self, reply: Reply) -> bytes:
        """Return the events for this reply; nothing when it adds no text, or ends inside a character."""
        self._counts.take(reply)
        return b"".join(self._events(reply))

    def ending(self) -> bytes:
        rest = self._decoder.decode(b"", True)
        last = [*self._text(rest)] if rest or not self._blocks else []
        reason = _REASONS[finish_reason(self._counts.tokens, self._stamp.limit, called=bool(self._calls))]
        usage = {"input_tokens": self._counts.prompt_tokens, "output_tokens": self._counts.tokens}
        delta = {"stop_reason": reason, "stop_sequence": None}
        return b"".join([*last, *self._stop(), _event("message_delta", delta=delta, usage=usage)])

    def closing(self) -> bytes:
        return _event("message_stop")

    def failed(self, failure: Failure) -> bytes:
        return error_event(failure.status, failure.message)

    def _events(self, reply: Reply) -> Iterator[bytes]:
        if not reply.chat_deltas and (text := self._decoder.decode(reply.message)):
            yield from self._text(text)
        for delta in reply.chat_deltas:
            if delta.reasoning_content:
                yield from self._begin("thinking", {"thinking": "", "signature": ""})
                yield self._delta({"type": "thinking_delta", "thinking": delta.reasoning_content})
            if delta.content:
                yield from self._text(delta.content)
            for call in delta.tool_calls:
                yield from self._call(call)

    def _text(self, text: str) -> Iterator[bytes]:
        yield from self._begin("text", {"text": ""})
        if text:
            yield self._delta({"type": "text_delta", "text": text})

    def _call(self, call: ToolCallDelta) -> Iterator[bytes]:
        if call.index not in self._calls:
            yield from self._stop()
            self._calls[call.index] = self._blocks
            yield from self._begin("tool_use", _use(call.id, call.name, {}))
        if call.arguments:
            delta = {"type": "input_json_delta", "partial_json": call.arguments}
            yield _event("content_block_delta", index=self._calls[call.index], delta=delta)

    def _begin(self, kind: str, block: dict[str, Any]) -> Iterator[bytes]:
        if self._open == kind:
            return
        yield from self._stop()
        self._open = kind
        self._blocks += 1
        yield _event("content_block_start", index=self._blocks - 1, content_block={"type": kind, **block})

    def _stop(self) -> Iterator[bytes]:
        if self._open:
            self._open = ""
            yield _event("content_block_stop", index=self._blocks - 1)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._blocks - 1, delta=delta)


def error_event(status: int, message: str) -> bytes:
    """Return the last event of a stream that failed."""
    document = anthropic_error(status, message)
    return b"event: error\ndata: " + msgspec.json.encode(document) + b"\n\n"


def _event(kind: str, **fields: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode({"type": kind, **fields}))
