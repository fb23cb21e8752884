"""Converts a backend's replies to OpenAI's answers: documents, and events of a stream. Pure: ids and times of answers
are passed in.

Token counts come from the backend; without them the answer has none. The gRPC contract does not say why an answer
ended: `length` is concluded from the token count, `tool_calls` from their presence, and all else is `stop`.
"""

import base64
import codecs
import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from sys import byteorder
from typing import Any, Final

import msgspec

from corral.base.errors import InvalidInput
from corral.base.ids import new_answer_id
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.rpc.messages import ChatDelta, EmbeddingLayout, EmbeddingResult, Reply, ToolCallDelta

DONE: Final = b"data: [DONE]\n\n"
_encode: Final = msgspec.json.encode


class Stamp(msgspec.Struct, frozen=True, kw_only=True):
    """Values that all answers to one request share."""

    id: str
    created: int
    model: str
    limit: int = 0
    """Requested maximum number of tokens; 0 is unlimited."""
    include_usage: bool = False
    n: int = 1
    """Number of answers to each prompt."""
    prefix: str = ""
    """What the text of each answer begins with."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """What a client is told of a failure."""

    status: int
    message: str
    type: str
    code: str
    param: str | None = None

    def body(self) -> bytes:
        """Return the body of an answer, in OpenAI's format."""
        fields = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return _encode({"error": fields})


def error_event(failure: Failure) -> bytes:
    """Return the last event of a stream that failed, in OpenAI's format for chats."""
    return b"data: " + msgspec.structs.replace(failure, param=None).body() + b"\n\n"


@dataclass(slots=True)
class Counts:
    """Running token counts of an answer; the last ones are valid."""

    tokens: int = 0
    prompt_tokens: int = 0

    def take(self, reply: Reply) -> None:
        self.tokens = reply.tokens or self.tokens
        self.prompt_tokens = reply.prompt_tokens or self.prompt_tokens

    def timings(self) -> bytes:
        """Return the counts as llama.cpp's `timings`, on the last event of a stream, where the gateway reads them."""
        if self.usage() is None:
            return b""
        return b',"timings":{"prompt_n":%d,"predicted_n":%d}' % (self.prompt_tokens, self.tokens)

    def usage(self) -> dict[str, int] | None:
        if not self.tokens and not self.prompt_tokens:
            return None
        total = self.tokens + self.prompt_tokens
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.tokens, "total_tokens": total}


class _AnswerEvents:
    """The events of a stream: for each answer `opening`, `part` for every reply and `ending`, then `closing`."""

    def __init__(self, kind: str, stamp: Stamp) -> None:
        self._stamp = stamp
        self._all: list[Counts] = []
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        head = _encode({"id": stamp.id, "object": kind, "created": stamp.created})
        self._head = b"data: " + head[:-1] + b',"model":' + _encode(stamp.model)

    def closing(self) -> bytes:
        """Return the counts of the whole stream, if they are known and were requested, and its end."""
        usage = _sum(self._all, n=self._stamp.n).usage() if self._stamp.include_usage else None
        return (self._head + b',"choices":[],"usage":' + _encode(usage) + b"}\n\n" if usage else b"") + DONE

    def failed(self, failure: Failure) -> bytes:
        return error_event(failure)


class ChatEvents(_AnswerEvents):
    """The events of a streamed chat."""

    def __init__(self, stamp: Stamp) -> None:
        super().__init__("chat.completion.chunk", stamp)
        self._after = b',"finish_reason":null}]}\n\n'
        self._begin(0)

    def _begin(self, index: int) -> None:
        self._index = index
        self._all.append(Counts())
        self._called: set[int] = set()
        self._before = self._head + b',"choices":[{"index":%d,"delta":' % index

    def opening(self) -> bytes:
        return self._before + b'{"role":"assistant","content":' + _encode(self._stamp.prefix) + b"}" + self._after

    def part(self, reply: Reply) -> bytes:
        """Return the event for this reply; nothing when it adds no text, or ends inside a character."""
        self._all[-1].take(reply)
        if reply.chat_deltas:
            event = b"".join(self._delta(delta) for delta in reply.chat_deltas)
        else:
            text = self._decoder.decode(reply.message)
            event = self._content(text) if text else b""
        if logprobs := _logprobs(reply):  # they go to the first event of their reply, which may contain nothing else
            first, after, rest = (event or self._before + b"{}" + self._after).partition(self._after)
            return first + b',"logprobs":' + logprobs + after + rest
        return event

    def ending(self) -> bytes:
        """Return the rest of an unfinished character and the finish reason. Following parts belong to the next
        answer."""
        rest = self._decoder.decode(b"", True)
        reason = finish_reason(self._all[-1].tokens, self._stamp.limit, called=bool(self._called))
        choice = b',"choices":[{"index":%d,"delta":{},"finish_reason":"%b"}]' % (self._index, reason.encode())
        timings = _sum(self._all, n=self._stamp.n).timings()
        ending = (self._content(rest) if rest else b"") + self._head + choice + timings + b"}\n\n"
        self._decoder.reset()
        self._begin(self._index + 1)
        return ending

    def _content(self, text: str) -> bytes:
        return self._before + b'{"content":' + _encode(text) + b"}" + self._after

    def _delta(self, delta: ChatDelta) -> bytes:
        plain: dict[str, Any] = {}
        if delta.content:
            plain["content"] = delta.content
        if delta.reasoning_content:
            plain["reasoning_content"] = delta.reasoning_content
        if delta.tool_calls:
            plain["tool_calls"] = [self._call(call) for call in delta.tool_calls]
        return self._before + _encode(plain) + self._after if plain else b""

    def _call(self, call: ToolCallDelta) -> dict[str, Any]:
        """Return a fragment of a tool call. Only its first fragment has the id and the type.

        A call that the backend gave no id gets one: clients name it in the result that they send back.
        """
        is_first = call.index not in self._called
        self._called.add(call.index)
        function = {"arguments": call.arguments} | ({"name": call.name} if call.name else {})
        start = {"id": call.id or new_answer_id("call"), "type": "function"} if is_first else {}
        return {"index": call.index, **start, "function": function}


class CompletionEvents(_AnswerEvents):
    """The events of a streamed completion. `before` has a text for each answer, which it begins with."""

    def __init__(self, stamp: Stamp, *, before: Sequence[str] = ()) -> None:
        super().__init__("text_completion", stamp)
        self._before = before
        self._index = 0
        self._all.append(Counts())

    def opening(self) -> bytes:
        before = (self._before[self._index] if self._before else "") + self._stamp.prefix
        return self._choice(before, None) if before else b""

    def part(self, reply: Reply) -> bytes:
        self._all[-1].take(reply)
        text = self._decoder.decode(reply.message)
        logprobs = _raw_logprobs(reply)
        return self._choice(text, None, logprobs) if text or logprobs else b""

    def ending(self) -> bytes:
        """End this answer. Following parts belong to the next one."""
        rest = self._decoder.decode(b"", True)
        ending = self._choice(rest, finish_reason(self._all[-1].tokens, self._stamp.limit))
        self._index += 1
        self._all.append(Counts())
        self._decoder.reset()
        return ending

    def _choice(self, text: str, reason: str | None, logprobs: msgspec.Raw | None = None) -> bytes:
        choice = {"index": self._index, "text": text, "logprobs": logprobs, "finish_reason": reason}
        timings = _sum(self._all, n=self._stamp.n).timings() if reason else b""
        return self._head + b',"choices":[' + _encode(choice) + b"]" + timings + b"}\n\n"


def _logprobs(reply: Reply) -> bytes:
    """Parse log probabilities, which are JSON in one line; nothing if the backend sends anything else."""
    try:
        return msgspec.json.format(reply.logprobs, indent=-1) if reply.logprobs else b""
    except UNREADABLE_JSON:
        return b""


def finish_reason(tokens: int, limit: int, *, called: bool = False) -> str:
    if called:
        return "tool_calls"
    return "length" if 0 < limit <= tokens else "stop"


def chat_answer(replies: Sequence[Reply], stamp: Stamp) -> bytes:
    choices = []
    for index, reply in enumerate(replies):
        message = joined(reply)
        for call in message.get("tool_calls", ()):
            call["id"] = call["id"] or new_answer_id("call")
        if stamp.prefix and message["content"] is not None:
            message["content"] = stamp.prefix + message["content"]
        reason = finish_reason(reply.tokens, stamp.limit, called="tool_calls" in message)
        choices.append({"index": index, "message": message, "logprobs": _raw_logprobs(reply), "finish_reason": reason})
    return _document("chat.completion", stamp, choices, replies)


def completion_answer(replies: Sequence[Reply], stamp: Stamp, *, before: Sequence[str] = ()) -> bytes:
    """Return the complete answer. `before` has a text for each reply, which its answer begins with."""
    choices = []
    for index, reply in enumerate(replies):
        text = (before[index] if before else "") + stamp.prefix + reply.message.decode(errors="replace")
        reason = finish_reason(reply.tokens, stamp.limit)
        choices.append({"index": index, "text": text, "logprobs": _raw_logprobs(reply), "finish_reason": reason})
    return _document("text_completion", stamp, choices, replies)


def edit_answer(replies: Sequence[Reply], stamp: Stamp) -> bytes:
    """Return the complete answer: each text as the backend edited it."""
    texts = (stamp.prefix + reply.message.decode(errors="replace") for reply in replies)
    return _document("edit", stamp, [{"index": index, "text": text} for index, text in enumerate(texts)], replies)


def _raw_logprobs(reply: Reply) -> msgspec.Raw | None:
    return msgspec.Raw(logprobs) if (logprobs := _logprobs(reply)) else None


def embedding_answer(
    results: Sequence[EmbeddingResult], *, model: str, as_base64: bool, dimensions: int | None = None
) -> bytes:
    """Return one vector for each result; of several packed vectors the first counts.

    Where the backend returned vectors of single tokens, the text's is their mean, normalised.
    """
    data = []
    for index, result in enumerate(results):
        numbers = _vector(result, dimensions)
        if as_base64 and byteorder != "little":
            numbers.byteswap()
        vector = base64.b64encode(numbers.tobytes()).decode() if as_base64 else numbers.tolist()
        data.append({"object": "embedding", "index": index, "embedding": vector})
    answer: dict[str, Any] = {"object": "list", "data": data, "model": model}
    if tokens := sum(result.prompt_tokens for result in results):
        answer["usage"] = {"prompt_tokens": tokens, "total_tokens": tokens}
    return _encode(answer)


def vectors(results: Sequence[EmbeddingResult], dimensions: int | None) -> list[list[float]]:
    """Return one vector for each result, as `embedding_answer` does."""
    return [_vector(result, dimensions).tolist() for result in results]


def _vector(result: EmbeddingResult, dimensions: int | None) -> "array[float]":
    """Return the vector, cut to `dimensions` numbers and normalised again if requested."""
    numbers = _text_vector(result)
    if dimensions is None:
        return numbers
    if dimensions > len(numbers):
        raise InvalidInput("dimensions", f"is {dimensions}, and the vectors of this model have {len(numbers)}")
    return _normalised(numbers[:dimensions])


def _text_vector(result: EmbeddingResult) -> "array[float]":
    """Return the vector of the text. InvalidInput where there are only those of tokens, of unknown length."""
    numbers, size = array("f", result.embeddings), result.dim
    if result.layout != EmbeddingLayout.EMBEDDING_LAYOUT_PER_TOKEN:
        return numbers[:size] if size else numbers
    if size <= 0 or len(numbers) % size:
        raise InvalidInput("model", "gives a vector for each token, and does not say how long they are")
    return _normalised(array("f", (sum(numbers[place::size]) for place in range(size))))


def _normalised(numbers: "array[float]") -> "array[float]":
    """Return the vector with the length 1."""
    length = math.hypot(*numbers) or 1.0
    return array("f", (number / length for number in numbers))


def joined(reply: Reply) -> dict[str, Any]:
    """Merge the parts of a reply into one message. Fragments of a tool call have the same index."""
    if not reply.chat_deltas:
        return {"role": "assistant", "content": reply.message.decode(errors="replace")}
    deltas = reply.chat_deltas
    message: dict[str, Any] = {"role": "assistant", "content": "".join(delta.content for delta in deltas)}
    if reasoning := "".join(delta.reasoning_content for delta in deltas):
        message["reasoning_content"] = reasoning
    calls: dict[int, dict[str, Any]] = {}
    for fragment in (call for delta in deltas for call in delta.tool_calls):
        call = calls.setdefault(
            fragment.index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        )
        call["id"] = call["id"] or fragment.id
        call["function"]["name"] = call["function"]["name"] or fragment.name
        call["function"]["arguments"] += fragment.arguments
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
        message["content"] = message["content"] or None
    return message


def parsed_arguments(arguments: str) -> dict[str, Any]:
    """Return the arguments of a call. Models may write anything: what is no object is given under `arguments`."""
    try:
        value = msgspec.json.decode(arguments) if arguments else {}
    except UNREADABLE_JSON:
        value = arguments
    return value if isinstance(value, dict) else {"arguments": value}


def _sum(all_counts: Sequence[Counts], *, n: int) -> Counts:
    """Sum the counts. A prompt with `n` answers counts once, as at OpenAI."""
    prompt_tokens = sum(counts.prompt_tokens for counts in all_counts[::n])
    return Counts(sum(counts.tokens for counts in all_counts), prompt_tokens)


def _document(kind: str, stamp: Stamp, choices: Sequence[Mapping[str, Any]], replies: Sequence[Reply]) -> bytes:
    usage = _sum([Counts(reply.tokens, reply.prompt_tokens) for reply in replies], n=stamp.n).usage()
    head = {"id": stamp.id, "object": kind, "created": stamp.created, "model": stamp.model}
    return _encode({**head, "choices": choices, **({"usage": usage} if usage else {})})
