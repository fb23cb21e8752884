"""A board: the items of one topic, each with the version at which it became what it is.

What to send to a reader follows from the reader's last version and the current board, so no state is kept per reader.
Removed keys are remembered for a while; a reader that was away for longer gets the whole board again.
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
    """Removed keys and the version that removed them, the oldest first."""
    floor: int = 0
    """Readers with an older version than this need the whole board: the keys removed before it are forgotten."""
    version: int = 0
    """The version of the last change."""
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
    """Return the board with exactly these items; the identical object when nothing changed."""
    changed = {key: value for key, value in rows.items() if not _has(board, key, value)}
    newly_removed = [key for key in board.entries if key not in rows]
    if not changed and not newly_removed and is_missing == board.is_missing:
        return board
    entries = {key: entry for key, entry in board.entries.items() if key in rows}
    for key, value in changed.items():
        encoded, earlier = encode(value), entries.get(key)
        if earlier is None or earlier.encoded != encoded:
            entries[key] = BoardEntry(value, encoded, version)
        else:
            entries[key] = replace(earlier, value=value)
    removed = {key: since for key, since in board.gone.items() if key not in rows}
    removed |= dict.fromkeys(newly_removed, version)
    is_other = (
        bool(newly_removed) or is_missing != board.is_missing or any(entries[key].version == version for key in changed)
    )
    forgotten = list(removed)[: max(len(removed) - MOST_GONE, 0)]
    return Board(
        entries=entries,
        gone={key: since for key, since in removed.items() if key not in set(forgotten)},
        floor=max([board.floor, *(removed[key] for key in forgotten)]),
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
