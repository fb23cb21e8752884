"""What is wrong with a model's configuration by the table of keys: unknown keys with what was probably meant, and
values of the wrong type. Pure."""

import difflib
import itertools
import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final

import msgspec

from corral.base import config_fields as fields
from corral.base.config_fields import Config
from corral.base.errors import InvalidInput
from corral.galleries.model_keys import FREE_PARTS, MISPLACED, MODEL_KEYS, OPEN_PARTS, OPTIONS, USECASES, ValueType

KNOWN: Final = frozenset(key.key for key in MODEL_KEYS)
_PARTS: Final = frozenset(
    ".".join(parts[:length]) for parts in (key.split(".") for key in KNOWN) for length in range(1, len(parts))
)
"""Keys whose values are mappings with keys of the table; with `[]` at the end, lists of such mappings."""
_OPTION_NAMES: Final = frozenset(" ".join(OPTIONS.values()).split())
_SWITCHES: Final = tuple(key.key for key in MODEL_KEYS if key.type is ValueType.SWITCH and "[]" not in key.key)
_SWITCH_WORDS: Final = {
    word: is_on for words, is_on in ((("yes", "on", "y"), True), (("no", "off", "n"), False)) for word in words
}
_OWN: Final = "x-"
"""Keys that begin like this are the author's own, for anchors and notes."""
_MISTAKEN_PARTS: Final = ("", "parameters.", "template.", "tts.", "limits.")
"""Where keys stand that people write into another part."""
_NEAR: Final = 0.6
_MISSPELLED: Final = 0.85
"""Similarity from which a name that may be right is still reported as a misspelling."""
_MOST: Final = 20
_MOST_LOOKED_AT: Final = 100
"""How many unknown keys or words of a configuration are compared with known ones, which takes a while."""
_LONGEST: Final = 200
_SHOWN: Final = 80

ConfigPath = tuple[str | int, ...]
"""Keys of mappings and indexes of lists, from the top of a configuration."""


def shown_path(path: ConfigPath) -> str:
    """Write a path as people do: `download_files[0].uri`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text[:_SHOWN]


class UnknownKey(msgspec.Struct, frozen=True, kw_only=True):
    path: ConfigPath
    near: str
    """The known key that was probably meant, dotted; empty when there is none."""

    @property
    def sentence(self) -> str:
        hint = f"; did you mean {self.near}?" if self.near else ""
        return f"unknown key {shown_path(self.path)!r}, which has no effect{hint}"


def unknown_keys(config: Config) -> list[UnknownKey]:
    """The first ones, in the order of the file."""
    unknown: list[UnknownKey] = []
    for path, dotted in itertools.islice(_unknown(config, (), ""), _MOST_LOOKED_AT):
        is_open = dotted.partition(".")[0] in OPEN_PARTS
        near = near_key(dotted[:_LONGEST], cutoff=_MISSPELLED if is_open else _NEAR)
        if near or not is_open:
            unknown.append(UnknownKey(path=path, near=near))
    return unknown[:_MOST]


def _unknown(part: Mapping[str, object], path: ConfigPath, prefix: str) -> Iterator[tuple[ConfigPath, str]]:
    """Yield the paths of keys that the table does not have, also dotted as in the table."""
    for key, value in part.items():
        key_path, dotted = (*path, str(key)), f"{prefix}{key}"
        if dotted in FREE_PARTS or str(key).startswith(_OWN):
            continue
        if dotted in _PARTS and isinstance(value, Mapping):
            yield from _unknown(value, key_path, f"{dotted}.")
        elif f"{dotted}[]" in _PARTS and isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, Mapping):
                    yield from _unknown(item, (*key_path, index), f"{dotted}[].")
        elif dotted not in KNOWN and dotted not in _PARTS:
            yield key_path, dotted


@lru_cache(maxsize=4096)
def near_key(dotted: str, *, cutoff: float = _NEAR) -> str:
    """Return a key of the same name in another part, or else one of a like name in the same part; empty if none."""
    if dotted in MISPLACED:
        return MISPLACED[dotted]
    prefix, _, key = dotted.rpartition(".")
    elsewhere = sorted(f"{part}{key.lower()}" for part in _MISTAKEN_PARTS if f"{part}{key.lower()}" in KNOWN)
    if elsewhere and prefix.partition(".")[0] not in OPEN_PARTS:
        return elsewhere[0]
    beside = {
        dotted_key.rpartition(".")[2]: dotted_key
        for dotted_key in KNOWN | _PARTS
        if dotted_key.rpartition(".")[0] == prefix
    }
    match = difflib.get_close_matches(key.lower()[:_SHOWN], beside, n=1, cutoff=cutoff)
    return beside[match[0]] if match else ""


def unknown_words(config: Config) -> Iterator[tuple[ConfigPath, str]]:
    """Yield what looks like a misspelled word in `known_usecases` or a misspelled name in `options`, as sentences."""
    for index, word in enumerate(fields.listed(fields.value_at(config, "known_usecases"))[:_MOST_LOOKED_AT]):
        plain = str(word).lower().removeprefix("flag_")
        if plain not in USECASES:
            match = difflib.get_close_matches(plain[:_SHOWN], USECASES, n=1, cutoff=_NEAR)
            hint = f"; did you mean {match[0]}?" if match else ""
            yield ("known_usecases", index), f"unknown use {str(word)[:_SHOWN]!r}, which has no effect{hint}"
    for index, option in enumerate(fields.listed(fields.value_at(config, "options"))[:_MOST_LOOKED_AT]):
        if isinstance(option, str) and (near := _near_option(option_name(option)[:_LONGEST])):
            yield ("options", index), f"unknown option {option_name(option)[:_SHOWN]!r}; did you mean {near}?"


def option_name(option: str) -> str:
    """Return the name in `name:value`, `name=value` or a bare name."""
    ends = [place for separator in ":=" if (place := option.find(separator)) >= 0]
    return option[: min(ends)].strip() if ends else option.strip()


@lru_cache(maxsize=4096)
def _near_option(name: str) -> str:
    if name in _OPTION_NAMES or not name:
        return ""
    match = difflib.get_close_matches(name.lower()[:_SHOWN], _OPTION_NAMES, n=1, cutoff=_MISSPELLED)
    return match[0] if match else ""


class WrongValue(msgspec.Struct, frozen=True, kw_only=True):
    """A value that its key cannot have."""

    path: ConfigPath
    problem: str

    @property
    def sentence(self) -> str:
        return f"{shown_path(self.path)}: {self.problem}"


def wrong_values(config: Config) -> list[WrongValue]:
    """Return all values of a wrong type, in the order of the table."""
    wrong: list[WrongValue] = []
    for key in MODEL_KEYS:
        *lists, name = key.key.split("[].")
        for path, part in _parts_at(config, lists):
            if (problem := _type_problem(part, name, key.type)) is not None:
                wrong.append(WrongValue(path=(*path, *name.split(".")), problem=problem))
    for prefix in {key.key.rpartition(".")[0] for key in MODEL_KEYS if "." in key.key and "[]" not in key.key}:
        value = fields.value_at(config, prefix)
        if value is not None and not isinstance(value, Mapping):
            problem = f"must be a mapping, got {fields.kind(value)}{_shown(value)}"
            wrong.append(WrongValue(path=tuple(prefix.split(".")), problem=problem))
    return wrong


def _parts_at(config: Config, lists: list[str]) -> Iterator[tuple[ConfigPath, Config]]:
    """Yield the mappings that the lists of these names hold."""
    if not lists:
        yield (), config
        return
    items = fields.listed(fields.value_at(config, lists[0]))
    for index, item in enumerate(items):
        if isinstance(item, Mapping):
            for path, part in _parts_at(item, lists[1:]):
                yield (*lists[0].split("."), index, *path), part


def _type_problem(part: Config, name: str, value_type: ValueType) -> str | None:
    try:
        value_type.read(part, name, None)
    except InvalidInput as error:
        return f"{error.problem}{_shown(fields.value_at(part, name))}"
    return None


def _shown(value: object) -> str:
    """Return a value as a part of a sentence."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return f" ({text if len(text) <= _SHOWN else text[:_SHOWN] + '…'})"


def check_values(config: Config) -> None:
    """Raise InvalidInput for the first value of a wrong type; it names the key and the value."""
    for wrong in wrong_values(config):
        raise InvalidInput(shown_path(wrong.path), wrong.problem)


def with_plain_switches(config: dict[str, object]) -> dict[str, object]:
    """Replace `yes`, `no`, `on` and `off`, which YAML 1.2 reads as text, where a key is true or false."""
    for key in _SWITCHES:
        value = fields.value_at(config, key)
        if isinstance(value, str) and value.lower() in _SWITCH_WORDS:
            *parts, name = key.split(".")
            part: object = config
            for above in parts:
                part = part[above] if isinstance(part, dict) else None
            if isinstance(part, dict):
                part[name] = _SWITCH_WORDS[value.lower()]
    return config
