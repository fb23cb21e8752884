"""Source addresses of callers, as limits per source count them."""

import ipaddress
from typing import Final

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
_PREFIX: Final = 64
"""Prefix length of IPv6 networks that count as one source: a customer usually has all addresses of a /64."""


def source_of(host: str) -> str:
    """Return the address, or the /64 network of an IPv6 address, under which its calls are counted."""
    if ":" not in host:
        return host
    address = parsed_ip(host)
    if not isinstance(address, ipaddress.IPv6Address):
        return host if address is None else str(address)
    return str(ipaddress.IPv6Network((int(address), _PREFIX), strict=False))


def parsed_ip(text: str) -> IpAddress | None:
    """Parse an IP address; None when it is not one. IPv4-mapped IPv6 addresses become IPv4."""
    try:
        address = ipaddress.ip_address(text.strip().strip("[]").partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
