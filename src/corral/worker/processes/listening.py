"""Checks whether a process still listens at an address of this machine."""

import asyncio
import socket
from typing import Final

from corral.worker.membership.addresses import parse_host_port

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
