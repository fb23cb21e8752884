"""Settings of a frontend: of its launcher and of control."""

# ruff: noqa: RUF009 - `setting` declares a field, as `dataclasses.field` does

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

from corral.processes.settings_kinds import (
    DATABASE_URL,
    NATS_URLS,
    PATH,
    SECRET,
    SECRETS,
    SWITCH,
    TEXT,
    duration,
    size,
    whole,
)
from corral.processes.settings_sources import Derived, setting
from corral.processes.settings_table.defaults import DATA_DEFAULT, MIB
from corral.processes.settings_table.shared import (
    nats_authorities,
    nats_certificate,
    nats_key,
    public_certificate,
    public_host,
    public_key,
    public_port,
)


def _threads(_: Mapping[str, str]) -> int:
    return max(1, min(4, (os.cpu_count() or 1) // 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendSettings:
    """What `corral frontend` needs."""

    section: ClassVar[str] = "frontend"
    title: ClassVar[str] = "`corral frontend`"

    host: str = public_host()
    port: int = public_port()
    tls_cert: Path | None = public_certificate()
    tls_key: Path | None = public_key()
    data: Path = setting(
        PATH,
        "Directory for the SQLite file and the secrets key. It must be writable and should be private.",
        flag="--data",
        env=("CORRAL_DATA",),
        default=DATA_DEFAULT,
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
    most_tokens: int = setting(
        whole(0, 100_000_000),
        """Tokens of an answer at most, where neither the request (`max_tokens`) nor the model's file
        (`parameters.max_tokens`) says. 4096: more than people read, and a model that repeats itself does not hold its
        place for ever. 0 is without limit, and so is -1 in a model's file. Models that are loaded keep what they were
        loaded with.""",
        flag="--most-tokens",
        env=("CORRAL_MOST_TOKENS",),
        default=4096,
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
        """How long a node may take to install a backend and to start a process of it, before it counts as still working
        on it. 15 minutes, as LocalAI has it: it may have to download.""",
        flag="--install-timeout",
        env=("CORRAL_INSTALL_TIMEOUT", "LOCALAI_NATS_BACKEND_INSTALL_TIMEOUT"),
        default=timedelta(minutes=15),
        default_text="15m",
    )
    upgrade_timeout: timedelta = setting(
        duration(timedelta(seconds=1), timedelta(hours=24), bounds="from 1s to 24h"),
        """How long a node may take to answer an upgrade before it counts as still working on it. 15 minutes, as LocalAI
        has it.""",
        flag="--upgrade-timeout",
        env=("CORRAL_UPGRADE_TIMEOUT", "LOCALAI_NATS_BACKEND_UPGRADE_TIMEOUT"),
        default=timedelta(minutes=15),
        default_text="15m",
    )
    delete_timeout: timedelta = setting(
        duration(timedelta(seconds=1), timedelta(hours=24), bounds="from 1s to 24h"),
        """How long a node may take to delete a backend before it counts as still working on it. 2 minutes, as LocalAI
        has it: processes of the backend have to end first.""",
        flag="--delete-timeout",
        env=("CORRAL_DELETE_TIMEOUT",),
        default=timedelta(minutes=2),
        default_text="2m",
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
    nats_account_seed: str = setting(
        SECRET,
        """Seed of the NATS account's identity, which starts with SA: nodes of LocalAI then get a user JWT of their own
        with their registration. None by default: workers have the login that they were given.""",
        env=("CORRAL_NATS_ACCOUNT_SEED", "LOCALAI_NATS_ACCOUNT_SEED"),
        default="",
        secret=True,
    )
    nats_worker_jwt_ttl: timedelta = setting(
        duration(timedelta(minutes=1), timedelta(days=3650), bounds="from 1m to 3650d"),
        """How long such a JWT lasts. A worker asks for a new one after three quarters of it. 24h: a stolen one is of
        little use tomorrow.""",
        flag="--nats-worker-jwt-ttl",
        env=("CORRAL_NATS_WORKER_JWT_TTL", "LOCALAI_NATS_WORKER_JWT_TTL"),
        default=timedelta(hours=24),
        default_text="24h",
    )
    nats_tls_ca: Path | None = nats_authorities()
    nats_tls_cert: Path | None = nats_certificate()
    nats_tls_key: Path | None = nats_key()
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
    admin_keys: tuple[str, ...] = setting(
        SECRETS,
        """Keys whose bearers are administrators, beside those that are made with `corral keys`; several are
        comma-separated. They work at each frontend where they are set, and at its gateways. None by default: keys
        that are made have a name and can be revoked.""",
        env=("CORRAL_ADMIN_KEYS", "LOCALAI_API_KEY"),
        default=(),
        default_text="none",
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
    trust_changed_addresses: bool = setting(
        SWITCH,
        """Let a node without a secret of its own, as LocalAI's workers are, keep its approval when it registers at
        another address; for networks whose addresses change. Off by default: everybody with the registration token
        could take such a node's place, and its prompts.""",
        flag="--trust-changed-addresses",
        env=("CORRAL_TRUST_CHANGED_ADDRESSES",),
        default=False,
    )
    max_pending_nodes: int = setting(
        whole(1, 100_000),
        """Nodes that may wait for approval; further ones are refused with 429 until some are approved or removed. 256:
        more than a person looks through.""",
        flag="--max-pending-nodes",
        env=("CORRAL_MAX_PENDING_NODES",),
        default=256,
    )
    max_pending_per_source: int = setting(
        whole(1, 100_000),
        """Nodes that may wait for approval from one source address; an IPv6 /64 network counts as one. 32: enough for a
        rack behind one router.""",
        flag="--max-pending-per-source",
        env=("CORRAL_MAX_PENDING_PER_SOURCE",),
        default=32,
    )
    pending_retention: timedelta = setting(
        duration(timedelta(minutes=1), timedelta(days=3650), bounds="from 1m to 3650d"),
        """How long a pending node is kept that has sent no heartbeat since it registered. 1h: a worker that lives beats
        every ten seconds.""",
        flag="--pending-retention",
        env=("CORRAL_PENDING_RETENTION",),
        default=timedelta(hours=1),
        default_text="1h",
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
        """Keep the administrator key and the registration token in this file, mode 0600. Meant for supervisors. By
        default the first start prints them, because what is printed once cannot be read later; where standard output is
        no terminal it writes them into `credentials.json` in the data directory once, and prints only the path.""",
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
    brake_percent: int = setting(
        whole(1, 100),
        """When more than this percentage of the nodes, and at least two, goes silent within 15 minutes, nothing is
        evicted or rescheduled until they are heard again or the 15 minutes are over: then the network has failed rather
        than the machines. 50, so that a rack may fail; 100 switches this off.""",
        flag="--brake-percent",
        env=("CORRAL_BRAKE_PERCENT",),
        default=50,
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
    operation_retention: timedelta = setting(
        duration(timedelta(hours=1), timedelta(days=3650), bounds="from 1h to 3650d"),
        """How long the history of operations is kept. One that still goes on, or waits for an absent node, stays until
        it is over. 30 days, as for events.""",
        flag="--operation-retention",
        env=("CORRAL_OPERATION_RETENTION",),
        default=timedelta(days=30),
        default_text="30d",
    )
    upgrade_check_period: timedelta = setting(
        duration(timedelta(0), timedelta(days=365), bounds="from 0s to 365d"),
        """How often galleries and registries are asked whether they have something newer than the nodes; 0s: only when
        somebody asks for it. 6 hours, as LocalAI does. However many frontends there are, one of them asks.""",
        flag="--upgrade-check-period",
        env=("CORRAL_UPGRADE_CHECK_PERIOD",),
        default=timedelta(hours=6),
        default_text="6h",
    )
    auto_upgrade_backends: bool = setting(
        SWITCH,
        """Whether backends that turn out to be outdated are upgraded at once, by an operation like any other. Not by
        default: an upgrade ends the processes of the backend, and people like to choose when.""",
        flag="--auto-upgrade-backends",
        env=("CORRAL_AUTO_UPGRADE_BACKENDS", "LOCALAI_AUTO_UPGRADE_BACKENDS"),
        default=False,
    )
    max_body: int = setting(
        size(1024, 1024 * MIB, bounds="from 1KiB to 1024MiB"),
        "Bytes of a request body that the admin API accepts. 1 MiB: registrations and labels are far smaller.",
        flag="--max-body",
        env=("CORRAL_MAX_BODY",),
        default=MIB,
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
