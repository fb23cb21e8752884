"""Models: what a configuration says, which revision of it this is, and what a backend is told to load it with.

The words are those of LocalAI's model files. A revision is the hash of the stored configuration and of nothing else:
no request, no flag and no machine changes it.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Final, NamedTuple

from corral.base.errors import InvalidInput
from corral.domain import model_fields as fields
from corral.domain.model_fields import Config
from corral.domain.model_requests import request_rules

ALL_LAYERS: Final = 99_999_999
DEFAULT_CONTEXT: Final = 4096
DEFAULT_BATCH: Final = 512
_LONGEST_NAME: Final = 200
_LONGEST_PATH: Final = 1024
_BACKEND: Final = re.compile(r"[A-Za-z0-9_-]+(@[A-Za-z0-9_-]+)?")


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

    def problems_of(self, name: str) -> list[ModelProblem]:
        """What was passed over under this name: that of a model, or of a file with or without its suffix."""
        return [one for one in self.problems if name in (one.name, one.source, PurePath(one.source).stem)]

    def serving(self, name: str) -> ModelSpec | None:
        """The model whose replicas answer for a name."""
        spec = self.models.get(name)
        return self.models.get(spec.alias_of) if spec is not None and spec.alias_of else spec

    def may_hide(self, name: str) -> bool:
        """Whether a file that was passed over may hold this model: then it counts as neither there nor deleted."""
        return any(problem.name in ("", name) for problem in self.problems)


def read_model(config: object, *, source: str) -> ModelSpec:
    """Check one configuration. InvalidInput names the key that is wrong."""
    if not isinstance(config, Mapping):
        raise InvalidInput("", "a model must be a mapping of keys to values")
    name = _name(config)
    common = {"name": name, "source": source, "revision": revision_of(config), "config": config}
    if alias := fields.text(config, "alias"):
        if config.get("backend") or config.get("parameters"):
            raise InvalidInput("alias", "is a mere redirect: it has neither a backend nor parameters")
        return ModelSpec(**common, alias_of=alias)  # type: ignore[arg-type]
    spec = ModelSpec(
        **common,  # type: ignore[arg-type]
        backend=_backend(config),
        model=_weights(config),
        max_concurrent=_bounded(fields.whole(config, "limits.max_concurrent", 0), "limits.max_concurrent"),
    )
    # So that a wrong type is said now, and not at the first load.
    load_options(spec, models=PurePath(), threads=1, is_asked_directly=True)
    request_rules(config)
    return spec


def with_last_good(found: Sequence[ModelSpec | ModelProblem], before: Catalogue) -> list[ModelSpec | ModelProblem]:
    """What was read, and what a file that cannot be used now held before: a slip of the pen ends no model."""
    broken = {one.source for one in found if isinstance(one, ModelProblem)}
    named = {one.name for one in found if isinstance(one, ModelSpec)}
    kept = [spec for spec in before.models.values() if spec.source in broken and spec.name not in named]
    return [*found, *kept]


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
    default: object = fields.MISSING


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
        if value is not fields.MISSING:
            options[one.name] = value
    for name in ("MMProj", "DraftModel"):
        if options.get(name):
            options[name] = str(models / str(options[name]))
    if engine := fields.found(spec.config, "engine_args"):
        options["EngineArgs"] = json.dumps(engine, sort_keys=True)
    if is_asked_directly and (defaults := _request_defaults(spec.config)):
        options["Options"] = [*_listed(options.get("Options")), *defaults]
    options["EnableScore"] = "score" in {str(word).lower().removeprefix("flag_") for word in _usecases(spec.config)}
    return options


def _request_defaults(config: Config) -> list[str]:
    """What requests that say nothing get, as entries of `Options`."""
    values = ((name, read(config, f"parameters.{name}", fields.MISSING)) for name, read in _REQUEST_DEFAULTS.items())
    return [f"default_{name}:{value}" for name, value in values if value is not fields.MISSING]


def _name(config: Config) -> str:
    name = fields.text(config, "name")
    if not name:
        raise InvalidInput("name", "is missing")
    if len(name) > _LONGEST_NAME or not name.isprintable() or name != name.strip() or "#" in name:
        raise InvalidInput("name", f"must be one line of up to {_LONGEST_NAME} characters, without #")
    return name


def _backend(config: Config) -> str:
    backend = fields.text(config, "backend")
    if not backend:
        raise InvalidInput("backend", "is missing")
    if not _BACKEND.fullmatch(backend):
        raise InvalidInput("backend", f"must consist of letters, digits, - and _, got {backend[:40]!r}")
    return backend


def _weights(config: Config) -> str:
    model = fields.text(config, "parameters.model")
    if not model:
        raise InvalidInput("parameters.model", "is missing")
    _check_below(model, "parameters.model")
    return model


def _check_below(path: str, key: str) -> None:
    if len(path) > _LONGEST_PATH or not path.isprintable():
        raise InvalidInput(key, f"must be one line of up to {_LONGEST_PATH} characters")
    if path.startswith("/") or ".." in PurePath(path).parts:
        raise InvalidInput(key, f"must be below the models directory, got {path[:80]!r}")


def _path(config: Config, key: str, default: object) -> object:
    """Of a file below the models directory."""
    path = fields.text(config, key, default)
    if isinstance(path, str):
        _check_below(path, key)
    return path


def _bounded(value: object, key: str) -> int:
    if not isinstance(value, int) or value < 0:
        raise InvalidInput(key, "must not be negative")
    return value


def _usecases(config: Config) -> list[object]:
    return _listed(fields.found(config, "known_usecases"))


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _context(config: Config, key: str, default: object) -> object:
    """-1 asks for what the model was trained with; a backend learns that from the file."""
    value = fields.whole(config, key, default)
    return 0 if isinstance(value, int) and value < 0 else value


def _flash(config: Config, key: str, default: object) -> object:
    """YAML reads a bare `on` as true."""
    value = fields.found(config, key)
    return ("on" if value else "off") if isinstance(value, bool) else fields.text(config, key, default)


_FIELDS: Final = (
    _Field("ContextSize", "context_size", _context, DEFAULT_CONTEXT),
    _Field("Seed", "parameters.seed", fields.whole),
    _Field("NBatch", "parameters.batch", fields.whole, DEFAULT_BATCH),
    _Field("F16Memory", "f16", fields.switch),
    _Field("MLock", "mmlock", fields.switch),
    _Field("MMap", "mmap", fields.switch, True),
    _Field("LowVRAM", "low_vram", fields.switch),
    _Field("Embeddings", "embeddings", fields.switch),
    _Field("NUMA", "numa", fields.switch),
    _Field("NGPULayers", "gpu_layers", fields.whole, ALL_LAYERS),
    _Field("MainGPU", "main_gpu", fields.text, fields.MISSING),
    _Field("TensorSplit", "tensor_split", fields.text, fields.MISSING),
    _Field("Threads", "threads", fields.whole),
    _Field("RopeFreqBase", "parameters.rope_freq_base", fields.number),
    _Field("RopeFreqScale", "parameters.rope_freq_scale", fields.number),
    _Field("RMSNormEps", "rms_norm_eps", fields.number),
    _Field("NGQA", "ngqa", fields.whole),
    _Field("CUDA", "cuda", fields.switch),
    _Field("CFGScale", "cfg_scale", fields.number),
    _Field("Tokenizer", "parameters.tokenizer", fields.text, fields.MISSING),
    _Field("LoraBase", "lora_base", fields.text, fields.MISSING),
    _Field("LoraAdapter", "lora_adapter", fields.text, fields.MISSING),
    _Field("NoMulMatQ", "no_mulmatq", fields.switch),
    _Field("AudioPath", "tts.audio_path", fields.text, fields.MISSING),
    _Field("DraftModel", "draft_model", _path, fields.MISSING),
    _Field("Quantization", "quantization", fields.text, fields.MISSING),
    _Field("MMProj", "mmproj", _path, fields.MISSING),
    _Field("LoraScale", "lora_scale", fields.number),
    _Field("RopeScaling", "rope_scaling", fields.text, fields.MISSING),
    _Field("YarnExtFactor", "yarn_ext_factor", fields.number),
    _Field("YarnAttnFactor", "yarn_attn_factor", fields.number),
    _Field("YarnBetaFast", "yarn_beta_fast", fields.number),
    _Field("YarnBetaSlow", "yarn_beta_slow", fields.number),
    _Field("Type", "type", fields.text, fields.MISSING),
    _Field("GPUMemoryUtilization", "gpu_memory_utilization", fields.number),
    _Field("TrustRemoteCode", "trust_remote_code", fields.switch),
    _Field("EnforceEager", "enforce_eager", fields.switch),
    _Field("SwapSpace", "swap_space", fields.whole),
    _Field("MaxModelLen", "max_model_len", fields.whole),
    _Field("TensorParallelSize", "tensor_parallel_size", fields.whole),
    _Field("FlashAttention", "flash_attention", _flash, "auto"),
    _Field("NoKVOffload", "no_kv_offloading", fields.switch),
    _Field("LoadFormat", "load_format", fields.text, fields.MISSING),
    _Field("LoraAdapters", "lora_adapters", fields.texts),
    _Field("LoraScales", "lora_scales", fields.numbers),
    _Field("Options", "options", fields.texts),
    _Field("CacheTypeKey", "cache_type_k", fields.text, fields.MISSING),
    _Field("CacheTypeValue", "cache_type_v", fields.text, fields.MISSING),
    _Field("DisableLogStatus", "disable_log_stats", fields.switch),
    _Field("DType", "dtype", fields.text, fields.MISSING),
    _Field("LimitImagePerPrompt", "limit_mm_per_prompt.image", fields.whole),
    _Field("LimitVideoPerPrompt", "limit_mm_per_prompt.video", fields.whole),
    _Field("LimitAudioPerPrompt", "limit_mm_per_prompt.audio", fields.whole),
    _Field("Reranking", "reranking", fields.switch),
    _Field("Overrides", "overrides", fields.texts),
)
_REQUEST_DEFAULTS: Final = {
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
