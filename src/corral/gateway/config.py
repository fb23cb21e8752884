"""Configuration of a gateway. Every timeout and limit is declared here and nowhere else."""

import ssl
from dataclasses import dataclass, field
from datetime import timedelta

from corral.base.retry import Backoff
from corral.gateway.sources import TrustedNetwork


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeOuts:
    """Timeouts in seconds, as floats because they are compared with the loop's clock."""

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
    """For opening a connection to a replica or to control."""
    first_byte: float = 600.0
    """From the request to the first byte of the response. A response that is not streamed has none until it is
    complete."""
    idle: float = 120.0
    """Between two bytes of a response."""
    queue: float = 60.0
    """How long a request waits for a free slot at a loaded replica."""
    load: float = 30.0
    """The wait budget: how long a request waits for a model that is not loaded. May be infinite."""
    replacement: float = 5.0
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
    body: int = 32 * 1024 * 1024
    """Size of one request body. Images are sent base64-encoded, so this is more than any text needs."""
    bodies: int = 512 * 1024 * 1024
    """All request bodies that are being received or wait for a replica."""
    keyless_bodies: int = 16 * 1024 * 1024
    """All bodies of requests without a valid key. Separate from `bodies`, so that strangers cannot use up what
    others need."""
    body_speed: int = 1024
    """Minimum average speed of a body in bytes per second, once `TimeOuts.body_grace` is over."""
    write_buffer: int = 64 * 1024
    """How much of a response is buffered for a slow client before reading from the replica stops."""
    read_ahead: int = 64 * 1024
    """How much a client may send before its previous request is answered."""
    connections: int = 20_000
    """A count: clients at once. A process with few descriptors has fewer: see `processes/gateway.py`."""
    source_connections: int = 256
    """A count: connections from one source that have shown no valid key yet."""
    source_registrations: int = 300
    """A count: registrations of workers from one source per minute, and at once. 0 is without limit."""
    backlog: int = 4096
    """A count: connections that the kernel queues until they are accepted; all of them are accepted in one go."""
    queue: int = 1000
    """A count: requests that wait for one model."""
    idle_upstream: int = 1024
    """A count: unused connections kept for one replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """Configuration of one gateway process."""

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
    """How often control is asked again while requests wait for a model, so that a wait survives a restart of
    control."""
    view_silence: timedelta = timedelta(seconds=15)
    """A view stream that is silent for this long, without even a heartbeat, counts as broken."""
    max_view_age: timedelta | None = None
    """How long requests are served without contact to control; None serves the last view indefinitely."""
    reconnect: Backoff = Backoff(first=timedelta(milliseconds=100), cap=timedelta(seconds=2))
    control_tls: ssl.SSLContext | None = None
    """Trusted certificates for an HTTPS connection to control; None uses the system's."""
    tls: ssl.SSLContext | None = None
    """Serve HTTPS when given."""
    plain_port: int | None = None
    """A second port on 127.0.0.1 that always speaks plain HTTP."""
    expose_node: bool = False
    """Add a header to each response that names the node which produced it."""
    trusted_proxies: tuple[TrustedNetwork, ...] = ()
    """Proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` headers are believed."""
    cors_origins: tuple[str, ...] = ()
    """Origins of web pages that may read responses, in lower case, or `*`; none by default."""
    reuse_port: bool = False
    """Let several gateways listen on one port; the kernel distributes connections."""
