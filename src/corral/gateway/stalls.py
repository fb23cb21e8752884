"""How long a client has taken nothing of what waits for it."""

import asyncio


class Stall:
    """Begins when the client's buffer is full. That it gets emptier at all is what counts."""

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
