"""The functions that templates may call: Go's own and those of sprig whose behaviour is certain. Pure.

What is not in FUNCTIONS is refused when a template is parsed. `and` and `or` are listed for their names only: the
evaluation decides which of their arguments it needs. What can grow is limited here; `evaluate.py` limits everything
else.
"""

import base64
import json
import re
import unicodedata
from collections.abc import Callable
from typing import Final

import msgspec

from corral.templates.errors import ValueProblem
from corral.templates.printing import JsonStyle, formatted, joined, json_text, plain, quoted
from corral.templates.values import (
    Byte,
    Int64,
    NilMap,
    NilSlice,
    StringMap,
    StructValue,
    as_bytes,
    as_text,
    described,
    equal,
    identical,
    is_list,
    is_map,
    is_nothing,
    kind,
    less,
    truth,
)

MOST_CHARACTERS: Final = 8 * 1024 * 1024
"""Longest text that a function may make: more than any model reads."""
MOST_ITEMS: Final = 100_000
"""Longest list that a function may make."""
_MOST_AT_ONCE: Final = 1024 * 1024
"""Characters of a text for functions that need many times its memory."""
_SPACE: Final = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
"""What Go calls white space: not all that Python does."""


class TemplateFunction(msgspec.Struct, frozen=True):
    call: Callable[..., object]
    parameters: tuple[str, ...]
    """What it takes: `any`, `string`, `int`, `bool` or `map`."""
    variadic: str = ""
    """What all further arguments are, if it takes them."""


def _takes(call: Callable[..., object], signature: str) -> TemplateFunction:
    """Read a signature: names of parameters, the last one with `*` if it may come any number of times."""
    words = signature.split()
    if words and words[-1].endswith("*"):
        return TemplateFunction(call, tuple(words[:-1]), words[-1][:-1])
    return TemplateFunction(call, tuple(words))


def _limited(length: int) -> None:
    if length > MOST_CHARACTERS:
        raise ValueProblem(f"the text would have more than {MOST_CHARACTERS} characters")


def _manageable(text: str) -> str:
    if len(text) > _MOST_AT_ONCE:
        raise ValueProblem(f"the text has more than {_MOST_AT_ONCE} characters")
    return text


# Go's own.


def _eq(first: object, *others: object) -> bool:
    if not others:
        raise ValueProblem("eq needs two values")
    return any(equal(first, other) for other in others)


def _less_or_equal(first: object, second: object) -> bool:
    return less(first, second) or equal(first, second)


def _len(value: object) -> int:
    if isinstance(value, str):
        return len(as_bytes(value))
    if isinstance(value, list | dict):
        return len(value)
    raise ValueProblem(f"{described(value)} has no length")


def _index(value: object, *keys: object) -> object:
    if is_nothing(value):
        raise ValueProblem("index of nil")
    for key in keys:
        value = _item(value, key)
    return value


def _item(value: object, key: object) -> object:
    if is_map(value):
        if not isinstance(key, str):
            raise ValueProblem(f"a map has texts as keys, not {described(key)}")
        return value.get(key, "" if isinstance(value, StringMap) else None)
    if not isinstance(value, list | str):
        raise ValueProblem(f"{described(value)} cannot be indexed")
    if not isinstance(key, int) or isinstance(key, bool):
        raise ValueProblem(f"{described(value)} cannot be indexed by {described(key)}")
    items = as_bytes(value) if isinstance(value, str) else value
    if not 0 <= key < len(items):
        raise ValueProblem(f"index {key} is out of range: there are {len(items)}")
    return Byte(as_bytes(value)[key]) if isinstance(value, str) else value[key]


def _println(*values: object) -> str:
    return " ".join(plain(value) for value in values) + "\n"


# Texts.


def _strval(value: object) -> str:
    return value if isinstance(value, str) else plain(value)


def _strings(value: object) -> list[str]:
    if is_list(value):
        return [_strval(item) for item in value if item is not None]
    return [] if value is None else [_strval(value)]


def _join(separator: str, value: object) -> str:
    strings = _strings(value)
    _limited(sum(map(len, strings)) + len(separator) * len(strings))
    return separator.join(strings)


def _replace(old: str, new: str, text: str) -> str:
    _limited(len(text) + text.count(old) * len(new))
    return text.replace(old, new)


def _repeat(count: int, text: str) -> str:
    if count < 0:
        raise ValueProblem("a text cannot be repeated less than zero times")
    _limited(count * len(text))
    return text * count


def _indent(spaces: int, text: str) -> str:
    if spaces < 0:
        raise ValueProblem("an indent cannot be negative")
    _limited(len(text) + spaces * (1 + text.count("\n")))
    pad = " " * spaces
    return pad + text.replace("\n", "\n" + pad)


def _upper(text: str) -> str:
    return text.translate({ord(each): _upper_character(each) for each in set(text)})


def _upper_character(character: str) -> str:
    """Return the one capital letter that Unicode has for a letter; `ß` has none."""
    for capital in (character.upper(), character.title()):
        if len(capital) == 1:
            return capital
    return character


def _lower(text: str) -> str:
    return text.translate({ord(each): each.lower()[0] for each in set(text)})


def _title(text: str) -> str:
    pieces: list[str] = []
    before = " "
    for character in _manageable(text):
        pieces.append(_title_character(character) if _separates(before) else character)
        before = character
    return "".join(pieces)


def _title_character(character: str) -> str:
    return character.title() if len(character.title()) == 1 else character


def _separates(character: str) -> bool:
    if character.isascii():
        return not (character.isalnum() or character == "_")
    if unicodedata.category(character)[0] == "L" or unicodedata.category(character) == "Nd":
        return False
    return character in _SPACE


def _trunc(count: int, text: str) -> str:
    data = as_bytes(text)
    if count < 0 < len(data) + count:
        return as_text(data[count:])
    return as_text(data[:count]) if count >= 0 else text


def _substr(start: int, end: int, text: str) -> str:
    data = as_bytes(text)
    if start < 0:
        start = 0
    elif end < 0 or end > len(data):
        end = len(data)
    if not 0 <= start <= end <= len(data):
        raise ValueProblem(f"there is no part from {start} to {end}: the text has {len(data)} bytes")
    return as_text(data[start:end])


def _split_list(separator: str, text: str) -> list[str]:
    if (text.count(separator) if separator else len(text)) > MOST_ITEMS:
        raise ValueProblem(f"the list would have more than {MOST_ITEMS} items")
    return text.split(separator) if separator else list(text)


def _quote(*values: object) -> str:
    return " ".join(quoted(_strval(value)) for value in values if value is not None)


def _squote(*values: object) -> str:
    return " ".join(f"'{plain(value)}'" for value in values if value is not None)


def _from_json(text: str) -> object:
    """Read JSON: nil if it is invalid."""
    _manageable(text)
    try:
        return _without_surrogates(json.loads(text, parse_int=_float, parse_float=_float, parse_constant=_no_constant))
    except (ValueError, RecursionError):
        return None


def _float(text: str) -> float:
    value = float(text)
    if abs(value) == float("inf"):
        raise ValueProblem("a number in the JSON is too large")
    return value


def _no_constant(word: str) -> object:
    raise ValueError(word)


def _without_surrogates(value: object) -> object:
    if isinstance(value, str):
        return re.sub("[\ud800-\udfff]", "\ufffd", value)
    if is_list(value):
        return [_without_surrogates(item) for item in value]
    if is_map(value):
        return {str(_without_surrogates(key)): _without_surrogates(item) for key, item in value.items()}
    return value


# Numbers.


def _wrapped(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def _whole(value: object) -> int:
    if isinstance(value, str) and not re.match(r"[+-]?[0-9]", value):
        return 0
    if isinstance(value, str):
        if not re.fullmatch(r"[+-]?(0|[1-9][0-9]{0,17})", value):
            raise ValueProblem(f"{quoted(value)} is no plain whole number")
        return int(value)
    if isinstance(value, int | float):
        if not -(2**63) <= value < 2**63:
            raise ValueProblem(f"{plain(value)} is too large for a whole number")
        return int(value)
    return 0


def _add(*values: object) -> Int64:
    return Int64(_wrapped(sum(map(_whole, values))))


def _mul(first: object, *others: object) -> Int64:
    product = _whole(first)
    for other in others:
        product = _wrapped(product * _whole(other))
    return Int64(product)


def _divide(first: object, second: object) -> tuple[int, int]:
    """Divide as Go does: the quotient is cut off towards zero, the remainder has the sign of the first."""
    dividend, divisor = _whole(first), _whole(second)
    if not divisor:
        raise ValueProblem("division by zero")
    quotient = abs(dividend) // abs(divisor) * (1 if (dividend < 0) == (divisor < 0) else -1)
    return _wrapped(quotient), dividend - quotient * divisor


def _until_step(start: int, stop: int, step: int) -> list[int]:
    if step == 0 or (stop < start) != (step < 0):
        return []
    numbers = range(start, stop, step)
    if len(numbers) > MOST_ITEMS:
        raise ValueProblem(f"the list would have more than {MOST_ITEMS} items")
    return list(numbers)


# Lists and maps.


def _list_of(value: object) -> list[object]:
    if not is_list(value):
        raise ValueProblem(f"{described(value)} is no list")
    return value


def _slice(value: object, *bounds: object) -> object:
    items = _list_of(value)
    if not items:
        return None
    start = _whole(bounds[0]) if bounds else 0
    end = _whole(bounds[1]) if len(bounds) > 1 else len(items)
    if not 0 <= start <= end <= len(items):
        raise ValueProblem(f"there is no part from {start} to {end}: the list has {len(items)} items")
    return items[start:end]


def _first(value: object) -> object:
    return _list_of(value)[0] if _list_of(value) else None


def _last(value: object) -> object:
    return _list_of(value)[-1] if _list_of(value) else None


def _rest(value: object) -> list[object]:
    return _list_of(value)[1:] if _list_of(value) else NilSlice()


def _initial(value: object) -> list[object]:
    return _list_of(value)[:-1] if _list_of(value) else NilSlice()


def _append(value: object, item: object) -> list[object]:
    return _bounded([*_list_of(value), item])


def _prepend(value: object, item: object) -> list[object]:
    return _bounded([item, *_list_of(value)])


def _concat(*values: object) -> list[object]:
    return _bounded([item for value in values for item in _list_of(value)]) or NilSlice()


def _bounded(items: list[object]) -> list[object]:
    if len(items) > MOST_ITEMS:
        raise ValueProblem(f"the list would have more than {MOST_ITEMS} items")
    return items


def _has(needle: object, value: object) -> bool:
    return value is not None and any(identical(needle, item) for item in _list_of(value))


def _sort_alpha(value: object) -> list[str]:
    return sorted(_strings(value), key=as_bytes) if is_list(value) else [_strval(value)]


def _dict(*values: object) -> dict[str, object]:
    padded = [*values, ""] if len(values) % 2 else [*values]
    return {_strval(key): value for key, value in zip(padded[::2], padded[1::2], strict=True)}


def _set(value: dict[str, object], key: str, item: object) -> dict[str, object]:
    if isinstance(value, NilMap):
        raise ValueProblem("nil has no place for a key")
    value[key] = item
    return value


def _keys(*maps: dict[str, object]) -> list[str]:
    """Return the keys, sorted: Go has no order, and a prompt should not change by chance."""
    return sorted((key for each in maps for key in each), key=as_bytes)


def _values(value: dict[str, object]) -> list[object]:
    return [value[key] for key in _keys(value)]


# Defaults.


def _empty(value: object) -> bool:
    return not isinstance(value, StructValue) and not truth(value)


def _default(default: object, *values: object) -> object:
    return default if not values or _empty(values[0]) else values[0]


def _coalesce(*values: object) -> object:
    return next((value for value in values if not _empty(value)), None)


FUNCTIONS: Final = {
    "add": _takes(_add, "any*"),
    "add1": _takes(lambda value: _add(value, 1), "any"),
    "all": _takes(lambda *values: not any(map(_empty, values)), "any*"),
    "and": _takes(lambda *values: None, "any any*"),
    "any": _takes(lambda *values: not all(map(_empty, values)), "any*"),
    "append": _takes(_append, "any any"),
    "b64enc": _takes(lambda text: base64.b64encode(as_bytes(text)).decode(), "string"),
    "cat": _takes(lambda *values: " ".join(plain(value) for value in values if value is not None), "any*"),
    "coalesce": _takes(_coalesce, "any*"),
    "concat": _takes(_concat, "any*"),
    "contains": _takes(lambda part, text: part in text, "string string"),
    "default": _takes(_default, "any any*"),
    "dict": _takes(_dict, "any*"),
    "div": _takes(lambda first, second: Int64(_divide(first, second)[0]), "any any"),
    "empty": _takes(_empty, "any"),
    "eq": _takes(_eq, "any any*"),
    "first": _takes(_first, "any"),
    "fromJson": _takes(_from_json, "string"),
    "ge": _takes(lambda first, second: not less(first, second), "any any"),
    "get": _takes(lambda value, key: value.get(key, ""), "map string"),
    "gt": _takes(lambda first, second: not _less_or_equal(first, second), "any any"),
    "has": _takes(_has, "any any"),
    "hasKey": _takes(lambda value, key: key in value, "map string"),
    "hasPrefix": _takes(lambda part, text: text.startswith(part), "string string"),
    "hasSuffix": _takes(lambda part, text: text.endswith(part), "string string"),
    "indent": _takes(_indent, "int string"),
    "index": _takes(_index, "any any*"),
    "initial": _takes(_initial, "any"),
    "int": _takes(_whole, "any"),
    "int64": _takes(lambda value: Int64(_whole(value)), "any"),
    "join": _takes(_join, "string any"),
    "keys": _takes(_keys, "map*"),
    "kindIs": _takes(lambda word, value: kind(value) == word, "string any"),
    "kindOf": _takes(kind, "any"),
    "last": _takes(_last, "any"),
    "le": _takes(_less_or_equal, "any any"),
    "len": _takes(_len, "any"),
    "list": _takes(lambda *values: list(values), "any*"),
    "lower": _takes(_lower, "string"),
    "lt": _takes(less, "any any"),
    "max": _takes(lambda *values: Int64(max(map(_whole, values))), "any any*"),
    "min": _takes(lambda *values: Int64(min(map(_whole, values))), "any any*"),
    "mod": _takes(lambda first, second: Int64(_divide(first, second)[1]), "any any"),
    "mul": _takes(_mul, "any any*"),
    "ne": _takes(lambda first, second: not equal(first, second), "any any"),
    "nindent": _takes(lambda spaces, text: "\n" + _indent(spaces, text), "int string"),
    "not": _takes(lambda value: not truth(value), "any"),
    "or": _takes(lambda *values: None, "any any*"),
    "prepend": _takes(_prepend, "any any"),
    "print": _takes(lambda *values: joined(values), "any*"),
    "printf": _takes(lambda text, *values: formatted(text, values), "string any*"),
    "println": _takes(_println, "any*"),
    "quote": _takes(_quote, "any*"),
    "repeat": _takes(_repeat, "int string"),
    "replace": _takes(_replace, "string string string"),
    "rest": _takes(_rest, "any"),
    "reverse": _takes(lambda value: _list_of(value)[::-1], "any"),
    "set": _takes(_set, "map string any"),
    "slice": _takes(_slice, "any any*"),
    "sortAlpha": _takes(_sort_alpha, "any"),
    "splitList": _takes(_split_list, "string string"),
    "squote": _takes(_squote, "any*"),
    "sub": _takes(lambda first, second: Int64(_wrapped(_whole(first) - _whole(second))), "any any"),
    "substr": _takes(_substr, "int int string"),
    "ternary": _takes(lambda yes, no, test: yes if test else no, "any any bool"),
    "title": _takes(_title, "string"),
    "toJson": _takes(lambda value: json_text(value, JsonStyle()), "any"),
    "toPrettyJson": _takes(lambda value: json_text(value, JsonStyle(indent="  ")), "any"),
    "toRawJson": _takes(lambda value: json_text(value, JsonStyle(safe_for_html=False)), "any"),
    "toString": _takes(_strval, "any"),
    "toStrings": _takes(_strings, "any"),
    "trim": _takes(lambda text: text.strip(_SPACE), "string"),
    "trimAll": _takes(lambda characters, text: text.strip(characters) if characters else text, "string string"),
    "trimPrefix": _takes(lambda part, text: text.removeprefix(part), "string string"),
    "trimSuffix": _takes(lambda part, text: text.removesuffix(part), "string string"),
    "trunc": _takes(_trunc, "int string"),
    "until": _takes(lambda count: _until_step(0, count, -1 if count < 0 else 1), "int"),
    "untilStep": _takes(_until_step, "int int int"),
    "upper": _takes(_upper, "string"),
    "values": _takes(_values, "map"),
}
