"""Requests of OpenAI's `/v1/responses` of which llama.cpp's server would drop a part. Pure.

Its server looks for the format of an answer in another field, skips tools that are no functions, and ignores most of
what it cannot do. What can be said in another way is, the rest is refused, by the rules of adapters: see
`docs/concepts/replicas.md`.
"""

from collections.abc import Mapping
from typing import Any, Final

from llama_items import items_for
from llama_refusals import Body, Refused, check_place_for_tools, check_tools, named_tool

_KEPT_ELSEWHERE: Final = ("previous_response_id", "conversation", "prompt")
"""Fields that refer to what OpenAI keeps."""
_OFFERED: Final[Mapping[str, tuple[object, ...]]] = {
    "background": (False,),
    "context_management": ([],),
    "moderation": (),
    "reasoning.context": ("auto", "all_turns"),
    "reasoning.generate_summary": ("auto",),
    "reasoning.mode": ("standard",),
    "reasoning.summary": ("auto",),
    "stream_options.include_obfuscation": (False,),
    "text.format.type": ("text", "json_object", "json_schema"),
    "text.verbosity": ("medium",),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}
"""Values other than null of fields that would change the answer, had the engine more to offer."""
_INCLUDED: Final = frozenset(
    {
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "reasoning.encrypted_content",
        "web_search_call.action.sources",
        "web_search_call.results",
    }
)
"""What a client may ask to be included: all are about tools and stored items that are not offered, or about thoughts,
which are returned in plain text."""
_CHOICES: Final = ("auto", "none", "required")


def response_request(body: Body, *, offers_tools: bool) -> Body:
    """Return the request in the words that the engine honours. Refused says which field cannot be honoured."""
    _check(body)
    body = {name: value for name, value in body.items() if name != "top_logprobs"}
    if isinstance(body["input"], list):
        body["input"] = items_for(body["input"])
    return _with_choice(_with_format(body), offers_tools=offers_tools)


# Fields.


def _check(body: Body) -> None:
    for name in _KEPT_ELSEWHERE:
        if name in body:
            raise Refused(name, "is not offered: nothing is kept here, so send the whole conversation as input")
    for path, offered in _OFFERED.items():
        value = _value_at(body, path)
        if value is not None and value not in offered:
            raise Refused(path, "is not offered by this backend" + (f", only {offered[0]}" if offered else ""))
    if not isinstance(body.get("instructions", ""), str):
        raise Refused("instructions", "must be a text")
    limit = body.get("max_output_tokens", 1)
    if not isinstance(limit, int | float) or isinstance(limit, bool):
        raise Refused("max_output_tokens", "must be a number of tokens")
    _check_input(body)
    _check_included(body.get("include", []))


def _value_at(body: Body, path: str) -> Any:
    """Return the value of a field inside of objects. Refused names the first that is no object."""
    value: Any = body
    *outer, last = path.split(".")
    for depth, name in enumerate(outer, start=1):
        value = value.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise Refused(".".join(outer[:depth]), "must be an object")
    return value.get(last)


def _check_input(body: Body) -> None:
    """Refuse nothing at all, to which the engine answers what it likes."""
    if not body.get("input", ""):
        raise Refused("input", "must not be empty" if "input" in body else "is missing")


def _check_included(include: Any) -> None:
    if not isinstance(include, list):
        raise Refused("include", "must be a list")
    for index, included in enumerate(include):
        if not isinstance(included, str) or included not in _INCLUDED:
            raise Refused(f"include[{index}]", f"{included} is not offered by this backend")


def _with_format(body: Body) -> Body:
    """Return the request with the answer's format in the field where the engine looks for it."""
    answer_format = (body.get("text") or {}).get("format")
    if answer_format is None:
        return body
    if answer_format.get("type") != "json_schema":
        return {**body, "response_format": answer_format}
    if not isinstance(answer_format.get("schema"), dict):
        raise Refused("text.format.schema", "must be an object: a JSON schema")
    return {**body, "response_format": {"type": "json_schema", "json_schema": answer_format}}


# Tools.


def _with_choice(body: Body, *, offers_tools: bool) -> Body:
    """Return the request with only those tools that may be called, and the choice as a word."""
    names = check_tools(body.get("tools", []), own_types=("function",))
    choice = body.get("tool_choice", "auto")
    if names and choice != "none":
        check_place_for_tools(offers_tools=offers_tools)
    if isinstance(choice, dict):
        return _with_tools_of(choice, body, names)
    if choice not in _CHOICES:
        raise Refused("tool_choice", f"must be one of {', '.join(_CHOICES)}, or name a function")
    if choice == "required" and not names:
        raise Refused("tool_choice", "needs tools")
    return body


def _with_tools_of(choice: Body, body: Body, names: list[str]) -> Body:
    if choice.get("type") == "function":
        return {**body, "tools": named_tool(body, names, choice.get("name")), "tool_choice": "required"}
    if choice.get("type") != "allowed_tools":
        raise Refused("tool_choice.type", f"{choice.get('type')} is not offered by this backend: only functions are")
    if choice.get("mode") not in ("auto", "required"):
        raise Refused("tool_choice.mode", "must be auto or required")
    allowed = choice.get("tools")
    if not isinstance(allowed, list) or not allowed:
        raise Refused("tool_choice.tools", "must be a list, and not empty")
    named = {_allowed_name(tool, names, f"tool_choice.tools[{index}]") for index, tool in enumerate(allowed)}
    tools = [tool for tool, name in zip(body["tools"], names, strict=True) if name in named]
    return {**body, "tools": tools, "tool_choice": choice["mode"]}


def _allowed_name(tool: Any, names: list[str], place: str) -> str:
    name = tool.get("name") if isinstance(tool, dict) and tool.get("type") == "function" else None
    if name not in names:
        raise Refused(place, "must be a function that is among the tools")
    return str(name)
