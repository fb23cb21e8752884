"""Requests in OpenAI's shape: what we read of them, and what is wrong with those we cannot read."""

import re
from typing import Any, Final, TypeVar

import msgspec

from corral.base.errors import InvalidInput
from corral.base.unreadable_json import UNREADABLE_JSON

_WHERE: Final = re.compile(r" - at `\$\.?(.*)`$")

Parsed = TypeVar("Parsed")


class Link(msgspec.Struct):
    url: str = ""


class Sound(msgspec.Struct):
    data: str = ""


class Part(msgspec.Struct):
    """One part of a message: a text, or something to look at or to listen to."""

    type: str
    text: str = ""
    image_url: Link | str | None = None
    input_audio: Sound | None = None


class ChatMessage(msgspec.Struct):
    role: str
    content: str | list[Part] | None = None
    name: str = ""
    tool_call_id: str = ""
    reasoning_content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class StreamOptions(msgspec.Struct):
    include_usage: bool = False


class ResponseFormat(msgspec.Struct):
    type: str = "text"


class Sampling(msgspec.Struct, kw_only=True):
    """What chats and completions have in common. Unknown fields are ignored, as OpenAI's own clients send new ones."""

    model: str = ""
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


class ChatRequest(Sampling, kw_only=True):
    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: str | None = None
    metadata: dict[str, str] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionRequest(Sampling, kw_only=True):
    prompt: str | list[str]
    echo: bool | None = None
    logprobs: int | None = None


class EmbeddingRequest(msgspec.Struct, kw_only=True):
    input: str | list[str | int | list[int]]
    model: str = ""
    encoding_format: str = "float"
    dimensions: int | None = None

    def texts(self) -> list[str | list[int]]:
        """One entry for each vector that is wanted; a list of numbers is one text in tokens."""
        if isinstance(self.input, str):
            return [self.input]
        if not self.input:
            raise InvalidInput("input", "must not be empty")
        tokens = [one for one in self.input if isinstance(one, int)]
        texts = [one for one in self.input if not isinstance(one, int)]
        if tokens and texts:
            raise InvalidInput("input", "mixes texts and tokens")
        return [tokens] if tokens else list(texts)


def parse(body: bytes, kind: type[Parsed]) -> Parsed:
    """The request in this body. InvalidInput names the field that is wrong."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _located(str(error)) from error
    except UNREADABLE_JSON as error:
        raise InvalidInput("", f"the body is not JSON: {error}") from error


def _located(text: str) -> InvalidInput:
    found = _WHERE.search(text)
    field = found[1] if found else ""
    problem = _WHERE.sub("", text).replace("`", "'")
    missing = re.search(r"required field '(.+)'", problem)
    if missing:
        return InvalidInput(f"{field}.{missing[1]}" if field else missing[1], "is missing")
    return InvalidInput(field, problem[:1].lower() + problem[1:])


def check_chat(request: ChatRequest) -> None:
    """What the types alone do not say."""
    if not request.messages:
        raise InvalidInput("messages", "must not be empty")
    _check_sampling(request)
    _check_count("max_completion_tokens", request.max_completion_tokens)
    if request.response_format is not None and request.response_format.type != "text":
        raise InvalidInput("response_format", f"{request.response_format.type} is not offered by this backend")


def check_completion(request: CompletionRequest) -> None:
    if not request.prompt:
        raise InvalidInput("prompt", "must not be empty")
    _check_sampling(request)


def _check_sampling(request: Sampling) -> None:
    if request.n not in (None, 1):
        raise InvalidInput("n", "only one answer to a request is offered")
    _check_count("max_tokens", request.max_tokens)
    if request.temperature is not None and not 0 <= request.temperature <= 10:
        raise InvalidInput("temperature", "must be between 0 and 10")
    if request.seed is not None and not -(2**31) <= request.seed < 2**31:
        raise InvalidInput("seed", "must fit into 32 bits")


def _check_count(field: str, value: int | None) -> None:
    if value is not None and not -1 <= value < 2**31:
        raise InvalidInput(field, "must be a number of tokens")
