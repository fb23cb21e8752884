"""The address that somebody calls from, as limits per source count it."""

import ipaddress
from typing import Final

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
_PREFIX: Final = 64
"""Bits of an IPv6 address that tell networks apart: whoever has one has all addresses of it."""


def source_of(host: str) -> str:
    """What calls from this address are counted under: the address, or the /64 network of an IPv6 address."""
    if ":" not in host:
        return host
    address = parsed_ip(host)
    if not isinstance(address, ipaddress.IPv6Address):
        return host if address is None else str(address)
    return str(ipaddress.IPv6Network((int(address), _PREFIX), strict=False))


def parsed_ip(text: str) -> IpAddress | None:
    """None for what is no address. An IPv4 address that is written as an IPv6 one is an IPv4 address."""
    try:
        address = ipaddress.ip_address(text.strip().strip("[]").partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
