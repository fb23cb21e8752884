"""What a frontend is configured with: the control process, and the launcher that starts it and its gateways."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from corral.base.setting_kinds import (
    HOST,
    PATH,
    SECRET,
    SECRETS,
    SWITCH,
    TEXT,
    SettingKind,
    duration,
    hide_password,
    size,
    split_url,
    whole,
)
from corral.base.settings import DATA, Derived, PublicPort, in_data, other_aliases, setting
from corral.bus.config import BusConfig
from corral.frontend.backends.decide.upgrades import UpgradePolicy
from corral.frontend.models.decide.pulling import PullPolicy
from corral.frontend.nodes.decide.liveness import LivenessPolicy
from corral.frontend.nodes.decide.registration import AdmissionPolicy
from corral.frontend.operations.decide.intent import IntentPolicy
from corral.frontend.serving.decide.load_job import LoadPolicy
from corral.galleries.config import GalleriesConfig
from corral.hubs.config import HubsConfig
from corral.oci.config import ImagesConfig

if TYPE_CHECKING:
    from corral.bus.minting import Minter

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


def _sqlite_in_data(_: Mapping[str, str], values: Mapping[str, Any]) -> str:
    return f"sqlite:///{values['data'].absolute() / 'corral.db'}"


def _half_of_the_processors(_: Mapping[str, str], __: Mapping[str, Any]) -> int:
    return max(1, min(4, (os.cpu_count() or 1) // 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlConfig(PublicPort):
    """What `corral frontend` needs."""

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
        """Seed of the NATS account's identity, which starts with SA: nodes of LocalAI then get a user JWT of their own
        with their registration. None by default: workers have the login that they were given.""",
        aliases=("LOCALAI_NATS_ACCOUNT_SEED",),
        default="",
        secret=True,
    )
    nats_worker_jwt_ttl: timedelta = setting(
        duration("1m", "3650d"),
        """How long such a JWT lasts. A worker asks for a new one after three quarters of it. 24h: a stolen one is of
        little use tomorrow.""",
        aliases=("LOCALAI_NATS_WORKER_JWT_TTL",),
        default="24h",
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
    """Makes the NATS credentials of LocalAI's nodes; None where there is no account seed."""
    gateway_key: str = field(default="", repr=False)
    """What the gateways present that were started beside this process; it is stored nowhere."""
    galleries: GalleriesConfig | None = None
    """Where names of backends are looked up; None leaves that to the nodes."""
    images: ImagesConfig | None = None
    """How registries are asked what they have; None asks none."""
    hubs: HubsConfig | None = None
    """How hubs of models are asked; None asks none."""
