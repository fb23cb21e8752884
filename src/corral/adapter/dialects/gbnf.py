"""Texts of GBNF, llama.cpp's form of grammars: literals, repetitions, and the rules of JSON itself. Pure."""

import json
from collections.abc import Sequence
from typing import Final

JSON_RULES: Final = {
    "space": r'"" | " " | "\n" [ \t]{0,20}',
    "comma": '"," space',
    "character": r'[^"\\\x00-\x1F\x7F] | "\\" (["\\/bfnrt] | "u" code)',
    "code": "[0-9a-cA-CeEfF] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2}",
    "string": r'"\"" character* "\""',
    "digits": '"0" | [1-9] [0-9]{0,15}',
    "fraction": '("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,2})?',
    "integer": '"-"? digits',
    "number": '"-"? digits fraction',
    "boolean": '"true" | "false"',
    "null": '"null"',
    "member": 'string ":" space value',
    "object": '"{" space (member (comma member)* space)? "}"',
    "array": '"[" space (value (comma value)* space)? "]"',
    "value": "object | array | string | number | boolean | null",
}
"""A grammar may end only where its text is complete, and never lets a model write blanks without end."""

LARGEST_INTEGER: Final = 10**16 - 1
"""What an integer may be, in either direction: the length of the rule `digits`."""

_MONTHS_AND_DAYS: Final = (
    '("0" [13578] | "1" [02]) "-" ("0" [1-9] | [12] [0-9] | "3" [01])'
    ' | ("0" [469] | "11") "-" ("0" [1-9] | [12] [0-9] | "30")'
    ' | "02-" ("0" [1-9] | "1" [0-9] | "2" [0-8])'
)
_LEAP_DAY: Final = '([12] [0-9] ("0" [48] | [2468] [048] | [13579] [26]) | "2000") "-02-29"'
_DATE: Final = f'([12] [0-9]{{3}} "-" ({_MONTHS_AND_DAYS}) | {_LEAP_DAY})'
_CLOCK: Final = '([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9]'
_TIME: Final = f'{_CLOCK} ":" [0-5] [0-9] ("." [0-9]{{1,6}})? ("Z" | [+-] {_CLOCK})'
_LABEL: Final = "[a-z0-9] ([a-z0-9-]{0,30} [a-z0-9])?"
_HOST: Final = f'{_LABEL} ("." {_LABEL}){{1,4}}'
_BYTE: Final = '("25" [0-5] | "2" [0-4] [0-9] | "1" [0-9]{2} | [1-9]? [0-9])'

FORMATS: Final = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f'{_DATE} "T" {_TIME}',
    "uuid": '[0-9a-f]{8} ("-" [0-9a-f]{4}){3} "-" [0-9a-f]{12}',
    "email": f'[a-zA-Z0-9_+-]{{1,32}} ("." [a-zA-Z0-9_+-]{{1,32}}){{0,3}} "@" {_HOST}',
    "hostname": _HOST,
    "ipv4": f'{_BYTE} ("." {_BYTE}){{3}}',
    "uri": f'"http" "s"? "://" {_HOST} ("/" [a-zA-Z0-9._~-]{{0,64}}){{0,16}}',
}
"""What stands between the quotes of a text in this format. Each has only texts of its format, and not all of them."""


def literal(text: str) -> str:
    """Return what matches exactly this text, which has no control characters."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def json_literal(value: object) -> str:
    """Return what matches this value as JSON, with one blank behind each comma and colon."""
    text = json.dumps(value, ensure_ascii=False)
    if any("\ud800" <= character <= "\udfff" for character in text):  # halves of characters have no UTF-8
        text = json.dumps(value)
    return literal(text)


def repetition(least: int, most: int | None) -> str:
    """Return the mark that repeats what stands before it."""
    match least, most:
        case 0, None:
            return "*"
        case 1, None:
            return "+"
        case 0, 1:
            return "?"
        case _, None:
            return f"{{{least},}}"
    return f"{{{least}}}" if least == most else f"{{{least},{most}}}"


def integers(low: int, high: int) -> Sequence[str]:
    """Return alternatives that match the integers from `low` to `high`, and no others."""
    alternatives: list[str] = []
    if low < 0:
        alternatives += [f'"-" {text}' for text in _naturals(max(1, -high), -low)]
    if high >= 0:
        alternatives += _naturals(max(0, low), high)
    return alternatives


def _naturals(low: int, high: int) -> list[str]:
    alternatives: list[str] = []
    for length in range(len(str(low)), len(str(high)) + 1):
        shortest = 0 if length == 1 else 10 ** (length - 1)
        alternatives += _of_length(str(max(low, shortest)), str(min(high, 10**length - 1)))
    return alternatives


def _of_length(low: str, high: str) -> list[str]:
    """Both have the same length, and `low` is not greater."""
    if low == high:
        return [literal(low)]
    rest = len(low) - 1
    if low[0] == high[0]:
        return [f"{literal(low[0])} {text}" for text in _of_length(low[1:], high[1:])]
    first, last = int(low[0]), int(high[0])
    before: list[str] = []
    after: list[str] = []
    if low[1:] != "0" * rest:
        before = [f"{literal(low[0])} {text}" for text in _of_length(low[1:], "9" * rest)]
        first += 1
    if high[1:] != "9" * rest:
        after = [f"{literal(high[0])} {text}" for text in _of_length("0" * rest, high[1:])]
        last -= 1
    middle = [f"[{first}-{last}]" + (f" [0-9]{{{rest}}}" if rest else "")] if first <= last else []
    return [*before, *middle, *after]
