"""OpenAI's request bodies: their structs, and messages for those that cannot be used."""

import re
from typing import Any, ClassVar, Final, TypeVar

import msgspec

from corral.base.errors import InvalidInput
from corral.base.unreadable_json import UNREADABLE_JSON

_WHERE: Final = re.compile(r" - at `\$\.?(.*)`$")

Parsed = TypeVar("Parsed")

_TOOL_CHOICES: Final = ("auto", "none", "required")
_MOST_ANSWERS: Final = 128
"""OpenAI's own limit of `n`."""
_HOTTEST: Final = 2.0
"""OpenAI's own limit of `temperature`."""


class UnsupportedContent(InvalidInput):
    """The model does not take this kind of content."""

    code = "unsupported_content"


class MediaUrl(msgspec.Struct):
    url: str | None = None


class Sound(msgspec.Struct):
    data: str | None = None


class MessagePart(msgspec.Struct):
    """One part of a message: text, an image, a sound or a film. LocalAI's clients give the last two as URLs as well."""

    type: str
    text: str | None = None
    image_url: MediaUrl | str | None = None
    audio_url: MediaUrl | str | None = None
    video_url: MediaUrl | str | None = None
    input_audio: Sound | None = None


class ChatMessage(msgspec.Struct):
    role: str
    content: str | list[MessagePart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    function_call: dict[str, Any] | None = None
    """The older form of one call."""


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class JsonSchema(msgspec.Struct):
    name: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None
    description: str | None = None


class ResponseFormat(msgspec.Struct):
    """What form an answer shall have, with the names that a request has for it."""

    type: str | None = None
    json_schema: JsonSchema | None = None

    place: ClassVar[str] = "response_format"
    schema_place: ClassVar[str] = "response_format.json_schema.schema"

    @property
    def is_json(self) -> bool:
        return self.type not in (None, "text")


class Sampling(msgspec.Struct, kw_only=True):
    """Fields that chats and completions share. Null means that a field was not given.

    Unknown fields are ignored, because OpenAI's clients send new ones. A known field that cannot be honoured is
    refused.
    """

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repeat_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    grammar: str | None = None
    ignore_eos: bool | None = None
    n_keep: int | None = None
    repeat_last_n: int | None = None
    tfz: float | None = None


class ChatRequest(Sampling, kw_only=True):
    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    function_call: str | dict[str, Any] | None = None
    modalities: list[str] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: str | None = None
    metadata: dict[str, str] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    verbosity: str | None = None
    web_search_options: Any = None


class CompletionRequest(Sampling, kw_only=True):
    prompt: str | list[str]
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None
    logprobs: int | None = None
    response_format: ResponseFormat | None = None


class EditRequest(Sampling, kw_only=True):
    """LocalAI's form of OpenAI's older edits: texts, and what shall be done to each."""

    instruction: str
    input: str | list[str] = ""

    def inputs(self) -> list[str]:
        return [self.input] if isinstance(self.input, str) else self.input


class EmbeddingRequest(msgspec.Struct, kw_only=True):
    input: str | list[str | int | list[int]]
    model: str | None = None
    encoding_format: str | None = None
    dimensions: int | None = None

    def texts(self) -> list[str | list[int]]:
        """Return one entry for each requested vector; a list of numbers is one tokenised text."""
        if not self.input or (isinstance(self.input, list) and any(entry in ("", []) for entry in self.input)):
            raise InvalidInput("input", "must not be empty, nor have an empty text")
        if isinstance(self.input, str):
            return [self.input]
        tokens = [entry for entry in self.input if isinstance(entry, int)]
        texts = [entry for entry in self.input if not isinstance(entry, int)]
        if tokens and texts:
            raise InvalidInput("input", "mixes texts and tokens")
        entries: list[str | list[int]] = [tokens] if tokens else list(texts)
        if any(not 0 <= token < 2**31 for entry in entries if not isinstance(entry, str) for token in entry):
            raise InvalidInput("input", "must be texts, or numbers of tokens")
        return entries


def parse(body: bytes, kind: type[Parsed]) -> Parsed:
    """Decode the request. Raise InvalidInput with the name of the wrong field."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        match = _WHERE.search(str(error))
        field = match[1] if match else ""
        problem = _WHERE.sub("", str(error)).replace("`", "'")
        if missing := re.search(r"required field '(.+)'", problem):
            raise InvalidInput(f"{field}.{missing[1]}" if field else missing[1], "is missing") from error
        if unknown := re.search(r"unknown field '(.+)'", problem):
            raise InvalidInput(f"{field}.{unknown[1]}" if field else unknown[1], "is not a field here") from error
        raise InvalidInput(field, problem[:1].lower() + problem[1:]) from error
    except UNREADABLE_JSON as error:
        raise InvalidInput("", f"the body is not JSON: {error}") from error


def wants_json(request: Sampling) -> bool:
    """Whether the whole answer shall be JSON."""
    form = request.response_format if isinstance(request, ChatRequest) else None
    return form is not None and form.is_json


def check_chat(request: ChatRequest) -> None:
    """Check what the types do not express."""
    if not request.messages:
        raise InvalidInput("messages", "must not be empty")
    _check_sampling(request)
    check_count("max_completion_tokens", request.max_completion_tokens)
    _check_tools(request)
    if request.top_logprobs and not request.logprobs:
        raise InvalidInput("top_logprobs", "needs logprobs to be true")
    if request.modalities not in (None, [], ["text"]):
        raise InvalidInput("modalities", "only text is offered by this backend")
    if request.web_search_options is not None:
        raise InvalidInput("web_search_options", "is not offered: there is no search")
    if request.verbosity not in (None, "medium"):
        raise InvalidInput("verbosity", f"{request.verbosity} is not offered by this backend, only medium")
    if request.response_format is not None and request.response_format.is_json:
        _check_form(request.response_format, request)


def _check_form(form: ResponseFormat, request: ChatRequest) -> None:
    """The grammar that gives an answer its form leaves no room for another one, nor for calls."""
    if form.type not in ("json_object", "json_schema"):
        raise InvalidInput(form.place, f"{form.type} is not offered by this backend")
    if form.type == "json_schema" and (form.json_schema is None or form.json_schema.schema is None):
        raise InvalidInput(form.schema_place, "is missing")
    if request.grammar:
        raise InvalidInput(form.place, "is not offered together with grammar")
    if request.tools:
        raise InvalidInput(form.place, "is not offered together with tools: ask for either")


def check_completion(request: CompletionRequest) -> None:
    if not request.prompt:
        raise InvalidInput("prompt", "must not be empty")
    _check_sampling(request)
    if request.suffix:
        raise InvalidInput("suffix", "is not offered by this backend: it continues texts, and does not fill gaps")
    if request.best_of is not None and request.best_of != (request.n or 1):
        raise InvalidInput("best_of", "is not offered: ask for several answers with n")
    if request.response_format is not None and request.response_format.is_json:
        raise InvalidInput("response_format", "is offered for chats, and not for completions")
    if request.logprobs is not None and not 0 <= request.logprobs < 2**31:
        raise InvalidInput("logprobs", "must be a number of alternatives")
    if request.echo and request.logprobs is not None:
        raise InvalidInput("logprobs", "is not offered together with echo")


def check_edit(request: EditRequest) -> None:
    if not request.instruction:
        raise InvalidInput("instruction", "must not be empty")
    if not request.inputs():
        raise InvalidInput("input", "must not be empty")
    if request.stream:
        raise InvalidInput("stream", "is not offered for edits")
    _check_sampling(request)


def _check_tools(request: ChatRequest) -> None:
    """Raise InvalidInput for the first faulty tool, with its path, such as `tools[0].function.name`."""
    for field in ("functions", "function_call"):
        if getattr(request, field) is not None:
            raise InvalidInput(field, "is not offered: use tools and tool_choice")
    names = [_tool_name(f"tools[{index}]", tool) for index, tool in enumerate(request.tools or ())]
    choice = request.tool_choice
    if isinstance(choice, dict):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if name not in names:
            raise InvalidInput("tool_choice", f"names {name}, which is not among the tools")
    elif choice is not None and choice not in _TOOL_CHOICES:
        raise InvalidInput("tool_choice", f"must be one of {', '.join(_TOOL_CHOICES)}, or name a function")
    elif choice == "required" and not names:
        raise InvalidInput("tool_choice", "needs tools")
    if names and request.grammar:
        raise InvalidInput("grammar", "is not offered together with tools")


def _tool_name(place: str, tool: dict[str, Any]) -> str:
    if tool.get("type") != "function":
        raise InvalidInput(f"{place}.type", f"must be function, and is {tool.get('type')}")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise InvalidInput(f"{place}.function", "must be an object")
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidInput(f"{place}.function.name", "must be a text")
    if not isinstance(function.get("parameters"), dict | None):
        raise InvalidInput(f"{place}.function.parameters", "must be an object: a JSON schema")
    return name


def _check_sampling(request: Sampling) -> None:
    if request.n is not None and not 1 <= request.n <= _MOST_ANSWERS:
        raise InvalidInput("n", f"must be between 1 and {_MOST_ANSWERS}")
    check_count("max_tokens", request.max_tokens)
    if request.temperature is not None and not 0 <= request.temperature <= _HOTTEST:
        raise InvalidInput("temperature", f"must be between 0 and {_HOTTEST:g}")
    for field in ("seed", "top_k", "n_keep", "repeat_last_n"):
        value = getattr(request, field)
        if value is not None and not -(2**31) <= value < 2**31:
            raise InvalidInput(field, "must fit into 32 bits")


def check_count(field: str, value: int | None) -> None:
    """Refuse 0: backends read it as unlimited, clients mean nothing at all."""
    if value is not None and value != -1 and not 1 <= value < 2**31:
        raise InvalidInput(field, "must be a number of tokens, at least 1")
