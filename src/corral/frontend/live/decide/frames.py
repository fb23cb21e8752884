"""Frames of the live stream as bytes. Items come encoded: each is encoded once, however many read it."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from corral.frontend.live.decide.board import Board, BoardChange

MOST_BYTES: Final = 48 * 1024
"""Most bytes of items in one frame of a snapshot, so that little is buffered for a connection that nobody reads."""
MOST_CHANGED: Final = 256 * 1024
"""Most bytes of items in one frame of a change. Only a reader that was away has more than that to get."""
BEAT: Final = b": beat\n\n"

_json: Final = msgspec.json.Encoder()


def change_frames(topic: str, change: BoardChange) -> Iterator[bytes]:
    """Yield the change as one frame, or as several if it is very large. The first frame names the removed keys."""
    removed_keys = b',"gone":' + _json.encode(change.gone) if change.gone else b""
    for number, part in enumerate(_parts(change.items, MOST_CHANGED)):
        yield _frame(b"change", topic, part, removed_keys if number == 0 else b"")


def snapshot_frames(topic: str, board: Board) -> Iterator[bytes]:
    """The whole board, in as many frames as it takes; the first and the last say so."""
    parts = list(_parts({key: entry.encoded for key, entry in board.entries.items()}, MOST_BYTES))
    for number, part in enumerate(parts):
        flags = b',"first":true' if number == 0 else b""
        if number == len(parts) - 1:
            flags += b',"whole":true'
            flags += b',"missing":true' if board.is_missing else b""
        yield _frame(b"snapshot", topic, part, flags)


def event_frame(name: str, data: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _json.encode(data))


def with_id(frame: bytes, id: str) -> bytes:
    return b"id: %b\n%b" % (id.encode(), frame)


def last_with_id(frames: Iterable[bytes], id: str) -> Iterator[bytes]:
    """The frames, the last one with the place at which a reader is that has seen them all.

    A reader that loses the connection before the last one gets all of them again.
    """
    before: bytes | None = None
    for frame in frames:
        if before is not None:
            yield before
        before = frame
    if before is not None:
        yield with_id(before, id)


def _frame(event: bytes, topic: str, items: Mapping[str, bytes], further_fields: bytes) -> bytes:
    body = b",".join(_json.encode(key) + b":" + item for key, item in items.items())
    return b'event: %b\ndata: {"topic":%b,"items":{%b}%b}\n\n' % (event, _json.encode(topic), body, further_fields)


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
