"""Which builds suit a machine: the rules of LocalAI's workers, which name a machine's kind in one word, its capability.

They are kept to the letter, odd ones too, because a frontend must know beforehand what a worker will do. The look-up in
a capability map is exact: `nvidia-cuda-12` finds the key `nvidia-cuda-12`, else `default`, else `cpu`, and never
`nvidia`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

DEFAULT: Final = "default"
DISABLED: Final = "disable"
"""A capability that people force to be offered everything."""
SMALL_GPU_BYTES: Final = 4 * 1024**3
"""With no more video memory than this a GPU does not count."""
_FALLBACKS: Final = (DEFAULT, "cpu")


def key_for(capability: str, keys: Collection[str]) -> str | None:
    """The key of a capability map that holds for a machine; None when there is none for it."""
    return next((key for key in (capability, *_FALLBACKS) if key in keys), None)


def derived_capability(vendor: str, total_vram: int | None) -> str:
    """What counts for a node that reported no capability, by what else is known of it."""
    return DEFAULT if not vendor or (total_vram or 0) <= SMALL_GPU_BYTES else vendor


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker:
    """Whose hardware a build needs."""

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
"""The first whose words are in a build's name or uri decides, wherever in them: `amd64` counts as AMD as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsuited:
    """Why a build is not for a machine."""

    maker: str
    word: str
    """What gave the build away."""


def unsuited(capability: str, *, name: str, uri: str) -> Unsuited | None:
    """Why a concrete build is kept from a machine; None when it is not. Builds for processors and Vulkan never are."""
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
"""By the beginning of a capability: what the name of a build should contain, best first."""


def preferred_build(names: Collection[str], capability: str) -> str | None:
    """Which of several builds with one alias it means on a machine: the best kind, then the first in the alphabet."""
    ordered = sorted(names)
    for word in preferred_words(capability):
        for name in ordered:
            if word in name.lower():
                return name
    return ordered[0] if ordered else None


def preferred_words(capability: str) -> Sequence[str]:
    """What the name of a build should contain, best first."""
    return next((words for start, words in _PREFERRED.items() if capability.startswith(start)), ("cpu",))
