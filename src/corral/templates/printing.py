"""Prints values as Go does: plainly, as JSON, in quotes, and with the verbs of `printf`."""

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Final

import msgspec
from msgspec.structs import replace

from corral.templates.errors import ValueProblem
from corral.templates.values import MISSING, StructValue, as_bytes, is_list, is_map, is_nil, kind

_WIDEST: Final = 1_000_000
"""Go's own limit for widths and precisions."""


def plain(value: object) -> str:
    """Return the value as an action prints it, `%v` of `printf`."""
    return "<no value>" if value is MISSING else _formatted(value, _Verb("v"))


def joined(values: Sequence[object]) -> str:
    """Return the values as `print` does: with a space between two that are not texts."""
    pieces: list[str] = []
    for index, value in enumerate(values):
        if index and not isinstance(value, str) and not isinstance(values[index - 1], str):
            pieces.append(" ")
        pieces.append(plain(value))
    return "".join(pieces)


# Numbers.


def _shortest(value: float, *, least: int, most: int) -> str:
    """Return the shortest digits that mean the value; with an exponent below 10^least and from 10^most on."""
    number = Decimal(repr(value)).normalize()
    sign = "-" if number.is_signed() else ""
    digits = "".join(map(str, number.as_tuple().digits))
    exponent = number.adjusted() if number else 0
    if exponent < least or exponent >= most:
        fraction = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{fraction}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    whole = digits[: exponent + 1].ljust(exponent + 1, "0")
    fraction = digits[exponent + 1 :]
    return f"{sign}{whole}.{fraction}" if fraction else f"{sign}{whole}"


# Quotes.

_ESCAPES: Final = {7: "\\a", 8: "\\b", 12: "\\f", 10: "\\n", 13: "\\r", 9: "\\t", 11: "\\v", 92: "\\\\"}


def quoted(text: str, mark: str = '"') -> str:
    """Return the text in quotes, with Go's escapes."""
    return mark + text.translate({ord(each): _escaped(each, mark) for each in set(text)}) + mark


def _escaped(character: str, mark: str) -> str:
    code = ord(character)
    if character == mark:
        return "\\" + mark
    if code in _ESCAPES:
        return _ESCAPES[code]
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if character.isprintable():
        return character
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


# JSON.

_JSON_ESCAPES: Final = {
    '"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t",
    "\u2028": "\\u2028", "\u2029": "\\u2029",
}  # fmt: skip
_SPECIAL: Final = re.compile('["\\\\\x00-\x1f\u2028\u2029\ud800-\udfff]')
_SPECIAL_FOR_HTML: Final = re.compile('["\\\\\x00-\x1f\u2028\u2029\ud800-\udfff<>&]')


class JsonStyle(msgspec.Struct, frozen=True):
    safe_for_html: bool = True
    indent: str = ""


def json_text(value: object, style: JsonStyle) -> str:
    """Return the value as JSON: keys sorted, fields of structs in their order."""
    return "".join(_json(value, style, "\n"))


def _json(value: object, style: JsonStyle, line: str) -> Iterator[str]:
    if is_nil(value):
        yield "null"
    elif isinstance(value, bool):
        yield "true" if value else "false"
    elif isinstance(value, str):
        yield _json_string(value, style)
    elif isinstance(value, float):
        yield _json_float(value)
    elif is_list(value):
        yield from _json_items("[]", [("", item) for item in value], style, line)
    elif is_map(value):
        items = [(key, value[key]) for key in sorted(value, key=as_bytes)]
        yield from _json_items("{}", items, style, line)
    elif isinstance(value, StructValue):
        yield from _json_items("{}", list(_json_fields(value)), style, line)
    else:
        yield str(value)


def _json_fields(record: StructValue) -> Iterator[tuple[str, object]]:
    for field, value in record.fields.items():
        name = record.json_names.get(field, field)
        if value or name not in record.left_out_when_empty:
            yield name, value


def _json_items(ends: str, items: Sequence[tuple[str, object]], style: JsonStyle, line: str) -> Iterator[str]:
    yield ends[0]
    inside = line + style.indent
    for index, (key, value) in enumerate(items):
        yield ("," if index else "") + (inside if style.indent else "")
        if ends == "{}":
            yield _json_string(key, style) + (": " if style.indent else ":")
        yield from _json(value, style, inside)
    yield (line if style.indent and items else "") + ends[1]


def _json_string(text: str, style: JsonStyle) -> str:
    special = _SPECIAL_FOR_HTML if style.safe_for_html else _SPECIAL
    if special.search(text):
        text = text.translate({ord(each): _json_escape(each) for each in set(text) if special.match(each)})
    return f'"{text}"'


def _json_escape(character: str) -> str:
    code = ord(character)
    return "\\ufffd" if 0xD800 <= code < 0xE000 else _JSON_ESCAPES.get(character) or f"\\u{code:04x}"


def _json_float(value: float) -> str:
    text = _shortest(value, least=-6, most=21)
    return re.sub(r"e-0(\d)$", r"e-\1", text)


# printf.


class _Verb(msgspec.Struct, frozen=True):
    letter: str
    flags: str = ""
    width: int = 0
    precision: int | None = None


_VERB: Final = re.compile(r"%([-+# 0]*)(\d*)(?:\.(\d*))?(.?)", re.DOTALL)
_OFFERED: Final = "vsdqtfFeEgGxXcob%"


def check_format(text: str) -> None:
    """ValueProblem names a verb, flag or width that is not offered."""
    for match in _VERB.finditer(text):
        flags, width, precision, letter = match.groups()
        odd_flags = "#" in flags or (set(flags) & set("+ ") and letter not in "dfFeEgG")
        if letter and (letter not in _OFFERED or odd_flags):
            raise ValueProblem(f"printf's {match[0]} is not offered")
        if max(int(width or 0), int(precision or 0)) > _WIDEST:
            raise ValueProblem(f"printf's {match[0]} is too wide")


def formatted(text: str, values: Sequence[object]) -> str:
    """Return what `printf` prints, what it says about wrong verbs and numbers of values included."""
    check_format(text)
    pieces: list[str] = []
    position = used = 0
    for match in _VERB.finditer(text):
        pieces.append(text[position : match.start()])
        position = match.end()
        flags, width, precision, letter = match.groups()
        if letter == "%" or not letter:
            pieces.append(letter or "%!(NOVERB)")
        elif used >= len(values):
            pieces.append(f"%!{letter}(MISSING)")
        else:
            verb = _Verb(letter, flags, int(width or 0), None if precision is None else int(precision or 0))
            pieces.append(_operand(values[used], verb))
            used += 1
    pieces.append(text[position:])
    if used < len(values):
        pieces.append(f"%!(EXTRA {', '.join(map(_extra, values[used:]))})")
    return "".join(pieces)


def _extra(value: object) -> str:
    if isinstance(value, list | dict | StructValue):
        raise ValueProblem("printf got more values than its text has verbs")
    return "<nil>" if value is None else f"{kind(value)}={plain(value)}"


def _operand(value: object, verb: _Verb) -> str:
    if value is None:
        return _padded("<nil>", verb) if verb.letter == "v" else f"%!{verb.letter}(<nil>)"
    return _formatted(value, verb)


def _formatted(value: object, verb: _Verb) -> str:
    """Format a value; those inside of lists, maps and structs each with the verb."""
    if value is None:
        return "<nil>"
    if is_list(value):
        return "[" + " ".join(_formatted(item, verb) for item in value) + "]"
    if is_map(value):
        keys = sorted(value, key=as_bytes)
        return "map[" + " ".join(f"{_formatted(key, verb)}:{_formatted(value[key], verb)}" for key in keys) + "]"
    if isinstance(value, StructValue):
        return "{" + " ".join(_formatted(item, verb) for item in value.fields.values()) + "}"
    text = _scalar(value, verb)
    if text is not None:
        return text
    return f"%!{verb.letter}({kind(value)}={_formatted(value, replace(verb, letter='v'))})"


def _scalar(value: object, verb: _Verb) -> str | None:
    """Format a plain value. None: the verb is not for it."""
    if isinstance(value, bool):
        return _padded("true" if value else "false", verb) if verb.letter in "tv" else None
    if isinstance(value, int):
        return _integer(value, verb)
    if isinstance(value, float):
        return _float(value, verb)
    return _string(str(value), verb)


def _string(text: str, verb: _Verb) -> str | None:
    if verb.letter in "sv":
        return _padded(text[: verb.precision], verb)
    if verb.letter == "q":
        return _padded(quoted(text[: verb.precision]), verb)
    if verb.letter in "xX":
        digits = as_bytes(text)[: verb.precision].hex()
        return _padded(digits.upper() if verb.letter == "X" else digits, verb)
    return None


def _integer(value: int, verb: _Verb) -> str | None:
    code = value if 0 <= value <= 0x10FFFF and not 0xD800 <= value < 0xE000 else 0xFFFD
    if verb.letter == "c":
        return _padded(chr(code), verb)
    if verb.letter == "q":
        return _padded(quoted(chr(code), "'"), verb)
    if verb.letter not in "vdboxX":
        return None
    if not value and verb.precision == 0:
        return " " * verb.width
    digits = format(abs(value), "d" if verb.letter == "v" else verb.letter)
    if verb.precision is not None:
        digits = digits.zfill(verb.precision)
        verb = replace(verb, flags=verb.flags.replace("0", ""))
    return _signed("-" if value < 0 else "", digits, verb)


def _float(value: float, verb: _Verb) -> str | None:
    if verb.letter not in "vfFeEgG":
        if verb.letter in "xXb":
            raise ValueProblem(f"printf's %{verb.letter} for a float64 is not offered")
        return None
    letter = "g" if verb.letter == "v" else verb.letter
    if letter in "gG" and verb.precision is None:
        digits = _shortest(abs(value), least=-4, most=6)
        digits = digits.upper() if letter == "G" else digits
    else:
        digits = format(abs(value), f".{6 if verb.precision is None else verb.precision}{letter}")
    return _signed("-" if repr(value).startswith("-") else "", digits, verb)


def _signed(sign: str, digits: str, verb: _Verb) -> str:
    sign = sign or ("+" if "+" in verb.flags else " " if " " in verb.flags else "")
    if "0" in verb.flags and "-" not in verb.flags:
        return sign + digits.rjust(verb.width - len(sign), "0")
    return _padded(sign + digits, verb)


def _padded(text: str, verb: _Verb) -> str:
    if "-" in verb.flags:
        return text.ljust(verb.width)
    return text.rjust(verb.width, "0" if "0" in verb.flags else " ")
