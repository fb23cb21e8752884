"""Messages about backends on a node: install, upgrade, delete, list, and how far an install is."""

import hashlib
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Final, Protocol

import msgspec
from msgspec import UNSET, Meta, UnsetType

from corral.base.errors import InvalidInput
from corral.wire import go_json
from corral.wire.adapter import AdapterModel
from corral.wire.confinement import ConfinementWish
from corral.wire.replicas import ProcessKey, ReplicaAccess

ReplicaIndex = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]


class Gallery(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Where backends can be had."""

    url: str = msgspec.field(default_factory=str)
    name: str = msgspec.field(default_factory=str)
    mirrors: list[str] = []
    verification: dict[str, str] = {}
    """Whose signatures are asked for; none when empty."""


class CorralInstall(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a Corral frontend adds, each for workers that named its feature."""

    model: AdapterModel | UnsetType = UNSET
    """How requests are translated, should the backend have no HTTP port of its own. Feature `adapter`."""
    cards: list[str] | UnsetType = UNSET
    """The ids of the GPUs that the process may see, none at all when the list is empty. Feature `cards`."""
    own_token: bool = False
    """The process gets a token of its own, which the answer tells, instead of the node's secret. Feature
    `replica-tokens`."""
    confinement: ConfinementWish | UnsetType = UNSET
    """What an administrator decided for this backend. Feature `confinement`."""


def read_galleries(text: str) -> list[Gallery] | None:
    """None for no text at all; an empty list is a list. InvalidInput when the text cannot be read."""
    if not text:
        return None
    try:
        return go_json.decode_list(text.encode(), Gallery)
    except (InvalidInput, UnicodeEncodeError) as error:
        raise InvalidInput("backend_galleries", str(error)) from error


class InstallRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Asks a worker to install a backend and start a process of it.

    Without a model it is an administrator's install, whose process is named after the backend.
    """

    backend: str = msgspec.field(default_factory=str)
    """A backend's own name, an alias, or the name of a meta backend."""
    model_id: str = ""
    backend_galleries: str = ""
    """JSON text of a list of galleries that replaces the worker's own ones for this call."""
    uri: str = ""
    """Where to install from, instead of a gallery."""
    name: str = ""
    alias: str = ""
    replica_index: ReplicaIndex = 0
    force: bool = False
    """Replace what is installed, and start afresh."""
    op_id: str = ""
    """Part of the subject on which the progress is published."""
    corral: CorralInstall | UnsetType = UNSET

    @property
    def process_key(self) -> ProcessKey:
        return ProcessKey(self.model_id or self.backend, self.replica_index)

    @property
    def cards(self) -> tuple[str, ...] | None:
        """The GPUs that the process may see; None when nothing was said of them, so that any will do."""
        cards = self.corral.cards if isinstance(self.corral, CorralInstall) else UNSET
        return tuple(dict.fromkeys(cards)) if isinstance(cards, list) else None

    @property
    def wants_own_token(self) -> bool:
        """Whether the sender will call the process with the token that the answer contains."""
        return isinstance(self.corral, CorralInstall) and self.corral.own_token

    @property
    def confinement(self) -> ConfinementWish:
        """What was decided about the confinement of the process; nothing, unless the request says so."""
        wish = self.corral.confinement if isinstance(self.corral, CorralInstall) else UNSET
        return wish if isinstance(wish, ConfinementWish) else ConfinementWish()


class InstallReply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Sent only when the process is ready, or when there is none to wait for."""

    success: bool = msgspec.field(default_factory=bool)
    address: str = ""
    """`host:port` to dial for gRPC. A frontend that gets none dials the address of the node."""
    error: str = ""
    corral: ReplicaAccess | UnsetType = UNSET


class UpgradeRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Stop every process of a backend and install it again."""

    backend: str = msgspec.field(default_factory=str)
    backend_galleries: str = ""
    """JSON text of a list of galleries that replaces the worker's own ones for this call."""
    uri: str = ""
    name: str = ""
    alias: str = ""
    replica_index: ReplicaIndex = 0
    """Tells only which process may be named after the backend itself."""
    op_id: str = ""


class DeleteRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Stop every process of a backend and remove its files."""

    backend: str = msgspec.field(default_factory=str)
    """A backend's own name, an alias, or the name of a meta backend."""


class RollbackRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Stop every process of a backend and go back to the version before, without fetching anything. For workers that
    named the feature `backend-rollback`."""

    backend: str = msgspec.field(default_factory=str)
    """A backend's own name, an alias, or the name of a meta backend."""


class ChangeReply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Answer to all of them. The stopped processes are listed even if a later step failed."""

    success: bool = msgspec.field(default_factory=bool)
    error: str = ""
    stopped_process_keys: list[str] = []
    reports_stopped_processes: bool = False
    """When set, an absent list means that nothing was stopped. Old workers do not know: their silence says nothing."""


class InstalledDetails(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Fields that Corral's workers add to LocalAI's description of an installed backend."""

    platform_digest: str = ""
    """Digest of the image for the node's platform, where `digest` is that of an index of several."""
    source_digest: str = ""
    """What an upgrade would bring, where the source is an image on the node's own disk."""


class InstalledBackend(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One backend. Those of the system path say nothing of where they came from."""

    name: str = msgspec.field(default_factory=str)
    is_system: bool = msgspec.field(default_factory=bool)
    is_meta: bool = msgspec.field(default_factory=bool)
    installed_at: str = ""
    gallery_url: str = ""
    version: str = ""
    uri: str = ""
    digest: str = ""
    corral: InstalledDetails | None = None


class ListReply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Answer to `backend.list`, in no order."""

    backends: list[InstalledBackend] | None = msgspec.field(default_factory=lambda: None)
    """`null` is what LocalAI's workers say when they have none."""
    error: str = ""
    """When set, the list says nothing."""


class InventoryReport(msgspec.Struct, kw_only=True):
    """The message on `corral.inventory`, which a node sends when its backends have changed."""

    backends: list[InstalledBackend] = []


class Described(Protocol):
    """What both sides know of a backend."""

    @property
    def name(self) -> str: ...
    @property
    def is_system(self) -> bool: ...
    @property
    def is_meta(self) -> bool: ...
    @property
    def installed_at(self) -> str: ...
    @property
    def gallery_url(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def uri(self) -> str: ...
    @property
    def digest(self) -> str: ...


def fingerprint(backends: Iterable[Described]) -> str:
    """A hash of what nodes report of their backends. Their order does not matter."""
    facts = sorted(
        (
            backend.name,
            backend.is_system,
            backend.is_meta,
            backend.installed_at,
            backend.gallery_url,
            backend.version,
            backend.uri,
            backend.digest,
        )
        for backend in backends
    )
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:32]


_UNITS: Final = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


class Phase(StrEnum):
    """Words that frontends show. LocalAI's worker only ever sends the second."""

    RESOLVING = "resolving"
    DOWNLOADING = "downloading"
    EXTRACTING = "extracting"
    VERIFYING = "verifying"
    """Corral's own: everything is there, and is looked at once more."""
    STARTING = "starting"


class FileBytes(msgspec.Struct, array_like=True, frozen=True):
    """The progress of one file."""

    name: str
    state: str
    """`waiting`, `fetching`, `checking` or `done`."""
    current: int
    total: int
    """0 while it is not known."""


class InstallBytes(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What Corral's workers add to an event: its words in numbers, and its place in the order of events."""

    sequence: int
    """Larger in each event of one operation at one node."""
    current: int
    total: int
    """0 while it is not known."""
    attempt: int = 0
    """Larger each time that the node begins on the same operation; the numbers of events begin at 1 again with it."""
    files: list[FileBytes] = []
    """The progress of each file, for the pull of a model."""
    file_index: int = 0
    """Which file it is, counted from 1, when files of a model are brought to the node."""
    total_files: int = 0


class InstallProgress(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Published on the subject of its operation, for installs and upgrades alike."""

    op_id: str = msgspec.field(default_factory=str)
    node_id: str = msgspec.field(default_factory=str)
    backend: str = msgspec.field(default_factory=str)
    file_name: str = ""
    current: str = ""
    """A size for people, see `size_text`."""
    total: str = ""
    percentage: float = msgspec.field(default_factory=float)
    """From 0 to 100. LocalAI's worker begins at 0 again with each layer and when it extracts."""
    phase: str = ""
    corral: InstallBytes | None = None


def size_of(text: str) -> int:
    """The bytes that such words stand for, as exactly as they say; 0 when they are none."""
    number, _, unit = text.partition(" ")
    if unit != "B" and unit not in _UNITS:
        return 0
    try:
        size = float(number) * (1024 ** (_UNITS.index(unit) + 1) if unit != "B" else 1)
    except ValueError:
        return 0
    return int(size) if 0 <= size < 2**63 else 0


def size_text(size: int) -> str:
    """A size in the words of LocalAI's worker: `512 B`, `3.6 KiB`, `72.4 MiB`. Its frontends read numbers out of it."""
    if size < 1024:
        return f"{size} B"
    power = 1
    while size >= 1024 ** (power + 1) and power < len(_UNITS):
        power += 1
    return f"{size / 1024**power:.1f} {_UNITS[power - 1]}"
