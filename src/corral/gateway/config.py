"""What a gateway is configured with. Every time-out and limit has its name here, and nowhere else."""

import ssl
from dataclasses import dataclass, field
from datetime import timedelta

from corral.base.retry import Backoff
from corral.gateway.sources import IpNetwork


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeOuts:
    """In seconds, since they are compared with the loop's clock."""

    head: float = 15.0
    """From the first byte of a request's head, or of empty lines before it, to its last byte."""
    keep_alive: float = 75.0
    """How long a client's connection may stay without a request. Longer than most load balancers keep theirs."""
    body: float = 900.0
    """From the end of a request's head to the end of its body."""
    keyless_body: float = 30.0
    """`body` for requests without a valid key, whose bodies are small."""
    body_grace: float = 10.0
    """How long a body may come more slowly than `Limits.body_speed`."""
    linger: float = 2.0
    """How long an answered client may go on sending what is thrown away, so that it reads the answer first."""
    stalled_client: float = 300.0
    """How long a client may take nothing of an answer that waits for it."""
    connect: float = 5.0
    """To a replica or to control."""
    first_byte: float = 600.0
    """From the request to the first byte of the answer. An answer that is not streamed has none until it is ready."""
    idle: float = 120.0
    """Between two bytes of an answer."""
    queue: float = 60.0
    """How long a request waits for a free place at a replica that is there."""
    load: float = 30.0
    """The wait budget: how long a request waits for a model that is not loaded. May be infinite."""
    replacement: float = 5.0
    """How long a request whose only replica hung up waits for control to say that it is gone. Then it waits for a load,
    as for any model that is not loaded; without a word of control it fails."""
    idle_upstream: float = 60.0
    """How long an unused connection to a replica is kept."""
    drain: float = 25.0
    """How long answers under way may take after the process was asked to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """In bytes, where not said otherwise."""

    head: int = 64 * 1024
    body: int = 32 * 1024 * 1024
    """Of one request. Images come base64-encoded in bodies, so this is more than any text needs."""
    bodies: int = 512 * 1024 * 1024
    """Of all requests that are being received or wait for a replica."""
    keyless_bodies: int = 16 * 1024 * 1024
    """Of all requests without a valid key. Apart from `bodies`, so that strangers use up nothing that others need."""
    body_speed: int = 1024
    """Bytes per second, on average since `TimeOuts.body_grace` was over, that a body must come with."""
    write_buffer: int = 64 * 1024
    """How much of an answer waits for a slow client before the replica is no longer read."""
    read_ahead: int = 64 * 1024
    """How much a client may send before its last request is answered."""
    connections: int = 20_000
    """A count: clients at once. A process with few descriptors has fewer: see `processes/gateway.py`."""
    source_connections: int = 256
    """A count: connections from one source that have shown no valid key yet."""
    source_registrations: int = 300
    """A count: registrations of workers from one source per minute, and at once. 0 is without limit."""
    backlog: int = 4096
    """A count: connections that the kernel holds until they are accepted, which happens for all of them at once."""
    queue: int = 1000
    """A count: requests that wait for one model."""
    idle_upstream: int = 1024
    """A count: unused connections kept for one replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """One gateway process."""

    host: str = "127.0.0.1"
    port: int = 0
    """0 takes any free port."""
    control_url: str
    """`http://host:port` or `https://host:port` of a frontend, or `unix:/path` of control's private socket."""
    control_key: str = field(repr=False)
    """A key with the scope `gateway`."""
    time_outs: TimeOuts = TimeOuts()
    limits: Limits = Limits()
    report_period: timedelta = timedelta(seconds=1)
    ensure_period: timedelta = timedelta(seconds=2)
    """How often control is asked again while requests wait for a model: so a wait outlives a restart of control."""
    view_silence: timedelta = timedelta(seconds=15)
    """A view stream without even a beat for so long is dead."""
    max_view_age: timedelta | None = None
    """After so long without control nothing is served any more; None serves the last view for ever."""
    reconnect: Backoff = Backoff(first=timedelta(milliseconds=100), cap=timedelta(seconds=2))
    control_tls: ssl.SSLContext | None = None
    """Whom to trust, where the way to control is HTTPS; None trusts the system's authorities."""
    tls: ssl.SSLContext | None = None
    """Serve HTTPS when given."""
    plain_port: int | None = None
    """A port on 127.0.0.1 beside the public one that speaks HTTP in any case."""
    expose_node: bool = False
    """Tell in each answer which node gave it."""
    trusted_proxies: tuple[IpNetwork, ...] = ()
    """Whose `X-Forwarded-For` and `X-Forwarded-Proto` are believed."""
    cors_origins: tuple[str, ...] = ()
    """Origins of web pages that may read answers, in small letters, or `*`; none by default."""
    reuse_port: bool = False
    """Several gateways on one port: the kernel spreads connections over them."""
