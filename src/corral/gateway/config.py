"""Configuration of a gateway. Every timeout and limit is declared here and nowhere else."""

import ipaddress
import math
import ssl
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import ClassVar, Final
from urllib.parse import urlsplit

from corral.base.retry import Backoff
from corral.base.setting_kinds import (
    EXISTING_FILE,
    HTTP_URL,
    SECRET,
    SWITCH,
    SettingKind,
    duration,
    items,
    seconds,
    size,
    whole,
)
from corral.base.settings import PublicPort, setting

TrustedNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


def _read_control_url(text: str) -> str:
    """Refuse a path, a query and a login: they would be dropped silently."""
    if text.startswith("unix:/"):
        return text
    return HTTP_URL.read(text if urlsplit(text).path in ("", "/") else "")


CONTROL_URL: Final = replace(
    HTTP_URL,
    allowed="http://HOST:PORT or https://HOST:PORT of a frontend, or unix: and the full path of a socket",
    read=_read_control_url,
)


def _read_origin(text: str) -> str:
    """An origin in small letters, with nothing after the port."""
    if text == "*":
        return text
    url = HTTP_URL.read(text)
    if urlsplit(url).path:
        raise ValueError(text)
    return url.lower()


ORIGINS: Final = SettingKind(
    placeholder="ORIGIN[,ORIGIN…]",
    allowed="origins such as https://chat.example or http://localhost:3000, comma-separated, or *",
    read=items(_read_origin),
)

NETWORKS: Final = SettingKind(
    placeholder="NETWORK[,NETWORK…]",
    allowed="an IP address such as 10.0.0.5, a network such as 10.0.0.0/24, or several, comma-separated",
    read=items(lambda text: ipaddress.ip_network(text, strict=False)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeOuts:
    """Timeouts in seconds, as floats because they are compared with the loop's clock."""

    head: float = 15.0
    """From the first byte of a request's head, or of empty lines before it, to its last byte."""
    keep_alive: float = 75.0
    """How long a client's connection may stay without a request. Longer than most load balancers keep theirs."""
    load: float = setting(
        seconds("0s", "1h").into(lambda wait: wait or math.inf),
        """How long a request waits for a model that is not loaded, before it is refused with a time to try again;
        0 waits as long as the client does. 30 s: small models are there by then, and most clients still are.""",
        name="load_wait",
        aliases=("LOCALAI_MODEL_LOAD_WAIT",),
        default="30s",
    )
    queue: float = setting(
        seconds("100ms", "1h"),
        """How long a request waits for room at replicas that are all busy. 60 s: longer than most answers take.""",
        name="queue_wait",
        default="60s",
    )
    first_byte: float = setting(
        seconds("100ms", "24h"),
        """How long a replica, or control, may take until the first byte of its answer. 10 minutes: an answer that is
        not streamed has none before it is ready.""",
        name="first_byte_timeout",
        default="10m",
    )
    idle: float = setting(
        seconds("100ms", "24h"),
        """How long the answer of a replica may pause between two bytes, before it is cut off and the replica suspected.
        2 minutes: no engine that works takes so long for a token.""",
        name="idle_timeout",
        default="2m",
    )
    body: float = setting(
        seconds("1s", "24h"),
        """How long the body of a request with a valid key may take to arrive. 15 minutes: 32 MiB come in that time also
        through slow Wi-Fi. Requests without a key have 30 seconds.""",
        name="body_timeout",
        default="15m",
    )
    keyless_body: float = 30.0
    """`body` for requests without a valid key, whose bodies are small."""
    body_grace: float = 10.0
    """How long a body may come more slowly than `Limits.body_speed`."""
    linger: float = 2.0
    """How long an answered client may go on sending what is thrown away, so that it reads the answer first."""
    known_linger: float = 20.0
    """`linger` for clients with a valid key. Once the process was asked to stop, both are much shorter."""
    stalled_client: float = 300.0
    """How long a client may take nothing of an answer that waits for it."""
    connect: float = 5.0
    """For opening a connection to a replica or to control."""
    replacement: float = 15.0
    """How long a request whose only replica closed the connection waits for control to report the replica as gone.
    Then it waits for a load like any other request; if control says nothing, it fails."""
    idle_upstream: float = 60.0
    """How long an unused connection to a replica is kept."""
    drain: float = 25.0
    """How long requests in progress may take after the process was asked to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Sizes in bytes, except where the docstring says that it is a count."""

    head: int = 64 * 1024
    body: int = setting(
        size("1KiB", "1024MiB"),
        """Bytes of one request's body that are accepted, and of what a compressed one becomes. 32 MiB: images come
        inside bodies, and text is far smaller.""",
        name="max_request",
        default="32MiB",
    )
    bodies: int = 512 * 1024 * 1024
    """All request bodies that are being received or wait for a replica."""
    keyless_bodies: int = 16 * 1024 * 1024
    """All bodies of requests without a valid key. Separate from `bodies`, so that strangers cannot use up what
    others need."""
    unfinished_heads: int = 8 * 1024 * 1024
    """All heads that have begun on connections without a valid key. Heads of ordinary clients arrive in one piece or
    within a moment."""
    body_speed: int = setting(
        size("0", "1024MiB"),
        """Bytes per second, on average, that a body must arrive with after its first 10 seconds, or it is refused with
        408. 1 KiB: far less than any working connection, and more than who only wants to hold one sends.""",
        name="min_body_speed",
        default="1KiB",
    )
    write_buffer: int = 64 * 1024
    """How much of a response is buffered for a slow client before reading from the replica stops."""
    read_ahead: int = 64 * 1024
    """How much a client may send before its previous request is answered."""
    connections: int = 20_000
    """A count: clients at once. A process with few descriptors has fewer: see `processes/gateway.py`."""
    source_connections: int = setting(
        whole(1, 1_000_000),
        """Connections from one address that have not shown a valid key yet; beyond it the oldest of them is closed. An
        IPv6 address counts with all of its /64 network. 256: more than clients open in the moment before their first
        request. How many there may be in all follows from the limit of open files.""",
        default=256,
    )
    source_registrations: int = setting(
        whole(0, 1_000_000),
        """Registrations of workers that one address may send per minute, and at once; others are refused with a time to
        try again. 0 is without limit. 300: a room of workers behind one address may restart together, and nobody can
        keep control busy with them.""",
        default=300,
    )
    backlog: int = 4096
    """A count: connections that the kernel queues until they are accepted; all of them are accepted in one go."""
    queue: int = 1000
    """A count: requests that wait for one model."""
    idle_upstream: int = 1024
    """A count: unused connections kept for one replica."""
    idle_control: int = 8
    """A count: unused connections kept for control. Each request that changes something opens a new one, so without a
    small limit strangers could use up our descriptors with requests that control refuses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig(PublicPort):
    """All settings of `corral gateway`."""

    section: ClassVar[str] = "gateway"
    title: ClassVar[str] = "`corral gateway`"

    control_url: str = setting(
        CONTROL_URL,
        """Where control is: the URL of any frontend, `http://` or `https://`, or `unix:PATH` of control's socket.
        There is no default: a gateway that guesses may serve the wrong fleet.""",
        name="control",
        env="CORRAL_CONTROL_URL",
    )
    control_ca: Path | None = setting(
        EXISTING_FILE,
        """Certificates of the authorities that a control behind HTTPS is checked against. By default those of the
        system.""",
        default=None,
    )
    control_key: str = setting(
        SECRET,
        """A key with the scope `gateway`, made by `corral keys create`. None by default; a frontend hands one to its
        own gateways.""",
        name="key",
        env="CORRAL_GATEWAY_KEY",
        default="",
        secret=True,
    )
    time_outs: TimeOuts = TimeOuts()
    limits: Limits = Limits()
    trusted_proxies: tuple[TrustedNetwork, ...] = setting(
        NETWORKS,
        """Addresses or networks of reverse proxies, comma-separated. Their `X-Forwarded-For` and `X-Forwarded-Proto`
        are believed, and limits count the address that they name. None by default: everybody could write these.""",
        default=(),
    )
    cors_origins: tuple[str, ...] = setting(
        ORIGINS,
        """Origins of web pages that may send requests and read answers, comma-separated, or `*` for all; browsers send
        no cookies or other credentials for `*`. None by default: a page of a stranger must not speak for who visits
        it.""",
        default=(),
    )
    max_view_age: timedelta | None = setting(
        duration("20s", "365d"),
        """How long a gateway that does not hear control goes on serving what it last knew. Without limit by default:
        serving outlives control. A key that was revoked meanwhile works for so long.""",
        default=None,
        default_text="unlimited",
    )
    expose_node: bool = setting(
        SWITCH,
        """Say in the header `X-LocalAI-Node` of each answer of a model which node gave it. Off by default: clients
        need not know the fleet.""",
        aliases=("LOCALAI_EXPOSE_NODE_HEADER",),
        default=False,
    )
    reuse_port: bool = setting(
        SWITCH,
        "Share the port with other gateways of the same user. Off by default: a taken port is then an error.",
        default=False,
    )
    plain_port: int | None = setting(
        whole(1, 65535),
        """Port on 127.0.0.1 that speaks HTTP also when the public one speaks HTTPS, for programs of this machine. Set
        by `corral up` for its own workers; none by default.""",
        flag="",
        default=None,
    )
    report_period: timedelta = timedelta(seconds=1)
    ensure_period: timedelta = timedelta(seconds=2)
    """How often control is asked again while requests wait for a model, so that a wait survives a restart of
    control."""
    view_silence: timedelta = timedelta(seconds=15)
    """A view stream that is silent for this long, without even a heartbeat, counts as broken."""
    reconnect: Backoff = Backoff(first=timedelta(milliseconds=100), cap=timedelta(seconds=2))
    control_tls: ssl.SSLContext | None = None
    """Trusted certificates for an HTTPS connection to control; None uses the system's."""
    tls: ssl.SSLContext | None = None
    """Serve HTTPS when given."""
