"""Settings of a gateway."""

# ruff: noqa: RUF009 - `setting` declares a field, as `dataclasses.field` does

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

from corral.processes.settings_kinds import (
    EXISTING_FILE,
    NETWORKS,
    ORIGINS,
    SECRET,
    SWITCH,
    TEXT,
    IpNetwork,
    duration,
    size,
    whole,
)
from corral.processes.settings_sources import setting
from corral.processes.settings_table.defaults import MIB
from corral.processes.settings_table.shared import public_certificate, public_host, public_key, public_port


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """What `corral gateway` needs."""

    section: ClassVar[str] = "gateway"
    title: ClassVar[str] = "`corral gateway`"

    host: str = public_host()
    port: int = public_port()
    tls_cert: Path | None = public_certificate()
    tls_key: Path | None = public_key()
    control: str = setting(
        TEXT,
        """Where control is: the URL of any frontend, `http://` or `https://`, or `unix:PATH` of control's socket.
        There is no default: a gateway that guesses may serve the wrong fleet.""",
        flag="--control",
        env=("CORRAL_CONTROL_URL",),
    )
    control_ca: Path | None = setting(
        EXISTING_FILE,
        """Certificates of the authorities that a control behind HTTPS is checked against. By default those of the
        system.""",
        flag="--control-ca",
        env=("CORRAL_CONTROL_CA",),
        default=None,
    )
    key: str = setting(
        SECRET,
        """A key with the scope `gateway`, made by `corral keys create`. None by default; a frontend hands one to its
        own gateways.""",
        env=("CORRAL_GATEWAY_KEY",),
        default="",
        secret=True,
    )
    load_wait: timedelta = setting(
        duration(timedelta(0), timedelta(hours=1), bounds="from 0s to 1h"),
        """How long a request waits for a model that is not loaded, before it is told to come back; 0 waits as long as
        the client does. 30 s: small models are there by then, and most clients still are.""",
        flag="--load-wait",
        env=("CORRAL_LOAD_WAIT", "LOCALAI_MODEL_LOAD_WAIT"),
        default=timedelta(seconds=30),
        default_text="30s",
    )
    queue_wait: timedelta = setting(
        duration(timedelta(milliseconds=100), timedelta(hours=1), bounds="from 100ms to 1h"),
        """How long a request waits for room at replicas that are all busy. 60 s: longer than most answers take.""",
        flag="--queue-wait",
        env=("CORRAL_QUEUE_WAIT",),
        default=timedelta(seconds=60),
        default_text="60s",
    )
    first_byte_timeout: timedelta = setting(
        duration(timedelta(milliseconds=100), timedelta(hours=24), bounds="from 100ms to 24h"),
        """How long a replica, or control, may take until the first byte of its answer. 10 minutes: an answer that is
        not streamed has none before it is ready.""",
        flag="--first-byte-timeout",
        env=("CORRAL_FIRST_BYTE_TIMEOUT",),
        default=timedelta(minutes=10),
        default_text="10m",
    )
    idle_timeout: timedelta = setting(
        duration(timedelta(milliseconds=100), timedelta(hours=24), bounds="from 100ms to 24h"),
        """How long the answer of a replica may pause between two bytes, before it is cut off and the replica suspected.
        2 minutes: no engine that works takes so long for a token.""",
        flag="--idle-timeout",
        env=("CORRAL_IDLE_TIMEOUT",),
        default=timedelta(minutes=2),
        default_text="2m",
    )
    max_request: int = setting(
        size(1024, 1024 * MIB, bounds="from 1KiB to 1024MiB"),
        """Bytes of one request's body that are accepted, and of what a compressed one becomes. 32 MiB: images come
        inside bodies, and text is far smaller.""",
        flag="--max-request",
        env=("CORRAL_MAX_REQUEST",),
        default=32 * MIB,
        default_text="32MiB",
    )
    body_timeout: timedelta = setting(
        duration(timedelta(seconds=1), timedelta(hours=24), bounds="from 1s to 24h"),
        """How long the body of a request with a valid key may take to arrive. 15 minutes: 32 MiB come in that time also
        through slow Wi-Fi. Requests without a key have 30 seconds.""",
        flag="--body-timeout",
        env=("CORRAL_BODY_TIMEOUT",),
        default=timedelta(minutes=15),
        default_text="15m",
    )
    min_body_speed: int = setting(
        size(0, 1024 * MIB, bounds="from 0 to 1024MiB"),
        """Bytes per second, on average, that a body must arrive with after its first 10 seconds, or it is refused with
        408. 1 KiB: far less than any working connection, and more than who only wants to hold one sends.""",
        flag="--min-body-speed",
        env=("CORRAL_MIN_BODY_SPEED",),
        default=1024,
        default_text="1KiB",
    )
    source_connections: int = setting(
        whole(1, 1_000_000),
        """Connections from one address that have not shown a valid key yet; beyond it the oldest of them is closed. An
        IPv6 address counts with all of its /64 network. 256: more than clients open in the moment before their first
        request. How many there may be in all follows from the limit of open files.""",
        flag="--source-connections",
        env=("CORRAL_SOURCE_CONNECTIONS",),
        default=256,
    )
    source_registrations: int = setting(
        whole(0, 1_000_000),
        """Registrations of workers that one address may send per minute, and at once; more are told to come back. 0 is
        without limit. 300: a room of workers behind one address may restart together, and nobody can keep control
        busy with them.""",
        flag="--source-registrations",
        env=("CORRAL_SOURCE_REGISTRATIONS",),
        default=300,
    )
    trusted_proxies: tuple[IpNetwork, ...] = setting(
        NETWORKS,
        """Addresses or networks of reverse proxies, comma-separated. Their `X-Forwarded-For` and `X-Forwarded-Proto`
        are believed, and limits count the address that they name. None by default: everybody could write these.""",
        flag="--trusted-proxies",
        env=("CORRAL_TRUSTED_PROXIES",),
        default=(),
        default_text="none",
    )
    cors_origins: tuple[str, ...] = setting(
        ORIGINS,
        """Origins of web pages that may send requests and read answers, comma-separated, or `*` for all; browsers send
        no cookies or other credentials for `*`. None by default: a page of a stranger must not speak for who visits
        it.""",
        flag="--cors-origins",
        env=("CORRAL_CORS_ORIGINS",),
        default=(),
        default_text="none",
    )
    max_view_age: timedelta | None = setting(
        duration(timedelta(seconds=20), timedelta(days=365), bounds="from 20s to 365d"),
        """How long a gateway that does not hear control goes on serving what it last knew. Without limit by default:
        serving outlives control. A key that was revoked meanwhile works for so long.""",
        flag="--max-view-age",
        env=("CORRAL_MAX_VIEW_AGE",),
        default=None,
        default_text="unlimited",
    )
    expose_node: bool = setting(
        SWITCH,
        """Say in the header `X-LocalAI-Node` of each answer of a model which node gave it. Off by default: clients
        need not know the fleet.""",
        flag="--expose-node",
        env=("CORRAL_EXPOSE_NODE", "LOCALAI_EXPOSE_NODE_HEADER"),
        default=False,
    )
    reuse_port: bool = setting(
        SWITCH,
        "Share the port with other gateways of the same user. Off by default: a taken port is then told.",
        flag="--reuse-port",
        env=("CORRAL_REUSE_PORT",),
        default=False,
    )
    plain_port: int | None = setting(
        whole(1, 65535),
        """Port on 127.0.0.1 that speaks HTTP also when the public one speaks HTTPS, for programs of this machine. Set
        by `corral up` for its own workers; none by default.""",
        env=("CORRAL_PLAIN_PORT",),
        default=None,
    )
