"""A backend's replies as OpenAI's answers: documents, and events of a stream. Pure: ids and times are passed in.

Counts come from the backend; where it tells none, the answer has none. The contract does not say why an answer ended:
`length` is concluded from the count of tokens, `tool_calls` from their presence, all else is `stop`.
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
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.rpc.messages import ChatDelta, EmbeddingLayout, EmbeddingResult, Reply, ToolCallDelta

DONE: Final = b"data: [DONE]\n\n"
_encode: Final = msgspec.json.encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """What the answers to one request have in common."""

    id: str
    created: int
    model: str
    limit: int = 0
    """The tokens that were asked for at most; 0 is without limit."""
    include_usage: bool = False
    n: int = 1
    """Answers to each prompt, which follow one another."""


class _Counts:
    """The running totals of a stream: the last ones are the valid ones."""

    def __init__(self) -> None:
        self.tokens = 0
        self.prompt_tokens = 0

    def take(self, reply: Reply) -> None:
        self.tokens = reply.tokens or self.tokens
        self.prompt_tokens = reply.prompt_tokens or self.prompt_tokens

    def timings(self) -> bytes:
        """The counts in llama.cpp's words, on the last event of a stream: there the gateway reads them in any case."""
        if self.usage() is None:
            return b""
        return b',"timings":{"prompt_n":%d,"predicted_n":%d}' % (self.prompt_tokens, self.tokens)

    def usage(self) -> dict[str, int] | None:
        if not self.tokens and not self.prompt_tokens:
            return None
        total = self.tokens + self.prompt_tokens
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.tokens, "total_tokens": total}


class ChatEvents:
    """The events of a streamed chat: for each answer `opening`, `part` for every reply and `ending`, then `closing`."""

    def __init__(self, stamp: Stamp) -> None:
        self._stamp = stamp
        self._all: list[_Counts] = []
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        head = _encode({"id": stamp.id, "object": "chat.completion.chunk", "created": stamp.created})
        self._head = b"data: " + head[:-1] + b',"model":' + _encode(stamp.model)
        self._after = b',"finish_reason":null}]}\n\n'
        self._begin(0)

    def _begin(self, index: int) -> None:
        self._index = index
        self._all.append(_Counts())
        self._called: set[int] = set()
        self._before = self._head + b',"choices":[{"index":%d,"delta":' % index

    def opening(self) -> bytes:
        return self._before + b'{"role":"assistant","content":""}' + self._after

    def part(self, reply: Reply) -> bytes:
        """What this reply adds; nothing when it adds nothing, or ends inside a character."""
        self._all[-1].take(reply)
        if reply.chat_deltas:
            made = b"".join(self._delta(delta) for delta in reply.chat_deltas)
        else:
            text = self._decoder.decode(reply.message)
            made = self._content(text) if text else b""
        return self._with_logprobs(made, logprobs) if (logprobs := _logprobs(reply)) else made

    def _with_logprobs(self, made: bytes, logprobs: bytes) -> bytes:
        """They belong to the first event of their reply; a reply may hold nothing else."""
        first, after, rest = (made or self._before + b"{}" + self._after).partition(self._after)
        return first + b',"logprobs":' + logprobs + after + rest

    def ending(self) -> bytes:
        """The rest of an unfinished character, and why this answer ended; parts that follow belong to the next one."""
        rest = self._decoder.decode(b"", True)
        reason = finish_reason(self._all[-1].tokens, self._stamp.limit, called=bool(self._called))
        choice = b',"choices":[{"index":%d,"delta":{},"finish_reason":"%b"}]' % (self._index, reason.encode())
        timings = _sum(self._all, n=self._stamp.n).timings()
        ending = (self._content(rest) if rest else b"") + self._head + choice + timings + b"}\n\n"
        self._decoder.reset()
        self._begin(self._index + 1)
        return ending

    def closing(self) -> bytes:
        """The counts if they were asked for, and the end of the stream."""
        return _counted(self._head, self._all, self._stamp) + DONE

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
        """Id and type come with the first fragment of a call only."""
        is_first = call.index not in self._called
        self._called.add(call.index)
        function = {"arguments": call.arguments} | ({"name": call.name} if call.name else {})
        start = {"id": call.id, "type": "function"} if is_first else {}
        return {"index": call.index, **start, "function": function}


class CompletionEvents:
    """The events of one streamed completion: `part` for every reply to one prompt, `ending` of each, then `closing`."""

    def __init__(self, stamp: Stamp) -> None:
        self._stamp = stamp
        self._index = 0
        self._all: list[_Counts] = [_Counts()]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        head = _encode({"id": stamp.id, "object": "text_completion", "created": stamp.created})
        self._head = b"data: " + head[:-1] + b',"model":' + _encode(stamp.model)

    def part(self, reply: Reply) -> bytes:
        self._all[-1].take(reply)
        text = self._decoder.decode(reply.message)
        logprobs = _raw_logprobs(reply)
        return self._choice(text, None, logprobs) if text or logprobs else b""

    def echo(self, prompt: str) -> bytes:
        """The prompt itself, before what continues it."""
        return self._choice(prompt, None)

    def ending(self) -> bytes:
        """This answer is complete; parts that follow belong to the next one."""
        rest = self._decoder.decode(b"", True)
        ending = self._choice(rest, finish_reason(self._all[-1].tokens, self._stamp.limit))
        self._index += 1
        self._all.append(_Counts())
        self._decoder.reset()
        return ending

    def closing(self) -> bytes:
        return _counted(self._head, self._all, self._stamp) + DONE

    def _choice(self, text: str, reason: str | None, logprobs: msgspec.Raw | None = None) -> bytes:
        choice = {"index": self._index, "text": text, "logprobs": logprobs, "finish_reason": reason}
        timings = _sum(self._all, n=self._stamp.n).timings() if reason else b""
        return self._head + b',"choices":[' + _encode(choice) + b"]" + timings + b"}\n\n"


def _logprobs(reply: Reply) -> bytes:
    """As JSON in one line; nothing where the backend says something else."""
    try:
        return msgspec.json.format(reply.logprobs, indent=-1) if reply.logprobs else b""
    except UNREADABLE_JSON:
        return b""


def finish_reason(tokens: int, limit: int, *, called: bool = False) -> str:
    if called:
        return "tool_calls"
    return "length" if 0 < limit <= tokens else "stop"


def chat_answer(replies: Sequence[Reply], stamp: Stamp) -> bytes:
    choices = [_chat_choice(index, reply, stamp) for index, reply in enumerate(replies)]
    return _document("chat.completion", stamp, choices, _usage(replies, stamp))


def _chat_choice(index: int, reply: Reply, stamp: Stamp) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.message.decode(errors="replace")}
    if reply.chat_deltas:
        message = _joined(reply.chat_deltas)
    return {
        "index": index,
        "message": message,
        "logprobs": _raw_logprobs(reply),
        "finish_reason": finish_reason(reply.tokens, stamp.limit, called="tool_calls" in message),
    }


def completion_answer(replies: Sequence[Reply], stamp: Stamp, *, before: Sequence[str] = ()) -> bytes:
    """`before` has a text for each reply, which its answer begins with."""
    choices = []
    for index, reply in enumerate(replies):
        text = (before[index] if before else "") + reply.message.decode(errors="replace")
        reason = finish_reason(reply.tokens, stamp.limit)
        choices.append({"index": index, "text": text, "logprobs": _raw_logprobs(reply), "finish_reason": reason})
    return _document("text_completion", stamp, choices, _usage(replies, stamp))


def _raw_logprobs(reply: Reply) -> msgspec.Raw | None:
    return msgspec.Raw(logprobs) if (logprobs := _logprobs(reply)) else None


def _usage(replies: Sequence[Reply], stamp: Stamp) -> dict[str, int] | None:
    all_counts = []
    for reply in replies:
        counts = _Counts()
        counts.take(reply)
        all_counts.append(counts)
    return _sum(all_counts, n=stamp.n).usage()


def embedding_answer(
    results: Sequence[EmbeddingResult], *, model: str, as_base64: bool, dimensions: int | None = None
) -> bytes:
    """One vector for each result: of a backend that packs several the first counts. InvalidInput when it says that they
    are those of single tokens, of which none is the text's."""
    if any(result.layout == EmbeddingLayout.EMBEDDING_LAYOUT_PER_TOKEN for result in results):
        raise InvalidInput("model", "gives a vector for each token and none for the text: have its backend pool them")
    data = [
        {"object": "embedding", "index": index, "embedding": _written(_vector(result, dimensions), as_base64=as_base64)}
        for index, result in enumerate(results)
    ]
    answer: dict[str, Any] = {"object": "list", "data": data, "model": model}
    if tokens := sum(result.prompt_tokens for result in results):
        answer["usage"] = {"prompt_tokens": tokens, "total_tokens": tokens}
    return _encode(answer)


def _vector(result: EmbeddingResult, dimensions: int | None) -> "array[float]":
    """As long as it is, or cut to so many numbers and of length one again."""
    numbers = array("f", result.embeddings[: result.dim] if result.dim else result.embeddings)
    if dimensions is None:
        return numbers
    if dimensions > len(numbers):
        raise InvalidInput("dimensions", f"is {dimensions}, and the vectors of this model have {len(numbers)}")
    kept = numbers[:dimensions]
    length = math.hypot(*kept) or 1.0
    return array("f", (number / length for number in kept))


def _written(numbers: "array[float]", *, as_base64: bool) -> list[float] | str:
    if not as_base64:
        return numbers.tolist()
    if byteorder != "little":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode()


def _joined(deltas: Sequence[ChatDelta]) -> dict[str, Any]:
    """The whole message; the fragments of one tool call have the same index."""
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


def _sum(all_counts: Sequence[_Counts], *, n: int) -> _Counts:
    """A prompt that is answered `n` times counts once, as OpenAI counts it."""
    total = _Counts()
    total.tokens = sum(counts.tokens for counts in all_counts)
    total.prompt_tokens = sum(counts.prompt_tokens for counts in all_counts[::n])
    return total


def _counted(head: bytes, all_counts: Sequence[_Counts], stamp: Stamp) -> bytes:
    """The event with the counts of a whole stream, where they are known and were asked for."""
    usage = _sum(all_counts, n=stamp.n).usage() if stamp.include_usage else None
    return head + b',"choices":[],"usage":' + _encode(usage) + b"}\n\n" if usage else b""


def _document(kind: str, stamp: Stamp, choices: Sequence[Mapping[str, Any]], usage: dict[str, int] | None) -> bytes:
    answer: dict[str, Any] = {
        "id": stamp.id,
        "object": kind,
        "created": stamp.created,
        "model": stamp.model,
        "choices": choices,
    }
    return _encode(answer | ({"usage": usage} if usage else {}))


def error_document(message: str, *, kind: str, code: str | None = None, param: str | None = None) -> bytes:
    """OpenAI's shape of an error."""
    return _encode({"error": {"message": message, "type": kind, "param": param, "code": code}})


def error_event(message: str, *, kind: str, code: str | None = None) -> bytes:
    """An error inside a stream that has begun; no `[DONE]` follows."""
    return b"data: " + error_document(message, kind=kind, code=code) + b"\n\n"
