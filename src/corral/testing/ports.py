"""Ports for servers that a test stops and starts again.

They lie below the range from which the kernel takes ports for outgoing connections: a port of that range may be gone
when its server comes back, or a client that dials it meanwhile may even reach itself.
"""

import itertools
import random
import socket
from collections.abc import Iterator
from typing import Final

_LOOPBACK: Final = "127.0.0.1"
_FIRST: Final = 20_000
_LAST: Final = 32_000


def _candidates() -> Iterator[int]:
    """Every second port, from a random one on, so that test runs on one machine rarely meet."""
    start = random.randrange(_FIRST, _LAST, 2)
    return itertools.chain(range(start, _LAST, 2), range(_FIRST, start, 2))


_numbers: Final = itertools.cycle(_candidates())


def lasting_port() -> int:
    """A port on loopback that nobody uses and that this process hands out only once; the one below it is free too."""
    for _ in range(_FIRST, _LAST, 2):
        port = next(_numbers)
        if is_free(port) and is_free(port - 1):
            return port
    raise RuntimeError(f"no free port between {_FIRST} and {_LAST}")


def lasting_range(size: int) -> range:
    """Such a port and those after it, none of which is handed out again; a few may belong to other programs."""
    first = lasting_port()
    for _ in range(first + 2, first + size, 2):
        next(_numbers)
    return range(first, first + size)


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_LOOPBACK, port))
            probe.listen(1)
        except OSError:
            return False
    return True
