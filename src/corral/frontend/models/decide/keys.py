"""Which keys of a model's configuration feed which fields, of the message that loads the model or of the rules for its
requests, and how each is read. All keys are in `galleries/model_keys.py`."""

import json
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Final, NamedTuple

from corral.base import config_fields as fields
from corral.base.config_fields import Config
from corral.base.errors import InvalidInput

ALL_LAYERS: Final = 99_999_999
DEFAULT_CONTEXT: Final = 4096
_LONGEST_PATH: Final = 1024


class ConfigField(NamedTuple):
    """A field of a message: its name, the key that feeds it, how that is read, and what is sent without the key."""

    name: str
    key: str
    read: Callable[[Config, str, object], object]
    default: object = fields.MISSING


def check_below(path: str, key: str) -> None:
    if len(path) > _LONGEST_PATH or not path.isprintable():
        raise InvalidInput(key, f"must be one line of up to {_LONGEST_PATH} characters")
    if path.startswith("/") or ".." in PurePath(path).parts:
        raise InvalidInput(key, f"must be below the models directory, got {path[:80]!r}")


def _path(config: Config, key: str, default: object) -> object:
    """The path of a file below the models directory."""
    path = fields.text(config, key, default)
    if isinstance(path, str):
        check_below(path, key)
    return path


def _context(config: Config, key: str, default: object) -> object:
    """-1 asks for what the model was trained with; a backend learns that from the file."""
    value = fields.whole(config, key, default)
    return 0 if isinstance(value, int) and value < 0 else value


def _json(config: Config, key: str, default: object) -> object:
    value = fields.value_at(config, key)
    return json.dumps(value, sort_keys=True) if value else default


def _words(config: Config, key: str, default: object) -> object:
    """The words of a list of mappings, each with a `word`."""
    entries = [entry for entry in fields.listed(fields.value_at(config, key)) if isinstance(entry, Mapping)]
    return [{"word": word} for entry in entries if (word := fields.text(entry, "word"))] or default


def usecases_of(config: Config) -> list[str]:
    """LocalAI's words for what a model is for; they are also spelled like FLAG_SCORE."""
    words = fields.listed(fields.value_at(config, "known_usecases"))
    return [str(word).lower().removeprefix("flag_") for word in words]


def _scores(config: Config, key: str, default: object) -> object:
    return "score" in usecases_of(config)


def _flash(config: Config, key: str, default: object) -> object:
    """YAML reads a bare `on` as true."""
    value = fields.value_at(config, key)
    return ("on" if value else "off") if isinstance(value, bool) else fields.text(config, key, default)


def _opposite(config: Config, key: str, default: object) -> object:
    value = fields.switch(config, key, default)
    return not value if isinstance(value, bool) else value


FIELDS: Final = (
    ConfigField("ContextSize", "context_size", _context, DEFAULT_CONTEXT),
    ConfigField("Seed", "parameters.seed", fields.whole),
    ConfigField("NBatch", "parameters.batch", fields.whole),
    ConfigField("F16Memory", "f16", fields.switch),
    ConfigField("MLock", "mmlock", fields.switch),
    ConfigField("MMap", "mmap", fields.switch, True),
    ConfigField("LowVRAM", "low_vram", fields.switch),
    ConfigField("Embeddings", "embeddings", fields.switch),
    ConfigField("NUMA", "numa", fields.switch),
    ConfigField("NGPULayers", "gpu_layers", fields.whole, ALL_LAYERS),
    ConfigField("MainGPU", "main_gpu", fields.text),
    ConfigField("TensorSplit", "tensor_split", fields.text),
    ConfigField("RopeFreqBase", "parameters.rope_freq_base", fields.number),
    ConfigField("RopeFreqScale", "parameters.rope_freq_scale", fields.number),
    ConfigField("RMSNormEps", "rms_norm_eps", fields.number),
    ConfigField("NGQA", "ngqa", fields.whole),
    ConfigField("CUDA", "cuda", fields.switch),
    ConfigField("CFGScale", "cfg_scale", fields.number),
    ConfigField("Tokenizer", "parameters.tokenizer", fields.text),
    ConfigField("LoraBase", "lora_base", fields.text),
    ConfigField("LoraAdapter", "lora_adapter", fields.text),
    ConfigField("NoMulMatQ", "no_mulmatq", fields.switch),
    ConfigField("AudioPath", "tts.audio_path", fields.text),
    ConfigField("DraftModel", "draft_model", _path),
    ConfigField("Quantization", "quantization", fields.text),
    ConfigField("MMProj", "mmproj", _path),
    ConfigField("LoraScale", "lora_scale", fields.number),
    ConfigField("RopeScaling", "rope_scaling", fields.text),
    ConfigField("YarnExtFactor", "yarn_ext_factor", fields.number),
    ConfigField("YarnAttnFactor", "yarn_attn_factor", fields.number),
    ConfigField("YarnBetaFast", "yarn_beta_fast", fields.number),
    ConfigField("YarnBetaSlow", "yarn_beta_slow", fields.number),
    ConfigField("Type", "type", fields.text),
    ConfigField("GPUMemoryUtilization", "gpu_memory_utilization", fields.number),
    ConfigField("TrustRemoteCode", "trust_remote_code", fields.switch),
    ConfigField("EnforceEager", "enforce_eager", fields.switch),
    ConfigField("SwapSpace", "swap_space", fields.whole),
    ConfigField("MaxModelLen", "max_model_len", fields.whole),
    ConfigField("TensorParallelSize", "tensor_parallel_size", fields.whole),
    ConfigField("FlashAttention", "flash_attention", _flash, "auto"),
    ConfigField("NoKVOffload", "no_kv_offloading", fields.switch),
    ConfigField("LoadFormat", "load_format", fields.text),
    ConfigField("LoraAdapters", "lora_adapters", fields.texts),
    ConfigField("LoraScales", "lora_scales", fields.numbers),
    ConfigField("Options", "options", fields.texts),
    ConfigField("CacheTypeKey", "cache_type_k", fields.text),
    ConfigField("CacheTypeValue", "cache_type_v", fields.text),
    ConfigField("DisableLogStatus", "disable_log_stats", fields.switch),
    ConfigField("DType", "dtype", fields.text),
    ConfigField("LimitImagePerPrompt", "limit_mm_per_prompt.image", fields.whole),
    ConfigField("LimitVideoPerPrompt", "limit_mm_per_prompt.video", fields.whole),
    ConfigField("LimitAudioPerPrompt", "limit_mm_per_prompt.audio", fields.whole),
    ConfigField("Reranking", "reranking", fields.switch),
    ConfigField("Overrides", "overrides", fields.texts),
    ConfigField("EngineArgs", "engine_args", _json),
    ConfigField("GrammarTriggers", "function.grammar.triggers", _words),
    ConfigField("EnableScore", "known_usecases", _scores),
)

# How an adapter translates requests for the model.

RULES: Final = (
    ConfigField("use_tokenizer_template", "template.use_tokenizer_template", fields.switch),
    ConfigField("system_prompt", "system_prompt", fields.text),
    ConfigField("reply_prefix", "template.reply_prefix", fields.text),
    ConfigField("voice", "tts.voice", fields.text),
    ConfigField("reasoning_effort", "reasoning_effort", fields.text),
    ConfigField("thinks", "reasoning.disable", _opposite),
    ConfigField("template_arguments", "chat_template_kwargs", fields.mapping),
)
TEMPLATES: Final = (
    ConfigField("chat", "template.chat", fields.text),
    ConfigField("chat_message", "template.chat_message", fields.text),
    ConfigField("function", "template.function", fields.text),
    ConfigField("completion", "template.completion", fields.text),
    ConfigField("edit", "template.edit", fields.text),
    ConfigField("multimodal", "template.multimodal", fields.text),
    ConfigField("roles", "roles", fields.texts_by_name),
    ConfigField("grammar_disabled", "function.grammar.disable", fields.switch),
    ConfigField("no_action_disabled", "function.disable_no_action", fields.switch),
    ConfigField("no_action_name", "function.no_action_function_name", fields.text),
    ConfigField("no_action_description", "function.no_action_description_name", fields.text),
    ConfigField("joined_by", "template.join_chat_messages_by_character", fields.text),
)
DEFAULTS: Final = (
    ConfigField("temperature", "parameters.temperature", fields.number),
    ConfigField("top_p", "parameters.top_p", fields.number),
    ConfigField("top_k", "parameters.top_k", fields.whole),
    ConfigField("min_p", "parameters.min_p", fields.number),
    ConfigField("typical_p", "parameters.typical_p", fields.number),
    ConfigField("tail_free_z", "parameters.tfz", fields.number),
    ConfigField("max_tokens", "parameters.max_tokens", fields.whole),
    ConfigField("repeat_penalty", "parameters.repeat_penalty", fields.number),
    ConfigField("repeat_last_n", "parameters.repeat_last_n", fields.whole),
    ConfigField("frequency_penalty", "parameters.frequency_penalty", fields.number),
    ConfigField("presence_penalty", "parameters.presence_penalty", fields.number),
    ConfigField("mirostat", "mirostat", fields.whole),
    ConfigField("mirostat_eta", "mirostat_eta", fields.number),
    ConfigField("mirostat_tau", "mirostat_tau", fields.number),
    ConfigField("seed", "parameters.seed", fields.whole),
    ConfigField("stop", "stopwords", fields.texts),
    ConfigField("threads", "threads", fields.whole),
    ConfigField("ignore_eos", "parameters.ignore_eos", fields.switch),
    ConfigField("n_keep", "parameters.n_keep", fields.whole),
    ConfigField("n_draft", "n_draft", fields.whole),
    ConfigField("prompt_cache_all", "prompt_cache_all", fields.switch),
    ConfigField("language", "parameters.language", fields.text),
    ConfigField("translate", "parameters.translate", fields.switch),
)
_ENGINE_DEFAULTS: Final = """
    temperature top_p top_k min_p typical_p repeat_penalty repeat_last_n frequency_penalty presence_penalty max_tokens
"""
"""Keys of `DEFAULTS` that an engine takes among its options."""


def request_rules(config: Config) -> dict[str, object]:
    """Parts by name: those of `RULES`, `templates` and `defaults`. InvalidInput names the key."""
    return {
        **_values(config, RULES),
        "templates": _values(config, TEMPLATES),
        "defaults": _values(config, DEFAULTS),
    }


def engine_defaults(config: Config) -> list[str]:
    """What requests get that leave it open, as entries of `Options`: for an engine that is asked directly."""
    values = _values(config, DEFAULTS)
    return [f"default_{name}:{values[name]}" for name in _ENGINE_DEFAULTS.split() if name in values]


def _values(config: Config, table: tuple[ConfigField, ...]) -> dict[str, object]:
    values = {field.name: field.read(config, field.key, fields.MISSING) for field in table}
    return {name: value for name, value in values.items() if value is not fields.MISSING}
