"""Ports of backends: which one is next, who listens, and which calls are open."""

import asyncio
import socket
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from datetime import timedelta
from pathlib import Path
from typing import Final

from corral.base.clock import Clock
from corral.base.errors import CorralError
from corral.worker.membership.addresses import Addresses, parse_host_port

QUARANTINE: Final = timedelta(seconds=15)
"""How long a port stays unused after its process ended, so that calls to the old process do not reach a new one."""
CLAIM: Final = timedelta(minutes=5)
"""How long a port is kept for the process that had it last, while there are others."""
LINUX_EPHEMERAL: Final = range(32768, 61000)
"""Ports that the kernel gives to outgoing connections, where it does not say otherwise."""
_EPHEMERAL_FILE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


class PortsExhausted(CorralError):
    """No port is left for another backend."""

    code = "ports_exhausted"


class Ports:
    """Gives each port to one owner at a time."""

    def __init__(self, ranges: Sequence[range], *, clock: Clock, is_free: Callable[[int], bool]) -> None:
        self._ranges = tuple(ranges)
        self._clock = clock
        self.is_free = is_free
        self._used: dict[int, str] = {}
        self._released: dict[int, tuple[str, float]] = {}
        """The last owner of each port, and when its process was gone; the newest release stands last."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after a port was taken or released."""

    @property
    def used(self) -> frozenset[int]:
        """The ports that have an owner."""
        return frozenset(self._used)

    def take(self, owner: str) -> int:
        """The best port for this owner that no other program has; PortsExhausted says what became of the range."""
        for port in self._candidates(owner):
            if self.is_free(port):
                self._released.pop(port, None)
                self._used[port] = owner
                self.on_change()
                return port
        ranges = ", ".join(f"{ports.start} to {ports.stop - 1}" for ports in self._ranges)
        raise PortsExhausted(
            f"no port is left for {owner} in {ranges}: backends use {len(self._used)}, "
            f"{len(self._resting())} rest for {QUARANTINE.total_seconds():g} s after use, other programs have the "
            "others; widen the range with max_port (LOCALAI_GRPC_MAX_PORT)"
        )

    def release(self, port: int) -> None:
        """The owner's process is gone."""
        if (owner := self._used.pop(port, None)) is not None:
            self._released.pop(port, None)
            self._released[port] = (owner, self._clock.monotonic())
            self.on_change()

    def _candidates(self, owner: str) -> Iterator[int]:
        """Yield the owner's own ports, unclaimed ones, unused ones, and at last those that others may need again."""
        resting = self._resting()
        rested = [port for port in reversed(self._released) if port not in resting]
        owner_ports = [port for port in rested if self._released[port][0] == owner]
        claimed = [port for port in rested if port not in owner_ports and self._age(port) < CLAIM.total_seconds()]
        yield from owner_ports
        yield from (port for port in rested if port not in owner_ports and port not in claimed)
        for ports in self._ranges:
            yield from (port for port in ports if port not in self._used and port not in self._released)
        yield from claimed

    def _resting(self) -> frozenset[int]:
        return frozenset(port for port in self._released if self._age(port) < QUARANTINE.total_seconds())

    def _age(self, port: int) -> float:
        return self._clock.monotonic() - self._released[port][1]


def ranges_of(places: Addresses, ephemeral: range) -> list[range]:
    """Return the ports for backends, in order. From a base port that somebody chose all of them are used, as LocalAI's
    worker does: those that a container maps begin there, also in the range for outgoing connections."""
    if places.is_base_stated:
        return [range(places.base_port, places.max_port + 1)]
    return usable_ranges(places.base_port, places.max_port, ephemeral)


def usable_ranges(first: int, last: int, ephemeral: range) -> list[range]:
    """Return the ports from `first` to `last`, without those that the kernel may give to outgoing connections.

    If no other port is left, return all of them: a range that was asked for is used.
    """
    below = range(first, min(last + 1, ephemeral.start))
    above = range(max(first, ephemeral.stop), last + 1)
    return [ports for ports in (below, above) if ports] or [range(first, last + 1)]


def ephemeral_ports(file: Path = _EPHEMERAL_FILE) -> range:
    """The kernel's range for outgoing connections."""
    try:
        first, last = map(int, file.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return LINUX_EPHEMERAL
    return range(first, last + 1)


def can_listen(host: str, port: int) -> bool:
    """Whether a backend could listen there now. Tried out, because no list contains the ports of other programs."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
    return True


_PATIENCE_SECONDS: Final = 1.0


async def accepts_connections(address: str) -> bool:
    """Return False only when the connection is refused: a busy process may be slow to accept, but is not gone."""
    parsed = parse_host_port(address)
    if parsed is None:
        return False
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET6 if ":" in parsed.host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await loop.sock_connect(probe, tuple(parsed))
        except ConnectionRefusedError:
            return False
        except (OSError, TimeoutError):
            return True
    return True


_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED: Final = "01"


async def count_connections(ports: AbstractSet[int]) -> int:
    """Connections that are open to these ports of this machine, on Linux; elsewhere there are none to be seen."""

    def count() -> int:
        connections = 0
        for table in _TABLES:
            try:
                lines = table.read_text(encoding="ascii").splitlines()[1:]
            except OSError:
                continue
            for line in lines:
                _, local, _, state, *_ = line.split()
                connections += state == _ESTABLISHED and int(local.rpartition(":")[2], 16) in ports
        return connections

    return await asyncio.to_thread(count) if ports else 0
