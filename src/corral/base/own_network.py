"""Which hosts belong to the own network: addresses that the internet has no business to name."""

import asyncio
import ipaddress
import socket
from datetime import timedelta
from typing import Final

_LONGEST_LOOKUP: Final = timedelta(seconds=5)
"""For the addresses of a host."""
_OWN_NAMES: Final = (".local", ".localhost", ".internal")


async def is_own_network(host: str) -> bool:
    """Whether a host has an address that is not public. False for a name that cannot be resolved: whoever asks it will
    say so, or a proxy knows it."""
    if host == "localhost" or host.endswith(_OWN_NAMES):
        return True
    try:
        async with asyncio.timeout(_LONGEST_LOOKUP.total_seconds()):
            addresses = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return any(is_private_address(str(address[4][0])) for address in addresses)


def is_private_address(address: str) -> bool:
    """Whether an address belongs to no public host."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return not (mapped or parsed).is_global
