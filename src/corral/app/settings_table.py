"""Every setting: its meaning, its unit and why its default is what it is.

One group for each section of the file. Command-line options, messages and the reference are made of this table, so a
setting is added here and nowhere else.
"""

# ruff: noqa: RUF009 - `setting` declares a field, as `dataclasses.field` does

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from corral.app.settings_kinds import (
    ADDRESS,
    ANY_WHOLE,
    DATABASE_URL,
    EXISTING_FILE,
    GALLERIES,
    HOST,
    HTTP_URL,
    HTTP_URLS,
    LABELS,
    NATS_URLS,
    PATH,
    PORT,
    SECRET,
    SWITCH,
    TEXT,
    VRAM_BUDGET,
    choice,
    duration,
    size,
    whole,
)
from corral.app.settings_sources import Derived, Group, setting
from corral.base.logs import Format

if TYPE_CHECKING:
    from corral.domain.gallery import GallerySource

_MIB = 1024 * 1024


def default_data(environment: Mapping[str, str]) -> Path:
    """Where a user's programs keep their data, by the XDG rules: a relative XDG_DATA_HOME does not count."""
    stated = environment.get("XDG_DATA_HOME", "")
    if stated and os.path.isabs(stated):
        return Path(stated) / "corral"
    home = environment.get("HOME") or os.path.expanduser("~")
    return Path(home) / ".local" / "share" / "corral"


def default_gallery_cache(environment: Mapping[str, str]) -> Path:
    """Where a user's programs keep what they can fetch again."""
    stated = environment.get("XDG_CACHE_HOME", "")
    home = environment.get("HOME") or os.path.expanduser("~")
    return (Path(stated) if stated and os.path.isabs(stated) else Path(home) / ".cache") / "corral" / "galleries"


def _default_galleries(_: Mapping[str, str]) -> "tuple[GallerySource, ...]":
    from corral.galleries.config import DEFAULT_GALLERIES

    return DEFAULT_GALLERIES


def _host_name(_: Mapping[str, str]) -> str:
    return socket.gethostname() or "localhost"


def _threads(_: Mapping[str, str]) -> int:
    return max(1, min(4, (os.cpu_count() or 1) // 2))


_DATA_DEFAULT = Derived("`$XDG_DATA_HOME/corral`, or `~/.local/share/corral`", default_data)
_WORKER_DATA_DEFAULT = Derived("`worker` inside the default data directory", lambda env: default_data(env) / "worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """How every process writes its log, which goes to standard error."""

    section: ClassVar[str] = "log"
    title: ClassVar[str] = "Logs of every process"

    format: Format = setting(
        choice("text", "json"),
        """`text` for people, or `json` with one object per line for machines. Text, because the first reader is a
        person.""",
        flag="--log-format",
        env=("CORRAL_LOG_FORMAT",),
        default="text",
    )
    level: str = setting(
        choice("debug", "info", "warning", "error"),
        """The least important line that is written. At `info` there is one line per change of state and none per
        request.""",
        flag="--log-level",
        env=("CORRAL_LOG_LEVEL",),
        default="info",
    )
    name: str = setting(
        TEXT,
        """What a process calls itself in its log. By default what it is; `corral up` sets it to tell its workers
        apart.""",
        env=("CORRAL_LOG_NAME",),
        default="",
        default_text="`frontend`, `control`, `gateway`, `worker` or `up`",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendSettings:
    """What `corral frontend` needs."""

    section: ClassVar[str] = "frontend"
    title: ClassVar[str] = "`corral frontend`"

    host: str = setting(
        HOST,
        "Address to listen on. Loopback by default: nothing is open to the network that nobody asked for.",
        flag="--host",
        env=("CORRAL_HOST",),
        default="127.0.0.1",
    )
    port: int = setting(
        PORT,
        "Port to listen on; 0 takes a free one. 8080 is what LocalAI's clients expect.",
        flag="--port",
        env=("CORRAL_PORT",),
        default=8080,
    )
    tls_cert: Path | None = setting(
        EXISTING_FILE,
        """Certificate of the public port in PEM form, with those between it and its authority; needs its key beside
        it. The port then speaks HTTPS and nothing else. None by default: on loopback it would protect nothing, and a
        certificate cannot be guessed.""",
        flag="--tls-cert",
        env=("CORRAL_TLS_CERT",),
        default=None,
    )
    tls_key: Path | None = setting(
        EXISTING_FILE,
        "Key of the certificate in PEM form, without a password. None by default, as the certificate.",
        flag="--tls-key",
        env=("CORRAL_TLS_KEY",),
        default=None,
    )
    data: Path = setting(
        PATH,
        "Directory for the SQLite file and the secrets key. It must be writable and should be private.",
        flag="--data",
        env=("CORRAL_DATA",),
        default=_DATA_DEFAULT,
    )
    database: str | None = setting(
        DATABASE_URL,
        """Where all durable state is: `sqlite:///PATH` for one frontend, `postgresql://…` for several. SQLite by
        default, because it needs no other program. A URL with a password comes from the environment or the file
        only.""",
        flag="--database",
        env=("CORRAL_DATABASE", "LOCALAI_AUTH_DATABASE_URL"),
        default=None,
        default_text="`corral.db` in the data directory",
    )
    models: Path | None = setting(
        PATH,
        """Directory of the model files, one YAML file for each model; the workers of this machine share it. Read again
        when it changes.""",
        flag="--models",
        env=("CORRAL_MODELS_PATH", "LOCALAI_MODELS_PATH", "MODELS_PATH"),
        default=None,
        default_text="`models` in the data directory",
    )
    threads: int = setting(
        whole(1, 1024),
        """Threads of a backend whose model does not say how many. Half of the processors and at most 4, because more
        than one model may be busy at once.""",
        flag="--threads",
        env=("CORRAL_THREADS", "LOCALAI_THREADS", "THREADS"),
        default=Derived("half of the processors, from 1 to 4", _threads),
    )
    gateways: int = setting(
        whole(1, 64),
        """Gateway processes that share the public port. 1 carries thousands of streams; more use more processors.""",
        flag="--gateways",
        env=("CORRAL_GATEWAYS",),
        default=1,
    )
    install_timeout: timedelta = setting(
        duration(timedelta(seconds=1), timedelta(hours=24), bounds="from 1s to 24h"),
        """How long a node may take to install and start the backend of a model. 15 minutes, as LocalAI has it: it may
        have to download.""",
        flag="--install-timeout",
        env=("CORRAL_INSTALL_TIMEOUT", "LOCALAI_NATS_BACKEND_INSTALL_TIMEOUT"),
        default=timedelta(minutes=15),
        default_text="15m",
    )
    load_timeout: timedelta | None = setting(
        duration(timedelta(seconds=1), timedelta(hours=24), bounds="from 1s to 24h"),
        """How long a backend may take to load a model's weights. By default it depends on their size, as in LocalAI;
        a value holds for all, whether it is more or less.""",
        flag="--load-timeout",
        env=("CORRAL_LOAD_TIMEOUT", "LOCALAI_NATS_MODEL_LOAD_TIMEOUT"),
        default=None,
        default_text="5 minutes and 20 s per GiB, at most 6 h",
    )
    control_socket: Path | None = setting(
        PATH,
        """Unix socket that control listens on instead of the public port, which is the gateway's. Set by `corral
        frontend` for its child.""",
        env=("CORRAL_CONTROL_SOCKET",),
        default=None,
        default_text="one in the data directory, made by `corral frontend`",
    )
    nats_url: str = setting(
        NATS_URLS,
        """The NATS server, or several of one cluster, comma-separated. There is no default: a bus that nobody chose is
        one that nobody protects. A URL with a user or a token comes from the environment or the file only.""",
        flag="--nats",
        env=("CORRAL_NATS_URL", "LOCALAI_NATS_URL"),
    )
    nats_jwt: str = setting(
        SECRET,
        "User JWT for NATS; needs the seed beside it. None by default: the URL may carry a user instead.",
        env=("CORRAL_NATS_JWT", "LOCALAI_NATS_SERVICE_JWT"),
        default="",
        secret=True,
    )
    nats_seed: str = setting(
        SECRET,
        "Seed that signs for the user JWT. None by default, as the JWT.",
        env=("CORRAL_NATS_SEED", "LOCALAI_NATS_SERVICE_SEED"),
        default="",
        secret=True,
    )
    nats_tls_ca: Path | None = setting(
        EXISTING_FILE,
        "Certificates of the authorities that NATS servers are checked against. By default those of the system.",
        flag="--nats-tls-ca",
        env=("CORRAL_NATS_TLS_CA", "LOCALAI_NATS_TLS_CA"),
        default=None,
    )
    nats_tls_cert: Path | None = setting(
        EXISTING_FILE,
        "Client certificate for NATS; needs its key beside it. None by default: few servers ask for one.",
        flag="--nats-tls-cert",
        env=("CORRAL_NATS_TLS_CERT", "LOCALAI_NATS_TLS_CERT"),
        default=None,
    )
    nats_tls_key: Path | None = setting(
        EXISTING_FILE,
        "Key of the client certificate. None by default, as the certificate.",
        flag="--nats-tls-key",
        env=("CORRAL_NATS_TLS_KEY", "LOCALAI_NATS_TLS_KEY"),
        default=None,
    )
    registration_token: str = setting(
        SECRET,
        """What workers present to join; all frontends of a fleet share it. By default one is made at first start,
        printed once and kept encrypted in the database.""",
        env=("CORRAL_REGISTRATION_TOKEN", "LOCALAI_REGISTRATION_TOKEN"),
        default="",
        default_text="made at first start",
        secret=True,
    )
    trusted_registration_token: str = setting(
        SECRET,
        """A second token whose bearers are approved at once: for a supervisor that starts its own workers, as `corral
        up` does. None by default.""",
        env=("CORRAL_TRUSTED_REGISTRATION_TOKEN",),
        default="",
        secret=True,
    )
    auto_approve: bool = setting(
        SWITCH,
        """Approve every node that knows the registration token. Off by default: a leaked token must not be enough to
        be given work.""",
        flag="--auto-approve",
        env=("CORRAL_AUTO_APPROVE", "LOCALAI_AUTO_APPROVE_NODES"),
        default=False,
    )
    secrets_key: str = setting(
        SECRET,
        """The key that encrypts secrets in the database, for platforms that inject secrets; all frontends of a fleet
        share it. By default the key file is used.""",
        env=("CORRAL_SECRETS_KEY",),
        default="",
        default_text="read from the key file",
        secret=True,
    )
    secrets_key_file: Path | None = setting(
        PATH,
        "File that holds the secrets key, mode 0600. Made at first start when it is not there.",
        flag="--secrets-key-file",
        env=("CORRAL_SECRETS_KEY_FILE",),
        default=None,
        default_text="`secrets.key` in the data directory",
    )
    credentials_file: Path | None = setting(
        PATH,
        """Write the administrator key and the registration token into this file, mode 0600, instead of printing them
        at first start. Meant for supervisors; none by default, because what is printed once cannot be read later.""",
        flag="--credentials-file",
        env=("CORRAL_CREDENTIALS_FILE",),
        default=None,
    )
    metrics_public: bool = setting(
        SWITCH,
        "Serve `/metrics` without a key. Off by default: metrics name nodes and tell how busy they are.",
        flag="--metrics-public",
        env=("CORRAL_METRICS_PUBLIC",),
        default=False,
    )
    unhealthy_after: int = setting(
        whole(1, 1000),
        """Heartbeats in a row that a node may miss before it is unhealthy and gets no new work. 3, so that one lost
        packet and one slow disk are forgiven.""",
        flag="--unhealthy-after",
        env=("CORRAL_UNHEALTHY_AFTER",),
        default=3,
    )
    offline_after: int = setting(
        whole(2, 10000),
        """Heartbeats in a row that a node may miss before it is offline and what it ran is replaced. 6: a minute with
        LocalAI's interval, as long as LocalAI waits. Must be more than `unhealthy_after`.""",
        flag="--offline-after",
        env=("CORRAL_OFFLINE_AFTER",),
        default=6,
    )
    event_retention: timedelta = setting(
        duration(timedelta(hours=1), timedelta(days=3650), bounds="from 1h to 3650d"),
        """How long the record of events is kept; the newest 10,000 stay in any case. 30 days, to answer "what happened
        last month?".""",
        flag="--event-retention",
        env=("CORRAL_EVENT_RETENTION",),
        default=timedelta(days=30),
        default_text="30d",
    )
    max_body: int = setting(
        size(1024, 1024 * _MIB, bounds="from 1KiB to 1024MiB"),
        "Bytes of a request body that the admin API accepts. 1 MiB: registrations and labels are far smaller.",
        flag="--max-body",
        env=("CORRAL_MAX_BODY",),
        default=_MIB,
        default_text="1MiB",
    )
    instance_id: str = setting(
        TEXT,
        "Name of this frontend among others. A random one at every start by default, so that two are never confused.",
        flag="--instance-id",
        env=("CORRAL_INSTANCE_ID", "LOCALAI_INSTANCE_ID"),
        default="",
        default_text="random",
    )

    @property
    def database_url(self) -> str:
        return self.database or f"sqlite:///{self.data.absolute() / 'corral.db'}"

    @property
    def secrets_key_path(self) -> Path:
        return self.secrets_key_file or self.data / "secrets.key"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """What `corral gateway` needs."""

    section: ClassVar[str] = "gateway"
    title: ClassVar[str] = "`corral gateway`"

    host: str = setting(
        HOST,
        "Address to listen on. Loopback by default: nothing is open to the network that nobody asked for.",
        flag="--host",
        env=("CORRAL_HOST",),
        default="127.0.0.1",
    )
    port: int = setting(
        PORT,
        "Port to listen on; 0 takes a free one. 8080 is what LocalAI's clients expect.",
        flag="--port",
        env=("CORRAL_PORT",),
        default=8080,
    )
    tls_cert: Path | None = setting(
        EXISTING_FILE,
        """Certificate of the public port in PEM form, with those between it and its authority; needs its key beside
        it. The port then speaks HTTPS and nothing else. None by default: on loopback it would protect nothing, and a
        certificate cannot be guessed.""",
        flag="--tls-cert",
        env=("CORRAL_TLS_CERT",),
        default=None,
    )
    tls_key: Path | None = setting(
        EXISTING_FILE,
        "Key of the certificate in PEM form, without a password. None by default, as the certificate.",
        flag="--tls-key",
        env=("CORRAL_TLS_KEY",),
        default=None,
    )
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
        size(1024, 1024 * _MIB, bounds="from 1KiB to 1024MiB"),
        "Bytes of one request's body that are accepted. 32 MiB: images come inside bodies, and text is far smaller.",
        flag="--max-request",
        env=("CORRAL_MAX_REQUEST",),
        default=32 * _MIB,
        default_text="32MiB",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What `corral worker` needs."""

    section: ClassVar[str] = "worker"
    title: ClassVar[str] = "`corral worker`"

    register_to: tuple[str, ...] = setting(
        HTTP_URLS,
        """URL of the frontend to join, or several of one fleet, comma-separated. There is no default: a worker that
        guesses may join the wrong fleet.""",
        flag="--register-to",
        env=("CORRAL_REGISTER_TO", "LOCALAI_REGISTER_TO"),
    )
    registration_token: str = setting(
        SECRET,
        """What the worker presents to join, printed by the frontend at its first start. None by default, which only a
        LocalAI frontend without a token accepts.""",
        env=("CORRAL_REGISTRATION_TOKEN", "LOCALAI_REGISTRATION_TOKEN"),
        default="",
        secret=True,
    )
    nats_url: str = setting(
        NATS_URLS,
        """The NATS server of the fleet, or several, comma-separated. A URL with a user or a token comes from the
        environment or the file only.""",
        flag="--nats",
        env=("CORRAL_NATS_URL", "LOCALAI_NATS_URL"),
    )
    nats_jwt: str = setting(
        SECRET,
        "User JWT for NATS; needs the seed beside it. None by default: the URL may carry a user instead.",
        env=("CORRAL_NATS_JWT", "LOCALAI_NATS_JWT"),
        default="",
        secret=True,
    )
    nats_seed: str = setting(
        SECRET,
        "Seed that signs for the user JWT. None by default, as the JWT.",
        env=("CORRAL_NATS_SEED", "LOCALAI_NATS_USER_SEED"),
        default="",
        secret=True,
    )
    nats_tls_ca: Path | None = setting(
        EXISTING_FILE,
        "Certificates of the authorities that NATS servers are checked against. By default those of the system.",
        flag="--nats-tls-ca",
        env=("CORRAL_NATS_TLS_CA", "LOCALAI_NATS_TLS_CA"),
        default=None,
    )
    nats_tls_cert: Path | None = setting(
        EXISTING_FILE,
        "Client certificate for NATS; needs its key beside it. None by default: few servers ask for one.",
        flag="--nats-tls-cert",
        env=("CORRAL_NATS_TLS_CERT", "LOCALAI_NATS_TLS_CERT"),
        default=None,
    )
    nats_tls_key: Path | None = setting(
        EXISTING_FILE,
        "Key of the client certificate. None by default, as the certificate.",
        flag="--nats-tls-key",
        env=("CORRAL_NATS_TLS_KEY", "LOCALAI_NATS_TLS_KEY"),
        default=None,
    )
    name: str = setting(
        TEXT,
        "Name of the node. The host name, because that is how people already call the machine.",
        flag="--name",
        env=("CORRAL_NODE_NAME", "LOCALAI_NODE_NAME"),
        default=Derived("the host name", _host_name),
    )
    data: Path = setting(
        PATH,
        "Directory for the node's own secret and for what the worker must remember. Not shared with another worker.",
        flag="--data",
        env=("CORRAL_DATA",),
        default=_WORKER_DATA_DEFAULT,
    )
    backends: Path | None = setting(
        PATH,
        "Directory that backends are installed into. Not shared with another worker.",
        flag="--backends",
        env=("CORRAL_BACKENDS_PATH", "LOCALAI_BACKENDS_PATH", "BACKENDS_PATH"),
        default=None,
        default_text="`backends` in the data directory",
    )
    system_backends: Path = setting(
        PATH,
        """Directory of backends that came with the system; they are used but never changed, and an installed one of the
        same name hides them. LocalAI's place, so that its packages are found. Those that ship with Corral are found
        as well.""",
        flag="--system-backends",
        env=("CORRAL_SYSTEM_BACKENDS_PATH", "LOCALAI_BACKENDS_SYSTEM_PATH"),
        default=Path("/var/lib/local-ai/backends"),
    )
    models: Path | None = setting(
        PATH,
        "Directory for model files; workers of one machine may share it. Its disk is the one that is reported.",
        flag="--models",
        env=("CORRAL_MODELS_PATH", "LOCALAI_MODELS_PATH", "MODELS_PATH"),
        default=None,
        default_text="`models` in the data directory",
    )
    staging: Path | None = setting(
        PATH,
        """Directory for inputs and outputs of single requests that frontends send and fetch. Beside the models, where
        LocalAI's worker has it: one disk, so that a file is moved and not copied.""",
        flag="--staging",
        env=("CORRAL_STAGING_PATH",),
        default=None,
        default_text="`staging` beside the models directory",
    )
    file_retention: timedelta = setting(
        duration(timedelta(minutes=1), timedelta(days=3650), bounds="from 1m to 3650d"),
        """How long staged files and unfinished uploads are kept after their last use. A day: longer than any request
        takes, and long enough to resume an upload after an outage. Model files are never removed by age.""",
        flag="--file-retention",
        env=("CORRAL_FILE_RETENTION",),
        default=timedelta(hours=24),
        default_text="24h",
    )
    file_stall_timeout: timedelta = setting(
        duration(timedelta(seconds=1), timedelta(hours=24), bounds="from 1s to 24h"),
        """How long a transfer of a file may stand still before it is given up; what was received is kept. A minute: a
        sender that vanished keeps others from sending the same file.""",
        flag="--file-stall-timeout",
        env=("CORRAL_FILE_STALL_TIMEOUT",),
        default=timedelta(minutes=1),
        default_text="1m",
    )
    address: str = setting(
        ADDRESS,
        """Address of this node as others reach it; its port is the base port: backends have ports from there on, and
        one below it is the worker's own HTTP port.""",
        flag="--address",
        env=("CORRAL_ADDRESS", "LOCALAI_ADDR"),
        default="",
        forgiving_env=("LOCALAI_ADDR",),
    )
    serve_address: str = setting(
        ADDRESS,
        "Source of the base port when there is no address. 50051 is LocalAI's base port.",
        flag="--serve-address",
        env=("CORRAL_SERVE_ADDRESS", "LOCALAI_SERVE_ADDR"),
        default="0.0.0.0:50051",
        forgiving_env=("LOCALAI_SERVE_ADDR",),
    )
    advertise_address: str = setting(
        ADDRESS,
        "Address that is told to the frontend, where it differs from the one above.",
        flag="--advertise-address",
        env=("CORRAL_ADVERTISE_ADDRESS", "LOCALAI_ADVERTISE_ADDR"),
        default="",
        default_text="the address, or the host name with the base port",
    )
    http_address: str = setting(
        ADDRESS,
        "Where the worker's own HTTP server listens: health, readiness and files.",
        flag="--http-address",
        env=("CORRAL_HTTP_ADDRESS", "LOCALAI_HTTP_ADDR"),
        default="",
        default_text="all interfaces, base port − 1",
    )
    advertise_http_address: str = setting(
        ADDRESS,
        "Address of the worker's HTTP server that is told to the frontend, where it differs.",
        flag="--advertise-http-address",
        env=("CORRAL_ADVERTISE_HTTP_ADDRESS", "LOCALAI_ADVERTISE_HTTP_ADDR"),
        default="",
        default_text="the host of the advertised address, base port − 1",
    )
    max_port: int = setting(
        ANY_WHOLE,
        """Highest port for backends. 0, or anything below the base port or above 65535, means 65535, as in LocalAI.
        Between the base port and this one, ports that the kernel gives to outgoing connections are left out, unless no
        others are there: with all defaults on Linux backends have 61000 to 65535.""",
        flag="--max-port",
        env=("CORRAL_MAX_PORT", "LOCALAI_GRPC_MAX_PORT"),
        default=0,
    )
    heartbeat_interval: timedelta = setting(
        duration(timedelta(milliseconds=100), timedelta(hours=1), bounds="from 100ms to 1h"),
        "Time between heartbeats. 10 s is LocalAI's: with it a dead node is noticed within half a minute.",
        flag="--heartbeat-interval",
        env=("CORRAL_HEARTBEAT_INTERVAL", "LOCALAI_HEARTBEAT_INTERVAL"),
        default=timedelta(seconds=10),
        default_text="10s",
        forgiving_env=("LOCALAI_HEARTBEAT_INTERVAL",),
    )
    labels: Mapping[str, str] = setting(
        LABELS,
        "Labels that the node reports. None by default; Corral adds what it can see itself.",
        flag="--labels",
        env=("CORRAL_NODE_LABELS", "LOCALAI_NODE_LABELS"),
        default={},
    )
    max_replicas_per_model: int = setting(
        ANY_WHOLE,
        """How many replicas of one model this node may run; less than 1 means 1. 1, because one usually fills the
        memory.""",
        flag="--max-replicas-per-model",
        env=("CORRAL_MAX_REPLICAS_PER_MODEL", "LOCALAI_MAX_REPLICAS_PER_MODEL"),
        default=1,
    )
    vram_budget: str = setting(
        VRAM_BUDGET,
        "How much of the video memory models may use: a share or a size. None by default: all of it.",
        flag="--vram-budget",
        env=("CORRAL_VRAM_BUDGET", "LOCALAI_VRAM_BUDGET"),
        default="",
    )
    capability: str = setting(
        TEXT,
        "Forces the capability by which builds of a backend are chosen, such as `nvidia`. By default it is detected.",
        flag="--capability",
        env=("CORRAL_CAPABILITY", "LOCALAI_FORCE_META_BACKEND_CAPABILITY"),
        default="",
        default_text="detected",
    )
    capability_run_file: Path = setting(
        PATH,
        "File that names the capability when none is forced. LocalAI's images ship it under this name.",
        flag="--capability-run-file",
        env=("CORRAL_CAPABILITY_RUN_FILE", "LOCALAI_FORCE_META_BACKEND_CAPABILITY_RUN_FILE"),
        default=Path("/run/localai/capability"),
    )
    storage_url: str = setting(
        HTTP_URL,
        """Object storage (S3) through which frontends may send files to this worker. None by default: files come over
        HTTP. A storage that is away stops nothing but what needs it.""",
        flag="--storage",
        env=("CORRAL_STORAGE_URL", "LOCALAI_STORAGE_URL"),
        default="",
    )
    storage_bucket: str = setting(
        TEXT,
        "Bucket in the object storage. LocalAI's frontends use this one unless they are told otherwise.",
        flag="--storage-bucket",
        env=("CORRAL_STORAGE_BUCKET", "LOCALAI_STORAGE_BUCKET"),
        default="localai",
    )
    storage_region: str = setting(
        TEXT,
        "Region of the object storage. Many servers do not care, and take the first that Amazon had.",
        flag="--storage-region",
        env=("CORRAL_STORAGE_REGION", "LOCALAI_STORAGE_REGION"),
        default="us-east-1",
    )
    storage_access_key: str = setting(
        SECRET,
        "Access key for the object storage; needs the secret key beside it. Without, as the machine's role allows.",
        env=("CORRAL_STORAGE_ACCESS_KEY", "LOCALAI_STORAGE_ACCESS_KEY"),
        default="",
        secret=True,
    )
    storage_secret_key: str = setting(
        SECRET,
        "Secret key for the object storage. None by default, as the access key.",
        env=("CORRAL_STORAGE_SECRET_KEY", "LOCALAI_STORAGE_SECRET_KEY"),
        default="",
        secret=True,
    )
    unused_after: timedelta = setting(
        duration(timedelta(0), timedelta(days=365), bounds="from 0s to 365 days"),
        """How long a backend process may run that an administrator's install started and that no model has asked for;
        0s means for ever, as in LocalAI. 10 minutes: long enough to try it out, and it holds memory for nobody.""",
        flag="--unused-after",
        env=("CORRAL_UNUSED_AFTER",),
        default=timedelta(minutes=10),
        default_text="10m",
    )
    registration_retry: timedelta = setting(
        duration(timedelta(milliseconds=100), timedelta(hours=1), bounds="from 100ms to 1h"),
        """Longest pause between attempts to register; the first ones come sooner. 30 s: a frontend that was away for
        hours is found soon enough, and a thousand workers do not overrun it.""",
        flag="--registration-retry",
        env=("CORRAL_REGISTRATION_RETRY",),
        default=timedelta(seconds=30),
        default_text="30s",
    )
    drain_timeout: timedelta = setting(
        duration(timedelta(0), timedelta(hours=24), bounds="from 0s to 24h"),
        "How long a worker that was asked to stop waits for requests in flight. 30 s, as LocalAI's worker does.",
        flag="--drain-timeout",
        env=("CORRAL_DRAIN_TIMEOUT",),
        default=timedelta(seconds=30),
        default_text="30s",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class UpSettings:
    """What `corral up` needs; the rest its frontend and its workers take from the environment and the same file."""

    section: ClassVar[str] = "up"
    title: ClassVar[str] = "`corral up`"

    data: Path = setting(
        PATH,
        "Directory for everything: database, keys, NATS, models, one folder per worker, and `up.json` for scripts.",
        flag="--data",
        env=("CORRAL_DATA",),
        default=_DATA_DEFAULT,
    )
    host: str = setting(
        HOST,
        "Address the frontend listens on. Loopback by default: nothing is open that nobody asked for.",
        flag="--host",
        env=("CORRAL_HOST",),
        default="127.0.0.1",
    )
    port: int = setting(
        PORT,
        "Port the frontend listens on; 0 takes a free one. 8080 is what LocalAI's clients expect.",
        flag="--port",
        env=("CORRAL_PORT",),
        default=8080,
    )
    tls_cert: Path | None = setting(
        EXISTING_FILE,
        """Certificate of the public port in PEM form, with those between it and its authority; needs its key beside
        it. The port then speaks HTTPS and nothing else. None by default: on loopback it would protect nothing, and a
        certificate cannot be guessed.""",
        flag="--tls-cert",
        env=("CORRAL_TLS_CERT",),
        default=None,
    )
    tls_key: Path | None = setting(
        EXISTING_FILE,
        "Key of the certificate in PEM form, without a password. None by default, as the certificate.",
        flag="--tls-key",
        env=("CORRAL_TLS_KEY",),
        default=None,
    )
    workers: int = setting(
        whole(0, 100),
        "How many workers to start; 0 for none. 2, so that the first look shows a fleet and not a machine.",
        flag="--workers",
        env=("CORRAL_WORKERS",),
        default=2,
    )
    nats_host: str = setting(
        HOST,
        """Address the embedded NATS server listens on. Loopback by default; set it to let workers on other machines
        in, together with `host`.""",
        flag="--nats-host",
        env=("CORRAL_NATS_HOST",),
        default="127.0.0.1",
    )
    nats_port: int | None = setting(
        whole(1, 65535),
        "Port the embedded NATS server listens on. The one of last time is kept, so that workers find it again.",
        flag="--nats-port",
        env=("CORRAL_NATS_PORT",),
        default=None,
        default_text="that of last time, else 4222, else a free one",
    )
    heartbeat_interval: timedelta = setting(
        duration(timedelta(milliseconds=100), timedelta(hours=1), bounds="from 100ms to 1h"),
        """Time between heartbeats of the workers. 2 s: on one machine it costs nothing, and a dead worker shows at
        once.""",
        flag="--heartbeat-interval",
        env=("CORRAL_HEARTBEAT_INTERVAL",),
        default=timedelta(seconds=2),
        default_text="2s",
    )
    models: Path | None = setting(
        PATH,
        "Directory of the model files, which frontend and workers share.",
        flag="--models",
        env=("CORRAL_MODELS_PATH", "LOCALAI_MODELS_PATH", "MODELS_PATH"),
        default=None,
        default_text="`models` in the data directory",
    )
    first_model: Path | None = setting(
        PATH,
        """A GGUF file that a new fleet without models starts with, under the name smollm2. `make up` names the one that
        it fetched.""",
        flag="--first-model",
        env=("CORRAL_FIRST_MODEL",),
        default=None,
        default_text="none",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """How commands such as `corral nodes` find their frontend."""

    section: ClassVar[str] = "client"
    title: ClassVar[str] = "Commands that talk to a frontend"

    url: str = setting(
        HTTP_URL,
        "URL of the frontend. By default the one that `corral up` wrote into `up.json` in the data directory.",
        flag="--url",
        env=("CORRAL_URL",),
        default="",
        default_text="from `up.json`",
    )
    key: str = setting(
        SECRET,
        "API key to present. By default the one in the key file, or in `up.json`.",
        env=("CORRAL_KEY",),
        default="",
        default_text="from `up.json`",
        secret=True,
    )
    key_file: Path | None = setting(
        PATH,
        "File that holds the API key, mode 0600. A key is never a flag: others could read it in the process list.",
        flag="--key-file",
        env=("CORRAL_KEY_FILE",),
        default=None,
    )
    data: Path = setting(
        PATH,
        "Data directory of a running `corral up`, whose `up.json` tells the URL and the key.",
        flag="--data",
        env=("CORRAL_DATA",),
        default=_DATA_DEFAULT,
    )
    timeout: timedelta = setting(
        duration(timedelta(milliseconds=100), timedelta(hours=1), bounds="from 100ms to 1h"),
        "How long to wait for an answer. 30 s: longer than any answer takes that is still on its way.",
        flag="--timeout",
        env=("CORRAL_TIMEOUT",),
        default=timedelta(seconds=30),
        default_text="30s",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GallerySettings:
    """Where backends are to be had, and how the lists of them are read."""

    section: ClassVar[str] = "gallery"
    title: ClassVar[str] = "Galleries"

    backend_galleries: "tuple[GallerySource, ...]" = setting(
        GALLERIES,
        """Galleries of backends, the first one first where two have a backend of the same name: a JSON list, or in the
        file a list of tables. Each has a `name`, a `url`, and maybe `mirrors` that are tried when the url fails. The
        url `corral:builtin` stands for what ships with Corral. By default that, and LocalAI's gallery, which is asked
        only when somebody looks for a backend.""",
        flag="--backend-galleries",
        env=("CORRAL_BACKEND_GALLERIES", "LOCALAI_BACKEND_GALLERIES", "BACKEND_GALLERIES"),
        default=Derived("what ships with Corral, and LocalAI's gallery", _default_galleries),
        forgiving_env=("LOCALAI_BACKEND_GALLERIES", "BACKEND_GALLERIES"),
    )
    cache: Path = setting(
        PATH,
        """Directory of the last good copy of each gallery, used while its places are away. All processes of a user
        share it.""",
        flag="--gallery-cache",
        env=("CORRAL_GALLERY_CACHE",),
        default=Derived("`$XDG_CACHE_HOME/corral/galleries`, or `~/.cache/corral/galleries`", default_gallery_cache),
    )
    max_age: timedelta = setting(
        duration(timedelta(0), timedelta(days=365), bounds="from 0s to 365d"),
        """How long a copy counts as new: so long nobody is asked. 1 hour, as LocalAI has it; `corral gallery refresh`
        asks at once.""",
        flag="--gallery-max-age",
        env=("CORRAL_GALLERY_MAX_AGE",),
        default=timedelta(hours=1),
        default_text="1h",
    )
    timeout: timedelta = setting(
        duration(timedelta(milliseconds=100), timedelta(hours=1), bounds="from 100ms to 1h"),
        """How long one place of a gallery may take to answer, in all, before the next one is tried. 30 s: an index has
        less than a megabyte.""",
        flag="--gallery-timeout",
        env=("CORRAL_GALLERY_TIMEOUT",),
        default=timedelta(seconds=30),
        default_text="30s",
    )
    max_size: int = setting(
        size(1024, 1024 * _MIB, bounds="from 1KiB to 1024MiB"),
        "Bytes of an index that are read. 32 MiB: fifty times LocalAI's own, and no strain for a machine.",
        flag="--gallery-max-size",
        env=("CORRAL_GALLERY_MAX_SIZE",),
        default=32 * _MIB,
        default_text="32MiB",
    )


GROUPS: Final[tuple[type[Group], ...]] = (
    FrontendSettings,
    GatewaySettings,
    WorkerSettings,
    UpSettings,
    ClientSettings,
    GallerySettings,
    LogSettings,
)

ACCEPTED_WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    "LOCALAI_DISTRIBUTED": "Corral is always distributed",
    "LOCALAI_AUTH": "every route needs a key already",
    "LOCALAI_REGISTRATION_REQUIRE_AUTH": "registration always needs a token",
    "LOCALAI_DISTRIBUTED_REQUIRE_AUTH": "registration always needs a token",
    "LOCALAI_NATS_REQUIRE_AUTH": "whether NATS needs credentials is decided by its server",
    "LOCALAI_GRPC_AUTH_TOKEN": "set by the worker for the backends it starts",
    "LOCALAI_FILE_TRANSFER_TIMEOUT": "without effect in LocalAI too",
    "LOCALAI_FILE_TRANSFER_RETRIES": "without effect in LocalAI too",
    "LOCALAI_NATS_ACCOUNT_SEED": "Corral does not mint NATS credentials per node yet",
    "LOCALAI_NATS_WORKER_JWT_TTL": "Corral does not mint NATS credentials per node yet",
    "LOCALAI_REQUIRE_BACKEND_INTEGRITY": "Corral does not install from galleries yet",
    "REQUIRE_BACKEND_INTEGRITY": "Corral does not install from galleries yet",
    "LOCALAI_NATS_BACKEND_UPGRADE_TIMEOUT": "Corral does not upgrade backends yet",
    "LOCALAI_GALLERIES": "Corral does not fetch models yet",
    "GALLERIES": "Corral does not fetch models yet",
    "LOCALAI_PREFETCH_MODELS": "Corral does not fetch models yet",
    "PREFETCH_MODELS": "Corral does not fetch models yet",
    "LOCALAI_DISTRIBUTED_SHARED_MODELS": "Corral does not move model files yet: nodes have to share them in any case",
    "LOCALAI_DISTRIBUTED_DISK_HEADROOM_CHECK": "Corral puts no model files on a node's disk yet",
    "LOCALAI_MODEL_SCHEDULING": "Corral has no rules of scheduling yet: it chooses the node itself",
    "LOCALAI_MODEL_SCHEDULING_CONFIG": "Corral has no rules of scheduling yet: it chooses the node itself",
    "LOCALAI_DISTRIBUTED_PREFIX_CACHE": "Corral does not route by prefix yet: the least busy replica answers",
    "LOCALAI_DISTRIBUTED_PREFIX_CACHE_TTL": "Corral does not route by prefix yet: the least busy replica answers",
}
"""Variables of LocalAI's that are taken without complaint and change nothing, with the reason."""
