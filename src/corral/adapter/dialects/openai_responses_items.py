"""Items of a conversation in OpenAI's responses, as messages of a chat. Pure."""

from collections.abc import Sequence
from typing import Final

import msgspec

from corral.adapter.dialects.openai import base64_of
from corral.adapter.dialects.requests import ChatMessage, MediaUrl, MessagePart, Sound
from corral.base.errors import InvalidInput

_ROLES: Final = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}


class ResponsePart(msgspec.Struct):
    """One part of a message, of thoughts, or of a result, of any type."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    input_audio: Sound | None = None


class Item(msgspec.Struct):
    """One item of the conversation, of any type; a message may leave its type out."""

    type: str | None = None
    id: str | None = None
    role: str | None = None
    content: str | list[ResponsePart] | None = None
    summary: list[ResponsePart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[ResponsePart] | None = None


def chat_messages(items: Sequence[Item]) -> list[ChatMessage]:
    """Return the messages. Raise InvalidInput with the place of an item, such as `input[0].content`."""
    conversation = _Conversation()
    for index, item in enumerate(items):
        conversation.add(item, f"input[{index}]")
    return conversation.messages


class _Conversation:
    """Gathers the messages of a chat. What the model thought, said and called in one turn is one message there."""

    def __init__(self) -> None:
        self.messages: list[ChatMessage] = []
        self._calls: set[str] = set()
        """Ids of the calls so far."""

    def add(self, item: Item, place: str) -> None:
        match _type_of(item):
            case "message":
                self._message(item, place)
            case "reasoning":
                self._thoughts(item)
            case "function_call":
                self._call(item, place)
            case "function_call_output":
                self._result(item, place)
            case "item_reference":
                problem = "refers to an item that is not kept: send the item itself"
                raise InvalidInput(f"{place}.id" if item.type is None else f"{place}.type", problem)
            case other:
                raise InvalidInput(f"{place}.type", f"{other} is not offered by this backend")

    def _message(self, item: Item, place: str) -> None:
        role = _ROLES.get(item.role or "")
        if role is None:
            raise InvalidInput(f"{place}.role", f"must be one of {', '.join(_ROLES)}")
        if item.content is None:
            raise InvalidInput(f"{place}.content", "is missing")
        if role != "assistant":
            self.messages.append(ChatMessage(role=role, content=_content(item.content, f"{place}.content")))
            return
        said = _spoken(item.content, f"{place}.content")
        turn = self._turn()
        if turn.content and not turn.tool_calls:  # it is a turn of its own
            self.messages.append(ChatMessage(role="assistant", content=said))
        else:  # results must follow their calls, so that nothing can stand between them
            turn.content = f"{turn.content}{said}"

    def _thoughts(self, item: Item) -> None:
        """Add what can be read of them: encrypted thoughts are for OpenAI alone."""
        content = item.content if isinstance(item.content, list) else []
        if thoughts := "".join(part.text or "" for part in content or item.summary or ()):
            turn = self._turn()
            turn.reasoning_content = f"{turn.reasoning_content}\n{thoughts}" if turn.reasoning_content else thoughts

    def _call(self, item: Item, place: str) -> None:
        for name, value in (("call_id", item.call_id), ("name", item.name)):
            if not value:
                raise InvalidInput(f"{place}.{name}", "must be a text")
        turn = self._turn()
        function = {"name": item.name, "arguments": item.arguments or "{}"}
        turn.tool_calls = [*(turn.tool_calls or ()), {"id": item.call_id, "type": "function", "function": function}]
        self._calls.add(item.call_id or "")

    def _result(self, item: Item, place: str) -> None:
        if item.call_id not in self._calls:
            raise InvalidInput(f"{place}.call_id", f"names {item.call_id}, which no function_call before it has")
        if item.output is None:
            raise InvalidInput(f"{place}.output", "is missing")
        said = _content(item.output, f"{place}.output")
        self.messages.append(ChatMessage(role="tool", tool_call_id=item.call_id, name=item.name, content=said))

    def _turn(self) -> ChatMessage:
        """Return the model's message that goes on; a new one if somebody else spoke last."""
        if not self.messages or self.messages[-1].role != "assistant":
            self.messages.append(ChatMessage(role="assistant", content=""))
        return self.messages[-1]


def _type_of(item: Item) -> str:
    """Return the type of an item. Messages and references may leave it out."""
    return item.type or ("item_reference" if item.id and item.role is None else "message")


def _spoken(content: str | list[ResponsePart], place: str) -> str:
    """Return what the model said, which is text and nothing else."""
    if isinstance(content, str):
        return content
    parts = [_part(part, f"{place}[{index}]") for index, part in enumerate(content)]
    for index, part in enumerate(parts):
        if part.type != "text":
            raise InvalidInput(f"{place}[{index}].type", f"{content[index].type} is not offered for the assistant")
    return "".join(part.text or "" for part in parts)


def _content(content: str | list[ResponsePart], place: str) -> str | list[MessagePart]:
    if isinstance(content, str):
        return content
    return [_part(part, f"{place}[{index}]") for index, part in enumerate(content)]


def _part(part: ResponsePart, place: str) -> MessagePart:
    match part.type:
        case "input_text" | "output_text" | "text":
            return _text(part.text, f"{place}.text")
        case "refusal":
            return _text(part.refusal, f"{place}.refusal")
        case "input_image":
            if base64_of(part.image_url or "") is None:
                # Other URLs and ids are refused: this process does not fetch files for clients.
                raise InvalidInput(f"{place}.image_url", "must be a data URL in base64")
            return MessagePart(type="image_url", image_url=MediaUrl(url=part.image_url))
        case "input_audio":
            if part.input_audio is None or not part.input_audio.data:
                raise InvalidInput(f"{place}.input_audio", "must have data in base64")
            return MessagePart(type="input_audio", input_audio=part.input_audio)
        case other:
            raise InvalidInput(f"{place}.type", f"{other} is not offered by this backend")


def _text(text: str | None, place: str) -> MessagePart:
    if text is None:
        raise InvalidInput(place, "is missing")
    return MessagePart(type="text", text=text)
