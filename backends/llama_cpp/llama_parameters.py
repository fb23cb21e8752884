"""From the options of the contract to llama.cpp's own parameters, as plain values for `engine.py`.

A name with a dot is a field of a field; a text such as `llama_load_mode.LLAMA_LOAD_MODE_MMAP` is that member of one of
xllamacpp's enumerations.
"""

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from corral_backend_sdk import Launch, LoadFailed, ModelOptions, option_values

_DEFAULT_THREADS: Final = 4
_DEFAULT_BATCH: Final = 512
_WHOLE_TEXT: Final = 2048
"""Tokens of a text that is embedded, where the model does not allow fewer."""
_CACHE_MIB: Final = 512
"""What remembered prompts may take of the memory; llama.cpp's own default is 8 GiB."""
_HTTP_THREADS: Final = 64
"""Each open connection holds one, idle ones too."""
_REQUEST_DEFAULTS: Final = {
    "default_temperature": "sampling.temp",
    "default_top_p": "sampling.top_p",
    "default_top_k": "sampling.top_k",
    "default_min_p": "sampling.min_p",
    "default_typical_p": "sampling.typ_p",
    "default_repeat_penalty": "sampling.penalty_repeat",
    "default_repeat_last_n": "sampling.penalty_last_n",
    "default_frequency_penalty": "sampling.penalty_freq",
    "default_presence_penalty": "sampling.penalty_present",
    "default_max_tokens": "n_predict",
}
"""Options of a model on the left, llama.cpp's parameters that requests which say nothing get on the right."""
_KEYS_BYTES: Final = 1024 * 1024
_FLASH: Final = {"on": "ENABLED", "enabled": "ENABLED", "true": "ENABLED", "off": "DISABLED", "disabled": "DISABLED"}

_YARN: Final = {
    "YarnExtFactor": "yarn_ext_factor",
    "YarnAttnFactor": "yarn_attn_factor",
    "YarnBetaFast": "yarn_beta_fast",
    "YarnBetaSlow": "yarn_beta_slow",
}
_PARALLEL_VARIABLE: Final = "LLAMACPP_PARALLEL"
"""LocalAI's: slots of models that do not say how many."""

Parameters = dict[str, Any]


def parameters_for(options: ModelOptions, launch: Launch, environ: Mapping[str, str]) -> Parameters:
    """Parameters of a server that holds this model and listens where the launch says."""
    usual = {"n_parallel": environ[_PARALLEL_VARIABLE]} if environ.get(_PARALLEL_VARIABLE) else {}
    values = usual | option_values(options.Options)
    weights = weights_of(options)
    return {
        "model.path": str(weights),
        "model_alias": launch.model_name or options.Model or weights.name,
        **_engine(options, values),
        **_batches(options),
        **_pooling(options, values, weights),
        **_placement(options),
        **_additions(options, weights),
        **_request_defaults(values),
        **_server(launch, _parallel(values)),
    }


def weights_of(options: ModelOptions) -> Path:
    """`ModelFile` is the path; without it, the model's name below the models' root."""
    candidates = [Path(options.ModelFile)] if options.ModelFile else []
    if options.Model:
        candidates.append(Path(options.ModelPath) / options.Model)
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    named = " or ".join(map(str, candidates))
    raise LoadFailed(f"there is no model file at {named}" if named else "no model is named")


def _engine(options: ModelOptions, values: dict[str, str]) -> Parameters:
    threads = options.Threads if options.Threads > 0 else _DEFAULT_THREADS
    found: Parameters = {
        "cpuparams.n_threads": threads,
        "cpuparams_batch.n_threads": threads,
        "n_ctx": _context(options),
        "n_parallel": _parallel(values),
        "kv_unified": _parallel(values) > 1,  # each slot may use the whole context, as one alone could
        "n_cache_reuse": _number(values, "cache_reuse", 0),
        "cache_ram_mib": _number(values, "cache_ram", _CACHE_MIB),
        "ctx_shift": values.get("context_shift", "false") == "true",
    }
    return found | _rope(options)


def _rope(options: ModelOptions) -> Parameters:
    """How positions are stretched beyond what the model was trained with; nothing said is the model's own way."""
    found: Parameters = {name: value for field, name in _YARN.items() if (value := getattr(options, field))}
    if options.RopeFreqBase:
        found["rope_freq_base"] = options.RopeFreqBase
    if options.RopeFreqScale:
        found["rope_freq_scale"] = options.RopeFreqScale
    if options.RopeScaling:
        found["rope_scaling_type"] = f"llama_rope_scaling_type.LLAMA_ROPE_SCALING_TYPE_{options.RopeScaling.upper()}"
    return found


def _batches(options: ModelOptions) -> Parameters:
    """An embedding is made of one batch, so that must hold the longest text."""
    batch = options.NBatch if options.NBatch > 0 else _DEFAULT_BATCH
    if not options.Embeddings and not options.Reranking:
        return {"n_batch": batch, "n_ubatch": min(batch, _DEFAULT_BATCH)}
    whole = max(batch, min(_context(options) or _WHOLE_TEXT, _WHOLE_TEXT))
    return {"embedding": True, "n_batch": whole, "n_ubatch": whole}


def _pooling(options: ModelOptions, values: dict[str, str], weights: Path) -> Parameters:
    """Return how token vectors are pooled: as the options say, as the model says, or their mean."""
    if options.Reranking:
        return {"pooling_type": "llama_pooling_type.LLAMA_POOLING_TYPE_RANK"}
    if not options.Embeddings or ("pooling" not in values and _says_how_to_pool(weights)):
        return {}
    return {"pooling_type": f"llama_pooling_type.LLAMA_POOLING_TYPE_{values.get('pooling', 'mean').upper()}"}


def _says_how_to_pool(weights: Path) -> bool:
    """The key stands among the first of the file, before the vocabulary."""
    with weights.open("rb") as file:
        return b".pooling_type" in file.read(_KEYS_BYTES)


def _placement(options: ModelOptions) -> Parameters:
    mode = "_".join(word for word, wanted in (("MMAP", options.MMap), ("MLOCK", options.MLock)) if wanted)
    found: Parameters = {
        "n_gpu_layers": options.NGPULayers if options.NGPULayers > 0 else 0,
        "no_kv_offload": options.NoKVOffload,
        "load_mode": f"llama_load_mode.LLAMA_LOAD_MODE_{mode or 'NONE'}",
    }
    if options.MainGPU.isdecimal():
        found["main_gpu"] = int(options.MainGPU)
    if options.TensorSplit:
        found["tensor_split"] = _shares(options.TensorSplit)
    if wanted := _FLASH.get(options.FlashAttention.lower()):
        found["flash_attn_type"] = f"llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_{wanted}"
    for field, name in (("cache_type_k", options.CacheTypeKey), ("cache_type_v", options.CacheTypeValue)):
        if name:
            found[field] = f"ggml_type.GGML_TYPE_{name.upper()}"
    return found


def _additions(options: ModelOptions, weights: Path) -> Parameters:
    found: Parameters = {}
    if options.MMProj:
        found["mmproj.path"] = options.MMProj
    if options.LoraAdapter:
        path = str(weights.parent / options.LoraAdapter)  # an absolute path stays what it is
        found["lora_adapters"] = [{"path": path, "scale": options.LoraScale or 1.0}]
    return found


def _request_defaults(values: dict[str, str]) -> Parameters:
    """Whole numbers stay whole: llama.cpp's parameters have types."""
    found: Parameters = {}
    for option, parameter in _REQUEST_DEFAULTS.items():
        if option not in values:
            continue
        try:
            number = float(values[option])
        except ValueError:
            raise LoadFailed(f"the option {option} is not a number: {values[option]}") from None
        is_whole = option in ("default_top_k", "default_repeat_last_n", "default_max_tokens")
        found[parameter] = int(number) if is_whole else number
    if found.get("n_predict", 1) <= 0:
        found["n_predict"] = -1  # without a limit; llama.cpp takes 0 for no answer at all
    return found


def _server(launch: Launch, parallel: int) -> Parameters:
    host, _, port = (launch.http_address or "127.0.0.1:0").rpartition(":")
    return {
        "hostnames": [host.strip("[]")],
        "port": int(port),
        "api_keys": [launch.http_key or secrets.token_urlsafe(32)],  # always protected, even if no port was promised
        "n_threads_http": max(_HTTP_THREADS, 4 * parallel),
        "ui": False,
        "endpoint_slots": False,
        "verbosity": 1,
    }


def _context(options: ModelOptions) -> int:
    """0 is as much as the model was trained with."""
    return max(0, options.ContextSize)


def _parallel(values: dict[str, str]) -> int:
    return max(1, _number(values, "parallel", _number(values, "n_parallel", 1)))


def _shares(text: str) -> list[float]:
    try:
        return [float(share) for share in text.split(",")]
    except ValueError:
        raise LoadFailed(f"the tensor split is not a list of numbers: {text}") from None


def _number(values: dict[str, str], name: str, default: int) -> int:
    if name not in values:
        return default
    try:
        return int(values[name])
    except ValueError:
        raise LoadFailed(f"the option {name} is not a number: {values[name]}") from None
