"""Decides which builds suit a machine. The rules are those of LocalAI's workers, which classify a machine by one word,
its capability.

They are followed exactly, odd ones too, because a frontend must predict what a worker will do. The look-up in a
capability map is exact: `nvidia-cuda-12` finds the key `nvidia-cuda-12`, else `default`, else `cpu`, and never
`nvidia`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

DEFAULT: Final = "default"
DISABLED: Final = "disable"
"""A capability that users set to be offered every build."""
SMALL_GPU_BYTES: Final = 4 * 1024**3
"""A GPU with no more video memory than this is ignored."""
_FALLBACKS: Final = (DEFAULT, "cpu")


def key_for(capability: str, keys: Collection[str]) -> str | None:
    """Return the key of a capability map that applies to a machine; None if there is none."""
    return next((key for key in (capability, *_FALLBACKS) if key in keys), None)


def derived_capability(vendor: str, total_vram: int | None) -> str:
    """Return the assumed capability of a node that reported none."""
    return DEFAULT if not vendor or (total_vram or 0) <= SMALL_GPU_BYTES else vendor


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker:
    """A hardware vendor whose hardware a build needs."""

    name: str
    words: tuple[str, ...]
    exact: tuple[str, ...] = ()
    prefix: str = ""

    def takes(self, capability: str) -> bool:
        return capability in self.exact or bool(self.prefix and capability.startswith(self.prefix))


_MAKERS: Final = (
    Maker(name="Apple", words=("darwin", "mlx", "metal"), exact=("metal", "darwin-x86")),
    Maker(name="NVIDIA Jetson", words=("l4t",), prefix="nvidia-l4t"),
    Maker(name="NVIDIA", words=("cuda", "nvidia"), prefix="nvidia"),
    Maker(name="AMD", words=("rocm", "hip", "amd"), exact=("amd",)),
    Maker(name="Intel", words=("sycl", "intel"), exact=("intel",)),
)
"""The first entry with a word in a build's name or uri decides. Substrings match: `amd64` counts as AMD as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsuited:
    """Why a build does not suit a machine."""

    maker: str
    word: str
    """The word in the name or uri that decided."""


def unsuited(capability: str, *, name: str, uri: str) -> Unsuited | None:
    """Return why a build does not suit a machine; None if it does. Builds for CPUs and Vulkan always suit."""
    if capability == DISABLED:
        return None
    text = f"{name} {uri}".lower()
    for maker in _MAKERS:
        word = next((word for word in maker.words if word in text), None)
        if word is not None:
            return None if maker.takes(capability) else Unsuited(maker=maker.name, word=word)
    return None


_PREFERRED: Final[Mapping[str, Sequence[str]]] = {
    "nvidia": ("cuda", "vulkan", "cpu"),
    "amd": ("rocm", "hip", "vulkan", "cpu"),
    "intel": ("sycl", "intel", "cpu"),
    "metal": ("metal", "cpu"),
    "darwin-x86": ("darwin-x86", "cpu"),
    "vulkan": ("vulkan", "cpu"),
}
"""By prefix of a capability: words to prefer in a build's name, best first."""


def preferred_build(names: Collection[str], capability: str) -> str | None:
    """Return which of several builds with one alias is used on a machine: the best kind, then alphabetical order."""
    ordered = sorted(names)
    for word in preferred_words(capability):
        for name in ordered:
            if word in name.lower():
                return name
    return ordered[0] if ordered else None


def preferred_words(capability: str) -> Sequence[str]:
    """Return the words to prefer in a build's name, best first."""
    return next((words for start, words in _PREFERRED.items() if capability.startswith(start)), ("cpu",))
