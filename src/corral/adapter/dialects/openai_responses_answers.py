"""Converts a backend's replies to OpenAI's responses: the document of a response, and the events of its stream. Pure:
the id of the response and times are passed in, and ids of items are random.

A reply has thoughts, text and calls; each becomes an item. Tokens of thoughts and of caches are not told by backends,
and clients demand their counts: they are 0.
"""

import codecs
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from corral.adapter.dialects.answers import Counts, Failure, Stamp, finish_reason
from corral.adapter.dialects.openai_responses import ResponsesRequest
from corral.base.ids import new_response_id
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.rpc.messages import Reply, ToolCallDelta

_Event = tuple[str, dict[str, Any]]
_ID_PREFIXES: Final = {"reasoning": "rs", "message": "msg", "function_call": "fc"}
_PART_TYPES: Final = {"reasoning": "reasoning_text", "message": "output_text"}
_ECHOED: Final = (
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "prompt_cache_key",
    "safety_identifier",
    "temperature",
    "top_p",
    "user",
)
"""Fields of the request that a response repeats as they are."""
_encode: Final = msgspec.json.encode


class _Item(msgspec.Struct, kw_only=True):
    """An item of the output while it grows."""

    kind: str
    id: str
    status: str = "in_progress"
    text: str = ""
    """What was said or thought, or the arguments of a call."""
    logprobs: list[dict[str, Any]] = msgspec.field(default_factory=list)
    index: int = -1
    """Its place in the output; negative until clients have heard of it."""
    call_id: str = ""
    name: str = ""

    def place(self) -> dict[str, Any]:
        return {"item_id": self.id, "output_index": self.index, "content_index": 0}

    def part(self) -> dict[str, Any]:
        more = {"annotations": [], "logprobs": self.logprobs} if self.kind == "message" else {}
        return {"type": _PART_TYPES[self.kind], "text": self.text, **more}

    def document(self) -> dict[str, Any]:
        head = {"type": self.kind, "id": self.id, "status": self.status}
        if self.kind == "function_call":
            return {**head, "call_id": self.call_id, "name": self.name, "arguments": self.text}
        more: dict[str, Any] = {"role": "assistant"} if self.kind == "message" else {"summary": []}
        return {**head, **more, "content": [] if self.status == "in_progress" else [self.part()]}


def _new_item(kind: str) -> _Item:
    return _Item(kind=kind, id=new_response_id(_ID_PREFIXES[kind]))


class ResponseEvents:
    """The events of a streamed response. Its last one has the whole response, as an answer that is not streamed."""

    def __init__(self, stamp: Stamp, asked: ResponsesRequest, now: Callable[[], int]) -> None:
        self._stamp = stamp
        self._asked = asked
        self._now = now
        self._counts = Counts()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._number = 0
        self._output: list[_Item] = []
        self._speaking: _Item | None = None
        """The text or the thoughts that the next part may belong to."""
        self._calls: dict[int, _Item] = {}
        """They stay open until the end, since backends may mix the parts of several."""
        self._logprobs: list[dict[str, Any]] = []
        """Probabilities of tokens whose text was not sent yet."""

    def opening(self) -> bytes:
        return self._encoded(self._opened())

    def part(self, reply: Reply) -> bytes:
        """Return the events for this reply; nothing when it adds no text, or ends inside a character."""
        return self._encoded(self._replied(reply))

    def ending(self) -> bytes:
        return self._encoded(self._ended())

    def closing(self) -> bytes:
        return b""

    def failed(self, failure: Failure) -> bytes:
        """Return the last events of a stream that failed."""
        return self._encoded(self._broken(failure))

    def whole(self, reply: Reply) -> bytes:
        """Return the answer that is not streamed."""
        *_, (_, last) = [*self._opened(), *self._replied(reply), *self._ended()]
        return _encode(last["response"])

    def _encoded(self, events: Iterator[_Event]) -> bytes:
        encoded = []
        for kind, fields in events:
            document = {"type": kind, "sequence_number": self._number, **fields}
            encoded.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), _encode(document)))
            self._number += 1
        return b"".join(encoded)

    # What happens.

    def _opened(self) -> Iterator[_Event]:
        begun = self._response("in_progress")
        yield "response.created", {"response": begun}
        yield "response.in_progress", {"response": begun}
        if self._stamp.prefix:
            yield from self._said("message", self._stamp.prefix)

    def _replied(self, reply: Reply) -> Iterator[_Event]:
        self._counts.take(reply)
        if self._asked.wants_logprobs:
            self._logprobs += _logprobs_of_text(reply)
        if not reply.chat_deltas and (text := self._decoder.decode(reply.message)):
            yield from self._said("message", text)
        for delta in reply.chat_deltas:
            if delta.reasoning_content:
                yield from self._said("reasoning", delta.reasoning_content)
            if delta.content:
                yield from self._said("message", delta.content)
            for call in delta.tool_calls:
                yield from self._called(call)

    def _ended(self) -> Iterator[_Event]:
        rest = self._decoder.decode(b"", True)
        if rest or self._logprobs or not (self._output or self._calls):
            yield from self._said("message", rest)
        for call in self._calls.values():
            if call.index < 0:
                yield from self._named(call)
        is_cut = self._is_cut()
        for item in self._output:
            if item.status == "in_progress":
                is_last = item is self._output[-1]
                yield from self._closed(item, "incomplete" if is_cut and is_last else "completed")
        status = "incomplete" if is_cut else "completed"
        yield f"response.{status}", {"response": self._response(status)}

    def _broken(self, failure: Failure) -> Iterator[_Event]:
        """OpenAI documents the fields of an error at the top, and sends them below `error`, where its own packages look
        for them. A failed response is for those that wait for its end."""
        details = {"code": failure.code, "message": failure.message, "param": None}
        yield "error", {**details, "error": {"type": failure.type, **details}}
        for item in self._output:
            if item.status == "in_progress":
                item.status = "incomplete"
        code = "server_error" if failure.status >= 500 else "invalid_prompt"
        error = {"code": code, "message": failure.message}
        yield "response.failed", {"response": self._response("failed", error=error)}

    # Items.

    def _said(self, kind: str, text: str) -> Iterator[_Event]:
        item = self._speaking
        if item is None or item.kind != kind:
            if item is not None:
                yield from self._closed(item, "completed")
            item = self._speaking = _new_item(kind)
            yield from self._begun(item)
            yield "response.content_part.added", {**item.place(), "part": item.part()}
        item.text += text
        logprobs: dict[str, Any] = {}
        if kind == "message":
            logprobs = {"logprobs": self._logprobs}
            item.logprobs += self._logprobs
            self._logprobs = []
        if text or logprobs.get("logprobs"):
            yield f"response.{_PART_TYPES[kind]}.delta", {**item.place(), "delta": text, **logprobs}

    def _called(self, call: ToolCallDelta) -> Iterator[_Event]:
        item = self._calls.get(call.index)
        if item is None:
            if self._speaking is not None:
                yield from self._closed(self._speaking, "completed")
                self._speaking = None
            item = self._calls[call.index] = _new_item("function_call")
        item.call_id = item.call_id or call.id
        item.name = item.name or call.name
        if item.index >= 0:
            yield from self._argued(item, call.arguments)
        else:
            item.text += call.arguments
            if item.name:
                yield from self._named(item)

    def _named(self, item: _Item) -> Iterator[_Event]:
        """Tell clients of a call, whose name they hear first. Its arguments may have begun before."""
        arguments, item.text = item.text, ""
        item.call_id = item.call_id or new_response_id("call")
        yield from self._begun(item)
        yield from self._argued(item, arguments)

    def _argued(self, item: _Item, arguments: str) -> Iterator[_Event]:
        item.text += arguments
        if arguments:
            about = {"item_id": item.id, "output_index": item.index}
            yield "response.function_call_arguments.delta", {**about, "delta": arguments}

    def _begun(self, item: _Item) -> Iterator[_Event]:
        item.index = len(self._output)
        self._output.append(item)
        yield "response.output_item.added", {"output_index": item.index, "item": item.document()}

    def _closed(self, item: _Item, status: str) -> Iterator[_Event]:
        item.status = status
        if item.kind == "function_call":
            about = {"item_id": item.id, "output_index": item.index, "name": item.name}
            yield "response.function_call_arguments.done", {**about, "arguments": item.text}
        else:
            logprobs = {"logprobs": item.logprobs} if item.kind == "message" else {}
            yield f"response.{_PART_TYPES[item.kind]}.done", {**item.place(), "text": item.text, **logprobs}
            yield "response.content_part.done", {**item.place(), "part": item.part()}
        yield "response.output_item.done", {"output_index": item.index, "item": item.document()}

    def _is_cut(self) -> bool:
        """Whether the limit of tokens ended the answer. A call whose arguments are complete was not cut."""
        last = self._output[-1]
        is_whole_call = last.kind == "function_call" and _decoded(last.text or "{}") is not None
        return finish_reason(self._counts.tokens, self._stamp.limit, called=is_whole_call) == "length"

    # The response.

    def _response(self, status: str, *, error: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the document. `usage` is its last field: the gateway reads the end of an answer."""
        asked, is_over = self._asked, status != "in_progress"
        given = {name: getattr(asked, name) for name in _ECHOED}
        return {
            "id": self._stamp.id,
            "object": "response",
            "created_at": self._stamp.created,
            "completed_at": self._now() if status == "completed" else None,
            "status": status,
            "error": error,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self._stamp.model,
            "output": [item.document() for item in self._output] if is_over else [],
            **given,
            "background": False,
            "metadata": asked.metadata or {},
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": None if asked.reasoning is None else asked.reasoning.effort, "summary": None},
            "service_tier": "default",
            "store": False,
            "text": {"format": _text_format(asked)},
            "tool_choice": asked.tool_choice or "auto",
            "tools": asked.tools or [],
            "top_logprobs": asked.top_logprobs or 0,
            "truncation": "disabled",
            "usage": self._usage() if is_over else None,
        }

    def _usage(self) -> dict[str, Any] | None:
        tokens, prompt_tokens = self._counts.tokens, self._counts.prompt_tokens
        if not tokens and not prompt_tokens:
            return None
        return {
            "input_tokens": prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt_tokens + tokens,
        }


def _text_format(asked: ResponsesRequest) -> object:
    form = None if asked.text is None else asked.text.format
    return {"type": "text"} if form is None or form.type is None else form


def _logprobs_of_text(reply: Reply) -> list[dict[str, Any]]:
    """Return the probabilities of a reply's tokens; nothing for tokens that are no text, and if the backend tells them
    in another form than that of chats."""
    is_text = not reply.chat_deltas or any(delta.content for delta in reply.chat_deltas)
    document = _decoded(reply.logprobs) if reply.logprobs and is_text else None
    entries = document.get("content") if isinstance(document, dict) else None
    tokens = [token for token in entries if isinstance(token, dict)] if isinstance(entries, list) else []
    return [{"bytes": [], "top_logprobs": [], **token} for token in tokens]


def _decoded(text: bytes | str) -> object:
    """Return what the JSON says; None if it is none."""
    try:
        return msgspec.json.decode(text)
    except UNREADABLE_JSON:
        return None
