"""Answers lines of `corral models prompt`: a request, one for an endpoint, or one template with its data. Pure."""

import json
from collections.abc import Mapping

from corral.base.errors import CorralError, InvalidInput
from corral.templates import template_data
from corral.templates.evaluate import execute
from corral.templates.parser import parse
from corral.templates.prompts import (
    TEMPLATES,
    Config,
    PromptSettings,
    Request,
    render_chat,
    render_completions,
    render_edits,
)
from corral.templates.template_data import mapping, text
from corral.templates.turns import DEFAULT_MULTIMODAL


def prompt_line(config: Config, line: str) -> dict[str, object]:
    """Answer one line of JSON: a request, a request for an endpoint, or one template with its data. Never raises."""
    if not line.strip():
        return {"error": "the line is empty"}
    try:
        return _answer(config, json.loads(line))
    except CorralError as error:
        return {"error": str(error)}
    except RecursionError:
        return {"error": "the values are nested too deeply"}
    except ValueError as error:
        return {"error": f"not valid JSON ({error})"}


def _answer(config: Config, document: object) -> dict[str, object]:
    if not isinstance(document, dict):
        raise InvalidInput("", "expected a JSON object")
    settings = PromptSettings.of(_laid_over(config, mapping(document.get("config"), "config")))
    if "template" in document:
        return {"prompt": _one_template(settings, document)}
    request = mapping(document["request"], "request") if "request" in document else document
    return _answer_request(settings, text(document.get("endpoint"), "endpoint") or _endpoint_of(request), request)


def _one_template(settings: PromptSettings, document: Mapping[str, object]) -> str:
    name = text(document["template"], "template")
    if name not in TEMPLATES:
        raise InvalidInput("template", f"must be one of {', '.join(TEMPLATES)}")
    source = settings.templates.get(name, DEFAULT_MULTIMODAL if name == "multimodal" else "")
    if not source:
        raise InvalidInput("template", f"the configuration has no template {name}")
    return execute(parse(source, name), template_data.data_for(name, mapping(document.get("data"), "data")))


def _answer_request(settings: PromptSettings, endpoint: str, request: Request) -> dict[str, object]:
    if endpoint == "chat":
        if settings.use_tokenizer_template:
            return {"use_tokenizer_template": True}
        return {"prompt": render_chat(settings, request)}
    if endpoint == "completion":
        prompts = render_completions(settings, request)
    elif endpoint == "edit":
        prompts = render_edits(settings, request)
    else:
        raise InvalidInput("endpoint", "must be chat, completion or edit")
    return {"prompt": prompts[0] if len(prompts) == 1 else prompts}


def _endpoint_of(request: Request) -> str:
    for key, endpoint in (("messages", "chat"), ("prompt", "completion"), ("instruction", "edit")):
        if key in request:
            return endpoint
    raise InvalidInput("", "a request has messages, prompt or instruction")


def _laid_over(config: Config, overlay: Config) -> Config:
    """Return the configuration with another one over it, mappings inside of it included."""
    merged = dict(config)
    for key, value in overlay.items():
        below = merged.get(key)
        merged[key] = _laid_over(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged
