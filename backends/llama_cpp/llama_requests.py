"""Between the contract's messages and the JSON of llama.cpp's server. Pure."""

import json
from collections.abc import Mapping
from typing import Any, Final

from corral_backend_sdk import (
    ChatDelta,
    DocumentResult,
    PredictOptions,
    Reply,
    RequestRefused,
    RerankRequest,
    RerankResult,
    ToolCallDelta,
    Usage,
)
from llama_media import marked

_SAMPLING: Final = {
    "TopK": "top_k",
    "TopP": "top_p",
    "MinP": "min_p",
    "TypicalP": "typical_p",
    "Penalty": "repeat_penalty",
    "Repeat": "repeat_last_n",
    "FrequencyPenalty": "frequency_penalty",
    "PresencePenalty": "presence_penalty",
    "Mirostat": "mirostat",
    "MirostatTAU": "mirostat_tau",
    "MirostatETA": "mirostat_eta",
    "NKeep": "n_keep",
    "Grammar": "grammar",
}
"""Fields whose zero means that nothing was said."""


def is_chat(request: PredictOptions) -> bool:
    """Whether the engine shall render the prompt."""
    return request.UseTokenizerTemplate and len(request.Messages) > 0


def body_for(request: PredictOptions, mark: str) -> dict[str, Any]:
    """The body of a streamed chat, or of a completion where the prompt is ready; `mark` stands for media in that."""
    body: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    body |= {name: getattr(request, field) for field, name in _SAMPLING.items() if getattr(request, field)}
    body["temperature"] = request.Temperature
    body["max_tokens"] = request.Tokens if request.Tokens > 0 else -1
    body["cache_prompt"] = True
    if request.Seed > 0:
        body["seed"] = request.Seed
    if request.StopPrompts:
        body["stop"] = list(request.StopPrompts)
    if request.IgnoreEOS:
        body["ignore_eos"] = True
    if request.LogitBias:
        body["logit_bias"] = _parsed("LogitBias", request.LogitBias)
    return body | (_chat(request) if is_chat(request) else _completion(request, mark))


def _completion(request: PredictOptions, mark: str) -> dict[str, Any]:
    media = [*request.Images, *request.Audios]
    text = marked(request.Prompt, len(media), mark)
    completion: dict[str, Any] = {"prompt": {"prompt_string": text, "multimodal_data": media} if media else text}
    if request.Logprobs > 0:
        completion["logprobs"] = max(request.Logprobs, request.TopLogprobs)
    return completion


def _chat(request: PredictOptions) -> dict[str, Any]:
    chat: dict[str, Any] = {"messages": [_message(message) for message in request.Messages]}
    if media := [*map(_image, request.Images), *map(_sound, request.Audios)]:
        _attach(chat["messages"], media)
    if request.Tools:
        chat["tools"] = _parsed("Tools", request.Tools)
    if request.ToolChoice:
        chat["tool_choice"] = _tool_choice(request.ToolChoice)
    if request.Logprobs > 0:
        chat |= {"logprobs": True, "top_logprobs": max(1, request.TopLogprobs)}  # llama.cpp gives none for 0
    if arguments := _template_arguments(request.Metadata):
        chat["chat_template_kwargs"] = arguments
    return chat


def _message(message: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {"role": message.role, "content": message.content}
    for name in ("name", "tool_call_id", "reasoning_content"):
        if value := getattr(message, name):
            plain[name] = value
    if message.tool_calls:
        plain["tool_calls"] = _parsed("tool_calls", message.tool_calls)
    return plain


def _attach(messages: list[dict[str, Any]], media: list[dict[str, Any]]) -> None:
    """Pictures and sounds belong to the last thing that the user said."""
    last = next((message for message in reversed(messages) if message["role"] == "user"), messages[-1])
    last["content"] = [{"type": "text", "text": last["content"]}, *media]


def _image(data: str) -> dict[str, Any]:
    """The engine looks at the content, whatever the URL says of it; so it does with sounds."""
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def _sound(data: str) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def _tool_choice(text: str) -> Any:
    """A word stands there as JSON or bare."""
    return text if text in ("auto", "none", "required") else _parsed("ToolChoice", text)


def _template_arguments(metadata: Mapping[str, str]) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    if "enable_thinking" in metadata:
        arguments["enable_thinking"] = metadata["enable_thinking"] == "true"
    if "reasoning_effort" in metadata:
        arguments["reasoning_effort"] = metadata["reasoning_effort"]
    if "chat_template_kwargs" in metadata:
        arguments |= _parsed("chat_template_kwargs", metadata["chat_template_kwargs"])
    return arguments


def _parsed(field: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise RequestRefused(f"{field} is not JSON") from None


def reply_for(chunk: Mapping[str, Any]) -> Reply:
    """Convert one event of llama.cpp's stream; the last one has the token counts."""
    reply = Reply()
    for choice in chunk.get("choices", ()):
        _add(reply, choice)
    if usage := chunk.get("usage"):
        reply.tokens = usage.get("completion_tokens", 0)
        reply.prompt_tokens = usage.get("prompt_tokens", 0)
    if timings := chunk.get("timings"):
        reply.timing_prompt_processing = timings.get("prompt_ms", 0.0)
        reply.timing_token_generation = timings.get("predicted_ms", 0.0)
    return reply


def _add(reply: Reply, choice: Mapping[str, Any]) -> None:
    if text := choice.get("text"):
        reply.message += text.encode()
    delta = choice.get("delta") or {}
    content, reasoning, calls = delta.get("content"), delta.get("reasoning_content"), delta.get("tool_calls")
    if content or reasoning or calls:
        reply.message += (content or "").encode()
        parsed = ChatDelta(content=content or "", reasoning_content=reasoning or "")
        parsed.tool_calls.extend(_tool_call(call) for call in calls or ())
        reply.chat_deltas.append(parsed)
    if logprobs := choice.get("logprobs"):
        reply.logprobs = json.dumps(logprobs).encode()


def _tool_call(call: Mapping[str, Any]) -> ToolCallDelta:
    function = call.get("function") or {}
    return ToolCallDelta(
        index=call.get("index", 0),
        id=call.get("id") or "",
        name=function.get("name") or "",
        arguments=function.get("arguments") or "",
    )


def rerank_body(request: RerankRequest) -> dict[str, Any]:
    if not request.query:
        raise RequestRefused("query is empty")
    if not request.documents:
        raise RequestRefused("documents are missing")
    return {"query": request.query, "documents": list(request.documents)}


def rerank_result(answer: Mapping[str, Any], request: RerankRequest) -> RerankResult:
    """The best first, and no more than were asked for."""
    ranked = sorted(answer["results"], key=lambda one: -float(one["relevance_score"]))
    results = [
        DocumentResult(index=one["index"], text=request.documents[one["index"]], relevance_score=one["relevance_score"])
        for one in ranked[: request.top_n if request.top_n > 0 else None]
    ]
    usage = answer.get("usage") or {}
    counts = Usage(prompt_tokens=usage.get("prompt_tokens", 0), total_tokens=usage.get("total_tokens", 0))
    return RerankResult(usage=counts, results=results)
