"""Requests that llama.cpp's server would answer otherwise than they are written, and the answers to them. Pure.

Its server drops `dimensions`, `echo`, `suffix`, `functions`, `modalities`, a named `tool_choice`, the format that
`/v1/responses` has in `text`, and tools that the model's template has no place for; it takes 0 tokens for 1, and
refuses nulls that mean "not given" and more answers than it has slots; of several prompts it counts the tokens of one,
and its streams of them have events without content; and it tells the probabilities of completions in the form of chats.
A plan says what is asked of it instead: one request, or several one after another.
"""

import base64
import json
import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from llama_messages import message_request
from llama_refusals import Body, Refused, check_place_for_tools
from llama_responses import response_request

CHAT: Final = "/v1/chat/completions"
COMPLETION: Final = "/v1/completions"
EMBEDDING: Final = "/v1/embeddings"
RESPONSES: Final = "/v1/responses"
MESSAGES: Final = "/v1/messages"
COUNT_TOKENS: Final = "/v1/messages/count_tokens"
_MOST_ANSWERS_EACH: Final = 128
"""OpenAI's own limit of `n`."""
_MOST_PROMPTS: Final = 2048
"""The most prompts of one request: OpenAI's own limit of a batch."""
_MOST_ANSWERS: Final = 2048
"""The most answers of one request, to all of its prompts: one for each of the most prompts. The engine is asked for one
after another, and all of them are kept until the last has come, unless they are streamed."""
_SEEDS: Final = 2**32
"""How many seeds the engine tells apart."""
_LIMITS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict")
_WHOLE: Final = ("n", "logprobs", "dimensions", "seed")
"""Fields of whole numbers, which JSON may write with a point: 2.0."""
_CHOICES: Final = ("auto", "none", "required")
_ENCODINGS: Final = ("float", "base64")
_SHOWN: Final = 20
"""How many characters of a value an error message repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedRequests:
    """One request for each answer to each prompt. Each is made when it is read: copies of a large body take memory."""

    body: Body
    prompts: Sequence[Body]
    """The fields of the body that differ between prompts."""
    answers_each: int
    seed: int | None
    """The seed of the first answer to each prompt, from which others count on; None where the engine shall choose."""

    def __len__(self) -> int:
        return len(self.prompts) * self.answers_each

    def __iter__(self) -> Iterator[Body]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> Body:
        prompt_index, number = divmod(index, self.answers_each)
        seed = {} if self.seed is None else {"seed": (self.seed + number) % _SEEDS}
        return {**self.body, **self.prompts[prompt_index], **seed}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is asked of the engine, and what becomes of its answers."""

    requests: tuple[Body, ...] | RepeatedRequests
    """One after another, where there are several."""
    echoed: tuple[str, ...] = ()
    """What the answers begin with, one for each prompt."""
    dimensions: int = 0
    """To how many numbers vectors are cut; 0 is not at all."""
    as_base64: bool = False
    streams: bool = False
    answers_each: int = 1
    """How many of the requests, one after another, are about the same prompt."""
    counts: bool = True
    """Whether the client asked for the counts of a stream."""
    alternatives: int | None = None
    """How many other tokens are told with each of a completion; None when no probabilities were asked for."""

    @property
    def is_plain(self) -> bool:
        """Whether the engine's answer is the client's."""
        return len(self.requests) == 1 and not (self.echoed or self.dimensions or self.alternatives is not None)


def plan_for(path: str, body: Body, *, offers_tools: bool) -> Plan:
    """Refused says which field cannot be honoured."""
    body = {name: _plain_number(name, value) for name, value in body.items() if value is not None}
    if path == EMBEDDING:
        return _embedding(body)
    _check_limits(body)
    _check_bias(body.get("logit_bias", {}))
    if path == RESPONSES:
        return Plan(requests=(response_request(body, offers_tools=offers_tools),), streams=bool(body.get("stream")))
    if path in (MESSAGES, COUNT_TOKENS):
        return Plan(requests=(message_request(body, offers_tools=offers_tools),), streams=bool(body.get("stream")))
    if path == CHAT:
        body = with_chosen_tool(_chat(body), offers_tools=offers_tools)
        prompts: Sequence[Body] = ({},)
    elif path == COMPLETION:
        _check_completion(body)
        prompts = _by_prompt(body)
    else:
        return Plan(requests=(body,))
    echoed = _prompts(body) if body.pop("echo", False) else ()
    alternatives = _alternatives(body) if path == COMPLETION else None
    requests = _repeated(body, prompts)
    options = body.get("stream_options")
    return Plan(
        requests=requests,
        echoed=echoed,
        answers_each=requests.answers_each,
        streams=bool(body.get("stream")),
        counts=isinstance(options, dict) and bool(options.get("include_usage")),
        alternatives=alternatives,
    )


def _plain_number(name: str, value: Any) -> Any:
    return int(value) if name in _WHOLE and isinstance(value, float) and value.is_integer() else value


def _check_limits(body: Body) -> None:
    for field_name in _LIMITS:
        if body.get(field_name) == 0 and not isinstance(body[field_name], bool):
            raise Refused(field_name, "must be at least 1")


def _check_bias(bias: Any) -> None:
    """Refuse what the engine ignores. It takes false for never, pairs in a list, and texts instead of tokens."""
    pairs = list(bias.items()) if isinstance(bias, dict) else bias
    if not isinstance(pairs, list):
        raise Refused("logit_bias", "must be an object")
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise Refused("logit_bias", "must be an object, or a list of pairs")
        if not isinstance(pair[1], int | float) or pair[1] is True:
            raise Refused("logit_bias", f"must have numbers, and has {json.dumps(pair[1])[:_SHOWN]}")


def _chat(body: Body) -> Body:
    for name in ("functions", "function_call"):
        if name in body:
            raise Refused(name, "is not offered: use tools and tool_choice")
    if body.pop("modalities", ["text"]) not in (["text"], []):
        raise Refused("modalities", "only text is offered by this backend", code="unsupported_by_model")
    if "web_search_options" in body:
        raise Refused("web_search_options", "is not offered: there is no search")
    if body.get("verbosity", "medium") != "medium":
        raise Refused("verbosity", "is not offered by this backend, only medium")
    if isinstance(body.get("messages"), list):
        body["messages"] = [_without_nulls(message) for message in body["messages"]]
    return body


def _without_nulls(message: Any) -> Any:
    """A message without fields that were not given; `content` may be null beside tool calls."""
    if not isinstance(message, dict):
        return message
    return {name: value for name, value in message.items() if value is not None or name == "content"}


def with_chosen_tool(body: Body, *, offers_tools: bool) -> Body:
    """A chat with one named tool as a chat that has only that tool and must use it. Refused where tools are faulty."""
    tools, choice = body.get("tools") or [], body.get("tool_choice")
    names = _tool_names(tools)
    if isinstance(choice, str) and choice not in _CHOICES:
        raise Refused("tool_choice", f"must be one of {', '.join(_CHOICES)}, or name a function")
    if choice == "required" and not tools:
        raise Refused("tool_choice", "needs tools")
    if tools and choice != "none":
        check_place_for_tools(offers_tools=offers_tools)
    if not isinstance(choice, dict):
        return body
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if name not in names:
        raise Refused("tool_choice", f"names {name}, which is not among the tools")
    return {**body, "tools": [tools[names.index(name)]], "tool_choice": "required"}


def _tool_names(tools: Any) -> list[str]:
    if not isinstance(tools, list):
        raise Refused("tools", "must be a list")
    names = []
    for index, tool in enumerate(tools):
        place = f"tools[{index}]"
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise Refused(f"{place}.type", "must be function")
        function = tool.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            raise Refused(f"{place}.function.name", "must be a text")
        if not isinstance(function.get("parameters"), dict | None):
            raise Refused(f"{place}.function.parameters", "must be an object: a JSON schema")
        names.append(function["name"])
    return names


def _check_completion(body: Body) -> None:
    if body.get("suffix"):
        raise Refused("suffix", "is not offered: this backend continues texts, and does not fill gaps")
    if body.pop("best_of", body.get("n", 1)) != body.get("n", 1):
        raise Refused("best_of", "is not offered: ask for several answers with n")
    if not isinstance(body.get("echo", False), bool):
        raise Refused("echo", "must be true or false")
    answer_format = body.get("response_format", {})
    if not isinstance(answer_format, dict) or answer_format.get("type", "text") != "text":
        raise Refused("response_format", "is offered for chats, and not for completions")
    if body.get("echo") and "logprobs" in body:
        raise Refused("logprobs", "is not offered together with echo")


def _alternatives(body: Body) -> int | None:
    """How many were asked for. The engine is asked for one at least: for 0 it tells no probabilities at all."""
    asked = body.get("logprobs")
    if asked is None or asked is False:
        body.pop("logprobs", None)
        return None
    if not isinstance(asked, int) or asked < 0:
        raise Refused("logprobs", f"must be a whole number from 0, and is {json.dumps(asked)[:_SHOWN]}")
    body["logprobs"] = max(1, int(asked))
    return int(asked)


def _prompts(body: Body) -> tuple[str, ...]:
    prompt = body.get("prompt")
    prompts = prompt if isinstance(prompt, list) else [prompt]
    if not all(isinstance(one, str) for one in prompts):
        raise Refused("echo", "is offered for prompts that are texts")
    return tuple(prompts)


def _by_prompt(body: Body) -> Sequence[Body]:
    """Return the fields that differ between prompts, for each prompt. Refused when there are too many."""
    prompts = body.get("prompt")
    if not isinstance(prompts, list) or not prompts or not _has_several(prompts):
        return ({},)
    if len(prompts) > _MOST_PROMPTS:
        raise Refused("prompt", f"must have at most {_MOST_PROMPTS} prompts, and has {len(prompts)}")
    for index, prompt in enumerate(prompts):
        if isinstance(prompt, list) and prompt and not any(isinstance(token, int) for token in prompt):
            raise Refused(f"prompt[{index}]", "must be a text or a list of tokens")
    return [{"prompt": prompt} for prompt in prompts]


def _has_several(prompts: list[Any]) -> bool:
    """Whether a list is one of prompts: a list with numbers is one prompt of tokens. Of a long list only the beginning
    is looked at, as it may have millions."""
    return all(isinstance(prompt, str | list | dict) for prompt in islice(prompts, _MOST_PROMPTS + 1))


def _repeated(body: Body, prompts: Sequence[Body]) -> RepeatedRequests:
    """Return as many requests for each prompt as answers are wanted; where a seed is given, each has one of its own."""
    body = dict(body)
    n = body.pop("n", 1)
    if not isinstance(n, int) or not 1 <= n <= _MOST_ANSWERS_EACH:
        raise Refused("n", f"must be between 1 and {_MOST_ANSWERS_EACH}")
    count = n * len(prompts)
    if count > _MOST_ANSWERS:
        raise Refused("n", f"times the number of prompts must be at most {_MOST_ANSWERS}, and is {count}")
    seed = body.get("seed")
    kept_seed = seed if isinstance(seed, int) and seed >= 0 else None
    return RepeatedRequests(body=body, prompts=prompts, answers_each=n, seed=kept_seed)


def _embedding(body: Body) -> Plan:
    if "dimensions" not in body:
        return Plan(requests=(body,))
    dimensions, encoding = body.pop("dimensions"), body.pop("encoding_format", "float")
    if not isinstance(dimensions, int) or isinstance(dimensions, bool) or dimensions < 1:
        raise Refused("dimensions", "must be a whole number, at least 1")
    if encoding not in _ENCODINGS:
        raise Refused("encoding_format", "must be float or base64")
    return Plan(requests=(body,), dimensions=dimensions, as_base64=encoding == "base64")


# Answers.


def cut_vectors(answer: Body, plan: Plan) -> Body:
    """An answer with embeddings, each cut and of length one again. Refused when they are shorter than asked for."""
    for item in answer["data"]:
        vector = item["embedding"]
        if plan.dimensions > len(vector):
            told = f"is {plan.dimensions}, and the vectors of this model have {len(vector)}"
            raise Refused("dimensions", told)
        kept = vector[: plan.dimensions]
        length = math.hypot(*kept) or 1.0
        numbers = [number / length for number in kept]
        item["embedding"] = _packed(numbers) if plan.as_base64 else numbers
    return answer


def _packed(numbers: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()


@dataclass(slots=True)
class Joining:
    """Merges several answers into one: renumbers choices, sums token counts, and counts each prompt once."""

    plan: Plan
    number: int = 0
    """Index of the request whose answers are arriving."""
    id: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    _prompted: int = 0
    _predicted: int = 0
    _begun: set[int] = field(default_factory=set)
    _lengths: dict[int, int] = field(default_factory=dict)
    """How many characters of each choice there were so far."""

    def whole(self, answers: list[Body]) -> Body:
        """Answers that were not streamed."""
        choices: list[Body] = []
        for self.number, answer in enumerate(answers):
            self._count(answer.get("usage"))
            choices += [self._numbered(choice) for choice in answer["choices"]]
        joined = {**answers[0], "choices": choices, "usage": self.usage()}
        joined.pop("timings", None)
        return joined

    def event(self, event: Body) -> Body | None:
        """An event of the stream that comes now, as one of the joined stream; None for the counts of a part."""
        self._count(event.pop("usage", None))
        if isinstance(timings := event.get("timings"), dict):
            event = {**event, "timings": self._timed(timings)}
        if not event.get("choices"):
            return None
        self.id = self.id or event.get("id", "")
        choices = [self._numbered(choice) for choice in event["choices"]]
        return {**event, "id": self.id, "choices": choices}

    def _timed(self, timings: Body) -> Body:
        """The counts so far in llama.cpp's words: the last ones are those of all, for clients that asked for none."""
        self._predicted += timings.get("predicted_n", 0)
        if self._is_first_of_prompt():
            self._prompted += timings.get("prompt_n", 0) + timings.get("cache_n", 0)
        return {"prompt_n": self._prompted, "predicted_n": self._predicted}

    def last_event(self, sample: Body) -> Body:
        return {**sample, "choices": [], "usage": self.usage()}

    def usage(self) -> Body:
        total = self.prompt_tokens + self.completion_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": total,
        }

    def _count(self, usage: Any) -> None:
        if isinstance(usage, dict):
            self.completion_tokens += usage.get("completion_tokens", 0)
            if self._is_first_of_prompt():
                self.prompt_tokens += usage.get("prompt_tokens", 0)

    def _is_first_of_prompt(self) -> bool:
        return self.number % self.plan.answers_each == 0

    def _numbered(self, choice: Body) -> Body:
        """The choice of the only answer that each request has."""
        index = self.number
        numbered = {**choice, "index": index}
        if self.plan.alternatives is not None and isinstance(logprobs := choice.get("logprobs"), dict):
            numbered["logprobs"] = self._in_lists(index, logprobs.get("content") or [], self.plan.alternatives)
        if self.plan.echoed and "text" in choice and index not in self._begun:
            self._begun.add(index)
            numbered["text"] = self.plan.echoed[index // self.plan.answers_each] + choice["text"]
        return numbered

    def _in_lists(self, index: int, tokens: list[Body], alternatives: int) -> Body:
        """The probabilities of tokens in the form of completions; llama.cpp tells them in that of chats."""
        offsets = []
        for token in tokens:
            offsets.append(self._lengths.get(index, 0))
            self._lengths[index] = offsets[-1] + len(token["token"])
        others = [{other["token"]: other["logprob"] for other in token.get("top_logprobs", ())} for token in tokens]
        return {
            "tokens": [token["token"] for token in tokens],
            "token_logprobs": [token["logprob"] for token in tokens],
            "top_logprobs": others if alternatives else None,
            "text_offset": offsets,
        }
