"""Frames of the live stream as bytes. Items come encoded: each is encoded once, however many read it."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from corral.frontend.live.decide.board import Board, BoardChange

MOST_BYTES: Final = 48 * 1024
"""Of the items in one frame of a snapshot: what is written to a connection that nobody reads stays small."""
MOST_CHANGED: Final = 256 * 1024
"""Of the items in one frame of a change. More only comes together for a reader that was away."""
BEAT: Final = b": beat\n\n"

_json: Final = msgspec.json.Encoder()


def change_frames(topic: str, change: BoardChange) -> Iterator[bytes]:
    """One frame, unless it were very large. What is gone is told by the first."""
    gone = b',"gone":' + _json.encode(change.gone) if change.gone else b""
    for number, part in enumerate(_parts(change.items, MOST_CHANGED)):
        yield _frame(b"change", topic, part, gone if number == 0 else b"")


def snapshot_frames(topic: str, board: Board) -> Iterator[bytes]:
    """The whole board, in as many frames as it takes; the first and the last say so."""
    parts = list(_parts({key: entry.encoded for key, entry in board.entries.items()}, MOST_BYTES))
    for number, part in enumerate(parts):
        rest = b',"first":true' if number == 0 else b""
        if number == len(parts) - 1:
            rest += b',"whole":true'
            rest += b',"missing":true' if board.is_missing else b""
        yield _frame(b"snapshot", topic, part, rest)


def event_frame(name: str, data: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _json.encode(data))


def with_id(frame: bytes, id: str) -> bytes:
    return b"id: %b\n%b" % (id.encode(), frame)


def last_with_id(frames: Iterable[bytes], id: str) -> Iterator[bytes]:
    """The frames, the last one with the place at which a reader is that has seen them all.

    Whoever loses the connection before the last one is told all of them again.
    """
    before: bytes | None = None
    for frame in frames:
        if before is not None:
            yield before
        before = frame
    if before is not None:
        yield with_id(before, id)


def _frame(event: bytes, topic: str, items: Mapping[str, bytes], rest: bytes) -> bytes:
    body = b",".join(_json.encode(key) + b":" + item for key, item in items.items())
    return b'event: %b\ndata: {"topic":%b,"items":{%b}%b}\n\n' % (event, _json.encode(topic), body, rest)


def _parts(items: Mapping[str, bytes], most: int) -> Iterator[dict[str, bytes]]:
    part: dict[str, bytes] = {}
    size = 0
    for key, item in items.items():
        if part and size + len(item) > most:
            yield part
            part, size = {}, 0
        part[key] = item
        size += len(item)
    yield part
