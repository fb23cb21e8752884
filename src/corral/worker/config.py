"""Configuration of a worker: plain values with their units, and the settings that they come from.

`addresses.py` turns these values into addresses.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import ClassVar, Final

from corral.base.errors import InvalidInput
from corral.base.logs import LogOutput
from corral.base.retry import Backoff
from corral.base.setting_kinds import ANY_WHOLE, HTTP_URLS, PATH, SECRET, SWITCH, TEXT, SettingKind, duration
from corral.base.settings import Derived, default_data, in_data, optional_here, setting
from corral.bus.config import BusConfig
from corral.files.storage import StorageConfig
from corral.galleries.config import BUILT_IN, GalleriesConfig
from corral.oci.config import ImagesConfig
from corral.rpc.adapter_keeper import AdapterConfig
from corral.wire.joining import read_code, read_pin
from corral.wire.labels import label_problem
from corral.wire.nodes import MAX_VRAM_BUDGET, VramBudget
from corral.worker.confinement.config import ConfinementConfig
from corral.worker.membership.addresses import AddressConfig

_LONGEST_SHOWN: Final = 80
_FIRST_RETRY: Final = timedelta(milliseconds=250)


def _read_labels(text: str) -> Mapping[str, str]:
    labels: dict[str, str] = {}
    for pair in (part.strip() for part in text.split(",")):
        if not pair:
            continue
        key, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(pair)
        labels[key.strip()] = value.strip()
    return _labels_of_table(labels)


def _labels_of_table(table: Mapping[str, object]) -> Mapping[str, str]:
    labels = {key: value for key, value in table.items() if isinstance(value, str)}
    if len(labels) != len(table):
        raise ValueError(table)
    if problem := label_problem(labels):
        raise ValueError(problem)
    return labels


def _salvage_labels(text: str) -> tuple[Mapping[str, str], str]:
    """Leave out the pairs that cannot be used, as LocalAI's worker does."""
    labels: dict[str, str] = {}
    unusable: list[str] = []
    for pair in text.split(","):
        try:
            labels |= _read_labels(",".join((*(f"{key}={value}" for key, value in labels.items()), pair)))
        except ValueError:
            unusable.append(ascii(pair.strip()[:_LONGEST_SHOWN]))
    return labels, f"labels that cannot be used are left out: {', '.join(unusable)}"


LABELS: Final = SettingKind(
    salvage=_salvage_labels,
    placeholder="KEY=VALUE[,…]",
    allowed="pairs such as zone=a,disk=fast, or in a file a table of texts",
    read=_read_labels,
    read_table=_labels_of_table,
)


def _read_vram_budget(text: str) -> str:
    VramBudget.read(text)
    return text.strip()


def _salvage_vram_budget(text: str) -> tuple[str, str]:
    """Pass the text on, as LocalAI's worker does: frontends take it for no budget."""
    if len(text) > MAX_VRAM_BUDGET or not text.isprintable():
        raise ValueError(text)
    return text.strip(), f"{text!r} is no budget, and frontends ignore it; write for example 80%, 0.8, 12GB or 8GiB"


VRAM_BUDGET: Final = SettingKind(
    salvage=_salvage_vram_budget,
    placeholder="BUDGET",
    allowed="a share or a size such as 80%, 0.8, 12GB or 8GiB",
    read=_read_vram_budget,
)


def _read_secret_code(text: str) -> str:
    """A setting's reader raises ValueError, which never holds the text of a secret."""
    try:
        return read_code(text)
    except InvalidInput:
        raise ValueError from None


def _read_fleet_pin(text: str) -> str:
    try:
        return read_pin(text)
    except InvalidInput as error:
        raise ValueError(error.problem) from None


JOIN_CODE: Final = SettingKind(
    placeholder="CODE", allowed="a join code such as K7QM-2XVD-9PTR-4HBN-0S3C, without mistakes", read=_read_secret_code
)
FLEET_PIN: Final = SettingKind(
    placeholder="PIN", allowed="32 letters and digits, the part of a join URL after #", read=_read_fleet_pin
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendConfig:
    """Where to register, and how often to try."""

    urls: tuple[str, ...] = setting(
        HTTP_URLS,
        """URL of the frontend to join, or several of one fleet, comma-separated. Without it the worker comes back to
        the fleet that it once joined with `--join`; it never guesses, since it may join the wrong fleet.""",
        name="register_to",
        aliases=("LOCALAI_REGISTER_TO",),
        default=(),
        default_text="the fleet that it joined with `--join`",
    )
    join_code: str = setting(
        JOIN_CODE,
        """Join code from `corral nodes invite`, for a first start with `--join` that nobody watches; `--code-file` and
        `--code-descriptor` are other ways. None by default: a person is asked for it.""",
        default="",
        secret=True,
    )
    fleet_pin: str = setting(
        FLEET_PIN,
        """How the fleet is known: the part after `#` of the URL that `corral nodes invite` prints. The worker then
        sends its secrets to no other fleet, and needs no authority for the frontend's certificate. None by default for
        a worker with `register_to`; one that joined with `--join` has remembered it.""",
        default="",
    )
    is_joining: bool = False
    """By `--join`, now or at an earlier start: the node's own secret is all that it presents once it was admitted."""
    registration_token: str = setting(
        SECRET,
        """What the worker presents to join, printed by the frontend at its first start. None by default, which only a
        LocalAI frontend without a token accepts; the worker is open to everybody then, as LocalAI's is, because that
        frontend presents nothing either.""",
        aliases=("LOCALAI_REGISTRATION_TOKEN",),
        default="",
        secret=True,
    )
    require_token: bool = setting(
        SWITCH,
        """Do not start without a registration token. Off by default: a frontend that asks for one says so itself.""",
        aliases=("LOCALAI_REGISTRATION_REQUIRE_AUTH",),
        default=False,
    )
    require_auth: bool = setting(
        SWITCH,
        """As `require_token` and `nats_require_auth`, also where these are off: LocalAI's one switch for all
        credentials. Off by default, as there.""",
        flag="",
        aliases=("LOCALAI_DISTRIBUTED_REQUIRE_AUTH",),
        default=False,
    )
    backoff: Backoff = setting(
        # Pauses begin short, for a frontend that starts beside us, and grow for one that is away for long.
        duration("100ms", "1h").into(lambda cap: Backoff(first=min(_FIRST_RETRY, cap), cap=cap)),
        """Longest pause between attempts to register; the first ones come sooner. 30 s: a frontend that was away for
        hours is found soon enough, and a thousand workers do not overrun it.""",
        name="registration_retry",
        default="30s",
    )
    timeout: timedelta = timedelta(seconds=10)
    """Total time of one HTTP call. Same as in LocalAI's worker, and one default heartbeat interval."""
    connect_timeout: timedelta = timedelta(seconds=2)
    """Time for the TCP connection alone, so that an unreachable machine leaves time for the next frontend."""
    token_patience: timedelta = timedelta(seconds=5)
    """How long a first registration may be answered 401 or 403 before the worker gives up. Frontends behind one
    address may disagree for a moment while a token is changed; trying on for long would hide the mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """How the node describes itself to the frontend."""

    name: str = setting(
        TEXT,
        "Name of the node. The host name, because that is how people already call the machine.",
        env="CORRAL_NODE_NAME",
        aliases=("LOCALAI_NODE_NAME",),
        default="",
        default_text="the host name",
    )
    labels: Mapping[str, str] = setting(
        LABELS,
        "Labels that the node reports. None by default; Corral adds what it can see itself.",
        env="CORRAL_NODE_LABELS",
        aliases=("LOCALAI_NODE_LABELS",),
        default={},
    )
    max_replicas_per_model: int = setting(
        ANY_WHOLE.into(lambda count: max(count, 1)),
        """How many replicas of one model this node may run; less than 1 means 1. 1, because one usually fills the
        memory.""",
        aliases=("LOCALAI_MAX_REPLICAS_PER_MODEL",),
        default="1",
    )
    vram_budget: str = setting(
        VRAM_BUDGET,
        "How much of the video memory models may use: a share or a size. None by default: all of it.",
        aliases=("LOCALAI_VRAM_BUDGET",),
        default="",
    )
    capability: str = setting(
        TEXT,
        "Forces the capability by which builds of a backend are chosen, such as `nvidia`. By default it is detected.",
        aliases=("LOCALAI_FORCE_META_BACKEND_CAPABILITY",),
        default="",
        default_text="detected",
    )
    capability_run_file: Path = setting(
        PATH,
        "File that names the capability when none is forced. LocalAI's images ship it under this name.",
        aliases=("LOCALAI_FORCE_META_BACKEND_CAPABILITY_RUN_FILE",),
        default="/run/localai/capability",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DepartureConfig:
    """How long leaving may take."""

    drain_timeout: timedelta = setting(
        duration("0s", "24h"),
        "How long a worker that was asked to stop waits for requests in flight. 30 s, as LocalAI's worker does.",
        default="30s",
    )
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
    unused_after: timedelta = setting(
        duration("0s", "365d"),
        """How long a backend process may run that an administrator's install started and that no model has asked for;
        0s means for ever, as in LocalAI. 10 minutes: long enough to try it out, and it holds memory for nobody.""",
        default="10m",
    )

    @property
    def gone_within(self) -> timedelta:
        """The longest that a stop is waited for."""
        return self.free_within + self.stop_grace + self.kill_within


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesConfig:
    """Where files are kept that frontends send and fetch, and for how long."""

    staging_path: Path | None = setting(
        PATH,
        """Directory for inputs and outputs of single requests that frontends send and fetch. Beside the models, where
        LocalAI's worker has it: one disk, so that a file is moved and not copied.""",
        name="staging",
        env="CORRAL_STAGING_PATH",
        default=None,
        default_text="`staging` beside the models directory",
    )
    retention: timedelta = setting(
        duration("1m", "3650d"),
        """How long staged files and unfinished uploads are kept after their last use. A day: longer than any request
        takes, and long enough to resume an upload after an outage. Model files are never removed by age.""",
        name="file_retention",
        default="24h",
    )
    stall_timeout: timedelta = setting(
        duration("1s", "24h"),
        """How long a transfer of a file may stand still before it is given up; what was received is kept. A minute: a
        sender that vanished keeps others from sending the same file.""",
        name="file_stall_timeout",
        default="1m",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """All configuration of one worker process."""

    section: ClassVar[str] = "worker"
    title: ClassVar[str] = "`corral worker`"

    frontend: FrontendConfig
    bus: BusConfig = field(metadata=optional_here(nats_url="what the frontend offers"))
    nats_require_auth: bool = setting(
        SWITCH,
        """Never connect to NATS without a login: until the frontend gives this node a user, it registers again and
        again, and no command reaches it. A JWT or a login in the URL counts. Implied by `require_auth`. Off by default:
        a server that wants a login refuses whoever has none.""",
        flag="",
        aliases=("LOCALAI_NATS_REQUIRE_AUTH",),
        default=False,
    )
    data_path: Path = setting(
        PATH,
        "Directory for the node's own secret and for what the worker must remember. Not shared with another worker.",
        name="data",
        default=Derived("`worker` inside the default data directory", lambda env, _: default_data(env) / "worker"),
    )
    backends_path: Path = setting(
        PATH,
        "Directory that backends are installed into. Not shared with another worker.",
        name="backends",
        env="CORRAL_BACKENDS_PATH",
        aliases=("LOCALAI_BACKENDS_PATH", "BACKENDS_PATH"),
        default=in_data("backends"),
    )
    system_backends: tuple[Path, ...] = setting(
        PATH.into(lambda path: (path,)),
        """Directory of backends that came with the system; they are used but never changed, and an installed one with
        their name, or with it as its alias, hides them. LocalAI's place, so that its packages are found. Those that
        ship with Corral are found as well.""",
        env="CORRAL_SYSTEM_BACKENDS_PATH",
        aliases=("LOCALAI_BACKENDS_SYSTEM_PATH",),
        default="/var/lib/local-ai/backends",
    )
    models_path: Path = setting(
        PATH,
        """Directory for model files; workers of one machine may share it. Its disk is the one that is reported.
        Frontends may read and write it, and `staging`, `data` and `cache` beside it: none of these may be, contain or
        lie in the data directory, except under these names.""",
        name="models",
        env="CORRAL_MODELS_PATH",
        aliases=("LOCALAI_MODELS_PATH", "MODELS_PATH"),
        default=in_data("models"),
    )
    files: FilesConfig = field(default_factory=FilesConfig)
    addresses: AddressConfig = field(default_factory=AddressConfig)
    heartbeat_interval: timedelta = setting(
        duration("100ms", "1h"),
        "Time between heartbeats. 10 s is LocalAI's: with it a dead node is noticed within half a minute.",
        aliases=("LOCALAI_HEARTBEAT_INTERVAL",),
        forgives_aliases=True,
        default="10s",
    )
    node: NodeConfig = field(default_factory=NodeConfig)
    fleet_tls: bool = setting(
        SWITCH,
        """Serve files and replicas only with TLS, all at the worker's HTTP address, to control, gateways and workers of
        the same fleet. The frontends must have it on as well: they make the certificates. Off by default, as there.""",
        default=False,
    )
    storage: StorageConfig | None = None
    """Object storage through which frontends may send files; None: they come over HTTP."""
    supervision: SupervisionConfig = field(default_factory=SupervisionConfig)
    confinement: ConfinementConfig = field(default_factory=ConfinementConfig)
    departure: DepartureConfig = field(default_factory=DepartureConfig)
    adapter: AdapterConfig = field(default_factory=AdapterConfig)
    backend_environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Environment variables for every backend, in addition to those that the worker sets."""
    withheld_tokens: tuple[str, ...] = ()
    """Variables with tokens that engines would use, and that backends do not get."""
    logs: LogOutput = field(default_factory=LogOutput)
    """Where the worker and its adapter write their logs."""
    log_name: str = "worker"
    """What the worker calls itself in its log."""
    images: ImagesConfig = field(default_factory=ImagesConfig)
    """How images of backends are fetched and unpacked."""
    galleries: GalleriesConfig = field(
        default_factory=lambda: GalleriesConfig(sources=(BUILT_IN,), cache=Path("galleries"))
    )
    """Galleries that list backends, unless a request names others."""
    disk_timeout: timedelta = timedelta(seconds=2)
    """Time for one reading of the disk, which never returns when a network file system hangs."""
    gpu_timeout: timedelta = timedelta(seconds=5)
    """Time for one reading of the GPUs. Drivers of large machines take seconds to start; some hang for good."""
    nats_user_retry: Backoff = Backoff(first=timedelta(seconds=2), cap=timedelta(seconds=30))
    """Pause between registrations that ask for a NATS user, as in LocalAI's worker: a person may have to approve."""
