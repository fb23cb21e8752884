"""Converts OpenAI's requests for text and embeddings to gRPC messages for a backend. Pure.

`answers.py` converts the other direction. The language of prompt templates, and what LocalAI gives to them, is in
`corral.templates`.
"""

import json
from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec

from corral.adapter.dialects.json_grammar import any_object_grammar, json_grammar
from corral.adapter.dialects.requests import (
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    EditRequest,
    MediaUrl,
    MessagePart,
    ResponseFormat,
    Sampling,
    UnsupportedContent,
)
from corral.base.errors import InvalidInput
from corral.rpc.messages import Message, PredictOptions
from corral.templates import PromptSettings, has_place_for_tools, render_chat, render_completions, render_edits
from corral.templates.prompts import NO_ACTION, NO_ACTION_DESCRIPTION, TEMPLATES
from corral.wire.adapter import AdapterModel

MEDIA_MARK: Final = "<__media__>"
"""Marks the position of an image or a sound in a rendered prompt; a backend may need another marker."""

_MEDIA: Final = {"image_url": "image", "audio_url": "audio", "input_audio": "audio", "video_url": "video"}
"""What parts of messages hold, other than text."""

Value = TypeVar("Value")


def chat_options(request: ChatRequest, model: AdapterModel) -> PredictOptions:
    """Build the message for a chat. The backend renders the prompt if the model's configuration allows it; else we
    do."""
    if model.takes_no_media:
        _check_media(request)
    options = _sampling_options(request, model)
    limit = request.max_completion_tokens if request.max_completion_tokens is not None else request.max_tokens
    options.Tokens = _limit(limit, model)
    if request.response_format is not None and request.response_format.is_json:
        options.Grammar = _grammar(request.response_format, model)
    messages = [_message(message, options) for message in request.messages]
    if model.use_tokenizer_template:
        if model.system_prompt and not any(message.role == "system" for message in messages):
            options.Messages.append(Message(role="system", content=model.system_prompt))
        options.UseTokenizerTemplate = True
        options.Messages.extend(messages)
    else:
        options.Prompt = chat_prompt(request, model)
    if request.tools:
        options.Tools = json.dumps(request.tools)
        if request.tool_choice is not None:
            options.ToolChoice = json.dumps(request.tool_choice)
    if request.logprobs:
        options.Logprobs = 1
        options.TopLogprobs = request.top_logprobs or 0
    _set_metadata(options, request, model)
    return options


def _check_media(request: ChatRequest) -> None:
    """Refuse what the backend would drop: it would answer as if nothing had been shown to it."""
    for message in request.messages:
        for part in message.content if isinstance(message.content, list) else ():
            if kind := _MEDIA.get(part.type):
                raise UnsupportedContent("", f"{kind} input is not supported by this model")


def completion_options(request: CompletionRequest, model: AdapterModel) -> list[PredictOptions]:
    """Build the messages for a completion request: one for each prompt."""
    return [_completion(request, prompt, model) for prompt in completion_prompts(prompts_of(request), model)]


def edit_options(request: EditRequest, model: AdapterModel) -> list[PredictOptions]:
    """Build the messages for an edit: one for each text."""
    return [_prompted(request, prompt, model) for prompt in edit_prompts(request.inputs(), request.instruction, model)]


def _completion(request: CompletionRequest, prompt: str, model: AdapterModel) -> PredictOptions:
    options = _prompted(request, prompt, model)
    options.Logprobs = request.logprobs or 0
    return options


def _prompted(request: Sampling, prompt: str, model: AdapterModel) -> PredictOptions:
    options = _sampling_options(request, model)
    options.Tokens = _limit(request.max_tokens, model)
    options.Prompt = prompt
    return options


def prompts_of(request: CompletionRequest) -> list[str]:
    return [request.prompt] if isinstance(request.prompt, str) else request.prompt


def repeated(options: PredictOptions, times: int) -> list[PredictOptions]:
    """Return the message `times` times. With a seed each gets its own, because all answers would be equal otherwise."""
    calls = [options]
    for number in range(1, times):
        call = PredictOptions()
        call.CopyFrom(options)
        if options.Seed > 0:
            call.Seed = (options.Seed + number) % 2**31
        calls.append(call)
    return calls


def embedding_options(text: str | Sequence[int], model: AdapterModel) -> PredictOptions:
    options = PredictOptions(ModelIdentity=model.identity)
    if isinstance(text, str):
        options.Embeddings = text
    else:
        options.EmbeddingTokens.extend(text)
    return options


def _sampling_options(request: Sampling, model: AdapterModel) -> PredictOptions:
    defaults = model.defaults
    if request.grammar and not model.takes_grammars:
        raise InvalidInput("grammar", "is not offered by this backend")
    stop = [request.stop] if isinstance(request.stop, str) else request.stop or []
    options = PredictOptions(
        ModelIdentity=model.identity,
        Temperature=_or(request.temperature, defaults.temperature),
        TopP=_or(request.top_p, defaults.top_p),
        TopK=_or(request.top_k, defaults.top_k),
        MinP=_or(request.min_p, defaults.min_p),
        TypicalP=_or(request.typical_p, defaults.typical_p),
        TailFreeSamplingZ=_or(request.tfz, defaults.tail_free_z),
        Seed=_or(request.seed, defaults.seed),
        Penalty=_or(request.repeat_penalty, defaults.repeat_penalty),
        Repeat=_or(request.repeat_last_n, defaults.repeat_last_n),
        NKeep=_or(request.n_keep, defaults.n_keep),
        NDraft=defaults.n_draft,
        FrequencyPenalty=_or(request.frequency_penalty, defaults.frequency_penalty),
        PresencePenalty=_or(request.presence_penalty, defaults.presence_penalty),
        Mirostat=defaults.mirostat,
        MirostatETA=defaults.mirostat_eta,
        MirostatTAU=defaults.mirostat_tau,
        Threads=defaults.threads,
        IgnoreEOS=_or(request.ignore_eos, defaults.ignore_eos),
        StopPrompts=[*defaults.stop, *stop],
        Grammar=request.grammar or "",
        PromptCacheAll=defaults.prompt_cache_all,
        MMap=True,
    )
    if request.logit_bias:
        options.LogitBias = json.dumps(request.logit_bias)
    return options


def _grammar(form: ResponseFormat, model: AdapterModel) -> str:
    if not model.takes_grammars:
        raise InvalidInput(form.place, f"{form.type} is not offered by this backend")
    if form.type == "json_schema" and form.json_schema is not None:
        return json_grammar(form.json_schema.schema, form.schema_place)
    return any_object_grammar()


def _or(value: Value | None, default: Value) -> Value:
    return default if value is None else value


def _limit(max_tokens: int | None, model: AdapterModel) -> int:
    """Return the token limit: the contract uses 0 for unlimited, OpenAI's clients send nothing or -1."""
    return max(0, _or(max_tokens, model.defaults.max_tokens))


def _message(message: ChatMessage, options: PredictOptions) -> Message:
    """Convert a message. The contract has separate fields for images and sounds."""
    content = message.content
    if isinstance(content, list):
        content = "".join(_text_of(part, options) for part in content)
    calls = message.tool_calls
    if message.function_call and not calls:
        calls = [{"type": "function", "function": message.function_call}]
    return Message(
        role=message.role,
        content=content or "",
        name=message.name or "",
        tool_call_id=message.tool_call_id or "",
        reasoning_content=message.reasoning_content or "",
        tool_calls=json.dumps(calls) if calls else "",
    )


def _text_of(part: MessagePart, options: PredictOptions) -> str:
    match part.type:
        case "text":
            return part.text or ""
        case "image_url":
            options.Images.append(_data_of(part.image_url, part.type))
            return ""
        case "audio_url":
            options.Audios.append(_data_of(part.audio_url, part.type))
            return ""
        case "video_url":
            options.Videos.append(_data_of(part.video_url, part.type))
            return ""
        case "input_audio":
            if part.input_audio is None or not part.input_audio.data:
                raise InvalidInput("messages.content.input_audio", "must have data in base64")
            options.Audios.append(part.input_audio.data)
            return ""
        case _:
            raise InvalidInput("messages.content.type", f"there are no parts of type {part.type}")


def _data_of(link: MediaUrl | str | None, kind: str) -> str:
    """Return the base64 of a data URL. Other URLs are refused: this process does not fetch files for clients."""
    data = base64_of(link if isinstance(link, str) else (link and link.url) or "")
    if data is None:
        raise InvalidInput(f"messages.content.{kind}", "must be a data URL in base64")
    return data


def base64_of(url: str) -> str | None:
    """Return what a data URL contains, still in base64; None for any other URL."""
    head, comma, data = url.partition(",")
    return data if comma and head.startswith("data:") and head.endswith(";base64") else None


def _set_metadata(options: PredictOptions, request: ChatRequest, model: AdapterModel) -> None:
    """Set metadata: the model's configuration first, then the request, and template arguments last."""
    if model.thinks is not None:
        options.Metadata["enable_thinking"] = "true" if model.thinks else "false"
    for name, value in (request.metadata or {}).items():
        options.Metadata[name] = value
    if effort := request.reasoning_effort or model.reasoning_effort:
        options.Metadata["reasoning_effort"] = effort
    if arguments := model.template_arguments | (request.chat_template_kwargs or {}):
        options.Metadata["chat_template_kwargs"] = json.dumps(arguments)


# Prompts, for backends that do not know their model's format: as `corral models prompt` shows them.


def prompt_settings(model: AdapterModel) -> PromptSettings:
    """What the model's configuration says about prompts."""
    given = model.templates
    sources = {name: getattr(given, name) for name in TEMPLATES}
    return PromptSettings(
        templates={name: source for name, source in sources.items() if source},
        use_tokenizer_template=model.use_tokenizer_template,
        joined_by=given.joined_by,
        roles=given.roles,
        system_prompt=model.system_prompt,
        reasoning_effort=model.reasoning_effort,
        grammar_disabled=given.grammar_disabled,
        no_action_disabled=given.no_action_disabled,
        no_action_name=given.no_action_name or NO_ACTION,
        no_action_description=given.no_action_description or NO_ACTION_DESCRIPTION,
    )


def chat_prompt(request: ChatRequest, model: AdapterModel) -> str:
    """Render a chat. InvalidInput: it has tools, and no template has a place for them. TemplateFailed says why not."""
    settings = prompt_settings(model)
    if request.tools and request.tool_choice != "none" and not has_place_for_tools(settings):
        raise InvalidInput("tools", "the prompt templates of this model have no place for them")
    return render_chat(settings, msgspec.to_builtins(request))


def completion_prompts(prompts: Sequence[str], model: AdapterModel) -> list[str]:
    return render_completions(prompt_settings(model), {"prompt": list(prompts)})


def edit_prompts(inputs: Sequence[str], instruction: str, model: AdapterModel) -> list[str]:
    """Render each text that shall be edited, behind the instruction where no template says otherwise."""
    if not model.templates.edit:  # LocalAI sends the text alone then, and the model never hears what to do with it
        return [f"{instruction}\n\n{text}" for text in inputs]
    return render_edits(prompt_settings(model), {"input": list(inputs), "instruction": instruction})
