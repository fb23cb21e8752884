"""How requests for a model become messages for a backend that only speaks gRPC: templates, system prompt, defaults.

Read from the model's configuration, in LocalAI's words. What is not said is left out, and whoever translates has
LocalAI's defaults. Engines with an HTTP port of their own know all this from their model.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from corral.base import config_fields as fields
from corral.base.config_fields import Config


class _RequestField(NamedTuple):
    """A name on the other side, the key that feeds it, and how that is read."""

    name: str
    key: str
    read: Callable[[Config, str, object], object]


def request_rules(config: Config) -> dict[str, object]:
    """Parts by name: those of `_RULES`, `templates` and `defaults`. InvalidInput names the key."""
    return {
        **_said(config, _RULES),
        "templates": _said(config, _TEMPLATES),
        "defaults": _said(config, _DEFAULTS),
    }


def _said(config: Config, keys: tuple[_RequestField, ...]) -> dict[str, object]:
    values = {one.name: one.read(config, one.key, fields.MISSING) for one in keys}
    return {name: value for name, value in values.items() if value is not fields.MISSING}


def _opposite(config: Config, key: str, default: object) -> object:
    value = fields.switch(config, key, default)
    return not value if isinstance(value, bool) else value


_RULES: Final = (
    _RequestField("use_tokenizer_template", "template.use_tokenizer_template", fields.switch),
    _RequestField("system_prompt", "system_prompt", fields.text),
    _RequestField("voice", "tts.voice", fields.text),
    _RequestField("reasoning_effort", "reasoning_effort", fields.text),
    _RequestField("thinks", "reasoning.disable", _opposite),
    _RequestField("template_arguments", "chat_template_kwargs", fields.mapping),
)
_TEMPLATES: Final = (
    _RequestField("chat", "template.chat", fields.text),
    _RequestField("chat_message", "template.chat_message", fields.text),
    _RequestField("completion", "template.completion", fields.text),
    _RequestField("joined_by", "template.join_chat_messages_by_character", fields.text),
)
_DEFAULTS: Final = (
    _RequestField("temperature", "parameters.temperature", fields.number),
    _RequestField("top_p", "parameters.top_p", fields.number),
    _RequestField("top_k", "parameters.top_k", fields.whole),
    _RequestField("min_p", "parameters.min_p", fields.number),
    _RequestField("typical_p", "parameters.typical_p", fields.number),
    _RequestField("tail_free_z", "parameters.tfz", fields.number),
    _RequestField("max_tokens", "parameters.max_tokens", fields.whole),
    _RequestField("repeat_penalty", "parameters.repeat_penalty", fields.number),
    _RequestField("repeat_last_n", "parameters.repeat_last_n", fields.whole),
    _RequestField("frequency_penalty", "parameters.frequency_penalty", fields.number),
    _RequestField("presence_penalty", "parameters.presence_penalty", fields.number),
    _RequestField("mirostat", "mirostat", fields.whole),
    _RequestField("mirostat_eta", "mirostat_eta", fields.number),
    _RequestField("mirostat_tau", "mirostat_tau", fields.number),
    _RequestField("seed", "parameters.seed", fields.whole),
    _RequestField("stop", "stopwords", fields.texts),
    _RequestField("threads", "threads", fields.whole),
    _RequestField("ignore_eos", "parameters.ignore_eos", fields.switch),
)
REQUEST_KEYS: Final = tuple(one.key for one in (*_RULES, *_TEMPLATES, *_DEFAULTS))
"""All that is read here."""
