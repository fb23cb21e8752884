"""Registration, heartbeat and deregistration: bodies and answers between a worker and a frontend."""

from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

Bytes = Annotated[int, Meta(ge=0, description="a number of bytes")]
"""LocalAI counts in unsigned 64 bits. A database column holds one bit less, which is still nine exabytes: frontends
leave larger numbers out."""
ReplicaLimit = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""LocalAI counts in 64 bits with a sign, and takes less than 1 for 1."""

MAX_NAME: Final = 255
MAX_ADDRESS: Final = 512
MAX_BODY: Final = 1024 * 1024
CAPACITY_FIELDS: Final = ("total_vram", "available_vram", "total_ram", "available_ram", "total_disk", "available_disk")


class Feature(StrEnum):
    """Extensions that a Corral peer may name; one is used only when both sides did."""

    NODE_SECRET = "node-secret"  # noqa: S105 - the name of a feature
    """The node has a secret of its own, which replaces the shared token after registration."""
    HEARTBEAT_STATUS = "heartbeat-status"
    """Heartbeat answers tell the worker its status."""
    REPLICA_EXITS = "replica-exits"
    """The worker says at once when a process ended by itself."""
    ADAPTER = "adapter"
    """The worker gives processes without an HTTP port a URL, if the frontend sends how to translate for their model."""
    FILE_RANGES = "file-ranges"
    """Parts of a worker's file can be fetched, below /v1/corral/files/."""
    BACKEND_ROLLBACK = "backend-rollback"
    """The worker can go back to the version of a backend before the present one."""
    FILE_FETCHES = "file-fetches"
    """The worker fetches files of models by itself, from other workers and from public servers, and serves them to
    workers that show a ticket: see `wire/files.py`."""
    LATE_DIGESTS = "late-digests"
    """The worker takes all ranges of a file but the last one before its digest is known: see `wire/files.py`."""
    INVENTORY = "inventory"
    """The worker says what backends it has whenever that changes, and a fingerprint of it with every heartbeat."""
    CARDS = "cards"
    """The worker tells of each GPU, and a process that it starts sees only those that it is given."""
    JOIN_CODES = "join-codes"
    """A join code may take the place of the registration token; the fleet proves who it is: see `wire/joining.py`."""
    REPLICA_TOKENS = "replica-tokens"
    """Each process has a token of its own for gRPC if the frontend asks for it, and the worker tells it."""
    FLEET_TLS = "fleet-tls"
    """The worker speaks TLS only, with certificates that the frontend makes: see `wire/fleet_tls.py`. Each side names
    it only where a setting turns it on."""
    OBJECT_DIGESTS = "object-digests"
    """The worker fetches objects by digest to where its file server has files, and tells how far it is."""
    CONFINEMENT = "confinement"
    """The worker confines backends as an install request says, and tells what its machine can give."""

    NATS_USER = "nats-user"
    """The frontend makes a user of NATS for the worker, and says where NATS is; a pending worker waits for it."""


OPTIONAL_FEATURES: Final = frozenset({Feature.FLEET_TLS})
"""Extensions that a setting turns on."""


def features(*optional: Feature) -> list[str]:
    """What a peer of this version names, with those of the optional extensions that are on."""
    return [feature.value for feature in Feature if feature not in OPTIONAL_FEATURES or feature in optional]


FEATURES: Final = tuple(features())


class CardReport(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One GPU of a worker."""

    id: str
    """An id that stays the same for the life of the card: a UUID, or its address on PCI."""
    index: int = 0
    """Its place in the order in which the engines of its vendor count."""
    name: str = ""
    vendor: str = ""
    total: Bytes = 0
    free: Bytes | UnsetType = UNSET
    """Left out when it could not be read."""
    shares_ram: bool = False
    """The GPU has no memory of its own: the numbers are those of the machine's RAM."""


class CorralHello(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a Corral worker adds to its registration."""

    version: str
    features: list[str] = []
    secret: str = ""
    """The node's own secret, made by the worker and stored before it is first sent: a lost answer loses nothing."""
    incarnation: str = ""
    heartbeat_seconds: float = 0
    """The interval the worker will keep."""
    platform: str = ""
    """Which images run there, in their words: `linux/arm64`."""
    one_disk: bool = False
    """Backends are kept on the same disk as models, so that `available_disk` tells of both."""
    memory_pool: str = ""
    """Workers that say the same here report the same memory: they share a machine and its limits. Empty: not known."""
    cards: object = None
    """A list of `CardReport`. Of no type here: a worker is not turned away for what it says of its GPUs."""
    nats_login: str = ""
    """How it logs in to NATS where the frontend makes a user for it: `own` or `shared`, see `NatsLogin`."""
    confinement: object = None
    """A `ConfinementReport`, of no type here for the same reason."""


class NatsLogin(StrEnum):
    """How a worker logs in to NATS."""

    OWN = "own"
    """As the user that the frontend makes for it."""
    SHARED = "shared"
    """As the user that its settings name, which others may have too."""


class NatsOffer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Where NATS is, for workers whose settings do not say."""

    urls: list[str] = []
    """Without logins. A host that is on loopback or no machine at all means the one where the frontend was reached."""
    tls_ca: str = ""
    """Certificates that the servers are checked against, in PEM form; empty for those of the system."""


class CorralWelcome(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a Corral frontend adds to its answer, for Corral workers only."""

    version: str
    features: list[str]
    nats: NatsOffer | UnsetType = UNSET


class RegisterRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Body of `POST /api/node/register`."""

    name: str = ""
    node_type: str = ""
    address: str = ""
    http_address: str = ""
    token: str = ""
    total_vram: Bytes | UnsetType = UNSET
    available_vram: Bytes | UnsetType = UNSET
    gpu_vendor: str | UnsetType = UNSET
    gpu_compute_capability: str | UnsetType = UNSET
    capability: str | UnsetType = UNSET
    total_ram: Bytes | UnsetType = UNSET
    available_ram: Bytes | UnsetType = UNSET
    total_disk: Bytes | UnsetType = UNSET
    available_disk: Bytes | UnsetType = UNSET
    max_replicas_per_model: ReplicaLimit = 0
    vram_budget: str = ""
    labels: dict[str, str] | UnsetType = UNSET
    corral: CorralHello | UnsetType = UNSET


class RegisterResponse(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Answer 201. A worker needs nothing but the id."""

    id: str
    name: str = ""
    node_type: str = ""
    status: str = ""
    created_at: str = ""
    api_token: str = ""
    """Only for approved agent nodes: an inference key of their own."""
    nats_jwt: str = ""
    nats_user_seed: str = ""
    corral: CorralWelcome | UnsetType = UNSET


class ApproveResponse(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Answer to `POST /api/nodes/<id>/approve`."""

    id: str = msgspec.field(default_factory=str)
    message: str = msgspec.field(default_factory=str)
    name: str = msgspec.field(default_factory=str)
    node_type: str = msgspec.field(default_factory=str)
    status: str = msgspec.field(default_factory=str)
    nats_jwt: str = ""
    nats_user_seed: str = ""


class CorralBeat(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a Corral worker adds to its heartbeat."""

    incarnation: str = ""
    inventory: str = ""
    """The fingerprint of the backends that it has, as far as it knows them."""
    cards: object = None
    """A list of `CardReport`, as in the registration; those that are not in it are gone. Left out: as before."""
    problems: list[str] = []
    """What it found wrong with itself, for people: that it does not answer where it says it does."""


class HeartbeatRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Body of `POST /api/node/<id>/heartbeat`. What could not be measured is left out."""

    available_vram: Bytes | UnsetType = UNSET
    total_vram: Bytes | UnsetType = UNSET
    available_ram: Bytes | UnsetType = UNSET
    available_disk: Bytes | UnsetType = UNSET
    total_disk: Bytes | UnsetType = UNSET
    gpu_vendor: str | UnsetType = UNSET
    corral: CorralBeat | UnsetType = UNSET


PENDING: Final = "pending"
"""The status of a node that waits for approval."""


class CorralStatus(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How control sees the worker that just beat."""

    status: str = ""
    deregistered: bool = False
    """The node must register again before it counts as present."""


class HeartbeatResponse(msgspec.Struct, kw_only=True, omit_defaults=True):
    message: str = ""
    corral: CorralStatus | UnsetType = UNSET


class ReplicaInFlight(msgspec.Struct, kw_only=True):
    """The part of a replica row that a draining worker looks at."""

    in_flight: int = 0
