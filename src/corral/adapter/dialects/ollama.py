"""Ollama's chats, texts and vectors, for backends that only speak gRPC: requests become chats, replies become lines of
JSON. Pure.

Options that decide how a model is loaded, such as `num_ctx`, and `keep_alive` are ignored: here the model's
configuration and the fleet's rules decide them. What else would change the answer and cannot be honoured is refused.
"""

import codecs
import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from corral.adapter.dialects.answers import Counts, Failure, finish_reason, joined, parsed_arguments
from corral.adapter.dialects.requests import (
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    JsonSchema,
    MediaUrl,
    MessagePart,
    ResponseFormat,
)
from corral.base.errors import InvalidInput
from corral.base.ids import new_answer_id
from corral.rpc.messages import Reply, ToolCallDelta

_encode: Final = msgspec.json.encode
_NANOSECONDS: Final = 1_000_000
"""Nanoseconds of a millisecond."""


class OllamaFunction(msgspec.Struct):
    name: str
    arguments: dict[str, Any] | None = None


class OllamaCall(msgspec.Struct):
    function: OllamaFunction
    id: str | None = None


class OllamaMessage(msgspec.Struct, kw_only=True):
    role: str
    content: str | None = None
    images: list[str] | None = None
    thinking: str | None = None
    tool_calls: list[OllamaCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaOptions(msgspec.Struct, kw_only=True):
    """Sampling of one request. Other options are ignored."""

    num_predict: int | None = None
    num_keep: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


class _Asked(msgspec.Struct, kw_only=True):
    """Fields that chats and texts share. Null means that a field was not given."""

    model: str | None = None
    stream: bool | None = None
    format: str | dict[str, Any] | None = None
    options: OllamaOptions | None = None
    think: bool | str | None = None
    logprobs: bool | None = None

    @property
    def streams(self) -> bool:
        """Whether the answer comes in lines: unlike elsewhere it does when nothing is said."""
        return self.stream is not False


class OllamaChat(_Asked, kw_only=True):
    messages: list[OllamaMessage] | None = None
    tools: list[dict[str, Any]] | None = None


class OllamaGenerate(_Asked, kw_only=True):
    prompt: str | None = None
    system: str | None = None
    template: str | None = None
    suffix: str | None = None
    images: list[str] | None = None
    raw: bool | None = None


class OllamaEmbed(msgspec.Struct, kw_only=True):
    input: str | list[str]
    model: str | None = None
    dimensions: int | None = None


class OllamaEmbeddings(msgspec.Struct, kw_only=True):
    """The older form of a question for one vector."""

    prompt: str
    model: str | None = None


# Requests.


def chat_request(asked: OllamaChat) -> ChatRequest:
    """Return the same chat in OpenAI's form. Raise InvalidInput for what cannot be honoured."""
    calls: list[str] = []
    messages = [_message(message, calls) for message in asked.messages or ()]
    return ChatRequest(messages=messages, tools=asked.tools or None, **_wishes(asked))


def prompt_request(asked: OllamaGenerate) -> ChatRequest:
    """Return a text to be answered as a chat of one message, which is what a template makes of it."""
    _check_generate(asked)
    system = [ChatMessage(role="system", content=asked.system)] if asked.system else []
    user = OllamaMessage(role="user", content=asked.prompt, images=asked.images)
    return ChatRequest(messages=[*system, _message(user, [])], **_wishes(asked))


def raw_request(asked: OllamaGenerate) -> CompletionRequest:
    """Return a text to be continued as it is, without a template."""
    _check_generate(asked)
    for name in ("system", "images", "format", "think"):
        if getattr(asked, name):
            raise InvalidInput(name, "is not offered together with raw")
    return CompletionRequest(prompt=asked.prompt or "", **_sampling(asked))


def embedding_request(asked: OllamaEmbed | OllamaEmbeddings) -> EmbeddingRequest:
    if isinstance(asked, OllamaEmbeddings):
        return EmbeddingRequest(input=asked.prompt)
    texts = [asked.input] if isinstance(asked.input, str) else asked.input
    return EmbeddingRequest(input=list(texts), dimensions=asked.dimensions)


def _check_generate(asked: OllamaGenerate) -> None:
    for name in ("template", "suffix"):
        if getattr(asked, name):
            raise InvalidInput(name, "is not offered: the model's configuration has its templates")


def _message(message: OllamaMessage, calls: list[str]) -> ChatMessage:
    """Return a message in OpenAI's form, where each result of a tool names its call; `calls` are those without one."""
    content: str | list[MessagePart] | None = message.content
    if message.images:
        pictures = [MessagePart(type="image_url", image_url=MediaUrl(url=_data_url(it))) for it in message.images]
        content = [MessagePart(type="text", text=message.content or ""), *pictures]
    made = [_call(call) for call in message.tool_calls or ()]
    answered = message.tool_call_id
    if message.role == "tool" and answered is None and calls:
        answered = calls.pop(0)
    calls += [call["id"] for call in made]
    return ChatMessage(
        role=message.role,
        content=content,
        name=message.tool_name,
        tool_call_id=answered,
        reasoning_content=message.thinking,
        tool_calls=made or None,
    )


def _call(call: OllamaCall) -> dict[str, Any]:
    function = {
        "name": call.function.name,
        "arguments": json.dumps(call.function.arguments or {}, ensure_ascii=False),
    }
    return {"type": "function", "id": call.id or new_answer_id("call"), "function": function}


def _data_url(picture: str) -> str:
    """Backends look at the content, whatever the URL says of it."""
    return f"data:image/png;base64,{picture}"


def _wishes(asked: _Asked) -> dict[str, Any]:
    wishes = _sampling(asked) | {"response_format": _format(asked.format)}
    if isinstance(asked.think, bool):
        wishes["metadata"] = {"enable_thinking": "true" if asked.think else "false"}
    elif asked.think:
        wishes["reasoning_effort"] = asked.think
    return wishes


def _sampling(asked: _Asked) -> dict[str, Any]:
    if asked.logprobs:
        raise InvalidInput("logprobs", "is not offered in Ollama's form; /v1/chat/completions has it")
    options = asked.options or OllamaOptions()
    sampling = {name: getattr(options, name) for name in options.__struct_fields__ if not name.startswith("num_")}
    return {**sampling, "max_tokens": _limit(options.num_predict), "n_keep": options.num_keep, "model": asked.model}


def _limit(num_predict: int | None) -> int | None:
    if num_predict == 0:
        raise InvalidInput("options.num_predict", "must be at least 1, or negative for no limit")
    return num_predict if num_predict is None or num_predict > 0 else -1


def _format(wanted: str | dict[str, Any] | None) -> ResponseFormat | None:
    if not wanted:
        return None
    if isinstance(wanted, dict):
        return ResponseFormat(type="json_schema", json_schema=JsonSchema(schema=wanted))
    if wanted != "json":
        raise InvalidInput("format", "must be json, or a JSON schema")
    return ResponseFormat(type="json_object")


# Answers.


class OllamaStamp(msgspec.Struct, frozen=True, kw_only=True):
    """Values that all lines of an answer share."""

    model: str
    created_at: str
    """RFC 3339."""
    elapsed: Callable[[], int]
    """Returns the nanoseconds since the request came."""
    limit: int = 0
    """Requested maximum number of tokens; 0 is unlimited."""
    prefix: str = ""
    """What the text of the answer begins with."""

    def line(self, **fields: Any) -> dict[str, Any]:
        return {"model": self.model, "created_at": self.created_at, **fields}


class ChatForm:
    """How lines of `/api/chat` hold what a model says."""

    def said(self, text: str, **more: Any) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, **more}}


class TextForm:
    """How lines of `/api/generate` hold what a model says."""

    def said(self, text: str, **more: Any) -> dict[str, Any]:
        return {"response": text, **more}


class OllamaLines:
    """The lines of a streamed answer. A call is complete in one line, near the end: Ollama's clients join no
    fragments."""

    def __init__(self, stamp: OllamaStamp, form: ChatForm | TextForm) -> None:
        self._stamp = stamp
        self._form = form
        self._counts = Counts()
        self._timings = Reply()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._fragments = Reply()

    def opening(self) -> bytes:
        return self._line(self._form.said(self._stamp.prefix)) if self._stamp.prefix else b""

    def part(self, reply: Reply) -> bytes:
        """Return the lines for this reply; nothing when it adds no text, or ends inside a character."""
        self._counts.take(reply)
        self._timings = reply if reply.timing_token_generation else self._timings
        if not reply.chat_deltas:
            text = self._decoder.decode(reply.message)
            return self._line(self._form.said(text)) if text else b""
        return b"".join(map(self._delta, reply.chat_deltas))

    def ending(self) -> bytes:
        rest = self._decoder.decode(b"", True)
        last = self._line(self._form.said(rest)) if rest else b""
        calls = _calls(joined(self._fragments)) if self._fragments.chat_deltas else []
        if calls:
            last += self._line(self._form.said("", tool_calls=calls))
        return last + self._line(self._form.said(""), _end(self._stamp, self._counts, self._timings))

    def closing(self) -> bytes:
        return b""

    def failed(self, failure: Failure) -> bytes:
        return _encode({"error": failure.message}) + b"\n"

    def whole(self, reply: Reply) -> bytes:
        """Return an answer that is not streamed."""
        said = joined(reply)
        more: dict[str, Any] = {}
        if thoughts := said.get("reasoning_content"):
            more["thinking"] = thoughts
        if calls := _calls(said):
            more["tool_calls"] = calls
        text = self._form.said(self._stamp.prefix + (said["content"] or ""), **more)
        counts = Counts(reply.tokens, reply.prompt_tokens)
        return _encode(self._stamp.line(**text, **_end(self._stamp, counts, reply)))

    def _delta(self, delta: Any) -> bytes:
        if delta.tool_calls:
            self._fragments.chat_deltas.add().tool_calls.extend(map(_copied, delta.tool_calls))
        more = {"thinking": delta.reasoning_content} if delta.reasoning_content else {}
        return self._line(self._form.said(delta.content, **more)) if delta.content or more else b""

    def _line(self, said: dict[str, Any], end: dict[str, Any] | None = None) -> bytes:
        return _encode(self._stamp.line(**said, **(end or {"done": False}))) + b"\n"


def _copied(call: ToolCallDelta) -> ToolCallDelta:
    return ToolCallDelta(index=call.index, id=call.id, name=call.name, arguments=call.arguments)


def _calls(said: dict[str, Any]) -> list[dict[str, Any]]:
    functions = [(call["id"], call["function"]) for call in said.get("tool_calls", ())]
    return [
        {**({"id": id} if id else {}), "function": {"name": it["name"], "arguments": parsed_arguments(it["arguments"])}}
        for id, it in functions
    ]


def _end(stamp: OllamaStamp, counts: Counts, timings: Reply) -> dict[str, Any]:
    """Return how an answer ends. Counts come last, where the gateway reads them; those that nobody told are left
    out."""
    reason = "length" if finish_reason(counts.tokens, stamp.limit) == "length" else "stop"
    end: dict[str, Any] = {"done": True, "done_reason": reason, "total_duration": stamp.elapsed(), "load_duration": 0}
    if timings.timing_token_generation:
        end["prompt_eval_duration"] = int(timings.timing_prompt_processing * _NANOSECONDS)
        end["eval_duration"] = int(timings.timing_token_generation * _NANOSECONDS)
    if counts.usage() is not None:
        end |= {"prompt_eval_count": counts.prompt_tokens, "eval_count": counts.tokens}
    return end


def loaded_answer(stamp: OllamaStamp, form: ChatForm | TextForm) -> bytes:
    """Return the answer to a question without a prompt or messages, by which clients have a model loaded."""
    return _encode(stamp.line(**form.said(""), done=True, done_reason="load"))


def embed_answer(vectors: Sequence[Sequence[float]], stamp: OllamaStamp, *, tokens: int) -> bytes:
    counted = {"prompt_eval_count": tokens} if tokens else {}
    about = {"model": stamp.model, "embeddings": vectors, "total_duration": stamp.elapsed(), "load_duration": 0}
    return _encode({**about, **counted})


def embeddings_answer(vectors: Sequence[Sequence[float]]) -> bytes:
    return _encode({"embedding": vectors[0]})
