"""Settings of a worker."""

# ruff: noqa: RUF009 - `setting` declares a field, as `dataclasses.field` does

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import ClassVar, Final

from corral.processes.settings_kinds import (
    ADDRESS,
    ANY_WHOLE,
    HTTP_URL,
    HTTP_URLS,
    LABELS,
    NATS_URLS,
    PATH,
    SECRET,
    SWITCH,
    TEXT,
    VRAM_BUDGET,
    duration,
)
from corral.processes.settings_sources import Derived, setting
from corral.processes.settings_table.defaults import WORKER_DATA_DEFAULT
from corral.processes.settings_table.shared import nats_authorities, nats_certificate, nats_key

MACHINE_SETTINGS: Final = frozenset({"capability", "capability_run_file", "data", "backends", "system_backends"})
"""Of a worker's settings those that say which backends are on this machine, and which would fit it."""


def _host_name(_: Mapping[str, str]) -> str:
    return socket.gethostname() or "localhost"


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
        LocalAI frontend without a token accepts; the worker is open to everybody then, as LocalAI's is, because that
        frontend presents nothing either.""",
        env=("CORRAL_REGISTRATION_TOKEN", "LOCALAI_REGISTRATION_TOKEN"),
        default="",
        secret=True,
    )
    require_token: bool = setting(
        SWITCH,
        """Do not start without a registration token. Off by default: a frontend that asks for one says so itself.""",
        flag="--require-token",
        env=("CORRAL_REQUIRE_TOKEN", "LOCALAI_REGISTRATION_REQUIRE_AUTH"),
        default=False,
    )
    require_auth: bool = setting(
        SWITCH,
        """As `require_token`, also where that is off: LocalAI's one switch for all credentials. Off by default, as
        there.""",
        env=("CORRAL_REQUIRE_AUTH", "LOCALAI_DISTRIBUTED_REQUIRE_AUTH"),
        default=False,
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
        """User JWT for NATS; needs the seed beside it. None by default: the URL may carry a user instead, and where
        neither does, a user that a LocalAI frontend makes at registration is taken.""",
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
    nats_tls_ca: Path | None = nats_authorities()
    nats_tls_cert: Path | None = nats_certificate()
    nats_tls_key: Path | None = nats_key()
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
        default=WORKER_DATA_DEFAULT,
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
        """Directory for model files; workers of one machine may share it. Its disk is the one that is reported.
        Frontends may read and write it, and `staging`, `data` and `cache` beside it: none of these may be, contain or
        lie in the data directory, except under these names.""",
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
        one below it is the worker's own HTTP port. An address on loopback, such as 127.0.0.1, is the only one that is
        listened on then; with any other the worker listens on all interfaces.""",
        flag="--address",
        env=("CORRAL_ADDRESS", "LOCALAI_ADDR"),
        default="",
        forgiving_env=("LOCALAI_ADDR",),
    )
    serve_address: str = setting(
        ADDRESS,
        """Source of the base port when there is no address. 50051 is LocalAI's base port. Of its host only loopback
        counts, as with the address.""",
        flag="--serve-address",
        env=("CORRAL_SERVE_ADDRESS", "LOCALAI_SERVE_ADDR"),
        default="0.0.0.0:50051",
        forgiving_env=("LOCALAI_SERVE_ADDR",),
    )
    advertise_address: str = setting(
        ADDRESS,
        """Address that is told to the frontend, where it differs from the one above. One on loopback is the only one
        that is listened on then.""",
        flag="--advertise-address",
        env=("CORRAL_ADVERTISE_ADDRESS", "LOCALAI_ADVERTISE_ADDR"),
        default="",
        default_text="the address, or the host name with the base port",
    )
    http_address: str = setting(
        ADDRESS,
        """Where the worker's own HTTP server listens: health, readiness and files. With `[::]` on IPv4 as well; that is
        the default where the advertised address is one of IPv6. Says nothing about backends.""",
        flag="--http-address",
        env=("CORRAL_HTTP_ADDRESS", "LOCALAI_HTTP_ADDR"),
        default="",
        default_text="all interfaces, or the loopback address that was named; base port − 1",
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
