"""Removes chunked framing from responses, for HTTP/1.0 clients."""

from collections.abc import Callable
from typing import Final

_LINE_END: Final = b"\r\n"


class Unchunker:
    """Takes the chunked body of a response in any pieces and writes the payload as it arrives.

    The parser of the upstream connection has already checked that the chunks are well-formed.
    """

    __slots__ = ("_held", "_is_over", "_left", "_write")

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._held = b""
        """The beginning of a size line whose end has not arrived yet."""
        self._left = 0
        """Bytes that are missing of the current chunk and of the line end after it."""
        self._is_over = False

    def write(self, data: bytes) -> None:
        data = self._held + data if self._held else data
        content, at = [], 0
        while at < len(data) and not self._is_over:
            if not self._left:
                end = data.find(_LINE_END, at)
                if end < 0:
                    break
                self._begin_chunk(data[at:end])
                at = end + len(_LINE_END)
                continue
            end = min(at + self._left, len(data))
            content.append(data[at : min(at + max(self._left - len(_LINE_END), 0), end)])
            self._left -= end - at
            at = end
        self._held = b"" if self._is_over else data[at:]
        if content:
            self._write(b"".join(content))

    def _begin_chunk(self, line: bytes) -> None:
        size = int(line.partition(b";")[0], 16)
        self._is_over = not size  # only trailers follow, and they are dropped
        self._left = size + len(_LINE_END)
