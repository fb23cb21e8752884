"""Which key of a model's configuration feeds which field of `ModelOptions`, and what is sent without the key."""

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


class Field(NamedTuple):
    """A field of ModelOptions: its name, the key that feeds it, how it is read, and what is sent without the key."""

    name: str
    key: str
    read: "Callable[[Config, str, object], object]"
    default: object = fields.MISSING


def check_below(path: str, key: str) -> None:
    if len(path) > _LONGEST_PATH or not path.isprintable():
        raise InvalidInput(key, f"must be one line of up to {_LONGEST_PATH} characters")
    if path.startswith("/") or ".." in PurePath(path).parts:
        raise InvalidInput(key, f"must be below the models directory, got {path[:80]!r}")


def _path(config: Config, key: str, default: object) -> object:
    """Of a file below the models directory."""
    path = fields.text(config, key, default)
    if isinstance(path, str):
        check_below(path, key)
    return path


def _context(config: Config, key: str, default: object) -> object:
    """-1 asks for what the model was trained with; a backend learns that from the file."""
    value = fields.whole(config, key, default)
    return 0 if isinstance(value, int) and value < 0 else value


def _json(config: Config, key: str, default: object) -> object:
    value = fields.found(config, key)
    return json.dumps(value, sort_keys=True) if value else default


def _words(config: Config, key: str, default: object) -> object:
    """Of a list of mappings, each with a `word`."""
    entries = [one for one in fields.listed(fields.found(config, key)) if isinstance(one, Mapping)]
    return [{"word": word} for one in entries if (word := fields.text(one, "word"))] or default


def _scores(config: Config, key: str, default: object) -> object:
    """Usecases are also spelled like FLAG_SCORE."""
    return "score" in {str(word).lower().removeprefix("flag_") for word in fields.listed(fields.found(config, key))}


def _flash(config: Config, key: str, default: object) -> object:
    """YAML reads a bare `on` as true."""
    value = fields.found(config, key)
    return ("on" if value else "off") if isinstance(value, bool) else fields.text(config, key, default)


FIELDS: Final = (
    Field("ContextSize", "context_size", _context, DEFAULT_CONTEXT),
    Field("Seed", "parameters.seed", fields.whole),
    Field("NBatch", "parameters.batch", fields.whole),
    Field("F16Memory", "f16", fields.switch),
    Field("MLock", "mmlock", fields.switch),
    Field("MMap", "mmap", fields.switch, True),
    Field("LowVRAM", "low_vram", fields.switch),
    Field("Embeddings", "embeddings", fields.switch),
    Field("NUMA", "numa", fields.switch),
    Field("NGPULayers", "gpu_layers", fields.whole, ALL_LAYERS),
    Field("MainGPU", "main_gpu", fields.text, fields.MISSING),
    Field("TensorSplit", "tensor_split", fields.text, fields.MISSING),
    Field("RopeFreqBase", "parameters.rope_freq_base", fields.number),
    Field("RopeFreqScale", "parameters.rope_freq_scale", fields.number),
    Field("RMSNormEps", "rms_norm_eps", fields.number),
    Field("NGQA", "ngqa", fields.whole),
    Field("CUDA", "cuda", fields.switch),
    Field("CFGScale", "cfg_scale", fields.number),
    Field("Tokenizer", "parameters.tokenizer", fields.text, fields.MISSING),
    Field("LoraBase", "lora_base", fields.text, fields.MISSING),
    Field("LoraAdapter", "lora_adapter", fields.text, fields.MISSING),
    Field("NoMulMatQ", "no_mulmatq", fields.switch),
    Field("AudioPath", "tts.audio_path", fields.text, fields.MISSING),
    Field("DraftModel", "draft_model", _path, fields.MISSING),
    Field("Quantization", "quantization", fields.text, fields.MISSING),
    Field("MMProj", "mmproj", _path, fields.MISSING),
    Field("LoraScale", "lora_scale", fields.number),
    Field("RopeScaling", "rope_scaling", fields.text, fields.MISSING),
    Field("YarnExtFactor", "yarn_ext_factor", fields.number),
    Field("YarnAttnFactor", "yarn_attn_factor", fields.number),
    Field("YarnBetaFast", "yarn_beta_fast", fields.number),
    Field("YarnBetaSlow", "yarn_beta_slow", fields.number),
    Field("Type", "type", fields.text, fields.MISSING),
    Field("GPUMemoryUtilization", "gpu_memory_utilization", fields.number),
    Field("TrustRemoteCode", "trust_remote_code", fields.switch),
    Field("EnforceEager", "enforce_eager", fields.switch),
    Field("SwapSpace", "swap_space", fields.whole),
    Field("MaxModelLen", "max_model_len", fields.whole),
    Field("TensorParallelSize", "tensor_parallel_size", fields.whole),
    Field("FlashAttention", "flash_attention", _flash, "auto"),
    Field("NoKVOffload", "no_kv_offloading", fields.switch),
    Field("LoadFormat", "load_format", fields.text, fields.MISSING),
    Field("LoraAdapters", "lora_adapters", fields.texts),
    Field("LoraScales", "lora_scales", fields.numbers),
    Field("Options", "options", fields.texts),
    Field("CacheTypeKey", "cache_type_k", fields.text, fields.MISSING),
    Field("CacheTypeValue", "cache_type_v", fields.text, fields.MISSING),
    Field("DisableLogStatus", "disable_log_stats", fields.switch),
    Field("DType", "dtype", fields.text, fields.MISSING),
    Field("LimitImagePerPrompt", "limit_mm_per_prompt.image", fields.whole),
    Field("LimitVideoPerPrompt", "limit_mm_per_prompt.video", fields.whole),
    Field("LimitAudioPerPrompt", "limit_mm_per_prompt.audio", fields.whole),
    Field("Reranking", "reranking", fields.switch),
    Field("Overrides", "overrides", fields.texts),
    Field("EngineArgs", "engine_args", _json),
    Field("GrammarTriggers", "function.grammar.triggers", _words),
    Field("EnableScore", "known_usecases", _scores),
)
REQUEST_DEFAULTS: Final = {
    "temperature": fields.number,
    "top_p": fields.number,
    "top_k": fields.whole,
    "min_p": fields.number,
    "typical_p": fields.number,
    "repeat_penalty": fields.number,
    "repeat_last_n": fields.whole,
    "frequency_penalty": fields.number,
    "presence_penalty": fields.number,
    "max_tokens": fields.whole,
}
