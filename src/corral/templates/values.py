"""Go's values in Python: what a template can meet, its kinds, truth, and comparisons.

Texts are `str` (bytes that are no UTF-8 are surrogates), `int` is Go's int, `float` its float64, a list is a slice, a
`dict` is a map of anything by text. None is a nil interface; MISSING is no value at all, as for an absent key of a map.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeGuard

from corral.templates.errors import ValueProblem


class NoValue:
    """No value, not even nil."""


MISSING: Final = NoValue()


class Int64(int):
    """Go's int64: what arithmetic returns, and what functions that want an int refuse."""


class Byte(int):
    """One byte of a text."""


class StringMap(dict[str, object]):
    """A map of texts by text: an absent key has the empty text for `index`."""


class NilMap(dict[str, object]):
    """A map that does not exist: empty, `null` in JSON."""


class NilStringMap(StringMap):
    """A map of texts that does not exist."""


class NilSlice(list[object]):
    """A slice that does not exist: empty, `null` in JSON."""


@dataclass(frozen=True)
class StructValue:
    """A struct: a field that it has not is an error, not an absent value."""

    type_name: str
    fields: Mapping[str, object]
    json_names: Mapping[str, str]
    left_out_when_empty: frozenset[str] = frozenset()
    """Names in JSON of fields that are left out when they are empty."""


def is_list(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list)


def is_map(value: object) -> TypeGuard[dict[str, object]]:
    return isinstance(value, dict)


def kind(value: object) -> str:
    """Return the word that Go has for it."""
    for of, word in _KINDS:
        if isinstance(value, of):
            return word
    return "invalid"


_KINDS: Final = (
    (bool, "bool"),
    (Int64, "int64"),
    (Byte, "uint8"),
    (int, "int"),
    (float, "float64"),
    (str, "string"),
    (list, "slice"),
    (dict, "map"),
    (StructValue, "struct"),
)


def described(value: object) -> str:
    """Return what a value is, for messages."""
    if isinstance(value, StructValue):
        return value.type_name
    return {"invalid": "nil", "slice": "a list", "map": "a map", "string": "a text"}.get(kind(value), kind(value))


def is_nil(value: object) -> bool:
    return value is None or isinstance(value, NoValue | NilMap | NilStringMap | NilSlice)


def truth(value: object) -> bool:
    """Return whether `if` takes it: not zero, not empty, and every struct."""
    return isinstance(value, StructValue) or (value is not MISSING and bool(value))


def as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def as_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def equal(first: object, second: object) -> bool:
    """Compare as `eq` does. ValueProblem: the types cannot be compared."""
    kind, other_kind = _comparable_kind(first), _comparable_kind(second)
    if kind != other_kind:
        if is_nothing(first) or is_nothing(second):
            return False
        raise ValueProblem(f"{described(first)} and {described(second)} cannot be compared")
    if kind != "none":
        return first == second
    if is_nil(first) or is_nil(second):
        return is_nil(first) and is_nil(second)
    if isinstance(first, StructValue) and isinstance(second, StructValue) and not _has_references(first):
        return first == second
    raise ValueProblem(f"{described(first)} and {described(second)} cannot be compared")


def less(first: object, second: object) -> bool:
    """Compare as `lt` does. ValueProblem: the types have no order, or differ."""
    for value in (first, second):
        if _comparable_kind(value) in ("none", "bool"):
            raise ValueProblem(f"{described(value)} has no order")
    if isinstance(first, str) and isinstance(second, str):
        return as_bytes(first) < as_bytes(second)
    if isinstance(first, int) and isinstance(second, int):
        return first < second
    if isinstance(first, float) and isinstance(second, float):
        return first < second
    raise ValueProblem(f"{described(first)} and {described(second)} cannot be compared")


def is_nothing(value: object) -> bool:
    return value is None or value is MISSING


def _comparable_kind(value: object) -> str:
    word = kind(value)
    if word in ("int", "int64", "uint8"):
        return "int"
    return word if word in ("bool", "float64", "string") else "none"


def _has_references(record: StructValue) -> bool:
    return any(isinstance(value, list | dict) for value in record.fields.values())


def identical(first: object, second: object) -> bool:
    """Compare types and contents, however deep."""
    if kind(first) != kind(second):
        return False
    if is_list(first) and is_list(second):
        return len(first) == len(second) and all(map(identical, first, second)) and is_nil(first) == is_nil(second)
    if is_map(first) and is_map(second):
        same_keys = first.keys() == second.keys()
        return same_keys and all(identical(value, second[key]) for key, value in first.items())
    if isinstance(first, StructValue) and isinstance(second, StructValue):
        return identical(dict(first.fields), dict(second.fields)) and first.type_name == second.type_name
    return is_nothing(first) or first == second
