"""For a process that reads commands from its standard input and ends with it, so it never outlives its parent."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

MAX_LINE_BYTES: Final = 16 * 1024 * 1024


class InputEnded(Exception):
    """The parent closed the input. Raised in a task group, so that its tasks end as well."""


@contextmanager
def ending_with_input() -> Iterator[None]:
    try:
        yield
    except* InputEnded:
        pass


async def open_input() -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


def write_line(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()
