"""What a frontend is configured with: the control process, and the launcher that starts it and its gateways."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from corral.base.errors import InvalidInput
from corral.base.setting_kinds import (
    EXISTING_FILE,
    HOST,
    HTTP_URLS,
    PATH,
    SECRET,
    SECRETS,
    SWITCH,
    TEXT,
    SettingKind,
    Unforgivable,
    duration,
    hide_password,
    size,
    split_url,
    whole,
)
from corral.base.settings import DATA, Derived, PublicPort, in_data, other_aliases, setting
from corral.bus.config import PUBLIC_NATS_URLS, BusConfig
from corral.files.storage import StorageConfig
from corral.frontend.access.decide import LoginPolicy
from corral.frontend.access.fleet_tls import FleetTlsPolicy
from corral.frontend.backends.decide.upgrades import UpgradePolicy
from corral.frontend.diagnosis.disk import DiskPolicy
from corral.frontend.models.decide.pulling import PullPolicy
from corral.frontend.nodes.decide.liveness import LivenessPolicy
from corral.frontend.nodes.decide.registration import AdmissionPolicy
from corral.frontend.operations.decide.intent import IntentPolicy
from corral.frontend.serving.decide.eviction import RoomPolicy
from corral.frontend.serving.decide.load_job import LoadPolicy
from corral.frontend.serving.decide.scaling_state import ScalingPolicy
from corral.frontend.serving.decide.scheduling import SchedulingWish, read_seeds, seeds_of
from corral.frontend.serving.staging.decide.sources import StagingPolicy
from corral.galleries.config import GalleriesConfig
from corral.hubs.config import HubsConfig
from corral.oci.config import ImagesConfig

if TYPE_CHECKING:
    from corral.bus.minting import Minter
    from corral.bus.revoking import Revoker

CREDENTIALS_FILE: Final = "credentials.json"
"""In the data directory: where the first keys are written when nobody named another file."""


def _read_database_url(text: str) -> str:
    url = text.strip()
    parts = split_url(url)
    if parts.scheme == "sqlite":
        if not url.startswith("sqlite:///") or len(url) == len("sqlite:///"):
            raise ValueError(text)
    elif parts.scheme not in ("postgres", "postgresql"):
        raise ValueError(text)
    return url


def _has_database_password(text: str) -> bool:
    """Deliberately crude, so that it also sees the password of something that is not a proper URL."""
    authority = text.partition("://")[2].rpartition("@")[0]
    return ":" in authority or "password=" in text.lower()


DATABASE_URL: Final = SettingKind(
    placeholder="URL",
    allowed="sqlite:///PATH or postgresql://USER:PASSWORD@HOST:PORT/NAME",
    read=_read_database_url,
    shown=hide_password,
    holds_password=_has_database_password,
)


def _unusable_rules(error: InvalidInput) -> Unforgivable:
    """Say which entry is wrong: "it is no list of rules" would not help with a long one."""
    problem = f"{error.message}; it comes from --model-scheduling, CORRAL_MODEL_SCHEDULING or LOCALAI_MODEL_SCHEDULING"
    return Unforgivable("model_scheduling", problem)


def _read_scheduling(text: str) -> tuple[SchedulingWish, ...]:
    try:
        return read_seeds(text)
    except InvalidInput as error:
        raise _unusable_rules(error) from error


def _read_scheduling_tables(tables: Sequence[object]) -> tuple[SchedulingWish, ...]:
    try:
        return seeds_of(tables)
    except InvalidInput as error:
        raise _unusable_rules(error) from error


SCHEDULING: Final = SettingKind(
    placeholder="JSON",
    allowed='a JSON list of rules such as [{"model_name": "llama", "min_replicas": 2}]',
    read=_read_scheduling,
    read_tables=_read_scheduling_tables,
)


def _sqlite_in_data(_: Mapping[str, str], values: Mapping[str, Any]) -> str:
    return f"sqlite:///{values['data'].absolute() / 'corral.db'}"


def _half_of_the_processors(_: Mapping[str, str], __: Mapping[str, Any]) -> int:
    return max(1, min(4, (os.cpu_count() or 1) // 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlConfig(PublicPort):
    """All settings of `corral frontend`."""

    section: ClassVar[str] = "frontend"
    title: ClassVar[str] = "`corral frontend`"

    data: Path = setting(
        PATH,
        "Directory for the SQLite file and the secrets key. It must be writable and should be private.",
        default=DATA,
    )
    database_url: str = setting(
        DATABASE_URL,
        """Where all durable state is: `sqlite:///PATH` for one frontend, `postgresql://…` for several. SQLite by
        default, because it needs no other program. A URL with a password comes from the environment or the file
        only.""",
        name="database",
        aliases=("LOCALAI_AUTH_DATABASE_URL",),
        default=Derived("`corral.db` in the data directory", _sqlite_in_data),
    )
    new_fleet: bool = setting(
        SWITCH,
        """Make a new fleet although the data directory has keys of one whose database is empty or missing: that fleet
        is given up, with its nodes, keys and models. Off by default: a database that was lost or misspelt must not
        become a new fleet. Meant for one start.""",
        default=False,
    )
    models_path: Path = setting(
        PATH,
        """Directory of the model files, one YAML file for each model; the workers of this machine share it. Read again
        when it changes.""",
        name="models",
        env="CORRAL_MODELS_PATH",
        aliases=(
            "LOCALAI_MODELS_PATH",
            "MODELS_PATH",
        ),
        default=in_data("models"),
    )
    threads: int = setting(
        whole(1, 1024),
        """Threads of a backend whose model does not say how many. Half of the processors and at most 4, because more
        than one model may be busy at once.""",
        aliases=(
            "LOCALAI_THREADS",
            "THREADS",
        ),
        default=Derived("half of the processors, from 1 to 4", _half_of_the_processors, plain=4),
    )
    most_tokens: int = setting(
        whole(0, 100_000_000),
        """Tokens of an answer at most, where neither the request (`max_tokens`) nor the model's file
        (`parameters.max_tokens`) says. 4096: more than people read, and a model that repeats itself does not hold its
        place for ever. 0 is without limit, and so is -1 in a model's file. Models that are loaded keep what they were
        loaded with.""",
        default=4096,
    )
    gateways: int = setting(
        whole(1, 64),
        """Gateway processes that share the public port. 1 carries thousands of streams; more use more processors.""",
        default=1,
    )
    intents: IntentPolicy = field(default_factory=IntentPolicy)
    pulls: PullPolicy = field(default_factory=PullPolicy)
    loads: LoadPolicy = field(default_factory=LoadPolicy)
    room: RoomPolicy = field(default_factory=RoomPolicy)
    staging: StagingPolicy = field(default_factory=StagingPolicy)
    scaling: ScalingPolicy = field(default_factory=ScalingPolicy)
    model_scheduling: tuple[SchedulingWish, ...] = setting(
        SCHEDULING,
        """Rules of scheduling, as a JSON list: for each `model_name`, `min_replicas` and `max_replicas`, or
        `spread_all`, and the labels of its nodes as `node_selector`. They are written at every start; rules of other
        models stay. None by default: people set them with `corral models scale`, or in a file with `corral apply`.""",
        aliases=("LOCALAI_MODEL_SCHEDULING",),
        default=(),
    )
    model_scheduling_file: Path | None = setting(
        PATH,
        """YAML file with such a list, read at every start; its rules are written after those of `model_scheduling`.""",
        aliases=("LOCALAI_MODEL_SCHEDULING_CONFIG",),
        default=None,
    )
    prefix_routing: bool = setting(
        SWITCH,
        """Send a request to the replica that answered the beginning of its prompt before, unless it is much busier than
        others: it still has that part in its cache. On by default; a rule of scheduling may say otherwise for its model
        (`route_policy`).""",
        aliases=("LOCALAI_DISTRIBUTED_PREFIX_CACHE",),
        default=True,
    )
    prefix_memory: timedelta = setting(
        duration("1s", "1d"),
        "How long gateways remember who answered a prompt. 5 minutes: by then a cache has other prompts in it.",
        aliases=("LOCALAI_DISTRIBUTED_PREFIX_CACHE_TTL",),
        default="5m",
    )
    socket: Path | None = setting(
        PATH,
        """Unix socket that control listens on instead of the public port, which is the gateway's. Set by `corral
        frontend` for its child.""",
        name="control_socket",
        flag="",
        default=None,
        default_text="one in the data directory, made by `corral frontend`",
    )
    adapter_socket: Path | None = setting(
        PATH,
        """Unix socket at which control finds the adapter for replicas on LocalAI's workers. Set by `corral frontend`
        for its child.""",
        flag="",
        default=None,
        default_text="one in the data directory, made by `corral frontend`",
    )
    storage: StorageConfig | None = None
    """Object storage that brings files to the workers that are configured for it too. None: files go over HTTP."""
    adapter_host: str = setting(
        HOST,
        """Address of this machine at which gateways reach the frontend's adapter, which asks replicas on LocalAI's
        workers. Loopback by default, for the gateways that `corral frontend` starts; a `corral gateway` on another
        machine needs an address that it can dial. Requests carry a key there, and no TLS.""",
        default="127.0.0.1",
    )
    bus: BusConfig = field(
        metadata=other_aliases(nats_jwt=("LOCALAI_NATS_SERVICE_JWT",), nats_seed=("LOCALAI_NATS_SERVICE_SEED",))
    )
    nats_account_seed: str = setting(
        SECRET,
        """Seed of the NATS account's identity, which starts with SA: this frontend then makes its own user, and every
        node gets one of its own with its registration, for its own subjects. None by default: the NATS server has
        logins that are shared, which is warned about; `corral up` sets it.""",
        aliases=("LOCALAI_NATS_ACCOUNT_SEED",),
        default="",
        secret=True,
    )
    nats_operator_seed: str = setting(
        SECRET,
        """Seed of the operator of the NATS server, which starts with SO. With it, and a system user beside it, a
        removed node's connection ends at once. None by default: then a removed node's user lives until it expires.
        `corral up` sets it.""",
        default="",
        secret=True,
    )
    nats_system_creds: Path | None = setting(
        EXISTING_FILE,
        """File with a user of the NATS server's system account, as `nsc generate creds` writes it, which hands over
        what the operator's seed signs. None by default, as the operator's seed.""",
        default=None,
    )
    nats_worker_jwt_ttl: timedelta = setting(
        duration("1m", "3650d"),
        """How long a node's user lasts; a worker gets a new one after three quarters of it. By default 10m, and never
        more, so that a removed node does not hear much more; with an operator's seed, which ends users at once, 24h, so
        that a frontend may be away for long.""",
        aliases=("LOCALAI_NATS_WORKER_JWT_TTL",),
        default=Derived(
            "24h with an operator's seed, else 10m",
            lambda _, values: timedelta(hours=24) if values["nats_operator_seed"] else timedelta(minutes=10),
            plain=timedelta(hours=24),
        ),
    )
    nats_advertise_url: str = setting(
        PUBLIC_NATS_URLS,
        """Where Corral's workers reach NATS, if not at the address that frontends use. A loopback address there means
        the host at which the worker reached the frontend.""",
        default="",
        default_text="the servers of `nats_url`",
    )
    nats_require_auth: bool = setting(
        SWITCH,
        """Do not start where nodes would share logins to NATS: without an account's seed. Off by default: a server of
        one's own may have passwords.""",
        aliases=("LOCALAI_NATS_REQUIRE_AUTH", "LOCALAI_DISTRIBUTED_REQUIRE_AUTH"),
        default=False,
    )
    registration_token: str = setting(
        SECRET,
        """What workers present to join; all frontends of a fleet share it. By default one is made at first start,
        printed once and kept encrypted in the database.""",
        aliases=("LOCALAI_REGISTRATION_TOKEN",),
        default="",
        default_text="made at first start",
        secret=True,
    )
    public_url: str = setting(
        HTTP_URLS.into(lambda urls: urls[0]),
        """URL by which machines that join reach this fleet, when a proxy or a `corral gateway` is in front of it;
        `corral nodes invite` prints it. By default it is made of `host` and `port`.""",
        default="",
    )
    public_cert: Path | None = setting(
        EXISTING_FILE,
        """Certificate in PEM form that is shown at `public_url` by another process. Machines that join then trust it
        because the fleet says so, also if no authority does. None by default: that of `tls_cert` is known.""",
        default=None,
    )
    trusted_registration_token: str = setting(
        SECRET,
        """A second token whose bearers are approved at once: for a supervisor that starts its own workers, as `corral
        up` does. None by default.""",
        default="",
        secret=True,
    )
    admin_keys: tuple[str, ...] = setting(
        SECRETS,
        """Keys whose bearers are administrators, beside those that are made with `corral keys`; several are
        comma-separated. They work at each frontend where they are set, and at its gateways. None by default: keys
        that are made have a name and can be revoked.""",
        aliases=("LOCALAI_API_KEY",),
        default=(),
        secret=True,
    )
    admission: AdmissionPolicy = field(default_factory=AdmissionPolicy)
    logins: LoginPolicy = field(default_factory=LoginPolicy)
    tls: FleetTlsPolicy = field(default_factory=FleetTlsPolicy)
    secrets_key: str = setting(
        SECRET,
        """The key that encrypts secrets in the database, for platforms that inject secrets; all frontends of a fleet
        share it. By default the key file is used.""",
        default="",
        default_text="read from the key file",
        secret=True,
    )
    secrets_key_file: Path = setting(
        PATH,
        "File that holds the secrets key, mode 0600. Made at first start when it is not there.",
        default=in_data("secrets.key"),
    )
    credentials_file: Path | None = setting(
        PATH,
        """Keep the administrator key and the registration token in this file, mode 0600. Meant for supervisors. By
        default the first start prints them, because what is printed once cannot be read later; where standard output is
        no terminal it writes them into `credentials.json` in the data directory once, and prints only the path.""",
        default=None,
    )
    metrics_public: bool = setting(
        SWITCH,
        "Serve `/metrics` without a key. Off by default: metrics name nodes and tell how busy they are.",
        default=False,
    )
    liveness: LivenessPolicy = field(default_factory=LivenessPolicy)
    brake_share: float = setting(
        whole(1, 100).into(lambda percent: percent / 100),
        """When more than this percentage of the nodes, and at least two, goes silent within 15 minutes, nothing is
        evicted or rescheduled until they are heard again or the 15 minutes are over: then the network has failed rather
        than the machines. 50, so that a rack may fail; 100 switches this off.""",
        name="brake_percent",
        default="50",
    )
    event_retention: timedelta = setting(
        duration("1h", "3650d"),
        """How long the record of events is kept; the newest 10,000 stay in any case. 30 days, to answer "what happened
        last month?".""",
        default="30d",
    )
    operation_retention: timedelta = setting(
        duration("1h", "3650d"),
        """How long the history of operations is kept. One that still goes on, or waits for an absent node, stays until
        it is over. 30 days, as for events.""",
        default="30d",
    )
    upgrades: UpgradePolicy = field(default_factory=UpgradePolicy)
    disk: DiskPolicy = field(default_factory=DiskPolicy)
    max_body: int = setting(
        size("1KiB", "1024MiB"),
        "Bytes of a request body that the admin API accepts. 1 MiB: registrations and labels are far smaller.",
        default="1MiB",
    )
    instance_id: str = setting(
        TEXT,
        "Name of this frontend among others. A random one at every start by default, so that two are never confused.",
        aliases=("LOCALAI_INSTANCE_ID",),
        default="",
        default_text="random",
    )
    minter: "Minter | None" = field(default=None, repr=False)
    """Makes users of NATS; None where there is no account seed."""
    revoker: "Revoker | None" = field(default=None, repr=False)
    """Ends them before they expire; None without the operator's seed."""
    gateway_key: str = field(default="", repr=False)
    """What the gateways present that were started beside this process; it is stored nowhere."""
    galleries: GalleriesConfig | None = None
    """Where names of backends are looked up; None leaves that to the nodes."""
    images: ImagesConfig | None = None
    """How registries are asked what they have; None asks none."""
    hubs: HubsConfig | None = None
    """How hubs of models are asked; None asks none."""
