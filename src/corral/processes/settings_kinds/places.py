"""Places on the network: URLs, hosts and addresses."""

import ipaddress
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, urlsplit

from corral.base.errors import InvalidInput
from corral.processes.settings_kinds.basic import SettingKind

if TYPE_CHECKING:
    pass


def _split(url: str) -> SplitResult:
    """Split a URL and look at its port once, so that a bad one is noticed here."""
    if not url.isprintable() or " " in url:
        raise ValueError(url)
    parts = urlsplit(url)
    _ = parts.port
    return parts


def hide_password(text: str) -> str:
    """A URL, or several, without anything that may be a login or a query; meant also for what is no proper URL."""
    scheme, separator, rest = text.partition("://") if "://" in text else ("", "", text)
    if "@" in rest:
        rest = "***@" + rest.rpartition("@")[2]
    if "?" in rest:
        rest = rest.partition("?")[0] + "?***"
    return scheme + separator + rest


def _read_http_url(text: str) -> str:
    url = text.strip().rstrip("/")
    parts = _split(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or "@" in url:
        raise ValueError(text)
    return url


HTTP_URL: Final = SettingKind(
    placeholder="URL",
    allowed="a URL such as http://10.0.0.1:8080, without a user, a query or a fragment",
    read=_read_http_url,
    shown=hide_password,
    holds_password=lambda text: "@" in text,
)


def _read_http_urls(text: str) -> tuple[str, ...]:
    urls = tuple(dict.fromkeys(_read_http_url(url) for url in text.split(",") if url.strip()))
    if not urls:
        raise ValueError(text)
    return urls


HTTP_URLS: Final = SettingKind(
    placeholder="URL[,URL…]",
    allowed="a URL such as http://10.0.0.1:8080, or several, comma-separated; without a user, a query or a fragment",
    read=_read_http_urls,
    shown=hide_password,
    holds_password=lambda text: "@" in text,
)


def _read_nats_urls(text: str) -> str:
    from corral.bus.endpoints import parse_endpoints

    try:
        parse_endpoints(text)
    except InvalidInput:
        raise ValueError from None
    return text.strip()


NATS_URLS: Final = SettingKind(
    placeholder="URL[,URL…]",
    allowed="a URL such as nats://10.0.0.1:4222, or several, comma-separated",
    read=_read_nats_urls,
    shown=hide_password,
    holds_password=lambda text: "@" in text,  # a user without a password is a token
)


def _read_database_url(text: str) -> str:
    url = text.strip()
    parts = _split(url)
    if parts.scheme == "sqlite":
        if not url.startswith("sqlite:///") or len(url) == len("sqlite:///"):
            raise ValueError(text)
    elif parts.scheme not in ("postgres", "postgresql"):
        raise ValueError(text)
    return url


def _database_password(text: str) -> bool:
    """Deliberately crude, so that it also sees the password of something that is not a proper URL."""
    authority = text.partition("://")[2].rpartition("@")[0]
    return ":" in authority or "password=" in text.lower()


DATABASE_URL: Final = SettingKind(
    placeholder="URL",
    allowed="sqlite:///PATH or postgresql://USER:PASSWORD@HOST:PORT/NAME",
    read=_read_database_url,
    shown=hide_password,
    holds_password=_database_password,
)


def _read_address(text: str) -> str:
    host, _, port = text.strip().rpartition(":")
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        raise ValueError(text)
    if not re.fullmatch(r"(\[[0-9A-Fa-f:.%\w]+\]|[\w.-]*)", host, re.ASCII):
        raise ValueError(text)
    return f"{host}:{port}"


ADDRESS: Final = SettingKind(
    placeholder="HOST:PORT",
    allowed="HOST:PORT, such as 10.0.0.5:50051 or [fd00::5]:50051",
    read=_read_address,
)


def _read_host(text: str) -> str:
    host = text.strip()
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not re.fullmatch(r"[\w.:%-]{1,255}", bare, re.ASCII):
        raise ValueError(text)
    return bare


HOST: Final = SettingKind(placeholder="HOST", allowed="a host name or an IP address", read=_read_host)


def _read_hosts(text: str) -> tuple[str, ...]:
    hosts = tuple(dict.fromkeys(host.strip().lower() for host in text.split(",") if host.strip()))
    if not hosts or not all(re.fullmatch(r"(\[[0-9a-f:.]+\]|[\w.-]{1,253})(:[0-9]{1,5})?", host) for host in hosts):
        raise ValueError(text)
    return hosts


HOSTS: Final = SettingKind(
    placeholder="HOST[,HOST…]",
    allowed="a host such as registry.lan or registry.lan:5000, or several, comma-separated",
    read=_read_hosts,
)


IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


def _read_networks(text: str) -> tuple[IpNetwork, ...]:
    networks = tuple(ipaddress.ip_network(one.strip(), strict=False) for one in text.split(",") if one.strip())
    if not networks:
        raise ValueError(text)
    return networks


def _read_origins(text: str) -> tuple[str, ...]:
    origins = tuple(dict.fromkeys(_read_origin(one.strip()) for one in text.split(",") if one.strip()))
    if not origins:
        raise ValueError(text)
    return origins


def _read_origin(text: str) -> str:
    """As browsers write it, but in small letters: with nothing behind the port."""
    if text == "*":
        return text
    url = _read_http_url(text)
    if urlsplit(url).path:
        raise ValueError(text)
    return url.lower()


ORIGINS: Final = SettingKind(
    placeholder="ORIGIN[,ORIGIN…]",
    allowed="origins such as https://chat.example or http://localhost:3000, comma-separated, or *",
    read=_read_origins,
)
NETWORKS: Final = SettingKind(
    placeholder="NETWORK[,NETWORK…]",
    allowed="an IP address such as 10.0.0.5, a network such as 10.0.0.0/24, or several, comma-separated",
    read=_read_networks,
)
