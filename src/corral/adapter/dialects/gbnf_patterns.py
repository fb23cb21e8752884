"""Regular expressions, as JSON schemas have them in `pattern`, as GBNF. Pure.

Offered is what both can say: characters, classes, groups, alternatives, repetitions, and anchors at both ends. A class
matches only what stands in JSON without an escape.
"""

import json
from collections.abc import Callable
from typing import Final, NamedTuple

from corral.adapter.dialects.gbnf import literal

LONGEST_PATTERN: Final = 1000
_DEEPEST: Final = 20
_ANY: Final = r'[^"\\\x00-\x1F\x7F]'
_CLASSES: Final = {"d": "0-9", "w": "a-zA-Z0-9_", "s": " "}
_PLAIN: Final = frozenset("^$\\.*+?()[]{}|/-'\"@#%&=:;,!<>~`_ ")
"""What a backslash may stand before without another meaning."""

Repeat = Callable[[int, int | None], str]
"""Makes the mark of a repetition, and may refuse one that is too large."""


class PatternNotOffered(Exception):
    """The pattern cannot be expressed; the text says why, behind the pattern's place."""


class _Piece(NamedTuple):
    text: str
    is_empty: bool
    """Whether it matches the empty text."""


def pattern_text(pattern: str, repeat: Repeat) -> str:
    """Return what matches the texts that have the pattern somewhere. Raises PatternNotOffered."""
    if len(pattern) > LONGEST_PATTERN:
        raise PatternNotOffered(f"is longer than {LONGEST_PATTERN} characters")
    start = 1 if pattern.startswith("^") else 0
    is_closed = pattern.endswith("$") and not _is_escaped(pattern, len(pattern) - 1)
    reader = _PatternReader(pattern[start : len(pattern) - 1 if is_closed else None], repeat)
    whole = reader.alternatives(0)
    if reader.rest:
        raise PatternNotOffered("has a bracket that nothing opens")
    if (start or is_closed) and reader.has_outer_alternatives:
        raise PatternNotOffered("has an anchor for one alternative only: put the alternatives in a group")
    before, after = ("" if start else f"{_ANY}* "), ("" if is_closed else f" {_ANY}*")
    return f"{before}({whole.text}){after}"


def _is_escaped(pattern: str, index: int) -> bool:
    before = pattern[:index]
    return (len(before) - len(before.rstrip("\\"))) % 2 == 1


class _PatternReader:
    """Reads one pattern from left to right."""

    def __init__(self, pattern: str, repeat: Repeat) -> None:
        self.rest = pattern
        self.has_outer_alternatives = False
        self._repeat = repeat

    def alternatives(self, depth: int) -> _Piece:
        if depth > _DEEPEST:
            raise PatternNotOffered(f"has groups in groups, more than {_DEEPEST}")
        sequences = [self._sequence(depth)]
        while self._took("|"):
            self.has_outer_alternatives |= depth == 0
            sequences.append(self._sequence(depth))
        return _Piece(" | ".join(piece.text for piece in sequences), any(piece.is_empty for piece in sequences))

    def _sequence(self, depth: int) -> _Piece:
        pieces = []
        while self.rest and self.rest[0] not in "|)":
            pieces.append(self._repeated(self._atom(depth)))
        text = " ".join(piece.text for piece in pieces)
        return _Piece(text or '""', all(piece.is_empty for piece in pieces))

    def _repeated(self, piece: _Piece) -> _Piece:
        limits = self._limits()
        if limits is None:
            return piece
        if piece.is_empty:
            raise PatternNotOffered("repeats a group that may be empty")
        if self.rest[:1] in ("*", "+", "?", "{"):
            raise PatternNotOffered("has a repetition that is lazy, or of a repetition")
        least, most = limits
        if most == 0:
            return _Piece('""', True)
        return _Piece(piece.text + self._repeat(least, most), least == 0)

    def _limits(self) -> tuple[int, int | None] | None:
        for mark, limits in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._took(mark):
                return limits
        if not self._took("{"):
            return None
        inside, end, self.rest = self.rest.partition("}")
        least, comma, most = inside.partition(",")
        if not end or not _is_number(least) or not (most == "" or _is_number(most)):
            raise PatternNotOffered("has a repetition that is not understood")
        low, high = int(least), int(most) if most else None if comma else int(least)
        if high is not None and high < low:
            raise PatternNotOffered("has a repetition that is not understood")
        return low, high

    def _atom(self, depth: int) -> _Piece:
        character, self.rest = self.rest[0], self.rest[1:]
        match character:
            case "(":
                return self._group(depth)
            case "[":
                return _Piece(self._class(), False)
            case ".":
                return _Piece(_ANY, False)
            case "\\":
                return _Piece(self._escape(), False)
            case "^" | "$" | "*" | "+" | "?" | "{":
                raise PatternNotOffered(f"has a {character} in a place that is not offered")
        return _Piece(_character(character), False)

    def _group(self, depth: int) -> _Piece:
        if self.rest.startswith("?") and not self._took("?:"):
            raise PatternNotOffered("has a group that looks around, or has a name")
        inside = self.alternatives(depth + 1)
        if not self._took(")"):
            raise PatternNotOffered("has a bracket that nothing closes")
        return _Piece(f"({inside.text})", inside.is_empty)

    def _escape(self) -> str:
        escaped = self._escaped()
        return f"[{_CLASSES[escaped]}]" if escaped in _CLASSES else _character(escaped)

    def _escaped(self) -> str:
        """Return the letter of a class, or a character that stands for itself."""
        escaped, self.rest = self.rest[:1], self.rest[1:]
        if escaped not in _CLASSES and escaped not in _PLAIN:
            raise PatternNotOffered(f"has the escape \\{escaped}, which is not offered")
        if not escaped:
            raise PatternNotOffered("ends with a backslash")
        return escaped

    def _class(self) -> str:
        negated = self._took("^")
        inside = ""
        while not self._took("]"):
            if not self.rest:
                raise PatternNotOffered("has a bracket that nothing closes")
            inside += self._range()
        if not inside:
            raise PatternNotOffered("has an empty class")
        return rf'[^"\\\x00-\x1F\x7F{inside}]' if negated else f"[{inside}]"

    def _range(self) -> str:
        low = self._class_character()
        if low in _CLASSES.values() and len(low) > 1:
            return low
        if len(self.rest) < 2 or self.rest[0] != "-" or self.rest[1] == "]":
            return _in_class(low)
        self.rest = self.rest[1:]
        high = self._class_character()
        if len(high) > 1 or high < low or low <= "\\" <= high or low <= '"' <= high or low <= "\x7f" <= high:
            raise PatternNotOffered(f"has a class from {low} to {high}, which is not offered")
        return f"{_in_class(low)}-{_in_class(high)}"

    def _class_character(self) -> str:
        character, self.rest = self.rest[0], self.rest[1:]
        if character != "\\":
            return character
        escaped = self._escaped()
        return _CLASSES.get(escaped, escaped)

    def _took(self, text: str) -> bool:
        if not self.rest.startswith(text):
            return False
        self.rest = self.rest[len(text) :]
        return True


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 6


def _character(character: str) -> str:
    """Return what matches the character inside a text of JSON."""
    return literal(json.dumps(character, ensure_ascii=False)[1:-1])


def _in_class(character: str) -> str:
    if character in '"\\' or not character.isprintable():
        raise PatternNotOffered("has a class with a quote, a backslash or a control character")
    return f"\\{character}" if character in "[]" else f"\\x{ord(character):02X}" if character in "^-" else character
