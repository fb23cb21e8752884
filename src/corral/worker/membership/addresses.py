"""Where the worker listens and which addresses it reports, by the rules that LocalAI's workers follow.

Pure: knows neither sockets nor the environment. An address that nobody could use is refused with the name of its
setting; only the base port falls back to the next source, because LocalAI's does.

One rule says who can reach the worker, its HTTP server and its backends alike; the guide has it as a table:

1. `http_addr` says exactly where the HTTP server listens.
2. Otherwise, where an address was given that is on loopback, that address is listened on and no other. Of several it is
   the advertised one, then `addr`, then `serve_addr`.
3. Otherwise the worker is there for other machines, and listens on every interface.

LocalAI's workers listen on every interface in all cases but the first.
"""

import ipaddress
import re
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import msgspec

from corral.base.errors import SettingInvalid
from corral.base.ids import parsed_ip
from corral.base.setting_kinds import ANY_WHOLE, SettingKind
from corral.base.settings import setting

DEFAULT_BASE_PORT: Final = 50051
HIGHEST_PORT: Final = 65535

_HOST_PORT = re.compile(r"(?:\[(?P<bracketed>[^\[\]]*)\]|(?P<plain>[^\[\]:]*)):(?P<port>[0-9]{1,5})")
_HOST = re.compile(r"\[[0-9A-Fa-f:.%\w]+\]|[\w.-]+", re.ASCII)
_USUAL_ADDRESS: Final = f"0.0.0.0:{DEFAULT_BASE_PORT}"
_PORTLESS = re.compile(f"(?:{_HOST.pattern}):", re.ASCII)
_WILDCARDS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - recognised, not bound


def _read_address(text: str) -> str:
    host, _, port = text.strip().rpartition(":")
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= HIGHEST_PORT:
        raise ValueError(text)
    if host and not _HOST.fullmatch(host):
        raise ValueError(text)
    return f"{host}:{port}"


ADDRESS: Final = SettingKind(
    placeholder="HOST:PORT",
    allowed="HOST:PORT, such as 10.0.0.5:50051 or [fd00::5]:50051",
    read=_read_address,
)


def _salvage_host(text: str) -> tuple[str, str]:
    """Take a host without a port; `decide` adds one. LocalAI's worker passes the host on as it is, and then most
    frontends cannot reach its backends."""
    host = text.strip().removesuffix(":")
    try:
        host = f"[{host}]" if ipaddress.ip_address(host).version == 6 else host
    except ValueError:
        if not _HOST.fullmatch(host):
            raise
    return f"{host}:", f"{text!r} has no port; the base port is added"


ADVERTISED: Final = replace(ADDRESS, salvage=_salvage_host)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressConfig:
    """Addresses as `HOST:PORT`, IPv6 hosts in brackets; an empty one is not set."""

    addr: str = setting(
        ADDRESS,
        """Address of this node as others reach it; its port is the base port: backends have ports from there on, and
        one below it is the worker's own HTTP port. An address on loopback, such as 127.0.0.1, is the only one that is
        listened on then; with any other the worker listens on all interfaces.""",
        name="address",
        aliases=("LOCALAI_ADDR",),
        forgives_aliases=True,
        default="",
    )
    serve_addr: str = setting(
        ADDRESS,
        """Source of the base port when there is no address. 50051 is LocalAI's base port. Of its host only loopback
        counts, as with the address.""",
        name="serve_address",
        aliases=("LOCALAI_SERVE_ADDR",),
        forgives_aliases=True,
        default=_USUAL_ADDRESS,
    )
    advertise_addr: str = setting(
        ADVERTISED,
        """Address that the frontend gets, where it differs from the one above. One on loopback is the only one
        that is listened on then.""",
        name="advertise_address",
        aliases=("LOCALAI_ADVERTISE_ADDR",),
        default="",
        default_text="the address, or the host name with the base port",
    )
    http_addr: str = setting(
        ADDRESS,
        """Where the worker's own HTTP server listens: health, readiness and files. With `[::]` on IPv4 as well; that is
        the default where the advertised address is one of IPv6. Says nothing about backends.""",
        name="http_address",
        aliases=("LOCALAI_HTTP_ADDR",),
        default="",
        default_text="all interfaces, or the loopback address that was named; base port − 1",
    )
    advertise_http_addr: str = setting(
        ADDRESS,
        "Address of the worker's HTTP server that the frontend gets, where it differs.",
        name="advertise_http_address",
        aliases=("LOCALAI_ADVERTISE_HTTP_ADDR",),
        default="",
        default_text="the host of the advertised address, base port − 1",
    )
    grpc_max_port: int = setting(
        ANY_WHOLE,
        """Highest port for backends. 0, or anything below the base port or above 65535, means 65535, as in LocalAI.
        Where an address names the base port, also the advertised one, backends have the free ports from there on, as
        LocalAI's. Otherwise those
        that the kernel gives to outgoing connections are left out, unless no others are there: with all defaults on
        Linux backends have 61000 to 65535.""",
        name="max_port",
        aliases=("LOCALAI_GRPC_MAX_PORT",),
        default=0,
    )


class HostPort(NamedTuple):
    """A host, without brackets, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Addresses(msgspec.Struct, frozen=True, kw_only=True):
    """Every address of one worker, decided."""

    base_port: int
    """Port of the first backend."""
    is_base_stated: bool = False
    """Somebody chose the base port, and may have opened or mapped the ports from there on."""
    max_port: int
    advertise: str
    backend_bind: str
    """The host that backends and adapters listen on."""
    http_bind: HostPort
    advertise_http: str


def decide(config: AddressConfig, hostname: str) -> Addresses:
    """Apply all the rules; SettingInvalid names the setting that cannot be used."""
    base = base_port(config.addr, config.serve_addr)
    if _PORTLESS.fullmatch(config.advertise_addr):
        config = replace(config, advertise_addr=f"{config.advertise_addr}{base}")
    return Addresses(
        base_port=base,
        is_base_stated=_is_base_stated(config, base),
        max_port=max_port(config.grpc_max_port, base),
        advertise=advertise_address(config, hostname),
        backend_bind=_listening_host(config.advertise_addr, config),
        http_bind=http_bind(config),
        advertise_http=advertise_http_address(config, hostname),
    )


def _is_base_stated(config: AddressConfig, base: int) -> bool:
    """Whether an address says the base port. One that is only advertised says it too, where it is the same: whoever
    opens or maps ports for it begins there."""
    advertised = parse_host_port(config.advertise_addr)
    is_advertised = advertised is not None and advertised.port == base
    return is_advertised or parse_host_port(config.addr) is not None or config.serve_addr != _USUAL_ADDRESS


def base_port(addr: str, serve_addr: str) -> int:
    """The port of the first address that has a usable one, else 50051."""
    for text in (addr, serve_addr):
        if (parsed := parse_host_port(text)) is not None:
            return parsed.port
    return DEFAULT_BASE_PORT


def max_port(limit: int, base: int) -> int:
    """The last port for backends. A limit that leaves none is no limit."""
    return limit if base <= limit <= HIGHEST_PORT else HIGHEST_PORT


def advertise_address(config: AddressConfig, hostname: str) -> str:
    """Return the address that the frontend uses for backends."""
    for name, text in (("advertise_address", config.advertise_addr), ("address", config.addr)):
        if text:
            _checked(name, text)
            return text
    host = _loopback_of(config.serve_addr) or hostname or "localhost"
    return str(HostPort(host, base_port(config.addr, config.serve_addr)))


def http_bind(config: AddressConfig) -> HostPort:
    """Where the HTTP server listens."""
    if config.http_addr:
        return _checked("http_address", config.http_addr)
    advertised = config.advertise_http_addr or config.advertise_addr
    return HostPort(_listening_host(advertised, config), _port_below_base(config))


def _listening_host(advertised: str, config: AddressConfig) -> str:
    """Apply rules 2 and 3 above, with the address that is explicitly advertised. All interfaces include those of IPv6
    when it is an IPv6 address."""
    for text in (advertised, config.addr, config.serve_addr):
        if host := _loopback_of(text):
            return host
    reached = parse_host_port(advertised or config.addr)
    return "::" if reached is not None and ":" in reached.host else "0.0.0.0"  # noqa: S104 - frontends come from outside


def _loopback_of(address: str) -> str:
    """The host of an address on loopback, as it can be bound; empty for all others."""
    parsed = parse_host_port(address)
    host = parsed.host if parsed is not None else ""
    if host.lower() == "localhost":
        return "127.0.0.1"
    ip = parsed_ip(host)
    return str(ip) if ip is not None and ip.is_loopback else ""


def advertise_http_address(config: AddressConfig, hostname: str) -> str:
    """Return the address by which the frontend reaches the HTTP server; `http_addr`, which may be translated, is not
    asked."""
    if config.advertise_http_addr:
        if not _checked("advertise_http_address", config.advertise_http_addr).host:
            raise SettingInvalid("advertise_http_address", f"{config.advertise_http_addr!r} names no host")
        return config.advertise_http_addr
    advertised = parse_host_port(advertise_address(config, hostname))
    host = advertised.host if advertised else ""
    return str(HostPort(host or "localhost", _port_below_base(config)))


def local_host(bound: str) -> str:
    """How this machine itself dials what listens on a host."""
    return "127.0.0.1" if bound in _WILDCARDS else bound


def is_wildcard(address: str) -> bool:
    """Does this address name no machine, so that others cannot reach it?"""
    parsed = parse_host_port(address)
    return parsed is not None and parsed.host in _WILDCARDS


def parse_host_port(text: str) -> HostPort | None:
    """Parse `host:port`, `[ipv6]:port` or `:port`; None for anything else, or a port out of range."""
    match = _HOST_PORT.fullmatch(text.strip())
    if match is None or not 1 <= int(match["port"]) <= HIGHEST_PORT:
        return None
    return HostPort(match["plain"] if match["bracketed"] is None else match["bracketed"], int(match["port"]))


def _checked(setting: str, text: str) -> HostPort:
    parsed = parse_host_port(text)
    if parsed is None:
        raise SettingInvalid(setting, f"{text!r} is not HOST:PORT with a port from 1 to {HIGHEST_PORT}")
    return parsed


def _port_below_base(config: AddressConfig) -> int:
    base = base_port(config.addr, config.serve_addr)
    if base > 1:
        return base - 1
    setting = "address" if parse_host_port(config.addr) else "serve_address"
    raise SettingInvalid(
        setting, "the base port 1 leaves no port below it for HTTP; choose a higher one, or set both HTTP addresses"
    )
