"""Requests of OpenAI's responses, its newer form of a chat, as chats for backends that only speak gRPC. Pure.

Nothing is kept between requests: clients send the whole conversation each time, and what refers to something kept is
refused. `openai_responses_items.py` reads the conversation, `openai_responses_answers.py` converts the other direction.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from corral.adapter.dialects.openai_responses_items import Item, chat_messages
from corral.adapter.dialects.requests import ChatMessage, ChatRequest, JsonSchema, ResponseFormat, check_count
from corral.base.errors import InvalidInput

_KEPT_ELSEWHERE: Final = ("previous_response_id", "conversation", "prompt")
"""Fields that refer to what OpenAI keeps."""
_AS_IN_CHATS: Final = (
    "chat_template_kwargs",
    "frequency_penalty",
    "grammar",
    "ignore_eos",
    "logit_bias",
    "metadata",
    "min_p",
    "model",
    "parallel_tool_calls",
    "presence_penalty",
    "repeat_penalty",
    "seed",
    "stop",
    "stream",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
)
"""Fields that mean the same in a chat."""
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
    "truncation": ("disabled",),
}
"""Values other than null of fields that would change the answer, had we more to offer. Summaries of thoughts are left
to the server by `auto`; ours makes none, since the thoughts themselves are in the answer."""
_LOGPROBS: Final = "message.output_text.logprobs"
_INCLUDED: Final = frozenset(
    {
        _LOGPROBS,
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "reasoning.encrypted_content",
        "web_search_call.action.sources",
        "web_search_call.results",
    }
)
"""What a client may ask to be included. All but the first are about tools and stored items that are not offered; and
thoughts are returned in plain text, which a client sends back as well as encrypted ones."""
_MOST_LOGPROBS: Final = 20
"""OpenAI's own limit of `top_logprobs`."""


class FunctionTool(msgspec.Struct):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    allowed_callers: list[str] | None = None
    defer_loading: bool | None = None


class ResponseToolChoice(msgspec.Struct, omit_defaults=True):
    """One tool that must be called, or several of which the model may choose."""

    type: str
    name: str | None = None
    mode: str | None = None
    tools: "list[ResponseToolChoice] | None" = None


class Reasoning(msgspec.Struct):
    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None
    """The older name of `summary`."""
    context: str | None = None
    mode: str | None = None


class TextFormat(msgspec.Struct, omit_defaults=True):
    type: str | None = None
    name: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None
    description: str | None = None


class _ResponseFormat(ResponseFormat):
    """The form of an answer in the words of chats, with the names of this request."""

    place = "text.format.type"
    schema_place = "text.format.schema"


class TextConfig(msgspec.Struct):
    format: TextFormat | None = None
    verbosity: str | None = None


class ResponseStreamOptions(msgspec.Struct):
    include_obfuscation: bool | None = None


class ResponsesRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Null means that a field was not given. An unknown field is refused, as OpenAI does here and not in chats."""

    input: str | list[Item] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: str | ResponseToolChoice | None = None
    reasoning: Reasoning | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    # As in chats.
    model: str | None = None
    stream: bool | None = None
    metadata: dict[str, str] | None = None
    parallel_tool_calls: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    # As in chats, where OpenAI's responses have no such fields, and other servers do.
    chat_template_kwargs: dict[str, Any] | None = None
    frequency_penalty: float | None = None
    grammar: str | None = None
    ignore_eos: bool | None = None
    logit_bias: dict[str, float] | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    repeat_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    top_k: int | None = None
    typical_p: float | None = None
    # Refused, or offered with some values only.
    background: bool | None = None
    context_management: Any = None
    conversation: Any = None
    moderation: Any = None
    previous_response_id: str | None = None
    prompt: Any = None
    stream_options: ResponseStreamOptions | None = None
    text: TextConfig | None = None
    truncation: str | None = None
    # Without influence on the answer: about tools and storage that OpenAI has, its prices and its other users.
    client_metadata: Any = None
    max_tool_calls: int | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: Any = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    user: str | None = None

    @property
    def wants_logprobs(self) -> bool:
        return bool(self.top_logprobs) or _LOGPROBS in (self.include or ())


def chat_request(asked: ResponsesRequest) -> ChatRequest:
    """Return the same chat in OpenAI's older form. Raise InvalidInput with the name that a wrong field has in this."""
    _check(asked)
    tools = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(asked.tools or ())]
    tools, choice = _chosen(asked.tool_choice, tools)
    return ChatRequest(
        **{name: getattr(asked, name) for name in _AS_IN_CHATS},
        messages=_messages(asked),
        max_tokens=asked.max_output_tokens,
        tools=tools or None,
        tool_choice=choice,
        reasoning_effort=None if asked.reasoning is None else asked.reasoning.effort,
        logprobs=asked.wants_logprobs or None,
        response_format=_response_format(asked.text),
        top_logprobs=asked.top_logprobs,
    )


# Fields.


def _response_format(text: TextConfig | None) -> ResponseFormat | None:
    if text is None or text.format is None:
        return None
    return _ResponseFormat(type=text.format.type, json_schema=JsonSchema(schema=text.format.schema))


def _check(asked: ResponsesRequest) -> None:
    for name in _KEPT_ELSEWHERE:
        if getattr(asked, name) is not None:
            raise InvalidInput(name, "is not offered: nothing is kept here, so send the whole conversation as input")
    for path, offered in _OFFERED.items():
        value = _value_at(asked, path)
        if value is not None and value not in offered:
            raise InvalidInput(path, _refusal(value, offered))
    for index, included in enumerate(asked.include or ()):
        if included not in _INCLUDED:
            raise InvalidInput(f"include[{index}]", f"must be one of {', '.join(sorted(_INCLUDED))}")
    if not 0 <= (asked.top_logprobs or 0) <= _MOST_LOGPROBS:
        raise InvalidInput("top_logprobs", f"must be between 0 and {_MOST_LOGPROBS}")
    check_count("max_output_tokens", asked.max_output_tokens)


def _value_at(asked: ResponsesRequest, path: str) -> object:
    value: object = asked
    for name in path.split("."):
        value = None if value is None else getattr(value, name)
    return value


def _refusal(value: object, offered: Sequence[object]) -> str:
    if not offered or not isinstance(value, str):
        return "is not offered by this backend"
    return f"{value} is not offered by this backend, only {' or '.join(map(str, offered))}"


def _messages(asked: ResponsesRequest) -> list[ChatMessage]:
    if not asked.input:
        raise InvalidInput("input", "is missing" if asked.input is None else "must not be empty")
    if isinstance(asked.input, str):
        said = [ChatMessage(role="user", content=asked.input)]
    else:
        said = chat_messages(asked.input)
    if not said:
        raise InvalidInput("input", "has nothing that can be answered")
    return [ChatMessage(role="system", content=asked.instructions), *said] if asked.instructions else said


# Tools.


def _tool(tool: FunctionTool, place: str) -> dict[str, Any]:
    if tool.type != "function":
        raise InvalidInput(f"{place}.type", f"must be function, and is {tool.type}")
    if not tool.name:
        raise InvalidInput(f"{place}.name", "must be a text")
    if tool.defer_loading:
        raise InvalidInput(f"{place}.defer_loading", "is not offered: there is no search for tools")
    if tool.allowed_callers is not None and "direct" not in tool.allowed_callers:
        raise InvalidInput(f"{place}.allowed_callers", "must have direct: there are no programs that call tools")
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.parameters or {}}
    if tool.description:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _chosen(
    choice: str | ResponseToolChoice | None, tools: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], str | dict[str, Any] | None]:
    """Return the tools that the model may call, and the choice in the form of chats, which knows no list of them."""
    if not isinstance(choice, ResponseToolChoice):
        return tools, choice
    names = [tool["function"]["name"] for tool in tools]
    if choice.type != "allowed_tools":
        return tools, {"type": "function", "function": {"name": _name(choice, names, "tool_choice")}}
    if choice.mode not in ("auto", "required"):
        raise InvalidInput("tool_choice.mode", "must be auto or required")
    if not choice.tools:
        raise InvalidInput("tool_choice.tools", "must not be empty")
    allowed = {_name(each, names, f"tool_choice.tools[{index}]") for index, each in enumerate(choice.tools)}
    return [tool for tool in tools if tool["function"]["name"] in allowed], choice.mode


def _name(choice: ResponseToolChoice, names: Sequence[str], place: str) -> str:
    if choice.type != "function":
        raise InvalidInput(f"{place}.type", f"{choice.type} is not offered by this backend: only functions are")
    if choice.name is None or choice.name not in names:
        raise InvalidInput(f"{place}.name", f"names {choice.name}, which is not among the tools")
    return choice.name
