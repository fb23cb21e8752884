"""Configuration of a worker: plain values with their units and the reasons for their defaults.

Reads neither flags nor the environment; `processes/configs/` fills it. `addresses.py` turns these values into
addresses.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from corral.base.logs import LogOutput
from corral.base.retry import Backoff
from corral.bus.config import BusConfig
from corral.files.storage import StorageConfig
from corral.galleries.config import BUILT_IN, GalleriesConfig
from corral.oci.config import ImagesConfig
from corral.worker.installing.orders import KeepPrevious
from corral.worker.membership.addresses import AddressConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """How the node describes itself to the frontend."""

    name: str = ""
    """At most 255 characters; empty: the host name, which people recognise."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Reported at each registration, for selectors."""
    max_replicas_per_model: int = 1
    """Replicas of one model at a time. 1, as LocalAI has it: a second one seldom fits the same GPU."""
    vram_budget: str = ""
    """How much video memory models may use: `80%`, `0.8`, `12GB`; empty: all of it."""
    capability: str = ""
    """Forces the capability by which backend builds are chosen; empty: the run file, then detection."""
    capability_run_file: Path = Path("/run/localai/capability")
    """Read when no capability is forced. LocalAI's images ship it under this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendConfig:
    """Where to register, and with which patience."""

    urls: tuple[str, ...]
    """One or more frontends of the same cluster, without a slash at the end."""
    registration_token: str = field(default="", repr=False)
    """The shared token that admits a node; empty only for a LocalAI frontend that asks for none."""
    timeout: timedelta = timedelta(seconds=10)
    """Total time of one HTTP call. Same as in LocalAI's worker, and one default heartbeat interval."""
    connect_timeout: timedelta = timedelta(seconds=2)
    """Time for the TCP connection alone, so that an unreachable machine does not use up the time for the next
    frontend."""
    backoff: Backoff = Backoff(first=timedelta(milliseconds=250), cap=timedelta(seconds=30))
    """Pauses between attempts to register: short for a frontend that is starting, long enough for a long outage."""
    token_attempts: int = 5
    """How often a first registration may be answered 401 or 403 before the worker gives up. More than one, because
    frontends behind one address may disagree for a moment while a token is changed; few, because trying on for ever
    hides the mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DepartureConfig:
    """How long leaving may take."""

    drain_timeout: timedelta = timedelta(seconds=30)
    """Waiting for requests in flight. As LocalAI's worker, so that operators find the same grace."""
    poll_interval: timedelta = timedelta(seconds=1)
    """Between two looks at the requests in flight."""
    call_timeout: timedelta = timedelta(seconds=3)
    """Time for each call while leaving. Short: an unreachable frontend must not delay the end of the process."""
    margin: timedelta = timedelta(seconds=30)
    """For everything but the drain itself."""

    @property
    def timeout(self) -> timedelta:
        """Total time of the departure, whatever its parts add up to: 60 s by default, as in LocalAI's worker."""
        return self.drain_timeout + self.margin


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisionConfig:
    """How long backends may take. The values are those of LocalAI's worker, which frontends count on."""

    ready_within: timedelta = timedelta(seconds=30)
    """From the start of a process to its first healthy answer. Models are loaded later."""
    probe_interval: timedelta = timedelta(milliseconds=200)
    """Between two looks whether a process that starts is ready."""
    probe_timeout: timedelta = timedelta(seconds=2)
    """Time for one such probe."""
    free_within: timedelta = timedelta(seconds=5)
    """For a backend to give its model back before it is ended."""
    stop_grace: timedelta = timedelta(seconds=15)
    """Between the request to end and the end by force."""
    kill_within: timedelta = timedelta(seconds=10)
    """How long the kernel may take to end a killed process. One that hangs in a driver may never end."""
    unused_after: timedelta = timedelta(minutes=10)
    """How long a process may run that an install started and no model has used; 0 is unlimited."""

    @property
    def gone_within(self) -> timedelta:
        """The longest that a stop is waited for."""
        return self.free_within + self.stop_grace + self.kill_within


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesConfig:
    """Where files are kept that frontends send and fetch, and for how long."""

    staging_path: Path | None = None
    """Directory for inputs and outputs of single requests; None: `staging` next to the models, as in LocalAI's
    worker."""
    retention: timedelta = timedelta(hours=24)
    """How long staged files and unfinished uploads are kept after their last use: longer than any request takes."""
    stall_timeout: timedelta = timedelta(seconds=60)
    """Without a byte, after which a transfer is given up: a sender that vanished must not keep others from sending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterConfig:
    """How the node's adapter is kept."""

    ready_within: timedelta = timedelta(seconds=30)
    """Time from the start of its process until it listens. Usually less than a second; more on a machine that swaps."""
    obey_within: timedelta = timedelta(seconds=10)
    """For one order, which only changes a table. An adapter that takes longer hangs, and is started again."""
    url_within: timedelta = timedelta(seconds=60)
    """How long an install waits for its URL, a start again after a failure included."""
    linger: timedelta = timedelta(seconds=30)
    """How long the adapter stays without a replica, so that a reloaded model finds it running."""
    stop_grace: timedelta = timedelta(seconds=7)
    """Between the request to end and the end by force: a little more than it gives requests under way."""
    backoff: Backoff = Backoff(first=timedelta(milliseconds=250), cap=timedelta(seconds=10))
    """Between a death and the next start. Requests wait for it, so it begins short."""
    stable_after: timedelta = timedelta(seconds=60)
    """A life of this length makes earlier deaths forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Configuration of one worker process."""

    frontend: FrontendConfig
    bus: BusConfig
    data_path: Path
    """Holds the node's secret; one directory per worker, since two with one secret would be one node."""
    models_path: Path = Path("models")
    """Model files; the disk that is reported is the one this path is on."""
    backends_path: Path = Path("backends")
    """Directory of installed backends."""
    system_backends: tuple[Path, ...] = ()
    """Directories of backends that came with the system: used by name, never changed."""
    backend_environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Environment variables for every backend, in addition to those that the worker sets."""
    supervision: SupervisionConfig = field(default_factory=SupervisionConfig)
    files: FilesConfig = field(default_factory=FilesConfig)
    adapter: AdapterConfig = field(default_factory=AdapterConfig)
    logs: LogOutput = field(default_factory=LogOutput)
    """Where the worker and its adapter write their logs."""
    log_name: str = "worker"
    """What the worker calls itself in its log."""
    node: NodeConfig = field(default_factory=NodeConfig)
    addresses: AddressConfig = field(default_factory=AddressConfig)
    heartbeat_interval: timedelta = timedelta(seconds=10)
    """Sent to a Corral frontend, which measures silence in intervals; LocalAI frontends assume this default."""
    disk_timeout: timedelta = timedelta(seconds=2)
    """Time for one reading of the disk, which never returns when a network file system hangs."""
    storage: StorageConfig | None = None
    """Object storage through which frontends may send files; None: they come over HTTP."""
    images: ImagesConfig = field(default_factory=ImagesConfig)
    """How images of backends are fetched and unpacked."""
    galleries: GalleriesConfig = field(
        default_factory=lambda: GalleriesConfig(sources=(BUILT_IN,), cache=Path("galleries"))
    )
    """Where backends are to be had, unless a request names other galleries."""
    keep_previous: KeepPrevious = field(default_factory=KeepPrevious)
    """Whether one can go back to the version before."""
    gpu_timeout: timedelta = timedelta(seconds=5)
    """Time for one reading of the GPUs. Drivers of large machines take seconds to start; some hang for good."""
    departure: DepartureConfig = field(default_factory=DepartureConfig)
    nats_user_retry: Backoff = Backoff(first=timedelta(seconds=2), cap=timedelta(seconds=30))
    """Between registrations that shall bring a user for NATS. As LocalAI's worker: a person may have to approve."""
