"""Filters and pages of node lists, as query parameters."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

from starlette.datastructures import QueryParams

from corral.base.errors import InvalidInput
from corral.frontend.nodes.decide.node import NodeStatus, NodeType
from corral.frontend.nodes.fleet import NodeFilter

DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 1000

QUERY: Final = {
    "status": "only nodes in this status; may be given several times",
    "type": "`backend` or `agent`",
    "label": "only nodes with this label, as `key=value`; may be given several times",
    "name": "only nodes whose name contains this",
    "limit": f"page size, 1 to {MAX_LIMIT}",
    "cursor": "where the last page ended",
}

ChoiceT = TypeVar("ChoiceT", bound=StrEnum)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    limit: int
    cursor: str | None


def read_filter(query: QueryParams) -> NodeFilter:
    return NodeFilter(
        statuses=_choices(query, "status", NodeStatus),
        types=_choices(query, "type", NodeType),
        labels=dict(_pair(text) for text in query.getlist("label")),
        name_contains=query.get("name", ""),
    )


def read_page(query: QueryParams) -> PageRequest | None:
    """None when neither `limit` nor `cursor` is given."""
    if "limit" not in query and "cursor" not in query:
        return None
    return PageRequest(limit=read_limit(query), cursor=query.get("cursor"))


def read_limit(query: QueryParams, *, usual: int = DEFAULT_LIMIT, most: int = MAX_LIMIT) -> int:
    text = query.get("limit", str(usual))
    if not text.isascii() or not text.isdigit() or len(text) > len(str(most)) or not 1 <= int(text) <= most:
        raise InvalidInput("limit", f"must be a number from 1 to {most}, got {text[:20]!r}")
    return int(text)


def _choices(query: QueryParams, name: str, choices: type[ChoiceT]) -> frozenset[ChoiceT]:
    found = set()
    for text in query.getlist(name):
        try:
            found.add(choices(text))
        except ValueError:
            allowed = ", ".join(choices)
            raise InvalidInput(name, f"must be one of {allowed}, got {text[:40]!r}") from None
    return frozenset(found)


def _pair(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise InvalidInput("label", f"must look like key=value, got {text[:40]!r}")
    return key, value
