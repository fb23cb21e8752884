"""Requests of Anthropic's `/v1/messages` of which llama.cpp's server would drop a part. Pure.

Its server ignores a named tool, a choice of tools that it does not know or that needs tools where none are, and all
blocks but texts, pictures and those about tools and thoughts. What can be said in another way is, the rest is refused.
"""

from typing import Any, Final

from llama_refusals import Body, Refused, check_place_for_tools, check_tools, named_tool

_CHOICES: Final = ("auto", "any", "none", "tool")
_OWN_TOOL: Final = (None, "custom")
"""The types of tools that the client runs itself; all others are run by Anthropic."""
_HONOURED: Final = ("text", "tool_use", "thinking", "redacted_thinking")
"""Blocks that are passed on as they are. Thoughts that are redacted can be read by nobody but Anthropic."""
_SOURCES: Final = {"base64": "data", "url": "url"}
"""Where a picture can come from, and the field that has it."""
_NOT_OFFERED: Final = ("container", "mcp_servers", "output_format")


def message_request(body: Body, *, offers_tools: bool) -> Body:
    """Return the request in the words that the engine honours. Refused says which field cannot be honoured."""
    for name in _NOT_OFFERED:
        if body.get(name):
            raise Refused(name, "is not offered by this backend")
    config = body.get("output_config")
    if isinstance(config, dict) and config.get("format"):
        raise Refused("output_config.format", "is not offered by this backend")
    return _with_choice(_with_blocks(body), offers_tools=offers_tools)


# Tools.


def _with_choice(body: Body, *, offers_tools: bool) -> Body:
    type = _choice_type(body.get("tool_choice"))
    if not body.get("tools"):
        if type in ("any", "tool"):
            raise Refused("tool_choice", f"{type} needs tools")
        return body
    names = check_tools(body["tools"], own_types=_OWN_TOOL)
    if type == "none":  # the engine would take this for "auto"
        return {name: value for name, value in body.items() if name not in ("tools", "tool_choice")}
    check_place_for_tools(offers_tools=offers_tools)
    if type != "tool":
        return body
    choice = {name: value for name, value in body["tool_choice"].items() if name != "name"}
    tools = named_tool(body, names, body["tool_choice"].get("name"))
    return {**body, "tools": tools, "tool_choice": {**choice, "type": "any"}}


def _choice_type(choice: Any) -> str:
    """Return the type of a choice, which the engine ignores where it is a bare word."""
    if choice is None:
        return "auto"
    type = choice.get("type") if isinstance(choice, dict) else choice
    if type not in _CHOICES or (type == "tool" and not isinstance(choice, dict)):
        raise Refused("tool_choice", f"must be an object whose type is one of {', '.join(_CHOICES)}")
    return str(type)


# Blocks.


def _with_blocks(body: Body) -> Body:
    system, messages = body.get("system"), body.get("messages")
    if isinstance(system, list):
        body = {**body, "system": [_text(block, f"system[{index}]") for index, block in enumerate(system)]}
    if isinstance(messages, list):
        body = {**body, "messages": [_message(said, f"messages[{index}]") for index, said in enumerate(messages)]}
    return body


def _message(message: Any, place: str) -> Any:
    if not isinstance(message, dict) or isinstance(message.get("content"), str):
        return message
    content = message.get("content")
    if not isinstance(content, list):
        raise Refused(f"{place}.content", "must be a text or a list of blocks")
    return {**message, "content": _blocks(content, f"{place}.content")}


def _blocks(blocks: list[Any], place: str) -> list[Body]:
    return [_block(block, f"{place}[{index}]") for index, block in enumerate(blocks)]


def _block(block: Any, place: str) -> Body:
    type = block.get("type") if isinstance(block, dict) else None
    if type == "image":
        _check_picture(block.get("source"), place)
    elif type == "tool_result":
        if isinstance(block.get("content"), list):
            return {**block, "content": _blocks(block["content"], f"{place}.content")}
    elif type not in _HONOURED:
        return _text(block, place)
    return dict(block)


def _check_picture(source: Any, place: str) -> None:
    field = _SOURCES.get(str(source.get("type"))) if isinstance(source, dict) else None
    if field is None or not isinstance(source.get(field), str):
        raise Refused(f"{place}.source", "must be of type base64, with data, or of type url, with url")


def _text(block: Any, place: str) -> Body:
    """Return a block of text, or a document of plain text as one."""
    if not isinstance(block, dict):
        raise Refused(place, "must be a block, with a type")
    if block.get("type") == "text":
        return dict(block)
    source = block.get("source")
    if block.get("type") != "document":
        raise Refused(f"{place}.type", f"{block.get('type')} is not offered by this backend in this place")
    if not isinstance(source, dict) or source.get("type") != "text" or not isinstance(source.get("data"), str):
        raise Refused(f"{place}.source", "of a document must be of type text: this backend reads no other documents")
    return {"type": "text", "text": source["data"]}
