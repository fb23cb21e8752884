"""What control tells its gateways, and what they report back.

`GET /api/v1/gateway/view` answers with one JSON document per line, for as long as the connection lasts: first a full
view, then changes and beats. Applying a change is pure: a full view and all changes after it give the next full view.
A gateway that sees a version that does not follow its own connects again, and so asks for a full one.
"""

import hashlib
from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec

from corral.base.errors import CorralError
from corral.wire.metrics import GatewayCounts

T = TypeVar("T")


class VersionGap(CorralError):
    """A change of the view does not follow the version at hand."""

    code = "version_gap"
    retryable = True

    def __init__(self, have: int | None, base: int) -> None:
        super().__init__(have=have, base=base)


class AffinityEntry(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """When a request goes to the replica that answered the beginning of its prompt before. LocalAI's numbers."""

    min_match: float = 0.3
    """The least share of the prompt that this beginning must be."""
    most_ahead: int = 2
    """Requests that the replica may have more than the least busy one."""
    most_times: float = 1.5
    """How many times as many it may have, and one more."""
    seconds: float = 300.0
    """How long a beginning is remembered after it was last asked for."""


class ModelEntry(msgspec.Struct, kw_only=True, frozen=True):
    """A name that requests may ask for."""

    name: str
    alias_of: str = ""
    """The model whose replicas answer; empty when this is a model itself."""
    owned_by: str = "corral"
    created: int = 0
    """When it became what it is, in Unix seconds, as OpenAI and Ollama show it; 0 when nobody knows."""
    uses: tuple[str, ...] = ()
    """What the model is for, in words of `wire.models.ModelUse`; empty when nobody knows."""
    affinity: AffinityEntry | None = None
    """How requests prefer replicas that know their beginning; None: replicas take turns."""


class EngineEntry(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """How an engine is asked that somebody else runs."""

    base: str = "/v1"
    """The path of its API, in front of `/chat/completions`."""
    model: str
    """What the model is called there."""
    ca: str = ""
    """PEM of the authorities that its certificate is checked against; empty for those of the system."""
    weight: int = 1
    """How many requests it gets for one that an equally good replica of the fleet's gets."""
    is_fallback: bool = False
    """Whether it answers only for others that cannot."""
    has_fleet: bool = False
    """Whether the fleet can load the model itself."""


class ReplicaEntry(msgspec.Struct, kw_only=True, frozen=True):
    """One process that answers requests for one model."""

    id: str
    model: str
    node_id: str
    node_name: str = ""
    url: str
    """`http://host:port`, or `unix:/path/of/a/socket`."""
    key: str = ""
    """The bearer that the replica wants; new at every start of its process."""
    limit: int = 0
    """How many requests the gateway that reads this may have there at once; 0 is without limit."""
    state: str = "loaded"
    """Only `loaded` replicas get requests; others are listed so that a wait can be explained. Engines that somebody
    else runs are `elsewhere`, so that gateways which do not know how to ask them leave them alone."""
    rank: int = 0
    """Lower is better. A silent node's replica is ranked lower than others, and still asked when there is no other."""
    routes: tuple[str, ...] | None = None
    """Which routes of inference it answers; None when that is unknown: then `wire.models.ASSUMED_ROUTES`."""
    front_port: int = 0
    """A second port of the same host and key, for requests that need care; 0 when there is none."""
    door: str = ""
    """Host and port that is dialled with TLS instead, where the node has it: see `wire/fleet_tls.py`."""
    engine: EngineEntry | None = None
    """Set when somebody else runs it."""


class KeyEntry(msgspec.Struct, kw_only=True, frozen=True):
    """An API key by the hash of its secret; or a session of the web page by the hash of its token, with the scope
    `wire.sessions.SESSION_SCOPE`, which opens no model."""

    hash: str
    id: str = ""
    scopes: tuple[str, ...] = ()
    expires_at: float | None = None
    """Expiry of the key in Unix seconds; None for a key that never expires."""
    models: frozenset[str] | None = None
    """The only names that it may ask for; None: all. Then the scope is `LIMITED_INFERENCE`, which gateways that do not
    know this field refuse."""


class ControlState(msgspec.Struct, kw_only=True, frozen=True):
    """What control says of itself."""

    problems: tuple[str, ...] = ()
    """What it lacks at the moment, in words that everybody may read."""
    metrics_public: bool = False
    """Whether `/metrics` needs no key."""


class View(msgspec.Struct, kw_only=True, frozen=True, tag="full", tag_field="kind"):
    """Everything that a gateway needs to serve, at one version."""

    version: int
    models: dict[str, ModelEntry] = {}
    """The models by name."""
    replicas: dict[str, ReplicaEntry] = {}
    """The replicas by id."""
    keys: dict[str, KeyEntry] = {}
    """The keys by hash."""
    control: ControlState = ControlState()


class ViewChange(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True, tag="change", tag_field="kind"):
    """What became of one version in the next: entries that are new or other, and names of entries that are gone."""

    base: int
    version: int
    models: list[ModelEntry] = []
    replicas: list[ReplicaEntry] = []
    keys: list[KeyEntry] = []
    gone_models: list[str] = []
    gone_replicas: list[str] = []
    gone_keys: list[str] = []
    control: ControlState | None = None
    """Only when it is another one."""


class Beat(msgspec.Struct, kw_only=True, frozen=True, tag="beat", tag_field="kind"):
    """Nothing changed, and control is alive."""

    version: int


ViewMessage = View | ViewChange | Beat

_decoder = msgspec.json.Decoder(ViewMessage)
_encoder = msgspec.json.Encoder()


def encode_line(message: ViewMessage) -> bytes:
    """One document, ended by the only line feed in it."""
    return _encoder.encode(message) + b"\n"


def decode_line(line: bytes) -> ViewMessage:
    """Decode one line of the stream. Raise msgspec.MsgspecError for anything else than a message."""
    message: ViewMessage = _decoder.decode(line)
    return message


def apply(view: View | None, message: ViewMessage) -> View:
    """The view after a message. VersionGap when the message does not follow the view at hand."""
    match message:
        case View():
            return message
        case Beat(version=version):
            if view is None or view.version != version:
                raise VersionGap(None if view is None else view.version, version)
            return view
        case ViewChange():
            if view is None or view.version != message.base:
                raise VersionGap(None if view is None else view.version, message.base)
            models = {entry.name: entry for entry in message.models}
            replicas = {entry.id: entry for entry in message.replicas}
            keys = {entry.hash: entry for entry in message.keys}
            return View(
                version=message.version,
                models=_merged(view.models, models, message.gone_models),
                replicas=_merged(view.replicas, replicas, message.gone_replicas),
                keys=_merged(view.keys, keys, message.gone_keys),
                control=message.control or view.control,
            )


def _merged(old: Mapping[str, T], new: Mapping[str, T], gone: list[str]) -> dict[str, T]:
    merged = {**old, **new}
    for name in gone:
        merged.pop(name, None)
    return merged


def change_between(old: View, new: View) -> ViewChange:
    """The change that leads from one view to another; control's side of `apply`."""
    return ViewChange(
        base=old.version,
        version=new.version,
        models=_new_or_other(old.models, new.models),
        replicas=_new_or_other(old.replicas, new.replicas),
        keys=_new_or_other(old.keys, new.keys),
        gone_models=sorted(old.models.keys() - new.models.keys()),
        gone_replicas=sorted(old.replicas.keys() - new.replicas.keys()),
        gone_keys=sorted(old.keys.keys() - new.keys.keys()),
        control=new.control if new.control != old.control else None,
    )


def _new_or_other(old: Mapping[str, T], new: Mapping[str, T]) -> list[T]:
    return [entry for name, entry in new.items() if old.get(name) != entry]


def keys_digest(keys: Mapping[str, KeyEntry]) -> str:
    """A hash of all keys, by which control sees whether a gateway knows the same."""
    return hashlib.sha256("".join(sorted(keys)).encode()).hexdigest()


def models_digest(models: Mapping[str, ModelEntry]) -> str:
    """A hash of the names that may be asked for and of what they are aliases of, by which control sees whether a
    gateway knows the same."""
    names = sorted(f"{name}\0{entry.alias_of}" for name, entry in models.items())
    return hashlib.sha256("\n".join(names).encode(errors="surrogatepass")).hexdigest()


class Finished(msgspec.Struct, kw_only=True):
    """Requests that ended since the last report, summed over all of one replica, key and outcome."""

    replica: str
    model: str
    key: str
    """The id of the key that asked."""
    outcome: str
    """`ok`, `refused` (the engine answered with an error), `failed`, `timed_out` or `client_gone`."""
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    usage_unknown: int = 0
    """How many of the requests stated no usage: their tokens are in neither sum."""
    answer_seconds: float = 0.0
    """Time from the first to the last byte of all answers that stated their tokens, together."""


MODEL_GONE: Final = "its process does not have the model any more"
"""The reason of a failure that the replica itself reported."""


class ReplicaFailure(msgspec.Struct, kw_only=True):
    """What went wrong with a replica since the last report."""

    replica: str
    reason: str
    times: int = 1


class GatewayReport(msgspec.Struct, kw_only=True):
    """Body of `POST /api/v1/gateway/report`. Sent again unchanged until it is acknowledged: see `sequence`."""

    gateway: str
    """New at every start of a gateway."""
    sequence: int
    """Counts from 1. What was counted under one number must not be counted again."""
    view_version: int | None = None
    keys_digest: str = ""
    """Which keys it knows: see `keys_digest`."""
    models_digest: str = ""
    """Which models it knows: see `models_digest`; empty from versions that do not report it."""
    in_flight: dict[str, int] = {}
    """Requests under way by replica, at the moment of sending."""
    waiting: dict[str, int] = {}
    """Requests that wait for a replica, by model."""
    finished: list[Finished] = []
    failures: list[ReplicaFailure] = []
    counts: GatewayCounts | None = None
    """All that it has counted since its start."""
    trusted_proxies: list[str] | None = None
    """Networks whose `X-Forwarded-For` it believes; None from versions that do not report it."""
    is_last: bool = False
    """The process ends: nothing of its is under way any more, and no report will follow."""


class GatewayShare(msgspec.Struct, kw_only=True):
    """What one gateway has under way, as its frontend tells the others."""

    frontend: str
    gateway: str
    keys_digest: str = ""
    models_digest: str = ""
    in_flight: dict[str, int] = {}
    answered: dict[str, tuple[int, float]] = {}
    """Tokens of answers that ended since the last share, and the seconds that they took, by replica."""
    waiting: dict[str, int] = {}
    """Requests that wait for a replica, by model."""
    used: list[str] = []
    """Replicas whose requests ended since the last share."""
    is_last: bool = False


class EnsureModel(msgspec.Struct, kw_only=True):
    """Body of `POST /api/v1/gateway/ensure`: somebody asks for a model that has no replica."""

    model: str


_ALWAYS_TOLD: Final = ("progress", "bytes_sent", "total_bytes", "file_index", "total_files")


class Loading(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How far a cold load is, in LocalAI's words and some of ours. What is not known is left out, and never guessed;
    clients are told some of it as 0.

    Control tells a gateway everything; `gateway.answers.shown_to` decides what a client sees of it.
    """

    model: str
    state: str
    """`failed` when it makes no sense to wait; any other word tells what is being done."""
    node: str = ""
    progress: float | None = None
    bytes_sent: int | None = None
    total_bytes: int | None = None
    file_index: int | None = None
    total_files: int | None = None
    bytes_per_second: float | None = None
    eta_seconds: float | None = None
    file: str = ""
    """Which file is being brought to the node: its path below the models directory."""
    reason: str = ""
    """A word of `wire.models.LoadReason`; empty while there is nothing to say."""
    message: str = ""
    step: str = ""
    """`place`, `install`, `stage`, `start` or `load`; empty while nobody works on it."""
    step_seconds: dict[str, float] = {}
    """How long each step took so far."""
    is_permanent: bool = False
    """Whether the load failed for a reason that lasts until somebody changes the model, its files or its engine."""
    retry_in_seconds: int | None = None
    """When a load that failed is tried again, if somebody asks then."""
    engine_lines: list[str] = []
    """What the engine wrote last before a load failed."""
    retry_after_seconds: int = 5
    """For the header; clients do not see it here."""

    def for_client(self) -> dict[str, object]:
        """Return the fields of the answer. Those that LocalAI's clients count on while they wait are always there."""
        fields: dict[str, object] = {} if self.state == "failed" else dict.fromkeys(_ALWAYS_TOLD, 0)
        fields |= msgspec.to_builtins(self)
        fields.pop("retry_after_seconds", None)
        return fields
