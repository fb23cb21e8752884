"""A board: the items of one topic, each with the version at which it became what it is.

What a reader is told follows from the version that it had last and from the board as it is now, so nothing is kept for
any reader. What is gone is remembered for a while; a reader that was away for longer gets everything again.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

MOST_GONE: Final = 1000
"""Items that are gone and remembered, for each topic."""


class BoardEntry(msgspec.Struct, frozen=True):
    value: object
    encoded: bytes
    version: int


class Board(msgspec.Struct, frozen=True, kw_only=True):
    entries: Mapping[str, BoardEntry] = msgspec.field(default_factory=dict)
    gone: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Keys that are there no more, and since which version; the longest gone first."""
    floor: int = 0
    """Whoever has seen less than this version cannot be told what is gone."""
    version: int = 0
    """Of its last change."""
    is_missing: bool = False
    """What it is about does not exist."""


class BoardChange(msgspec.Struct, frozen=True, kw_only=True):
    """What became different on a board."""

    items: Mapping[str, bytes]
    gone: tuple[str, ...] = ()


def take(
    board: Board,
    rows: Mapping[str, object],
    *,
    version: int,
    encode: Callable[[object], bytes],
    is_missing: bool = False,
) -> Board:
    """The board with these items and no others. The very same board when nothing changed."""
    changed = {key: value for key, value in rows.items() if not _has(board, key, value)}
    left = [key for key in board.entries if key not in rows]
    if not changed and not left and is_missing == board.is_missing:
        return board
    entries = {key: entry for key, entry in board.entries.items() if key in rows}
    for key, value in changed.items():
        encoded, earlier = encode(value), entries.get(key)
        if earlier is None or earlier.encoded != encoded:
            entries[key] = BoardEntry(value, encoded, version)
        else:
            entries[key] = replace(earlier, value=value)
    gone = {key: since for key, since in board.gone.items() if key not in rows}
    gone |= dict.fromkeys(left, version)
    is_other = bool(left) or is_missing != board.is_missing or any(entries[key].version == version for key in changed)
    forgotten = list(gone)[: max(len(gone) - MOST_GONE, 0)]
    return Board(
        entries=entries,
        gone={key: since for key, since in gone.items() if key not in set(forgotten)},
        floor=max([board.floor, *(gone[key] for key in forgotten)]),
        version=version if is_other else board.version,
        is_missing=is_missing,
    )


def _has(board: Board, key: str, value: object) -> bool:
    entry = board.entries.get(key)
    return entry is not None and (entry.value is value or entry.value == value)


def since(board: Board, version: int) -> BoardChange | None:
    """What changed after a version. None: that is no longer known, and the reader needs everything."""
    if version < board.floor:
        return None
    return BoardChange(
        items={key: entry.encoded for key, entry in board.entries.items() if entry.version > version},
        gone=tuple(key for key, at in board.gone.items() if at > version),
    )
