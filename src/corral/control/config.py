"""What the control process needs to know; `app/configs/` fills it."""

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from corral.bus.config import BusConfig
from corral.bus.minting import Minter
from corral.domain.intent import IntentPolicy
from corral.domain.load_job import LoadPolicy
from corral.domain.node import LivenessPolicy
from corral.domain.registration import AdmissionPolicy
from corral.domain.upgrades import UpgradePolicy
from corral.galleries.config import GalleriesConfig
from corral.oci.config import ImagesConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlConfig:
    """All of the control process."""

    data: Path
    """Where the SQLite file, the secrets key and the credentials file are by default."""
    bus: BusConfig
    minter: Minter | None = field(default=None, repr=False)
    """Makes the NATS credentials of LocalAI's nodes; None leaves those to whoever sets workers up."""
    database_url: str = field(repr=False)
    host: str = "127.0.0.1"
    """Loopback by default: nothing is open that nobody asked for."""
    port: int = 8080
    """0 takes a free one."""
    instance_id: str = ""
    """Name of this frontend among others; empty makes a random one at every start."""
    secrets_key: str = field(default="", repr=False)
    """The key itself, for platforms that inject secrets; otherwise the file is used."""
    secrets_key_file: Path
    registration_token: str = field(default="", repr=False)
    """What workers present to join. Empty: the one in the database, made at first start."""
    trusted_registration_token: str = field(default="", repr=False)
    """Joins that present this one are approved at once. `corral up` gives it to its own workers."""
    admin_keys: tuple[str, ...] = field(default=(), repr=False)
    """Whoever presents one of these is an administrator."""
    admission: AdmissionPolicy = field(default_factory=AdmissionPolicy)
    """Which nodes are approved by themselves, and how many may wait."""
    credentials_file: Path | None = None
    """Where the administrator key and the registration token are kept for a supervisor, mode 0600."""
    metrics_public: bool = False
    """Serve /metrics without a key."""
    models: Path | None = None
    """Directory of the model files, as the nodes see it too; None is `models` in the data directory."""
    threads: int = 4
    """Of a backend whose model does not say."""
    most_tokens: int = 4096
    """Of an answer, where neither the request nor the model says; 0 is without limit."""
    loads: LoadPolicy = field(default_factory=LoadPolicy)
    intents: IntentPolicy = field(default_factory=IntentPolicy)
    galleries: GalleriesConfig | None = None
    """Where names of backends are looked up; None leaves that to the nodes."""
    images: ImagesConfig | None = None
    """How registries are asked what they have; None asks none."""
    socket: Path | None = None
    """Listen on this Unix socket, and on no port: how a frontend's gateways reach control."""
    gateway_key: str = field(default="", repr=False)
    """What the gateways present that were started beside this process; it is stored nowhere."""
    liveness: LivenessPolicy = field(default_factory=LivenessPolicy)
    brake_share: float = 0.5
    """When more than this share of the nodes goes silent together, nothing is evicted or rescheduled."""
    event_retention: timedelta = timedelta(days=30)
    """Older events are removed, but the newest 10,000 always stay."""
    upgrades: UpgradePolicy = field(default_factory=UpgradePolicy)
    operation_retention: timedelta = timedelta(days=30)
    """Operations that were accepted before are removed, unless they still go on somewhere."""
    max_body: int = 1024 * 1024
    """Bytes of a request body that the admin API accepts."""

    @property
    def models_path(self) -> Path:
        return self.models or self.data / "models"
