"""Query parameters as data: what each means, and which values it takes."""

from collections.abc import Iterable, Mapping

import msgspec


class QueryField(msgspec.Struct, frozen=True):
    """A query parameter. A plain text instead of one describes a parameter that takes any text."""

    text: str
    schema: Mapping[str, object] = msgspec.field(default_factory=lambda: {"type": "string"})
    """Its values, as JSON Schema says it."""


def field_of(described: str | QueryField) -> QueryField:
    """The parameter that is described."""
    return described if isinstance(described, QueryField) else QueryField(described)


def number(text: str, *, least: int = 0, most: int | None = None) -> QueryField:
    bounds = {"minimum": least, **({} if most is None else {"maximum": most})}
    return QueryField(text, {"type": "integer", **bounds})


def switch(text: str) -> QueryField:
    """`true` or `false`, and false when it is left out."""
    return QueryField(text, {"type": "boolean", "default": False})


def one_of(text: str, choices: Iterable[str]) -> QueryField:
    return QueryField(text, {"type": "string", "enum": list(choices)})


def some_of(text: str, choices: Iterable[str] = ()) -> QueryField:
    """May be given several times; with one of these values each, if there are any."""
    words = list(choices)
    return QueryField(text, {"type": "array", "items": {"type": "string", **({"enum": words} if words else {})}})
