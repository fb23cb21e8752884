"""Ports for servers that a test stops and starts again.

They lie below the range from which the kernel takes ports for outgoing connections: a port of that range may be gone
when its server comes back, or a client that dials it meanwhile may even reach itself. Processes that share a test run
take them from parts of their own: a port that one of them has found free is not there for another to take.
"""

import itertools
import os
import random
import socket
from collections.abc import Iterator, Mapping
from typing import Final

_LOOPBACK: Final = "127.0.0.1"
_FIRST: Final = 20_000
_LAST: Final = 32_000


def own_part(environment: Mapping[str, str]) -> range:
    """Every second port of the part that belongs to this process of the test run, by its number."""
    count = int(environment.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    number = int(environment.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    size = (_LAST - _FIRST) // count // 2 * 2
    return range(_FIRST + number * size, _FIRST + (number + 1) * size, 2)


def _from_anywhere(ports: range) -> Iterator[int]:
    """All of them, from a random one on, so that test runs on one machine rarely meet."""
    start = random.randrange(len(ports))
    return itertools.chain(ports[start:], ports[:start])


_PART: Final = own_part(os.environ)
_numbers: Final = itertools.cycle(_from_anywhere(_PART))


def lasting_port() -> int:
    """Return a free loopback port that this process hands out only once; the one below it is free too."""
    for _ in _PART:
        port = next(_numbers)
        if is_free(port) and is_free(port - 1):
            return port
    raise RuntimeError(f"no free port between {_PART.start} and {_PART.stop}")


def lasting_range(size: int) -> range:
    """Such a port and those after it, none of which is handed out again; a few may belong to other programs."""
    first = lasting_port()
    for _ in range(first + 2, first + size + 1, 2):  # the port after them too: it is the one below the next
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
