"""Models: what a configuration says, which revision of it this is, and what a backend is told to load it with.

The words are those of LocalAI's model files. A revision is the hash of the stored configuration and of nothing else:
no request, no flag and no machine changes it.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Final, NamedTuple

from corral.base.errors import InvalidInput

ALL_LAYERS: Final = 99_999_999
DEFAULT_CONTEXT: Final = 4096
DEFAULT_BATCH: Final = 512
_LONGEST_NAME: Final = 200
_BACKEND: Final = re.compile(r"[A-Za-z0-9_-]+(@[A-Za-z0-9_-]+)?")
_INT32: Final = 2**31
_MISSING: Final = object()

Config = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A named model configuration."""

    name: str
    backend: str = ""
    model: str = ""
    """The weights: a path below the models directory, or a name that the backend itself understands."""
    alias_of: str = ""
    """The model that answers for this one; then there is neither a backend nor a model."""
    max_concurrent: int = 0
    """Requests that one replica takes at once; 0 leaves it to the engine."""
    source: str = ""
    """The file that it was read from."""
    revision: str = ""
    config: Config = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProblem:
    """A file, or a part of one, that was passed over."""

    source: str
    name: str = ""
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """All models at one moment, and what could not be read."""

    models: Mapping[str, ModelSpec] = field(default_factory=dict)
    problems: tuple[ModelProblem, ...] = ()

    def serving(self, name: str) -> ModelSpec | None:
        """The model whose replicas answer for a name."""
        spec = self.models.get(name)
        return self.models.get(spec.alias_of) if spec is not None and spec.alias_of else spec


def read_model(config: object, *, source: str) -> ModelSpec:
    """Check one configuration. InvalidInput names the key that is wrong."""
    if not isinstance(config, Mapping):
        raise InvalidInput("", "a model must be a mapping of keys to values")
    name = _name(config)
    common = {"name": name, "source": source, "revision": revision_of(config), "config": config}
    if alias := _text(config, "alias"):
        if config.get("backend") or config.get("parameters"):
            raise InvalidInput("alias", "is a mere redirect: it has neither a backend nor parameters")
        return ModelSpec(**common, alias_of=alias)  # type: ignore[arg-type]
    spec = ModelSpec(
        **common,  # type: ignore[arg-type]
        backend=_backend(config),
        model=_weights(config),
        max_concurrent=_bounded(_whole(config, "limits.max_concurrent", 0), "limits.max_concurrent"),
    )
    # So that a wrong type is said now, and not at the first load.
    load_options(spec, models=PurePath(), threads=1, is_asked_directly=True)
    return spec


def collect(found: Iterable[ModelSpec | ModelProblem]) -> Catalogue:
    """All that was read, without second models of one name and without aliases that lead nowhere."""
    models: dict[str, ModelSpec] = {}
    problems: list[ModelProblem] = []
    for one in found:
        if isinstance(one, ModelProblem):
            problems.append(one)
        elif (first := models.setdefault(one.name, one)) is not one:
            problem = f"the name is taken by {first.source}"
            problems.append(ModelProblem(source=one.source, name=one.name, problem=problem))
    for spec in [spec for spec in models.values() if spec.alias_of]:
        target = models.get(spec.alias_of)
        if target is None or target.alias_of:
            problem = f"alias: {spec.alias_of} is no model" if target is None else "alias: leads to another alias"
            problems.append(ModelProblem(source=spec.source, name=spec.name, problem=problem))
            models.pop(spec.name)
    return Catalogue(models=models, problems=tuple(problems))


def revision_of(config: Config) -> str:
    """The same for the same configuration, whatever the order of its keys."""
    text = json.dumps(config, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


# What a backend is told.


class _Field(NamedTuple):
    """A field of ModelOptions: its name, the key that feeds it, how it is read, and what is sent without the key."""

    name: str
    key: str
    read: "Callable[[Config, str, object], object]"
    default: object = _MISSING


def load_options(
    spec: ModelSpec, *, models: PurePath, threads: int, is_asked_directly: bool = False
) -> dict[str, object]:
    """Fields of `ModelOptions` by name. `models` is the directory as the node sees it.

    A replica that is asked directly gets requests as they are: it must know itself what they leave open.
    """
    options: dict[str, object] = {"Model": spec.model, "Threads": threads, "ModelPath": str(models)}
    if "://" not in spec.model:
        options["ModelFile"] = str(models / spec.model)
    for one in _FIELDS:
        value = one.read(spec.config, one.key, one.default)
        if value is not _MISSING:
            options[one.name] = value
    for name in ("MMProj", "DraftModel"):
        if options.get(name):
            options[name] = str(models / str(options[name]))
    if engine := _found(spec.config, "engine_args"):
        options["EngineArgs"] = json.dumps(engine, sort_keys=True)
    if is_asked_directly and (defaults := _request_defaults(spec.config)):
        options["Options"] = [*_listed(options.get("Options")), *defaults]
    options["EnableScore"] = "score" in {str(word).lower().removeprefix("flag_") for word in _usecases(spec.config)}
    return options


def _request_defaults(config: Config) -> list[str]:
    """What requests that say nothing get, as entries of `Options`."""
    values = ((name, read(config, f"parameters.{name}", _MISSING)) for name, read in _REQUEST_DEFAULTS.items())
    return [f"default_{name}:{value}" for name, value in values if value is not _MISSING]


def _name(config: Config) -> str:
    name = _text(config, "name")
    if not name:
        raise InvalidInput("name", "is missing")
    if len(name) > _LONGEST_NAME or not name.isprintable() or name != name.strip() or "#" in name:
        raise InvalidInput("name", f"must be one line of up to {_LONGEST_NAME} characters, without #")
    return name


def _backend(config: Config) -> str:
    backend = _text(config, "backend")
    if not backend:
        raise InvalidInput("backend", "is missing")
    if not _BACKEND.fullmatch(backend):
        raise InvalidInput("backend", f"must consist of letters, digits, - and _, got {backend[:40]!r}")
    return backend


def _weights(config: Config) -> str:
    model = _text(config, "parameters.model")
    if not model:
        raise InvalidInput("parameters.model", "is missing")
    if model.startswith("/") or ".." in PurePath(model).parts:
        raise InvalidInput("parameters.model", "must be below the models directory")
    return model


def _bounded(value: object, key: str) -> int:
    if not isinstance(value, int) or value < 0:
        raise InvalidInput(key, "must not be negative")
    return value


def _usecases(config: Config) -> list[object]:
    return _listed(_found(config, "known_usecases"))


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _found(config: Config, key: str) -> object:
    """What stands at a dotted key; None where there is nothing."""
    value: object = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _text(config: Config, key: str, default: object = "") -> str:
    value = _found(config, key)
    if value is None:
        return default  # type: ignore[return-value]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InvalidInput(key, f"must be text, got {_kind(value)}")
    return str(value)


def _whole(config: Config, key: str, default: object = _MISSING) -> object:
    value = _found(config, key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not -_INT32 <= value < _INT32:
        raise InvalidInput(key, f"must be a whole number, got {_kind(value)}")
    return value


def _number(config: Config, key: str, default: object = _MISSING) -> object:
    value = _found(config, key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(key, f"must be a number, got {_kind(value)}")
    return float(value)


def _switch(config: Config, key: str, default: object = _MISSING) -> object:
    value = _found(config, key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise InvalidInput(key, f"must be true or false, got {_kind(value)}")
    return value


def _texts(config: Config, key: str, default: object = _MISSING) -> object:
    value = _found(config, key)
    if value is None:
        return default
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise InvalidInput(key, f"must be a list of texts, got {_kind(value)}")
    return list(value)


def _numbers(config: Config, key: str, default: object = _MISSING) -> object:
    value = _found(config, key)
    if value is None:
        return default
    if not isinstance(value, list) or not all(isinstance(one, int | float) for one in value):
        raise InvalidInput(key, f"must be a list of numbers, got {_kind(value)}")
    return [float(one) for one in value]


def _context(config: Config, key: str, default: object) -> object:
    """-1 asks for what the model was trained with; a backend learns that from the file."""
    value = _whole(config, key, default)
    return 0 if isinstance(value, int) and value < 0 else value


def _flash(config: Config, key: str, default: object) -> object:
    """YAML reads a bare `on` as true."""
    value = _found(config, key)
    return ("on" if value else "off") if isinstance(value, bool) else _text(config, key, default)


def _kind(value: object) -> str:
    names = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "a mapping"}
    return names.get(type(value), type(value).__name__)


_FIELDS: Final = (
    _Field("ContextSize", "context_size", _context, DEFAULT_CONTEXT),
    _Field("Seed", "parameters.seed", _whole),
    _Field("NBatch", "parameters.batch", _whole, DEFAULT_BATCH),
    _Field("F16Memory", "f16", _switch),
    _Field("MLock", "mmlock", _switch),
    _Field("MMap", "mmap", _switch, True),
    _Field("LowVRAM", "low_vram", _switch),
    _Field("Embeddings", "embeddings", _switch),
    _Field("NUMA", "numa", _switch),
    _Field("NGPULayers", "gpu_layers", _whole, ALL_LAYERS),
    _Field("MainGPU", "main_gpu", _text, _MISSING),
    _Field("TensorSplit", "tensor_split", _text, _MISSING),
    _Field("Threads", "threads", _whole),
    _Field("RopeFreqBase", "parameters.rope_freq_base", _number),
    _Field("RopeFreqScale", "parameters.rope_freq_scale", _number),
    _Field("RMSNormEps", "rms_norm_eps", _number),
    _Field("NGQA", "ngqa", _whole),
    _Field("CUDA", "cuda", _switch),
    _Field("CFGScale", "cfg_scale", _number),
    _Field("Tokenizer", "parameters.tokenizer", _text, _MISSING),
    _Field("LoraBase", "lora_base", _text, _MISSING),
    _Field("LoraAdapter", "lora_adapter", _text, _MISSING),
    _Field("NoMulMatQ", "no_mulmatq", _switch),
    _Field("AudioPath", "tts.audio_path", _text, _MISSING),
    _Field("DraftModel", "draft_model", _text, _MISSING),
    _Field("Quantization", "quantization", _text, _MISSING),
    _Field("MMProj", "mmproj", _text, _MISSING),
    _Field("LoraScale", "lora_scale", _number),
    _Field("RopeScaling", "rope_scaling", _text, _MISSING),
    _Field("YarnExtFactor", "yarn_ext_factor", _number),
    _Field("YarnAttnFactor", "yarn_attn_factor", _number),
    _Field("YarnBetaFast", "yarn_beta_fast", _number),
    _Field("YarnBetaSlow", "yarn_beta_slow", _number),
    _Field("Type", "type", _text, _MISSING),
    _Field("GPUMemoryUtilization", "gpu_memory_utilization", _number),
    _Field("TrustRemoteCode", "trust_remote_code", _switch),
    _Field("EnforceEager", "enforce_eager", _switch),
    _Field("SwapSpace", "swap_space", _whole),
    _Field("MaxModelLen", "max_model_len", _whole),
    _Field("TensorParallelSize", "tensor_parallel_size", _whole),
    _Field("FlashAttention", "flash_attention", _flash, "auto"),
    _Field("NoKVOffload", "no_kv_offloading", _switch),
    _Field("LoadFormat", "load_format", _text, _MISSING),
    _Field("LoraAdapters", "lora_adapters", _texts),
    _Field("LoraScales", "lora_scales", _numbers),
    _Field("Options", "options", _texts),
    _Field("CacheTypeKey", "cache_type_k", _text, _MISSING),
    _Field("CacheTypeValue", "cache_type_v", _text, _MISSING),
    _Field("DisableLogStatus", "disable_log_stats", _switch),
    _Field("DType", "dtype", _text, _MISSING),
    _Field("LimitImagePerPrompt", "limit_mm_per_prompt.image", _whole),
    _Field("LimitVideoPerPrompt", "limit_mm_per_prompt.video", _whole),
    _Field("LimitAudioPerPrompt", "limit_mm_per_prompt.audio", _whole),
    _Field("Reranking", "reranking", _switch),
    _Field("Overrides", "overrides", _texts),
)
_REQUEST_DEFAULTS: Final = {
    "temperature": _number,
    "top_p": _number,
    "top_k": _whole,
    "min_p": _number,
    "typical_p": _number,
    "repeat_penalty": _number,
    "repeat_last_n": _whole,
    "frequency_penalty": _number,
    "presence_penalty": _number,
    "max_tokens": _whole,
}
