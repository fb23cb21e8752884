"""Measures how long a client has read nothing of its buffered response."""

import asyncio


class Stall:
    """Starts when the client's write buffer is full. Any change of the buffer's size counts as progress."""

    __slots__ = ("_since", "_size", "_transport")

    def __init__(self, transport: asyncio.WriteTransport, now: float) -> None:
        self._transport = transport
        self._since = now
        self._size = transport.get_write_buffer_size()

    def seconds(self, now: float) -> float:
        size = self._transport.get_write_buffer_size()
        if size != self._size:
            self._since, self._size = now, size
        return now - self._since
