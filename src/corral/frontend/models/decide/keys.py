"""Keys and options of a model's configuration."""

import difflib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final, NamedTuple

from corral.base import config_fields as fields
from corral.base.config_fields import Config
from corral.base.errors import InvalidInput
from corral.frontend.models.decide.requests import REQUEST_KEYS

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


_LOCALAI: Final = """
    name backend alias description usage license urls icon tags disabled pinned concurrency_groups
    known_usecases known_input_modalities known_output_modalities
    stopwords cutstrings trimspace trimsuffix extract_regex roles system_prompt feature_flags grammar debug
    function reasoning reasoning_effort chat_template_kwargs n_draft prompt_cache_all prompt_cache_path prompt_cache_ro
    step download_files artifacts pipeline router proxy pii pii_detection mcp agent mitm compression
    limits.max_concurrent limits.retry_after_seconds grpc.attempts grpc.attempts_sleep_time
    tts.voice tts.audio_path tts.voice_cloning
    template.chat template.chat_message template.completion template.edit template.function template.multimodal
    template.reply_prefix template.join_chat_messages_by_character template.use_tokenizer_template
    diffusers.cuda diffusers.pipeline_type diffusers.scheduler_type diffusers.enable_parameters diffusers.img2img
    diffusers.clip_model diffusers.clip_subfolder diffusers.clip_skip diffusers.control_net
    parameters.model parameters.language parameters.translate parameters.n parameters.echo parameters.n_keep
    parameters.negative_prompt parameters.negative_prompt_scale parameters.use_fast_tokenizer parameters.clip_skip
    parameters.logprobs parameters.top_logprobs parameters.logit_bias parameters.tfz
"""
_FREE: Final = frozenset({"function", "reasoning", "engine_args"})
"""Parts whose keys the backend or LocalAI alone knows."""
_OWN: Final = "x-"
"""Keys that begin like this are the author's own, for anchors and notes."""
_MISTAKEN_PARTS: Final = ("", "parameters.", "template.", "tts.", "limits.")
"""Where keys stand that people write into another part."""
_NEAR: Final = 0.6
_MOST: Final = 20


def _known() -> frozenset[str]:
    own = {one.key for one in FIELDS} | set(REQUEST_KEYS) | {f"parameters.{name}" for name in REQUEST_DEFAULTS}
    return frozenset(own | {"threads"} | set(_LOCALAI.split()))


KNOWN: Final = _known()
_PARTS: Final = frozenset(key.rpartition(".")[0] for key in KNOWN if "." in key) - _FREE


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownKey:
    path: tuple[str, ...]
    near: str
    """The known key that was probably meant, dotted; empty when there is none."""

    @property
    def sentence(self) -> str:
        hint = f"; did you mean {self.near}?" if self.near else ""
        return f"unknown key {'.'.join(self.path)[:80]!r}, which has no effect{hint}"


def unknown_keys(config: Config) -> list[UnknownKey]:
    """The first ones, in the order of the file."""
    found = (UnknownKey(path=path, near=_near(path)) for path in _unknown(config, ()))
    return [key for key, _ in zip(found, range(_MOST), strict=False)]


def _unknown(part: Mapping[str, object], path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for key, value in part.items():
        here = (*path, str(key))
        dotted = ".".join(here)
        if dotted in _PARTS and isinstance(value, Mapping):
            yield from _unknown(value, here)
        elif dotted not in KNOWN and dotted not in _PARTS and not _is_free(dotted) and not here[-1].startswith(_OWN):
            yield here


def _is_free(dotted: str) -> bool:
    return dotted.partition(".")[0] in _FREE


def _near(path: tuple[str, ...]) -> str:
    """A key of the same name in another part, or else one of a like name in the same part."""
    *parts, key = path
    elsewhere = sorted(f"{part}{key.lower()}" for part in _MISTAKEN_PARTS if f"{part}{key.lower()}" in KNOWN)
    if elsewhere:
        return elsewhere[0]
    prefix = ".".join(parts)
    beside = {one.rpartition(".")[2]: one for one in KNOWN | _PARTS if one.rpartition(".")[0] == prefix}
    match = difflib.get_close_matches(key.lower()[:80], beside, n=1, cutoff=_NEAR)
    return beside[match[0]] if match else ""
