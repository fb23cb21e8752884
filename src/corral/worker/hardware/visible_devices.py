"""The environment variables by which a process sees only some of a machine's GPUs. Pure.

Every vendor's software has variables of its own, and they build on each other: what one hides, the next one does not
count. So each process gets either all of those of its vendor or none, and never a mixture with inherited ones.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from corral.base.errors import NotFound
from corral.worker.hardware.gpus import MeasuredGpu, Vendor

DEVICE_VARIABLES: Final = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "NVIDIA_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "GPU_DEVICE_ORDINAL",
        "ZE_AFFINITY_MASK",
        "ZE_ENABLE_PCI_ID_DEVICE_ORDER",
        "ONEAPI_DEVICE_SELECTOR",
        "GGML_VK_VISIBLE_DEVICES",
    }
)
"""Inherited ones are dropped where a process is given its own."""

_HIDDEN_BY: Final[Mapping[Vendor, Sequence[str]]] = {
    Vendor.NVIDIA: ("CUDA_VISIBLE_DEVICES",),
    Vendor.AMD: ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    Vendor.INTEL: ("ZE_AFFINITY_MASK",),
}
"""The variables by which an operator limits a worker; the first one that is set counts."""
_NONE: Final = "-1"
"""A device that does not exist: whatever follows in the list is not visible either."""
_SLICE: Final = "MIG-"
"""Begins the ids of parts of NVIDIA's GPUs. They are not distinguished here."""


class UnknownCard(NotFound):
    """This node has no GPU of that id."""


def visible_gpus(gpus: Sequence[MeasuredGpu], environment: Mapping[str, str]) -> list[MeasuredGpu]:
    """The GPUs that the worker's own environment leaves to its processes: what an operator hid is not reported."""
    if not gpus:
        return []
    names = _HIDDEN_BY.get(gpus[0].vendor, ())
    value = next((environment[name] for name in names if name in environment), None)
    if value is None or _names_slices(environment):
        return list(gpus)
    visible: list[MeasuredGpu] = []
    for word in value.split(","):
        named = _named(word.strip(), gpus)
        if named is None or named in visible:
            break  # as the vendors' own software does
        visible.append(named)
    return visible


def _names_slices(environment: Mapping[str, str]) -> bool:
    """Whether an operator gave the worker parts of GPUs, which its processes then get as they are."""
    words = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return any(word.strip().startswith(_SLICE) for word in words)


def _named(word: str, gpus: Iterable[MeasuredGpu]) -> MeasuredGpu | None:
    """Find a GPU by its number, or by the beginning of its id. Intel's numbers may have a part after a dot."""
    number = word.partition(".")[0]
    if number.isdecimal():
        return next((gpu for gpu in gpus if gpu.index == int(number)), None)
    return next((gpu for gpu in gpus if word and gpu.id.startswith(word)), None)


def device_variables(
    cards: Sequence[MeasuredGpu], ids: Collection[str], environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """What to set so that a process sees these of all cards. Nothing is set for all of them, which is the usual case:
    not every engine understands every form; nor where the inherited environment names parts of GPUs. UnknownCard for
    an id that none of them has."""
    by_id = {card.id: card for card in cards}
    if unknown := sorted(set(ids) - by_id.keys()):
        has = f"it has {', '.join(by_id)}" if by_id else "it has none"
        raise UnknownCard(f"this node has no GPU {unknown[0]!r}; {has}")
    if by_id.keys() == set(ids) or _names_slices(environment or {}):
        return {}
    chosen = [by_id[id] for id in dict.fromkeys(ids)]
    numbers = _listed((card.index for card in chosen), empty="")
    return {**_OF_VENDOR[cards[0].vendor](chosen), "GGML_VK_VISIBLE_DEVICES": numbers}


def _listed(words: Iterable[object], *, empty: str = _NONE) -> str:
    return ",".join(map(str, words)) or empty


def _of_nvidia(chosen: Sequence[MeasuredGpu]) -> dict[str, str]:
    """By numbers, because engines read this variable too, and older ones of vLLM fail on UUIDs. In the order of their
    bus the numbers are those of the management library."""
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": _listed(gpu.index for gpu in chosen),
        "NVIDIA_VISIBLE_DEVICES": _listed((gpu.id for gpu in chosen), empty="none"),
    }


def _of_amd(chosen: Sequence[MeasuredGpu]) -> dict[str, str]:
    """ROCr hides first; HIP counts what is left."""
    return {
        "ROCR_VISIBLE_DEVICES": _listed(gpu.id if gpu.id.startswith("GPU-") else gpu.index for gpu in chosen),
        "HIP_VISIBLE_DEVICES": _listed(range(len(chosen))),
    }


def _of_intel(chosen: Sequence[MeasuredGpu]) -> dict[str, str]:
    """Level Zero hides first; SYCL takes all that is left."""
    if not chosen:
        return {"ONEAPI_DEVICE_SELECTOR": "*:cpu"}
    return {
        "ZE_ENABLE_PCI_ID_DEVICE_ORDER": "1",
        "ZE_AFFINITY_MASK": _listed(gpu.index for gpu in chosen),
        "ONEAPI_DEVICE_SELECTOR": "level_zero:gpu",
    }


def _of_apple(chosen: Sequence[MeasuredGpu]) -> dict[str, str]:
    """Return no variables: a Mac has one GPU, which cannot be hidden."""
    return {}


_OF_VENDOR: Final = {
    Vendor.NVIDIA: _of_nvidia,
    Vendor.AMD: _of_amd,
    Vendor.INTEL: _of_intel,
    Vendor.APPLE: _of_apple,
}
