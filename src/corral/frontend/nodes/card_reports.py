"""Reads what nodes say of their GPUs. Never refuses: what cannot be used is named as a problem, and the rest counts."""

import re
from typing import Final, NamedTuple, TypeGuard

import msgspec

from corral.frontend.nodes.decide.node import ReportedCard

MOST_CARDS: Final = 64
"""More than any machine has; who reports more is lying or broken."""
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
"""UUIDs and addresses on PCI. Ids stand in URLs, in the database and, on their own machine, in the environment."""
_LONGEST_NAME: Final = 128
_LARGEST: Final = 2**63 - 1
_MOST_PROBLEMS: Final = 5
_SHOWN: Final = 40


class CardsRead(NamedTuple):
    cards: tuple[ReportedCard, ...] | None
    """None when nothing was said of GPUs, or nothing that can be read: what is known stays."""
    problems: tuple[str, ...] = ()


def read_cards(document: object) -> CardsRead:
    """A list of `CardReport` as it came over the wire."""
    if document is None:
        return CardsRead(None)
    if not isinstance(document, list):
        return CardsRead(None, (f"corral.cards: expected a list, got {shown(document)}; ignored",))
    cards: dict[str, ReportedCard] = {}
    problems: list[str] = []
    for number, entry in enumerate(document[:MOST_CARDS]):
        card = _read_card(entry)
        if isinstance(card, str):
            problems.append(f"corral.cards[{number}]: {card}; ignored")
        elif card.id in cards:
            problems.append(f"corral.cards[{number}].id: {card.id!r} is there twice; ignored")
        else:
            cards[card.id] = card
    problems = problems[:_MOST_PROBLEMS]
    if len(document) > MOST_CARDS:
        problems.append(f"corral.cards: {len(document)} GPUs; those after the first {MOST_CARDS} are ignored")
    return CardsRead(tuple(cards.values()), tuple(problems))


def _read_card(entry: object) -> ReportedCard | str:
    """One card, or what is wrong with it."""
    if not isinstance(entry, dict):
        return f"expected an object, got {shown(entry)}"
    id, total, free = entry.get("id"), entry.get("total"), entry.get("free")
    if not isinstance(id, str) or _ID.fullmatch(id) is None:
        return f"id: expected letters, digits and . _ : - (at most 128), got {shown(id)}"
    if not _is_size(total) or total == 0:
        return f"total: expected a number of bytes, got {shown(total)}"
    if free is not None and not _is_size(free):
        return f"free: expected a number of bytes, got {shown(free)}"
    index = entry.get("index", 0)  # workers leave out a zero
    return ReportedCard(
        id=id,
        index=index if _is_size(index) and index < MOST_CARDS else None,
        name=_text(entry.get("name")),
        vendor=_text(entry.get("vendor")),
        total=total,
        free=free,
        shares_ram=entry.get("shares_ram") is True,
    )


def _is_size(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST


def _text(value: object) -> str:
    """A name for people: cut, and without what would spoil a terminal."""
    text = value[:_LONGEST_NAME] if isinstance(value, str) else ""
    return text if text.isprintable() else "".join(filter(str.isprintable, text))


def shown(value: object) -> str:
    """The beginning of a value that was sent, for a sentence about it."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
