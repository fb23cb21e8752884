"""Which voice a request means. Pure.

A voice of espeak is a language (`en-us`, `de`), by its code or by its name, and may have a variant: `en-us+f2`. The
names that OpenAI's clients send are variants of the model's own language, so that such clients work unchanged.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from corral_backend_sdk import RequestRefused

OPENAI_VOICES: Final[Mapping[str, str]] = {
    "alloy": "",
    "ash": "m1",
    "ballad": "m2",
    "coral": "f1",
    "echo": "m3",
    "fable": "m4",
    "nova": "f2",
    "onyx": "m7",
    "sage": "f4",
    "shimmer": "f3",
    "verse": "m5",
}
_SHOWN: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Voices:
    """What this espeak can speak."""

    languages: Mapping[str, str]
    """Codes, names and file names in small letters, and what espeak calls each."""
    variants: Collection[str]
    default: str = "en-us"

    def choose(self, voice: str, language: str) -> str:
        """espeak's word for it. RequestRefused names what there is."""
        wanted = voice.strip().lower()
        if wanted in OPENAI_VOICES:
            base, variant = self._language(language or self.default, field="language"), OPENAI_VOICES[wanted]
        else:
            name, _, variant = wanted.partition("+")
            base = self._language(name or language or self.default, field="voice" if name else "language")
        if not variant:
            return base
        if variant not in self.variants:
            offered = _some(sorted(self.variants, key=lambda name: (len(name), name)))
            raise RequestRefused(f"the voice {voice} is not known: there is no variant {variant}, but {offered}")
        return f"{base}+{variant}"

    def _language(self, name: str, *, field: str) -> str:
        """A code without its country will do, and so will one whose country is not known."""
        code = name.strip().lower().replace("_", "-")
        known = self.languages.get(code) or self.languages.get(code.partition("-")[0])
        if known is None:
            raise RequestRefused(f"the {field} {name} is not known: {self._offered(field)}")
        return known

    def _offered(self, field: str) -> str:
        codes = {code for code in self.languages if "/" not in code and " " not in code}
        languages = _some(sorted(codes, key=lambda code: (len(code), code)))
        if field != "voice":
            return f"there are {languages}"
        return f"there are {', '.join(OPENAI_VOICES)}; or a language ({languages}), or one with a variant, as en-us+f2"


def _some(names: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(names) - _SHOWN} others" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
