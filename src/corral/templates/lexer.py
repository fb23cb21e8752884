"""Splits the text of a template into tokens, with Go's rules for trimming, comments and the ends of words, and reads
literals.

Spaces are no tokens: a token knows whether a space is before it, which is all that the grammar needs.
"""

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Final

import msgspec

from corral.templates.errors import TemplateRefused, ValueProblem

_SPACES: Final = " \t\r\n"
_END: Final = r"(?=[ \t\r\n.,|:()]|\}\}|\Z)"


class TokenKind(StrEnum):
    TEXT = "text"
    OPEN = "{{"
    CLOSE = "}}"
    DECLARE = ":="
    ASSIGN = "="
    PIPE = "|"
    LEFT = "("
    RIGHT = ")"
    STRING = "string"
    RAW = "raw string"
    CHARACTER = "character"
    NUMBER = "number"
    VARIABLE = "variable"
    FIELD = "field"
    DOT = "."
    WORD = "word"
    KEYWORD = "keyword"
    OTHER = "character of no meaning"
    END = "end of the template"


class Token(msgspec.Struct, frozen=True):
    kind: TokenKind
    text: str
    line: int
    spaced: bool
    """Whether a space is before it, inside an action."""
    start: int
    end: int


_PATTERNS: Final = (
    (TokenKind.DECLARE, r":="),
    (TokenKind.ASSIGN, r"="),
    (TokenKind.PIPE, r"\|"),
    (TokenKind.STRING, r'"(?:\\[^\n]|[^"\\\n])*"'),
    (TokenKind.RAW, r"`[^`]*`"),
    (TokenKind.CHARACTER, r"'(?:\\[^\n]|[^'\\\n])*'"),
    (TokenKind.VARIABLE, rf"\$\w*{_END}"),
    (TokenKind.FIELD, rf"\.(?![0-9])\w+{_END}"),
    (TokenKind.NUMBER, r"[+-]?\.?[0-9](?:[eEpP][+-](?=[0-9])|[\w.])*"),
    (TokenKind.DOT, rf"\.{_END}"),
    (TokenKind.WORD, rf"\w+{_END}"),
    (TokenKind.LEFT, r"\("),
    (TokenKind.RIGHT, r"\)"),
    (TokenKind.OTHER, r","),
)
_TOKEN: Final = re.compile("|".join(f"(?P<{kind.name}>{pattern})" for kind, pattern in _PATTERNS))
_SPACE: Final = re.compile(r"(?:[ \t\r\n](?!-\}\}))+")
_WORD_END: Final = re.compile(r"[^.$_0-9A-Za-z]")
_CLOSE_AT_WORD: Final = re.compile(r"[.$\w]*-\}\}")
_UNFINISHED: Final = {
    '"': "a quoted text has no end",
    "`": "a raw text has no end",
    "'": "a character has no end",
    ":": "a : is not followed by =",
}
_KEYWORDS: Final = frozenset(
    ("block", "break", "continue", "define", "else", "end", "if", "range", "template", "with", "nil", "true", "false")
)


def split(text: str, template: str) -> list[Token]:
    """Return all tokens, the last one of kind END. TemplateRefused names the line of what cannot be read."""
    return list(_Lexer(text, template).tokens())


class _Lexer:
    def __init__(self, text: str, template: str) -> None:
        self._text = text
        self._template = template
        self._position = 0
        self._line = 1
        self._counted = 0

    def tokens(self) -> Iterator[Token]:
        while (opening := self._text.find("{{", self._position)) >= 0:
            yield from self._literal(opening)
            if self._text.startswith("/*", self._position):
                self._skip_comment()
            else:
                yield self._token(TokenKind.OPEN, opening, self._position)
                yield from self._action()
        if self._position < len(self._text):
            yield self._token(TokenKind.TEXT, self._position, len(self._text))
        yield self._token(TokenKind.END, len(self._text), len(self._text))

    def _literal(self, opening: int) -> Iterator[Token]:
        """Give the text before an action, and go behind its opening."""
        after = opening + 2
        trimmed = self._text.startswith("-", after) and self._text[after + 1 : after + 2] in tuple(_SPACES)
        piece = self._text[self._position : opening]
        length = len(piece.rstrip(_SPACES)) if trimmed else len(piece)
        if length:
            yield self._token(TokenKind.TEXT, self._position, self._position + length)
        self._position = after + 2 if trimmed else after

    def _skip_comment(self) -> None:
        end = self._text.find("*/", self._position)
        if end < 0:
            raise self._refused("a comment has no end")
        self._position = end + 2
        if not self._close():
            raise self._refused("a comment is not followed by }}")

    def _action(self) -> Iterator[Token]:
        depth = 0
        spaced = False
        while True:
            start = self._position
            if self._close():
                if depth:
                    raise self._refused("a parenthesis is not closed")
                yield self._token(TokenKind.CLOSE, start, start + 2)
                return
            if space := _SPACE.match(self._text, start):
                self._position = space.end()
                spaced = True
                continue
            token = self._next(spaced)
            depth += {TokenKind.LEFT: 1, TokenKind.RIGHT: -1}.get(token.kind, 0)
            if depth < 0:
                raise self._refused("a parenthesis is closed that was not opened")
            spaced = False
            yield token

    def _next(self, spaced: bool) -> Token:
        match = _TOKEN.match(self._text, self._position)
        if match is None or match.lastgroup is None:
            raise self._refused(self._why_unreadable())
        kind = TokenKind[match.lastgroup]
        if kind is TokenKind.WORD and match[0] in _KEYWORDS:
            kind = TokenKind.KEYWORD
        self._position = match.end()
        return self._token(kind, match.start(), match.end(), spaced)

    def _why_unreadable(self) -> str:
        text = self._text[self._position :].lstrip(_SPACES)
        if not text:
            return "an action is not closed by }}"
        if _CLOSE_AT_WORD.match(text):
            return "a space is missing before -}}"
        if text[0] == "-" and self._text.endswith("{{", 0, self._position):
            return f"a space is missing after {{{{-: write {{{{- {_WORD_END.split(text[1:], maxsplit=1)[0]}"
        if text[0] in _UNFINISHED:
            return _UNFINISHED[text[0]]
        return f"cannot read {text[0]}{_WORD_END.split(text[1:], maxsplit=1)[0]}"

    def _close(self) -> bool:
        """Go behind the end of an action, if it is here, and behind the white space that it trims."""
        if self._text.startswith("}}", self._position):
            self._position += 2
            return True
        if self._text[self._position : self._position + 1] in tuple(_SPACES) and self._text.startswith(
            "-}}", self._position + 1
        ):
            self._position += 4
            while self._text[self._position : self._position + 1] in tuple(_SPACES):
                self._position += 1
            return True
        return False

    def _token(self, kind: TokenKind, start: int, end: int, spaced: bool = False) -> Token:
        self._line += self._text.count("\n", self._counted, max(start, self._counted))
        self._counted = max(start, self._counted)
        return Token(kind, self._text[start:end], self._line, spaced, start, end)

    def _refused(self, problem: str) -> TemplateRefused:
        line = self._line + self._text.count("\n", self._counted, self._position)
        return TemplateRefused(self._template, line, problem)


# Literals.


class NumberTerm(msgspec.Struct, frozen=True):
    """A number as it was written. What it is depends on who takes it."""

    whole: int | None
    """Its value for those who want a whole number: `3`, `3.0` and `'a'` have one."""
    ideal: int | float
    """Its value for those who take anything."""


_WHOLE: Final = re.compile(r"[+-]?(?:0[xXbBoO]\w+|[0-9][0-9_]*)")
_REAL: Final = re.compile(r"[+-]?(?:[0-9]+(?:_[0-9]+)*\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_MOST: Final = 2**63
_SIMPLE_ESCAPES: Final = {
    "a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "\\": 92, '"': 34, "'": 39,
}  # fmt: skip
_PIECE: Final = re.compile(
    r"""[^\\]+|\\(?:(?P<simple>[abfnrtv\\"'])|x(?P<byte>[0-9a-fA-F]{2})|(?P<octal>[0-3][0-7]{2})"""
    r"""|u(?P<short>[0-9a-fA-F]{4})|U(?P<long>[0-9a-fA-F]{8}))"""
)


def number(text: str) -> NumberTerm:
    """Read a number. ValueProblem names one that is malformed, too large, or of a form that is not offered."""
    try:
        if _WHOLE.fullmatch(text):
            whole = int(text, 8 if re.match(r"[+-]?0[0-9_]", text) else 0)
            return NumberTerm(_limited(whole), whole)
        if _REAL.fullmatch(text):
            real = float(text)
            return NumberTerm(int(real) if real.is_integer() and abs(real) < _MOST else None, _finite(real))
    except (ValueError, OverflowError) as error:
        raise ValueProblem(f"cannot read the number {text}") from error
    raise ValueProblem(f"cannot read the number {text}")


def _limited(value: int) -> int:
    """Refuse what does not fit into Go's int."""
    if not -_MOST <= value < _MOST:
        raise OverflowError(value)
    return value


def _finite(value: float) -> float:
    if abs(value) == float("inf"):
        raise OverflowError(value)
    return value


def character(text: str) -> NumberTerm:
    """Read a character in single quotes: it is a number."""
    code = None
    pieces = list(_PIECE.finditer(text[1:-1]))
    if len(pieces) == 1 and pieces[0][0] == text[1:-1] and pieces[0]["simple"] != '"':
        code = _code(pieces[0]) if pieces[0][0][0] == "\\" else ord(pieces[0][0]) if len(pieces[0][0]) == 1 else None
    if code is None:
        raise ValueProblem(f"cannot read the character {text}")
    return NumberTerm(code, code)


def unquoted(text: str) -> str:
    """Read a text in double quotes. Bytes that are no UTF-8 become surrogates."""
    inside = text[1:-1]
    pieces = list(_PIECE.finditer(inside))
    if sum(len(piece[0]) for piece in pieces) != len(inside) or any(piece["simple"] == "'" for piece in pieces):
        raise ValueProblem(f"cannot read the text {text}")
    return b"".join(_encoded(piece) for piece in pieces).decode("utf-8", "surrogateescape")


def _encoded(piece: re.Match[str]) -> bytes:
    if piece[0][0] != "\\":
        return piece[0].encode("utf-8", "surrogateescape")
    code = _code(piece)
    return bytes((code,)) if piece["byte"] or piece["octal"] else chr(code).encode()


def _code(piece: re.Match[str]) -> int:
    if piece["simple"]:
        return _SIMPLE_ESCAPES[piece["simple"]]
    if piece["octal"]:
        return int(piece["octal"], 8)
    code = int(piece["byte"] or piece["short"] or piece["long"], 16)
    if not piece["byte"] and (0xD800 <= code < 0xE000 or code > 0x10FFFF):
        raise ValueProblem(f"{piece[0]} is no character")
    return code
