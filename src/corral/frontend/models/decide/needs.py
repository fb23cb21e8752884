"""What one replica of a model takes from its machine, as far as that can be known before it is loaded. Pure.

Of GGUF files for llama.cpp, what they say about themselves and how the model is configured tells it. Of all else only
sizes are known. vLLM takes the share `gpu_memory_utilization` of every card whatever the model is: what is said here
is the least that it needs to start.
"""

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Final

import msgspec
from msgspec.structs import replace

from corral.base import config_fields as fields
from corral.base.config_fields import Config
from corral.base.errors import InvalidInput
from corral.frontend.models.decide.model import DEFAULT_BATCH, ModelSpec, load_options, read_model, weights_path
from corral.frontend.models.decide.stored import WeightFile
from corral.frontend.models.decide.uses import spreading_of
from corral.hubs.choose import parts_of
from corral.hubs.estimate import LoadSettings, estimate_by_size, estimate_memory, estimate_offloaded
from corral.hubs.weight_shape import WeightShape

_LLAMA: Final = "llama-cpp"
"""In the names of all backends that are llama.cpp."""
_WHOLE_TEXT: Final = 2048
"""Tokens of a text that llama.cpp's backend embeds at once, where the model does not allow fewer."""
_PROJECTING: Final = 1.25
"""A projector takes its size, and a part of it again to look at a picture. Assumed."""
_KNOWN: Final = 0.9
"""A shape that tells less than this share of its file has tensors of a type that is not known here."""


class ModelNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes; 0 is not known, and then nothing is held against a machine."""

    disk: int = 0
    """The size of the files that a machine must have to load the model."""
    ram: int = 0
    """On a machine without GPUs."""
    vram: int = 0
    """On the GPUs of a machine that has some."""
    ram_beside_gpu: int = 0
    """In the memory of a machine with GPUs, beside what is on them."""
    splits: bool = False
    """Whether its engine spreads one model over several GPUs."""
    per_card: int = 0
    """What each GPU takes in addition when it is spread."""
    card_count: int = 0
    """How many GPUs the configuration asks for, in equal parts; 0 when the engine uses those that it sees."""
    source: str = "not known"
    """How this was found, in words for people."""


UNKNOWN_NEEDS: Final = ModelNeeds()


def needs_by_size(size: int) -> ModelNeeds:
    """What weights of this size take, of which nothing else is known."""
    if size <= 0:
        return UNKNOWN_NEEDS
    memory = estimate_by_size(size).total
    return ModelNeeds(disk=size, ram=memory, vram=memory, source="file size")


def needs_of(spec: ModelSpec, weights: Sequence[WeightFile]) -> ModelNeeds:
    """What a replica takes that is loaded from these files."""
    if spec.alias_of:
        return UNKNOWN_NEEDS
    options = load_options(spec, models=PurePath(), threads=1)
    disk, spreading = sum(file.size for file in weights), spreading_of(spec.backend, spec.config)
    weight_files = [file for file in weights if is_part(file.path, weights_path(spec))]
    shape = next((file.shape for file in weight_files if file.shape is not None), None)
    if shape is None or _LLAMA not in spec.backend.lower():
        return replace(needs_by_size(disk), splits=spreading.splits, card_count=spreading.cards)
    settings = settings_of(options)
    shape = fitted(shape, sum(file.size for file in weight_files))
    offloaded, more = estimate_offloaded(shape, settings), _companions(options, weights, settings)
    return ModelNeeds(
        disk=disk,
        ram=estimate_memory(shape, settings).total + more,
        vram=offloaded.vram.total + more if settings.gpu_layers > 0 else 0,
        ram_beside_gpu=offloaded.ram.total + (0 if settings.gpu_layers > 0 else more),
        splits=spreading.splits,
        per_card=offloaded.per_card,
        card_count=spreading.cards,
        source="GGUF metadata",
    )


def needs_of_config(config: Config, weights: Sequence[WeightFile], *, name: str) -> ModelNeeds:
    """What a model would take that is not added yet; by sizes alone if its configuration cannot be used."""
    try:
        return needs_of(read_model({**config, "name": name}, source=""), weights)
    except InvalidInput:
        return needs_by_size(sum(file.size for file in weights))


def settings_of(options: Mapping[str, object]) -> LoadSettings:
    """How llama.cpp's backend loads a model that it is given with these options."""
    context, batch = _whole(options, "ContextSize"), _whole(options, "NBatch") or DEFAULT_BATCH
    makes_vectors = bool(options.get("Embeddings") or options.get("Reranking"))
    longest = max(batch, min(context or _WHOLE_TEXT, _WHOLE_TEXT))
    return LoadSettings(
        context=context,
        batch=longest if makes_vectors else min(batch, DEFAULT_BATCH),
        slots=_slots(options),
        key_type=str(options.get("CacheTypeKey") or "f16"),
        value_type=str(options.get("CacheTypeValue") or "f16"),
        has_flash=str(options.get("FlashAttention")).lower() not in ("off", "disabled"),
        makes_vectors=makes_vectors,
        gpu_layers=_whole(options, "NGPULayers"),
        has_cache_on_gpu=not options.get("NoKVOffload"),
    )


def fitted(shape: WeightShape, size: int) -> WeightShape:
    """The shape of a model whose files have this size in all, where its first file does not tell everything."""
    return shape.resized(size) if shape.parts > 1 or shape.weights < size * _KNOWN else shape


def _companions(options: Mapping[str, object], weights: Sequence[WeightFile], settings: LoadSettings) -> int:
    """What is loaded beside the model: a projector, adapters, a draft model with a cache of its own."""
    files = {file.path: file for file in weights}
    total = 0
    if (projector := files.get(str(options.get("MMProj")))) is not None:
        total += int(projector.size * _PROJECTING)
    if (draft := files.get(str(options.get("DraftModel")))) is not None:
        alone = estimate_memory(draft.shape or WeightShape(), settings)
        total += alone.total - alone.program + (0 if draft.shape else draft.size)
    folder = PurePath(str(options.get("Model"))).parent
    names = [str(name) for name in (options.get("LoraAdapter"), *fields.listed(options.get("LoraAdapters"))) if name]
    adapters = {path for name in names for path in (name, str(folder / name))}
    return total + sum(file.size for path, file in files.items() if path in adapters)


def is_part(path: str, model: str) -> bool:
    """Whether a file is the model's own: it, one of its parts, or inside of its directory."""
    whole = PurePath(model)
    parts = {str(whole.with_name(part)) for part in parts_of(whole.name)} if whole.name else set()
    return path == model or path in parts or path.startswith(f"{model}/")


def _slots(options: Mapping[str, object]) -> int:
    """Requests at once; of a number that cannot be read the engine says so itself."""
    entries = [str(entry).partition(":") for entry in fields.listed(options.get("Options"))]
    pairs = {name.strip(): value.strip() for name, _, value in entries}
    text = pairs.get("parallel", pairs.get("n_parallel", "1"))
    return max(1, min(int(text), 1024)) if text.isdecimal() and len(text) < 6 else 1


def _whole(options: Mapping[str, object], name: str) -> int:
    """A number that is not negative; 0 for anything else."""
    value = options.get(name)
    return max(0, value) if isinstance(value, int) else 0
