"""Items of a conversation in OpenAI's `/v1/responses`, in the words of llama.cpp's server. Pure.

Its server knows what a model said by the item's type, which clients may leave out, and by parts that are output. It
refuses refusals, nulls, and thoughts without text. What can be said in another way is; the rest is refused, with its
place.
"""

from typing import Any, Final

from llama_refusals import Body, Refused

_TEXTS: Final = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
"""The parts of messages that are texts, and the field that has the text."""
_PASSED_ON: Final = ("function_call", "function_call_output")


def items_for(items: list[Any]) -> list[Body]:
    """Return the items that the engine honours. Refused says which item cannot be honoured."""
    made = [_item(item, f"input[{index}]") for index, item in enumerate(items)]
    return [item for item in made if item is not None]


def _item(item: Any, place: str) -> Body | None:
    """Return the item; None for thoughts that only OpenAI can read."""
    if not isinstance(item, dict):
        raise Refused(place, "must be an object")
    item = {name: value for name, value in item.items() if value is not None}
    type = item.get("type", "message" if "role" in item else "item_reference")
    if type == "message":
        return {**item, "type": type, "content": _content(item, place)}
    if type == "reasoning":
        return _thoughts(item)
    if type in _PASSED_ON:
        return item
    if type == "item_reference":
        raise Refused(f"{place}.type", "refers to an item that is not kept: send the item itself")
    raise Refused(f"{place}.type", f"{type} is not offered by this backend")


def _content(message: Body, place: str) -> Any:
    content = message.get("content")
    if not isinstance(content, list):
        return content
    is_answer = message.get("role") == "assistant"
    return [_part(part, f"{place}.content[{index}]", is_answer=is_answer) for index, part in enumerate(content)]


def _part(part: Any, place: str, *, is_answer: bool) -> Body:
    if not isinstance(part, dict):
        raise Refused(place, "must be an object")
    type = part.get("type")
    if isinstance(type, str) and type in _TEXTS:
        return {"type": "output_text" if is_answer else "input_text", "text": part.get(_TEXTS[type])}
    if type == "input_image" and not is_answer:
        return part
    raise Refused(f"{place}.type", f"{type} is not offered by this backend")


def _thoughts(item: Body) -> Body | None:
    parts = item.get("content") or item.get("summary") or []
    if not isinstance(parts, list):
        return item  # the engine says what it must be
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    text = "".join(str(text) for text in texts if text is not None)
    return {**item, "content": [{"type": "reasoning_text", "text": text}]} if text else None
