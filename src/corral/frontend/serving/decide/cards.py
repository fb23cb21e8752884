"""Which GPUs of a machine a model gets, or why it gets none: a pure choice over what is free on each card.

One card if one has the room, the tightest, so that large ones stay free for large models. Several only if the engine
spreads a model over them, and then as few as possible.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import msgspec

_GIB: Final = 1024**3
_MIB: Final = 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRoom:
    """What is free on one card, in bytes."""

    id: str
    free: int
    total: int
    is_out: bool = False
    """Taken out of service: it gets nothing new."""
    room: int = field(init=False)
    """What can be promised: a report of more than the whole card is not believed."""

    def __post_init__(self) -> None:
        room = max(min(self.free, self.total) if self.total else self.free, 0)
        object.__setattr__(self, "room", room)  # every placement looks at it, for every card


class CardShortage(msgspec.Struct, frozen=True, kw_only=True):
    """No choice of cards has the room."""

    needed: int
    free: int
    """What was compared with it: the room of the largest card, of all together, or what the budget leaves."""
    message: str
    """The rest of a sentence about the machine, with both numbers."""


def fit_cards(
    vram: int, *, per_card: int, splits: bool, cards: Sequence[CardRoom], budget_left: int | None, count: int = 0
) -> tuple[str, ...] | CardShortage:
    """The ids of the cards for a model that takes `vram` bytes on one, and `per_card` more on each further one.

    `count` is how many cards the configuration asks for, each for an equal part; 0 leaves it to the room. A `vram` of 0
    is not known: the model may use the emptiest card, or all of them if its engine spreads it.
    """
    usable = sorted((card for card in cards if not card.is_out), key=lambda card: (card.room, card.id))
    if len(usable) < max(count, 1):
        return _too_few(vram, len(cards), len(usable), count)
    needed = vram + per_card * (count - 1) if count > 1 else vram
    if budget_left is not None and needed > budget_left:
        return _over_budget(needed, budget_left)
    if not vram:
        return tuple(card.id for card in reversed(usable))[: count or (None if splits else 1)]
    if count > 1:
        return _in_equal_parts(needed, count, usable)
    if (tightest := next((card for card in usable if card.room >= vram), None)) is not None:
        return (tightest.id,)
    if not splits or len(usable) == 1:
        return _too_small(vram, usable)
    return _spread(vram, per_card, usable, budget_left)


def _spread(
    vram: int, per_card: int, usable: Sequence[CardRoom], budget_left: int | None
) -> tuple[str, ...] | CardShortage:
    """The fewest cards that have the room together: the largest ones, but of the last kind the tightest that does."""
    largest = sorted((card for card in usable if card.room > per_card), key=lambda card: (-card.room, card.id))
    for number in range(2, len(largest) + 1):
        needed = vram + per_card * (number - 1)
        if budget_left is not None and needed > budget_left:
            return _over_budget(needed, budget_left)
        first = largest[: number - 1]
        missing = needed - sum(card.room for card in first)
        if largest[number - 1].room >= missing:
            last = min((card for card in largest[number - 1 :] if card.room >= missing), key=lambda card: card.room)
            return tuple(card.id for card in (*first, last))
    if len(largest) < 2:
        return _too_small(vram, usable[-1:])
    needed, free = vram + per_card * (len(largest) - 1), sum(card.room for card in largest)
    total = sum(card.total for card in largest)
    message = f"needs {_size(needed)}; its {len(largest)} cards have {_size(free)} free of {_size(total)} together"
    return CardShortage(needed=needed, free=free, message=message)


def _in_equal_parts(needed: int, count: int, usable: Sequence[CardRoom]) -> tuple[str, ...] | CardShortage:
    part = -(-needed // count)
    fitting = [card.id for card in usable if card.room >= part]
    if len(fitting) >= count:
        return tuple(fitting[:count])
    free = usable[-count].room
    message = f"needs {_size(part)} on each of {count} cards; the least free of its {count} emptiest has {_size(free)}"
    return CardShortage(needed=part, free=free, message=message)


def _too_small(vram: int, usable: Sequence[CardRoom]) -> CardShortage:
    largest = usable[-1]
    room = f"{_size(largest.room)} free of {_size(largest.total)}"
    if len(usable) == 1:
        message = f"needs {_size(vram)} of video memory and has {room}"
    else:
        message = f"needs {_size(vram)} on one card; the largest has {room}, and its engine does not split"
    return CardShortage(needed=vram, free=largest.room, message=message)


def _over_budget(needed: int, budget_left: int) -> CardShortage:
    free_bytes = max(budget_left, 0)
    message = f"needs {_size(needed)} of video memory; its budget leaves {_size(free_bytes)}"
    return CardShortage(needed=needed, free=free_bytes, message=message)


def _too_few(vram: int, total: int, usable: int, count: int) -> CardShortage:
    if not total:
        message = "has no GPU"
    elif count > 1:
        message = f"has {usable} of {count} GPUs in service that its engine was told to use"
    else:
        message = f"has no GPU in service: all {total} are taken out" if total > 1 else "has no GPU in service"
    return CardShortage(needed=vram, free=0, message=message)


@lru_cache(maxsize=4096)
def _size(size: int) -> str:
    return f"{size / _GIB:.1f} GiB" if size >= _GIB // 10 else f"{size / _MIB:.0f} MiB"
