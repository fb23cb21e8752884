"""Calls that are open at backends right now, as the kernel sees them: a LocalAI frontend opens one connection for each
and closes it afterwards.
"""

import asyncio
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final

_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED: Final = "01"


class BackendConnections:
    """Counts them, on Linux; elsewhere there are none to be seen."""

    def __init__(self, ports: Callable[[], AbstractSet[int]]) -> None:
        self._ports = ports

    async def count(self) -> int:
        """Connections to the ports of this moment."""
        ports = self._ports()
        if not ports:
            return 0
        return await asyncio.to_thread(lambda: sum(port in ports for port in _connected_ports()))


def _connected_ports() -> Iterator[int]:
    """The local port of every connection, once for each."""
    for table in _TABLES:
        try:
            lines = table.read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, _, state, *_ = line.split()
            if state == _ESTABLISHED:
                yield int(local.rpartition(":")[2], 16)
