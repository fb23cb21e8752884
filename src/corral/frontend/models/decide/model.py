"""Models: what a configuration says, its revision, and what a backend gets in order to load it.

The words are those of LocalAI's model files. A revision is the hash of the stored configuration and of nothing else:
no request, no flag and no machine changes it.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Final

import msgspec
from msgspec.structs import replace

from corral.base import config_fields as fields
from corral.base.config_fields import Config
from corral.base.errors import InvalidInput
from corral.base.values import PartlyPrinted
from corral.frontend.models.decide.keys import DEFAULT_CONTEXT, FIELDS, check_below, engine_defaults, request_rules
from corral.frontend.models.decide.uses import meant_by
from corral.galleries.model_artifacts import artifact_weights, companion_options
from corral.galleries.model_key_checks import check_values
from corral.galleries.model_keys import OWN_WEIGHTS
from corral.wire.models import OWN_FOLDER

DEFAULT_BATCH: Final = 512
_LONGEST_NAME: Final = 200
_BACKEND: Final = re.compile(r"[A-Za-z0-9_-]+(@[A-Za-z0-9_-]+)?")
_NOT_MAPPED: Final = ("intel", "sycl")
"""In the name of a backend: it cannot use weights that are mapped into memory."""


class ModelSpec(PartlyPrinted, frozen=True, kw_only=True):
    """A model's configuration under its name, as far as Corral itself uses it."""

    unprinted = ("config",)

    name: str
    backend: str = ""
    model: str = ""
    """The weights: a path below the models directory, or a name that the backend itself understands. Empty where the
    backend brings them along."""
    alias_of: str = ""
    """The model that answers for this one; then there is neither a backend nor a model."""
    max_concurrent: int = 0
    """Requests that one replica takes at once; 0 leaves it to the engine."""
    source: str = ""
    """The file that says what it is; empty when that is no file."""
    revision: str = ""
    warnings: tuple[str, ...] = ()
    """What its author probably meant otherwise, with lines of the file; the model works all the same."""
    config: Config = msgspec.field(default_factory=dict)


class ModelProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A file, or a part of one, that was passed over."""

    source: str
    name: str = ""
    problem: str
    may_hide: bool = False
    """Whether it may hold a model that nobody has heard of yet."""


class Catalogue(msgspec.Struct, frozen=True, kw_only=True):
    """All models at one moment, and what could not be read."""

    models: Mapping[str, ModelSpec] = msgspec.field(default_factory=dict)
    problems: tuple[ModelProblem, ...] = ()

    def problems_of(self, name: str) -> list[ModelProblem]:
        """What was passed over under this name: that of a model, or of a file with or without its suffix."""
        return [
            problem
            for problem in self.problems
            if name in (problem.name, problem.source, PurePath(problem.source).stem)
        ]

    def serving(self, name: str) -> ModelSpec | None:
        """The model whose replicas answer for a name."""
        spec = self.models.get(name)
        return self.models.get(spec.alias_of) if spec is not None and spec.alias_of else spec

    def may_hide(self, name: str) -> bool:
        """Whether a file that was never read may hold this model: then it counts as neither there nor deleted."""
        return any(problem.may_hide and problem.name in ("", name) for problem in self.problems)


def read_model(config: object, *, source: str) -> ModelSpec:
    """Check one configuration. InvalidInput names the key that is wrong."""
    if not isinstance(config, Mapping):
        raise InvalidInput("", "a model must be a mapping of keys to values")
    name = _required(config, "name")
    if len(name) > _LONGEST_NAME or not name.isprintable() or name != name.strip() or "#" in name:
        raise InvalidInput("name", f"must be one line of up to {_LONGEST_NAME} characters, without #")
    check_values(config)
    spec = ModelSpec(name=name, source=source, revision=revision_of(config), config=config)
    if alias := fields.text(config, "alias"):
        if config.get("backend") or config.get("parameters"):
            raise InvalidInput("alias", "is a mere redirect: it has neither a backend nor parameters")
        return replace(spec, alias_of=alias)
    backend = _required(config, "backend")
    if not _BACKEND.fullmatch(backend):
        raise InvalidInput("backend", f"must consist of letters, digits, - and _, got {backend[:40]!r}")
    needs_weights = meant_by(backend).backend.lower() not in OWN_WEIGHTS
    model = _required(config, "parameters.model") if needs_weights else fields.text(config, "parameters.model")
    check_below(model, "parameters.model")
    most = fields.whole(config, "limits.max_concurrent", 0)
    if not isinstance(most, int) or most < 0:
        raise InvalidInput("limits.max_concurrent", "must not be negative")
    spec = replace(spec, backend=meant_by(backend).backend, model=model, max_concurrent=most)
    # So that a wrong type is said now, and not at the first load.
    load_options(spec, models=PurePath(), threads=1, is_asked_directly=True)
    request_rules(config)
    return spec


def _required(config: Config, key: str) -> str:
    text = fields.text(config, key)
    if not text:
        raise InvalidInput(key, "is missing")
    return text


def collect(specs: Iterable[ModelSpec], problems: Sequence[ModelProblem] = ()) -> Catalogue:
    """All models, without aliases that lead nowhere; those are problems too."""
    models = {spec.name: spec for spec in specs}
    all_problems = list(problems)
    for spec in [spec for spec in models.values() if spec.alias_of]:
        target = models.get(spec.alias_of)
        if target is None or target.alias_of:
            problem = f"alias: {spec.alias_of} is no model" if target is None else "alias: leads to another alias"
            all_problems.append(ModelProblem(source=spec.source or spec.name, name=spec.name, problem=problem))
    lost = {problem.name for problem in all_problems[len(problems) :]}
    return Catalogue(
        models={name: spec for name, spec in models.items() if name not in lost}, problems=tuple(all_problems)
    )


def revision_of(config: Config) -> str:
    """Return the hash of a configuration. The order of its keys does not change it."""
    text = json.dumps(config, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


# What a backend gets.


def load_options(
    spec: ModelSpec, *, models: PurePath, threads: int, is_asked_directly: bool = False
) -> dict[str, object]:
    """Fields of `ModelOptions` by name. `models` is the directory as the node sees it.

    A replica that is asked directly gets requests as they are: it must know itself what they leave open.
    """
    options: dict[str, object] = {"Model": spec.model, "ModelPath": str(models)}
    if weights := weights_path(spec):
        options["ModelFile"] = str(models / weights)
    for entry in FIELDS:
        value = entry.read(spec.config, entry.key, entry.default)
        if value is not fields.MISSING:
            options[entry.name] = value
    options["Threads"] = threads_of(spec.config, threads)
    options.setdefault("NBatch", _batch(options))
    if any(word in spec.backend.lower() for word in _NOT_MAPPED):
        options["MMap"] = False
    if forced := meant_by(fields.text(spec.config, "backend")).type:
        options["Type"] = forced
    for name in ("MMProj", "DraftModel"):
        if options.get(name):
            options[name] = str(models / str(options[name]))
    more = companion_options(spec.config, fields.listed(options.get("Options")))
    more += engine_defaults(spec.config) if is_asked_directly else []
    if more:
        options["Options"] = [*fields.listed(options.get("Options")), *more]
    return options


def weights_path(spec: ModelSpec) -> str:
    """Where the weights are expected below the models directory: a file or a directory. Empty where they are not there
    by their nature, and for a backend to fetch."""
    return artifact_weights(spec.config) or ("" if "://" in spec.model else spec.model)


def threads_of(config: Config, usual: int) -> int:
    """Never none: some backends take that literally."""
    threads = fields.whole(config, "threads", usual)
    return threads if isinstance(threads, int) and threads > 0 else usual


def _batch(options: Mapping[str, object]) -> int:
    """What is embedded, ranked or scored is one batch, so that has to hold the whole context."""
    if not any(options.get(name) for name in ("Embeddings", "Reranking", "EnableScore")):
        return DEFAULT_BATCH
    context = options["ContextSize"]
    return max(DEFAULT_BATCH, context if isinstance(context, int) and context else DEFAULT_CONTEXT)


def with_answer_limit(spec: ModelSpec, most_tokens: int) -> ModelSpec:
    """The model with `most_tokens` as the limit of answers to requests that state none.

    Unchanged where its file states a limit, -1 or 0 for none included, and where `most_tokens` is 0.
    """
    limit = fields.whole(spec.config, "parameters.max_tokens", fields.MISSING)
    if limit is not fields.MISSING or most_tokens <= 0:
        return spec
    parameters = spec.config.get("parameters")
    limited = {**(parameters if isinstance(parameters, Mapping) else {}), "max_tokens": most_tokens}
    return replace(spec, config={**spec.config, "parameters": limited})


def folder_of(model: str) -> str:
    """Return the directory of a model's files: its name, unless no clean path can hold that, or Corral's own files are
    there."""
    parts = model.split("/")
    is_clean = parts[0] != OWN_FOLDER and all(part not in ("", ".", "..") for part in parts)
    if is_clean and len(model.encode(errors="replace")) <= 200:
        return model
    return f"model-{hashlib.sha256(model.encode(errors='replace')).hexdigest()[:16]}"
