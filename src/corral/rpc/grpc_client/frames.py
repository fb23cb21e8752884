"""The frames of HTTP/2 (RFC 9113, sections 4 and 6): from bytes and to bytes."""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA: Final = 0x0
HEADERS: Final = 0x1
RST_STREAM: Final = 0x3
SETTINGS: Final = 0x4
PUSH_PROMISE: Final = 0x5
PING: Final = 0x6
GOAWAY: Final = 0x7
WINDOW_UPDATE: Final = 0x8
CONTINUATION: Final = 0x9

ACK: Final = 0x1
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
_PRIORITY: Final = 0x20

ENABLE_PUSH: Final = 0x2
MAX_CONCURRENT_STREAMS: Final = 0x3
INITIAL_WINDOW_SIZE: Final = 0x4
MAX_FRAME_SIZE: Final = 0x5

NO_ERROR: Final = 0x0
REFUSED_STREAM: Final = 0x7
CANCEL: Final = 0x8
ENHANCE_YOUR_CALM: Final = 0xB
INADEQUATE_SECURITY: Final = 0xC

MAX_NUMBER: Final = 2**31 - 1
"""The largest window, and the largest number of a stream."""
MIN_FRAME_LIMIT: Final = 16_384
"""Every peer accepts frames of this size; it may allow larger ones, up to MAX_FRAME_LIMIT."""
MAX_FRAME_LIMIT: Final = 2**24 - 1
PING_BYTES: Final = 8

_HEAD: Final = struct.Struct(">HBBBL")
_SETTING: Final = struct.Struct(">HL")
_NUMBER: Final = struct.Struct(">L")
_PRIORITY_BYTES: Final = 5


class ProtocolViolated(Exception):
    """The peer breaks a rule of HTTP/2."""


class FrameTooLarge(ProtocolViolated):
    """A frame is longer than allowed, or the bytes are no frame at all: `start` has the first ones."""

    def __init__(self, length: int, limit: int, start: bytes) -> None:
        super().__init__(f"a frame of {length} bytes, more than {limit}")
        self.start = start


class Frame(NamedTuple):
    """One frame as it was received; `payload` may still contain padding."""

    kind: int
    flags: int
    stream: int
    payload: bytes


class FrameReader:
    """Splits received bytes into frames, however TCP has cut them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._unread = b""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that are complete now; those before a frame that is refused are yielded first."""
        if self._unread:
            data = self._unread + data
        begin, end = 0, len(data)
        while end - begin >= _HEAD.size:
            high, low, kind, flags, stream = _HEAD.unpack_from(data, begin)
            length = high << 8 | low
            if length > self._limit:
                raise FrameTooLarge(length, self._limit, data[begin : begin + _HEAD.size])
            after = begin + _HEAD.size + length
            if after > end:
                break
            yield Frame(kind, flags, stream & MAX_NUMBER, data[begin + _HEAD.size : after])
            begin = after
        self._unread = data[begin:]


def frame(kind: int, flags: int, stream: int, payload: bytes | memoryview = b"") -> bytes:
    """Return a frame as bytes."""
    length = len(payload)
    return _HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream) + payload


def settings(values: dict[int, int]) -> bytes:
    """Return a SETTINGS frame with these values."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*item) for item in values.items()))


def window_update(stream: int, count: int) -> bytes:
    """Return a frame that allows the peer to send `count` bytes more; on stream 0, on the connection as a whole."""
    return frame(WINDOW_UPDATE, 0, stream, _NUMBER.pack(count))


def reset(stream: int, code: int) -> bytes:
    """Return a frame that ends one stream."""
    return frame(RST_STREAM, 0, stream, _NUMBER.pack(code))


def content_of(read: Frame) -> bytes:
    """Return the content of a DATA or HEADERS frame, without padding and priority."""
    begin, end = 0, len(read.payload)
    if read.flags & PADDED:
        begin, end = 1, end - (read.payload[0] if read.payload else 1)
    if read.flags & _PRIORITY and read.kind == HEADERS:
        begin += _PRIORITY_BYTES
    if begin > end:
        raise ProtocolViolated("more padding than frame")
    return read.payload[begin:end] if (begin, end) != (0, len(read.payload)) else read.payload


def settings_of(read: Frame) -> Iterator[tuple[int, int]]:
    """Return names and values in a SETTINGS frame."""
    if len(read.payload) % _SETTING.size:
        raise ProtocolViolated(f"settings of {len(read.payload)} bytes")
    return _SETTING.iter_unpack(read.payload)


def number_of(read: Frame, at: int = 0) -> int:
    """Return the 32 bits at this offset of a WINDOW_UPDATE, RST_STREAM or GOAWAY frame."""
    if len(read.payload) < at + _NUMBER.size:
        raise ProtocolViolated(f"a frame of kind {read.kind} with {len(read.payload)} bytes")
    return int(_NUMBER.unpack_from(read.payload, at)[0])
