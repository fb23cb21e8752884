"""Which hosts belong to the own network: addresses that the internet has no business to name, and addresses that
nobody is sent to."""

import asyncio
import ipaddress
import socket
from datetime import timedelta
from functools import lru_cache
from typing import Final

_LONGEST_LOOKUP: Final = timedelta(seconds=5)
"""For the addresses of a host."""
_OWN_NAMES: Final = (".local", ".localhost", ".internal")


async def is_own_network(host: str) -> bool:
    """Whether a host has an address that is not public.

    False for a name that cannot be resolved: the request to it will fail with that reason, or a proxy can resolve it.
    """
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
    return not all(each.is_global for each in (mapped or parsed, *_embedded(parsed)))


# Addresses that no request may be sent to. Private ones are not among them.

_METADATA: Final = frozenset(
    map(ipaddress.ip_address, ("168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254"))
)
"""Where clouds tell machines their secrets, besides 169.254.169.254."""
_EMBEDDING: Final = ipaddress.ip_network("64:ff9b::/96")
"""IPv6 addresses whose last 32 bits are an IPv4 address (NAT64)."""


class ForbiddenAddress(OSError):
    """A host has an address that nobody may be sent to."""


def forbidden_address(address: str) -> str:
    """Why nobody may be sent to an address; empty when that is fine, as for private addresses."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    for each in (parsed, *_embedded(parsed)):
        if each in _METADATA:
            return "which tells cloud machines their secrets"
        if each.is_link_local:
            return "which is link-local: clouds tell machines their secrets there"
        if each.is_unspecified or each.is_multicast or str(each) == "255.255.255.255":
            return "which no single machine has"
    return ""


def _embedded(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> list[ipaddress.IPv4Address]:
    """The IPv4 addresses that packets to an IPv6 address may end up at."""
    if isinstance(address, ipaddress.IPv4Address):
        return []
    teredo = address.teredo
    addresses = [address.ipv4_mapped, address.sixtofour, None if teredo is None else teredo[1]]
    if address in _EMBEDDING:
        addresses.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return [each for each in addresses if each is not None]


@lru_cache(maxsize=4096)
def plain_host(host: str) -> str:
    """A host in the one spelling in which it can be compared with others: an IPv4 address that is written as an IPv6
    address becomes itself."""
    try:
        parsed = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host.rstrip(".").lower()
    return str(next(iter(_embedded(parsed)), parsed))


async def allowed_addresses(host: str, port: int) -> list[str]:
    """The addresses of a host, in the order to try them. ForbiddenAddress when nobody may be sent to one of them, any
    other OSError when it has none."""
    answers = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(each[4][0]) for each in answers))
    for address in addresses:
        if why := forbidden_address(address):
            raise ForbiddenAddress(f"{host} has the address {address}, {why}")
    return addresses


def is_this_machine(address: str) -> bool:
    """Whether the machine that this runs on has an address."""
    address = plain_host(address)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
