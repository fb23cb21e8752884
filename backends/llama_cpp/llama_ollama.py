"""Ollama's chats, texts and vectors, said in the words of llama.cpp's server, and its answers as Ollama's. Pure.

llama.cpp's server has routes of these names, but answers there in OpenAI's form. Options that decide how a model is
loaded, such as `num_ctx`, and `keep_alive` are ignored: the model's configuration decides them. What else would change
the answer and cannot be honoured is refused.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from llama_refusals import Body, Refused

CHAT: Final = "/api/chat"
GENERATE: Final = "/api/generate"
EMBED: Final = "/api/embed"
EMBEDDINGS: Final = "/api/embeddings"
ROUTES: Final = frozenset({CHAT, GENERATE, EMBED, EMBEDDINGS})
_SAMPLING: Final = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "seed",
    "stop",
    "repeat_penalty",
    "repeat_last_n",
    "presence_penalty",
    "frequency_penalty",
)
_NANOSECONDS: Final = 1_000_000
"""Nanoseconds of a millisecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the engine is asked instead."""

    path: str
    body: Body
    streams: bool = False


# Requests.


def question_for(path: str, body: Body) -> Question | None:
    """Return the question in OpenAI's form; None where no prompt and no messages ask for nothing but a loaded model.
    Refused says which field cannot be honoured."""
    body = {name: value for name, value in body.items() if value is not None}
    if path in (EMBED, EMBEDDINGS):
        return Question(path="/v1/embeddings", body=_embedding(path, body))
    return _chat(body) if path == CHAT else _text(body)


def _chat(body: Body) -> Question | None:
    if body.get("messages", []) == []:
        return None
    asked = {**_common(body), "messages": _messages(body.get("messages")), **_wishes(body)}
    if body.get("tools"):
        asked["tools"] = body["tools"]
    return Question(path="/v1/chat/completions", body=asked, streams=asked["stream"])


def _text(body: Body) -> Question | None:
    """Return a text to be answered as a chat of one message, which is what a template makes of it; raw ones are
    continued as they are."""
    asked = _common(body)
    for name in ("template", "suffix"):
        if body.get(name):
            raise Refused(name, "is not offered: the model's configuration has its templates")
    prompt = body.get("prompt", "")
    if not isinstance(prompt, str):
        raise Refused("prompt", "must be a text")
    if not prompt and not body.get("images"):
        return None
    if body.get("raw"):
        return Question(path="/v1/completions", body=asked | _raw(prompt, body), streams=asked["stream"])
    system = [{"role": "system", "content": body["system"]}] if body.get("system") else []
    user = {"role": "user", "content": prompt, "images": body.get("images")}
    asked |= {"messages": _messages([*system, user]), **_wishes(body)}
    return Question(path="/v1/chat/completions", body=asked, streams=asked["stream"])


def _common(body: Body) -> Body:
    """Return what chats and texts share. An answer comes in lines when nothing is said, unlike elsewhere."""
    if body.get("logprobs"):
        raise Refused("logprobs", "is not offered in Ollama's form; /v1/chat/completions has it")
    streams = body.get("stream", True)
    if not isinstance(streams, bool):
        raise Refused("stream", "must be true or false")
    return {**_sampling(body.get("options", {})), "stream": streams}


def _raw(prompt: str, body: Body) -> Body:
    for name in ("system", "images", "format", "think"):
        if body.get(name):
            raise Refused(name, "is not offered together with raw")
    return {"prompt": prompt}


def _embedding(path: str, body: Body) -> Body:
    field_name = "prompt" if path == EMBEDDINGS else "input"
    if field_name not in body:
        raise Refused(field_name, "is missing")
    dimensions = {"dimensions": body["dimensions"]} if path == EMBED and "dimensions" in body else {}
    return {"input": body[field_name], **dimensions}


def _sampling(options: Any) -> Body:
    if not isinstance(options, dict):
        raise Refused("options", "must be an object")
    sampling = {name: options[name] for name in _SAMPLING if options.get(name) is not None}
    if (keep := options.get("num_keep")) is not None:
        sampling["n_keep"] = keep
    limit = options.get("num_predict")
    if limit is None:
        return sampling
    if not isinstance(limit, int) or isinstance(limit, bool) or limit == 0:
        raise Refused("options.num_predict", "must be a whole number: at least 1, or negative for no limit")
    return {**sampling, "max_tokens": max(limit, -1)}


def _wishes(body: Body) -> Body:
    think = body.get("think")
    if think is not None and not isinstance(think, bool | str):
        raise Refused("think", "must be true, false or a word")
    wishes = _format(body.get("format"))
    if isinstance(think, bool):
        wishes["chat_template_kwargs"] = {"enable_thinking": think}
    elif think:
        wishes["chat_template_kwargs"] = {"reasoning_effort": think}
    return wishes


def _format(wanted: Any) -> Body:
    if wanted in (None, ""):
        return {}
    if isinstance(wanted, dict):
        return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": wanted}}}
    if wanted != "json":
        raise Refused("format", "must be json, or a JSON schema")
    return {"response_format": {"type": "json_object"}}


def _messages(messages: Any) -> list[Body]:
    if not isinstance(messages, list):
        raise Refused("messages", "must be a list")
    unanswered: list[str] = []
    return [_message(message, f"messages[{index}]", unanswered) for index, message in enumerate(messages)]


def _message(message: Any, place: str, unanswered: list[str]) -> Body:
    """Return a message in OpenAI's form, where each result of a tool names its call."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise Refused(place, "must be an object with a role")
    said: Body = {"role": message["role"], "content": message.get("content") or ""}
    if message.get("thinking"):
        said["reasoning_content"] = message["thinking"]
    if message.get("images"):
        pictures = [_picture(picture, place) for picture in _list(message["images"], f"{place}.images")]
        said["content"] = [{"type": "text", "text": said["content"]}, *pictures]
    if message["role"] == "tool":
        id = message.get("tool_call_id") or (unanswered.pop(0) if unanswered else "")
        said |= {"tool_call_id": id} if id else {}
        said |= {"name": message["tool_name"]} if message.get("tool_name") else {}
    if message.get("tool_calls"):
        calls = _list(message["tool_calls"], f"{place}.tool_calls")
        said["tool_calls"] = [_call(call, f"{place}.tool_calls[{index}]") for index, call in enumerate(calls)]
        unanswered += [call["id"] for call in said["tool_calls"]]
    return said


def _list(value: Any, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise Refused(place, "must be a list")
    return value


def _picture(picture: Any, place: str) -> Body:
    if not isinstance(picture, str):
        raise Refused(f"{place}.images", "must be texts in base64")
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}}


def _call(call: Any, place: str) -> Body:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise Refused(f"{place}.function.name", "must be a text")
    arguments = json.dumps(function.get("arguments") or {}, ensure_ascii=False)
    id = str(call.get("id") or f"call_{place}")
    return {"type": "function", "id": id, "function": {"name": function["name"], "arguments": arguments}}


# Answers.


def _chat_said(text: str, more: Body) -> Body:
    return {"message": {"role": "assistant", "content": text, **more}}


def _text_said(text: str, more: Body) -> Body:
    return {"response": text, **more}


@dataclass(slots=True)
class OllamaAnswer:
    """Turns one answer of the engine, whole or event by event, into that to a request of `path`."""

    path: str
    model: str
    begun: datetime
    elapsed: Callable[[], int]
    """Returns the nanoseconds since the request came."""
    _reason: str = "stop"
    _usage: Body = field(default_factory=dict)
    _timings: Body = field(default_factory=dict)
    _calls: dict[int, Body] = field(default_factory=dict)
    """Calls by index. Each is one line at the end: Ollama's clients join no fragments."""

    def whole(self, answer: Body) -> Body:
        if self.path == EMBEDDINGS:
            return {"embedding": answer["data"][0]["embedding"]}
        self._take(answer)
        if self.path == EMBED:
            vectors = [item["embedding"] for item in answer["data"]]
            took = {"total_duration": self.elapsed(), "load_duration": 0}
            return {"model": self.model, "embeddings": vectors, **took, **self._counts()}
        (choice,) = answer["choices"]
        message = choice.get("message") or {"content": choice.get("text")}
        self._collect(message.get("tool_calls") or [])
        return self._line(message.get("content") or "", self._more(message) | self._called(), self._end())

    def loaded(self) -> Body:
        """Return the answer to a question without a prompt or messages."""
        return self._line("", {}, {"done": True, "done_reason": "load"})

    def event(self, event: Body) -> Body | None:
        """Return the line for an event; None for one that says nothing."""
        if "error" in event:
            error = event["error"]
            return {"error": str(error.get("message", error) if isinstance(error, dict) else error)}
        self._take(event)
        for choice in event.get("choices", ()):
            delta = choice.get("delta") or {"content": choice.get("text")}
            self._collect(delta.get("tool_calls") or [])
            more = self._more(delta)
            if delta.get("content") or more:
                return self._line(delta.get("content") or "", more, {"done": False})
        return None

    def last(self) -> list[Body]:
        called = [self._line("", self._called(), {"done": False})] if self._calls else []
        return [*called, self._line("", {}, self._end())]

    def _take(self, answer: Body) -> None:
        self._usage = answer.get("usage") or self._usage
        self._timings = answer.get("timings") or self._timings
        for choice in answer.get("choices", ()):
            if choice.get("finish_reason"):
                self._reason = "length" if choice["finish_reason"] == "length" else "stop"

    def _collect(self, fragments: list[Body]) -> None:
        for place, fragment in enumerate(fragments):
            call = self._calls.setdefault(fragment.get("index", place), {"id": "", "name": "", "arguments": ""})
            function = fragment.get("function") or {}
            call["id"] = call["id"] or fragment.get("id") or ""
            call["name"] = call["name"] or function.get("name") or ""
            call["arguments"] += function.get("arguments") or ""

    def _called(self) -> Body:
        calls = [self._calls[index] for index in sorted(self._calls)]
        return {"tool_calls": [_made(call) for call in calls]} if calls else {}

    def _more(self, message: Body) -> Body:
        thoughts = message.get("reasoning_content")
        return {"thinking": thoughts} if thoughts else {}

    def _line(self, text: str, more: Body, end: Body) -> Body:
        said = _text_said(text, more) if self.path == GENERATE else _chat_said(text, more)
        created_at = self.begun.isoformat().replace("+00:00", "Z")
        return {"model": self.model, "created_at": created_at, **said, **end}

    def _end(self) -> Body:
        """Return how an answer ends. Counts come last, where the gateway reads them."""
        end: Body = {"done": True, "done_reason": self._reason, "total_duration": self.elapsed(), "load_duration": 0}
        if self._timings:
            end["prompt_eval_duration"] = int(self._timings.get("prompt_ms", 0) * _NANOSECONDS)
            end["eval_duration"] = int(self._timings.get("predicted_ms", 0) * _NANOSECONDS)
        return end | self._counts()

    def _counts(self) -> Body:
        names = {"prompt_tokens": "prompt_eval_count", "completion_tokens": "eval_count"}
        return {theirs: self._usage[name] for name, theirs in names.items() if name in self._usage}


def _made(call: Body) -> Body:
    """Return a complete call. Models may write anything: what is no object is given under `arguments`."""
    try:
        arguments = json.loads(call["arguments"]) if call["arguments"] else {}
    except ValueError:
        arguments = call["arguments"]
    given = arguments if isinstance(arguments, dict) else {"arguments": arguments}
    return {**({"id": call["id"]} if call["id"] else {}), "function": {"name": call["name"], "arguments": given}}
