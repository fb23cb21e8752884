"""Which of several builds of a model suits the fleet's machines, and why. Pure.

The order is LocalAI's: builds that are known to fit, then the entry itself, then builds of unknown size; among those
the engine that the machine prefers, then builds with speculative decoding, then the larger one. For a fleet, a build
counts by the machine that suits it best.
"""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from corral.base.config_fields import value_at
from corral.base.errors import InvalidInput
from corral.base.words import format_size
from corral.galleries.catalogue import unsuited
from corral.galleries.model_entries import GalleryModel

_ENGINES: Final[Mapping[str, Sequence[str]]] = {
    "nvidia": ("vllm", "sglang", "llama-cpp"),
    "amd": ("vllm", "sglang", "llama-cpp"),
    "intel": ("vllm", "sglang", "llama-cpp"),
    "metal": ("mlx", "llama-cpp"),
    "vulkan": ("llama-cpp",),
}
"""By prefix of a capability: parts of backends' names to prefer, best first."""
_OTHER_ENGINES: Final = ("llama-cpp", "vllm", "sglang")
FEATURES: Final = ("dflash", "mtp")
"""Tags of builds with speculative decoding, best first."""
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)
_POWERS: Final = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def parse_size(text: str) -> int | None:
    """Return the bytes that a gallery's size stands for, such as `14.5GB`; None if it is not understood."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    base = 1024 if match[3] else 1000
    return int(float(match[1]) * base ** _POWERS[match[2].upper()])


class MachineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What of a machine decides which build suits it."""

    name: str
    capability: str
    vram_bytes: int = 0
    """0 if there is no usable GPU."""
    ram_bytes: int = 0
    count: int = 1
    """How many machines of the fleet are like this one."""

    @property
    def memory(self) -> int:
        """The bytes that a model may take: video memory where there is some."""
        return self.vram_bytes or self.ram_bytes


class BuildFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What of a build decides which machine it suits."""

    backend: str = ""
    size_bytes: int | None = None
    """None if unknown."""
    is_size_guessed: bool = False

    @property
    def shown_size(self) -> str:
        return f"{'about ' if self.is_size_guessed else ''}{format_size(self.size_bytes or 0)}"


def stated_facts(entry: GalleryModel) -> BuildFacts:
    """Return what the entry itself says. Its base definition and the sizes of its files may tell more."""
    backend = value_at(entry.overrides, "backend") or value_at(entry.config, "backend") or entry.backend
    return BuildFacts(backend=backend if isinstance(backend, str) else "", size_bytes=parse_size(entry.size))


class VariantVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What was found about one build."""

    name: str
    is_usable: bool
    reason: str


class VariantChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The build to install, and what was found about each."""

    entry: GalleryModel
    reason: str
    verdicts: tuple[VariantVerdict, ...]


class _JudgedBuild(msgspec.Struct, frozen=True, kw_only=True):
    entry: GalleryModel
    rank: tuple[int, int, int, int]
    reason: str
    is_usable: bool = True


def choose_variant(
    entry: GalleryModel,
    entries: Mapping[str, GalleryModel],
    machines: Sequence[MachineFacts],
    *,
    facts_of: Callable[[GalleryModel], BuildFacts] = stated_facts,
    pin: str = "",
) -> VariantChoice:
    """Choose among an entry and its variants. `entries` are those of its gallery by name in lower case.

    The entry itself is always usable. A `pin` names a build to take whatever the machines are; InvalidInput if there
    is no such build.
    """
    builds = [entry, *(entries[name.lower()] for name in entry.variants if name.lower() in entries)]
    if pin:
        return _pinned(entry, builds, pin)
    candidates = [_judge(build, facts_of(build), machines, is_base=build is entry) for build in builds]
    best = min((candidate for candidate in candidates if candidate.is_usable), key=lambda candidate: candidate.rank)
    lost = [name for name in entry.variants if name.lower() not in entries]
    verdicts = (
        *(VariantVerdict(name=each.entry.name, is_usable=each.is_usable, reason=each.reason) for each in candidates),
        *(VariantVerdict(name=name, is_usable=False, reason="the gallery has no such entry") for name in lost),
    )
    return VariantChoice(entry=best.entry, reason=best.reason, verdicts=verdicts)


def _pinned(entry: GalleryModel, builds: Sequence[GalleryModel], pin: str) -> VariantChoice:
    names = {build.name.lower(): build for build in builds}
    if pin.lower() not in names:
        near = difflib.get_close_matches(pin.lower(), names, n=1, cutoff=0.5)
        hint = f"did you mean {names[near[0]].name}?" if near else f"there are {', '.join(names)}"
        raise InvalidInput("variant", f"{entry.name} has no variant {pin[:80]!r}; {hint}")
    return VariantChoice(entry=names[pin.lower()], reason="it was asked for", verdicts=())


def _judge(build: GalleryModel, facts: BuildFacts, machines: Sequence[MachineFacts], *, is_base: bool) -> _JudgedBuild:
    """Judge a build by the machine that suits it best."""
    candidates = [_on_machine(build, facts, machine, is_base=is_base) for machine in machines]
    usable = [candidate for candidate in candidates if candidate.is_usable]
    if usable:
        return min(usable, key=lambda candidate: candidate.rank)
    reason = "; ".join(dict.fromkeys(candidate.reason for candidate in candidates)) or "no machine is known"
    rank = (1, len(_OTHER_ENGINES), len(FEATURES), -(facts.size_bytes or 0))
    return _JudgedBuild(entry=build, rank=rank, reason=reason, is_usable=is_base)


def _on_machine(build: GalleryModel, facts: BuildFacts, machine: MachineFacts, *, is_base: bool) -> _JudgedBuild:
    size, memory = facts.size_bytes, machine.memory
    misfit = unsuited(machine.capability, name=facts.backend, uri="")
    if misfit is not None:
        reason = f"{facts.backend} is for {misfit.maker}, and {machine.name} is {machine.capability}"
        return _JudgedBuild(entry=build, rank=(3, 0, 0, 0), reason=reason, is_usable=False)
    is_too_large = size is not None and memory > 0 and size > memory
    if size is not None and is_too_large:
        reason = f"{facts.shown_size} do not fit into the {format_size(memory)} of {machine.name}"
        return _JudgedBuild(entry=build, rank=(3, 0, 0, 0), reason=reason, is_usable=False)
    is_proven = size is not None and memory > 0
    engines = _engines(machine.capability)
    engine = next((place for place, word in enumerate(engines) if word in facts.backend.lower()), len(engines))
    tags = [tag.lower() for tag in build.tags]
    feature = next((place for place, word in enumerate(FEATURES) if word in tags), len(FEATURES))
    rank = (0 if is_proven else 1 if is_base else 2, engine, feature, -(size or 0))
    return _JudgedBuild(entry=build, rank=rank, reason=_fit_sentence(facts, machine, is_proven=is_proven))


def _fit_sentence(facts: BuildFacts, machine: MachineFacts, *, is_proven: bool) -> str:
    engine = f" with {facts.backend}" if facts.backend else ""
    if not is_proven or facts.size_bytes is None:
        return f"whether it fits {machine.name} is not known{engine}"
    memory = f"{format_size(machine.memory)} of {'video memory' if machine.vram_bytes else 'memory'}"
    return f"{facts.shown_size} fit into the {memory} of {machine.name}{engine}"


class FleetFit(msgspec.Struct, frozen=True, kw_only=True):
    """How many machines of the fleet could run a build, by its size and its backend."""

    verdict: str
    """`fits`, `blocked` or `unknown`."""
    reason: str
    fitting: int = 0
    machines: int = 0


def fit_of_build(build: GalleryModel, facts: BuildFacts, machines: Sequence[MachineFacts]) -> FleetFit:
    """Count the machines that a build is known to fit. `unknown` if none is, and one might."""
    total = sum(machine.count for machine in machines)
    candidates = [(machine, _on_machine(build, facts, machine, is_base=True)) for machine in machines]
    usable = [(machine, candidate) for machine, candidate in candidates if candidate.is_usable]
    proven = [(machine, candidate) for machine, candidate in usable if candidate.rank[0] == 0]
    if proven:
        fitting = sum(machine.count for machine, _ in proven)
        return FleetFit(verdict="fits", reason=proven[0][1].reason, fitting=fitting, machines=total)
    if usable or not candidates:
        reason = usable[0][1].reason if usable else "no machine is known"
        return FleetFit(verdict="unknown", reason=reason, machines=total)
    reasons = "; ".join(dict.fromkeys(candidate.reason for _, candidate in candidates))
    return FleetFit(verdict="blocked", reason=reasons, machines=total)


def _engines(capability: str) -> Sequence[str]:
    return next((words for start, words in _ENGINES.items() if capability.startswith(start)), _OTHER_ENGINES)
