"""Answers of llama.cpp's `/v1/responses` and `/v1/messages`, completed to what clients expect of them. Pure.

Its events of `/v1/responses` have neither numbers nor places (`sequence_number`, `output_index`, `content_index`), the
first ones have no `output`, none ends the arguments of a call, and an answer that was cut by `max_output_tokens` is
reported as completed. Client packages fail on such events. Its `/v1/messages` names the stop sequence that was found,
but gives another `stop_reason`, and the use of a tool has no `input` at first.

When the first character of an answer takes several tokens, as an emoji does, a response begins again with every event,
and a message not at all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Body = dict[str, Any]

_WITH_RESPONSE = ("response.created", "response.in_progress")
_AT_CONTENT = ("response.content_part.", "response.output_text.", "response.reasoning_text.", "response.refusal.")
"""Beginnings of the types of events that are about one part of an item."""

_BEFORE_MESSAGES = ("error", "ping")
"""Types of the events that may come before a message begins."""


class AnswerRepair(Protocol):
    """Completes one answer of llama.cpp, whole or event by event."""

    def whole(self, answer: Body) -> Body: ...

    def events(self, event: Body) -> Sequence[Body]:
        """Return what the client is told for one event of the engine."""


@dataclass(slots=True)
class ResponseRepair:
    """Completes an answer of `/v1/responses` to the request `asked`, which was accepted at `now`."""

    asked: Body
    now: int
    _sequence: int = -1
    _places: dict[str, int] = field(default_factory=dict)
    """The index of each item in the output, by the id of the item."""
    _begun: set[str] = field(default_factory=set)
    """Types of the events that only come once, as far as they came."""

    def whole(self, answer: Body) -> Body:
        return self._finished(answer)

    def events(self, event: Body) -> Sequence[Body]:
        if event["type"] in self._begun:
            return ()
        if event["type"] in _WITH_RESPONSE:
            self._begun.add(event["type"])
        item = event.get("item")
        if event["type"] == "response.output_item.done" and item and item.get("type") == "function_call":
            return (self._completed(_arguments_done(_with_id(item))), self._completed(event))
        return (self._completed(event),)

    def _completed(self, event: Body) -> Body:
        type, self._sequence = event["type"], self._sequence + 1
        completed = {**event, "sequence_number": self._sequence}
        if type in _WITH_RESPONSE:
            completed["response"] = {**self._request_echo(), **event["response"], "usage": None}
        elif type == "response.completed":
            completed["response"] = self._finished(event["response"])
            completed["type"] = f"response.{completed['response']['status']}"
        elif isinstance(event.get("item"), dict):
            completed["item"] = item = _with_id(event["item"])
            completed["output_index"] = self._places.setdefault(item.get("id", ""), len(self._places))
        elif "item_id" in event:
            completed["output_index"] = self._places.get(event["item_id"], max(0, len(self._places) - 1))
            if type.startswith(_AT_CONTENT):
                completed["content_index"] = 0  # its items have one part each
            if type.startswith("response.output_text."):
                completed.setdefault("logprobs", [])
            if (part := event.get("part", {})).get("type") == "output_text":
                completed["part"] = {"annotations": [], "logprobs": [], **part}
        return completed

    def _finished(self, response: Body) -> Body:
        """Return the complete response, with `usage` as its last field: the gateway reads the end of an answer."""
        response = dict(response)
        usage = response.pop("usage", None) or {}
        response["output"] = [_with_id(item) for item in response.get("output", ())]
        limit = self.asked.get("max_output_tokens")
        if isinstance(limit, int | float) and limit > 0 and usage.get("output_tokens", 0) >= limit:
            response |= {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
            if response["output"]:
                response["output"][-1] = {**response["output"][-1], "status": "incomplete"}
        return {**self._request_echo(), **response, "usage": _with_details(usage)}

    def _request_echo(self) -> Body:
        """Return what a response repeats from its request, and fixed values for what llama.cpp does not do."""
        asked = self.asked
        return {
            "object": "response",
            "created_at": self.now,
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": asked.get("instructions"),
            "max_output_tokens": asked.get("max_output_tokens"),
            "metadata": asked.get("metadata") or {},
            "model": asked.get("model", ""),
            "output": [],
            "parallel_tool_calls": asked.get("parallel_tool_calls", True),
            "previous_response_id": None,
            "store": False,
            "temperature": asked.get("temperature"),
            "text": asked.get("text") or {"format": {"type": "text"}},
            "tool_choice": asked.get("tool_choice", "auto"),
            "tools": asked.get("tools") or [],
            "top_p": asked.get("top_p"),
            "truncation": "disabled",
        }


def _with_details(usage: Body) -> Body:
    """Return the counts with those that clients expect and the engine does not tell."""
    read = {"cached_tokens": 0, "cache_write_tokens": 0, **usage.get("input_tokens_details", {})}
    said = {"reasoning_tokens": 0, **usage.get("output_tokens_details", {})}
    return {**usage, "input_tokens_details": read, "output_tokens_details": said}


def _arguments_done(call: Body) -> Body:
    """Return the event that clients wait for before a function call ends, and that the engine does not send."""
    about = {"item_id": call.get("id", ""), "name": call.get("name", ""), "arguments": call.get("arguments", "")}
    return {"type": "response.function_call_arguments.done", **about}


def _with_id(item: Body) -> Body:
    """Return an output item with an id. Function calls have only a `call_id`, by which later events name them."""
    return item if item.get("id") or "call_id" not in item else {**item, "id": item["call_id"]}


@dataclass(slots=True)
class MessageRepair:
    """Completes an answer of `/v1/messages` by this model; `id` is for a message that the engine does not begin."""

    model: str
    id: str
    _has_begun: bool = False

    def whole(self, answer: Body) -> Body:
        return _stopped(answer)

    def events(self, event: Body) -> Sequence[Body]:
        type = event["type"]
        repaired = _repaired(event)
        if self._has_begun or type in _BEFORE_MESSAGES:
            return [repaired]
        self._has_begun = True
        return [repaired] if type == "message_start" else [self._start(), repaired]

    def _start(self) -> Body:
        """Return the first event of a stream. How long the prompt was is not known."""
        message: Body = {"id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": []}
        message |= {"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 0, "output_tokens": 0}}
        return {"type": "message_start", "message": message}


def _repaired(event: Body) -> Body:
    if event["type"] == "message_delta":
        return {**event, "delta": _stopped(event["delta"])}
    block = event.get("content_block")
    if block and block.get("type") == "tool_use":
        return {**event, "content_block": {"input": {}, **block}}
    return event


def _stopped(end: Body) -> Body:
    return {**end, "stop_reason": "stop_sequence"} if end.get("stop_sequence") else end
