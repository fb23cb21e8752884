"""Models: the routes of inference, messages about removing their files, what clients see, why a load failed."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from corral.wire.replicas import ReplicaView
from corral.wire.scheduling import SchedulingView


class ModelUse(StrEnum):
    """One kind of work that models do."""

    CHAT = "chat"
    COMPLETION = "completion"
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    SPEECH = "speech"
    TRANSCRIPTION = "transcription"
    VOICE_ACTIVITY = "vad"


_U = ModelUse
EDITS: Final = "/v1/edits"
MESSAGES: Final = "/v1/messages"
COUNT_TOKENS: Final = "/v1/messages/count_tokens"
RESPONSES: Final = "/v1/responses"
OLLAMA_CHAT: Final = "/api/chat"
OLLAMA_GENERATE: Final = "/api/generate"
OLLAMA_EMBED: Final = "/api/embed"
OLLAMA_EMBEDDINGS: Final = "/api/embeddings"
OLLAMA_ROUTES: Final = frozenset({OLLAMA_CHAT, OLLAMA_GENERATE, OLLAMA_EMBED, OLLAMA_EMBEDDINGS})
"""Routes of inference in Ollama's form."""
ROUTE_USES: Final[Mapping[str, ModelUse | None]] = {
    "/v1/chat/completions": _U.CHAT,
    "/v1/completions": _U.COMPLETION,
    EDITS: _U.COMPLETION,
    "/v1/embeddings": _U.EMBEDDINGS,
    "/v1/audio/speech": _U.SPEECH,
    "/v1/audio/transcriptions": _U.TRANSCRIPTION,
    "/v1/rerank": _U.RERANK,
    "/v1/vad": _U.VOICE_ACTIVITY,
    "/tokenize": None,
    "/detokenize": None,
    RESPONSES: _U.CHAT,
    MESSAGES: _U.CHAT,
    COUNT_TOKENS: _U.CHAT,
    OLLAMA_CHAT: _U.CHAT,
    OLLAMA_GENERATE: _U.CHAT,
    OLLAMA_EMBED: _U.EMBEDDINGS,
    OLLAMA_EMBEDDINGS: _U.EMBEDDINGS,
}
"""All routes of inference as replicas know them, and which use of a model each asks for; None suits any model."""
ADAPTED_ROUTES: Final = frozenset(ROUTE_USES)
"""What adapters answer for backends that only speak gRPC."""
ASSUMED_ROUTES: Final = ADAPTED_ROUTES - {EDITS, RESPONSES, MESSAGES, COUNT_TOKENS} - OLLAMA_ROUTES
"""Assumed of replicas that do not say what they answer: workers and backends that are older than the question."""


def known_routes(routes: Iterable[str]) -> frozenset[str]:
    """Return those of the routes that are routes of inference."""
    return frozenset(routes) & ROUTE_USES.keys()


class UnloadRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Have a backend give its model back. The process goes on."""

    model_name: str = msgspec.field(default_factory=str)
    address: str = ""
    """Which process. LocalAI's frontends never say; its workers then take any."""


class ModelStopRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Asks a worker to end exactly one process of a model."""

    model_name: str = msgspec.field(default_factory=str)
    process_key: str = msgspec.field(default_factory=str)
    expected_address: str = msgspec.field(default_factory=str)
    """Where the process must be; another one under the same key is left alone."""
    force: bool = False
    """Do not ask the backend to free its model first."""
    config_revision: str = ""


class ModelStopReply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Only `terminated` says whether it is done; an error beside it tells what went less well."""

    matched: bool = msgspec.field(default_factory=bool)
    """There was a process of that key."""
    freed: bool = msgspec.field(default_factory=bool)
    terminated: bool = msgspec.field(default_factory=bool)
    """The process is gone; also when there never was one."""
    process_key: str = msgspec.field(default_factory=str)
    address: str = ""
    error: str = ""


OWN_FOLDER: Final = ".corral"
"""Where a models directory has what Corral keeps for itself: the id of the store, receipts, downloads. No model's."""


class ModelDeleteRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Asks a worker to remove the files of a model."""

    model_name: str = msgspec.field(default_factory=str)


class ModelCommandReply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Answer to `model.unload` and `model.delete`."""

    success: bool = msgspec.field(default_factory=bool)
    error: str = ""


class ModelProblemView(msgspec.Struct, kw_only=True):
    """A file, or a model in one, that was passed over."""

    source: str
    name: str
    problem: str


class LoadJobView(msgspec.Struct, kw_only=True):
    state: str
    failures: int
    message: str = ""
    retry_at: str
    reason: str = ""
    """Why it waits or failed, in a word: the one that clients without an administrator's key see."""
    engine_lines: list[str] = []
    """What the engine wrote last before the load failed."""
    phase: str = ""
    """What is being done, when the frontend that answers does it itself."""
    current_bytes: int | None = None
    total_bytes: int | None = None
    """The size of what the node downloads, or of the weights."""
    eta_seconds: float | None = None
    bytes_per_second: float | None = None
    file_index: int | None = None
    """Which file is being brought to the node, counted from 1."""
    total_files: int | None = None
    file: str = ""
    ordinal: int = 0
    """0 for the load that requests wait for; others load replicas beside it."""
    why: str = ""
    """Who wants it, as with replicas."""
    step: str = ""
    """`place`, `install`, `stage`, `start` or `load`; empty while nobody works on it."""
    step_seconds: dict[str, float] = {}
    """How long each step took so far."""
    node: str = ""
    """Where it is loaded, once that is chosen."""
    is_permanent: bool = False
    """Whether the load failed for a reason that lasts until somebody changes the model, its files or its engine."""
    began_at: str = ""
    changed_at: str = ""


class ModelFileView(msgspec.Struct, kw_only=True):
    """A file, or a directory, that a model is loaded from."""

    path: str
    """Relative to the models directory."""
    size: int = 0
    digest: str = ""
    """Empty when nobody promised one."""


class ModelOriginView(msgspec.Struct, kw_only=True):
    """Where a model came from."""

    reference: str
    """What was asked for, as it was typed."""
    resolved: str = ""
    """The reference with everything pinned: a commit, a digest."""
    gallery: str = ""
    """`gallery@name` of the entry, if there was one."""
    licence: str = ""


class ModelMemoryView(msgspec.Struct, kw_only=True):
    """What one replica takes, in bytes; 0: unknown."""

    ram: int = 0
    """On a machine without GPUs."""
    vram: int = 0
    """On the GPUs of a machine that has some."""
    ram_beside_gpu: int = 0
    """In RAM, beside what is on GPUs."""
    source: str = ""
    """How this was found: `GGUF metadata`, `file size` or `not known`."""


class ModelEngineView(msgspec.Struct, kw_only=True):
    """An engine elsewhere that answers for a model."""

    name: str
    state: str
    """`unknown`, `up`, `failing`, `down`, `misconfigured`, or `disabled`."""


class ModelView(msgspec.Struct, kw_only=True):
    """One model. Replicas that are gone are among them for a day, with their reasons."""

    name: str
    backend: str
    model: str
    alias_of: str = ""
    revision: str
    source: str
    state: str
    """`loaded`, `not_reachable` when it is loaded and cannot be asked, `loading`, `failed`, `cold` when nothing asks
    for it, `elsewhere` when only engines that somebody else runs answer for it, or `unusable` when its file was passed
    over."""
    reason: str = ""
    """Why it is `not_reachable`. The load job and the replicas have reasons of their own."""
    warnings: list[str] = []
    """What its author probably meant otherwise, such as keys that nobody knows, with lines of the file."""
    replicas: list[ReplicaView] = []
    load_job: LoadJobView | None = None
    config: dict[str, Any] = {}
    """Only when one model is asked for."""
    problems: list[ModelProblemView] = []
    """What was passed over under this name; only when one model is asked for."""
    kind: str = ""
    """How its configuration came to be: `file`, `api` or `pull`."""
    number: int = 0
    """Number of the model's last change."""
    changed_at: str = ""
    changed_by: str = ""
    origin: ModelOriginView | None = None
    files: list[ModelFileView] = []
    bytes: int = 0
    """Size of the model's files, as far as it is known."""
    memory: ModelMemoryView | None = None
    """Estimated, with the context that it is configured for; null of an alias."""
    is_disabled: bool = False
    is_pinned: bool = False
    """Kept once it is loaded: LocalAI's word for it."""
    scheduling: SchedulingView | None = None
    """Its rule, if it has one; only when one model is asked for."""
    engines: list[ModelEngineView] = []
    """External engines that answer for the model as well."""


class ModelList(msgspec.Struct, kw_only=True):
    items: list[ModelView]
    problems: list[ModelProblemView] = []
    """Files, and models in them, that were passed over."""
    offered: list[ModelFileView] = []
    """Weights in the models directory that no model uses."""


class LoadReason(StrEnum):
    """Why a model is not loaded, in words that every client may read: they name no machine, path, port or address."""

    NO_PLACE = "no_place"
    ROOM_IS_MADE = "room_is_made"
    WAITS_FOR_TURN = "waits_for_turn"
    BEING_REMOVED = "being_removed"
    MACHINE_AWAY = "machine_away"
    FILES_NOT_SENT = "files_not_sent"
    FILES_UNUSABLE = "files_unusable"
    ENGINE_NOT_STARTED = "engine_not_started"
    ENGINE_ENDED = "engine_ended"
    REFUSED_BY_ENGINE = "refused_by_engine"
    TIMED_OUT = "timed_out"
    NOT_REACHABLE = "not_reachable"
    ENGINES_AWAY = "engines_away"
    OTHER = "other"


PERMANENT: Final = frozenset({LoadReason.FILES_UNUSABLE, LoadReason.REFUSED_BY_ENGINE})
"""Failures that come again until somebody changes the model, its files or its engine."""
REASON_SENTENCES: Final[Mapping[LoadReason, str]] = {
    LoadReason.NO_PLACE: "no machine of the fleet can take it at the moment",
    LoadReason.ROOM_IS_MADE: "other models make room for it",
    LoadReason.WAITS_FOR_TURN: "it waits for its turn: other models have their places for now",
    LoadReason.BEING_REMOVED: "it, or the engine that it needs, is about to be removed",
    LoadReason.MACHINE_AWAY: "the machine that was to load it does not answer",
    LoadReason.FILES_NOT_SENT: "its files could not be brought to the machine that was to load it",
    LoadReason.FILES_UNUSABLE: "its files cannot be read, or change all the time",
    LoadReason.ENGINE_NOT_STARTED: "the engine that it needs could not be installed or started",
    LoadReason.ENGINE_ENDED: "its engine stopped while it was loading",
    LoadReason.REFUSED_BY_ENGINE: "its engine could not load it",
    LoadReason.TIMED_OUT: "loading it took too long",
    LoadReason.NOT_REACHABLE: "it is loaded where requests cannot reach it",
    LoadReason.ENGINES_AWAY: "none of the engines elsewhere that answer for it can be reached",
    LoadReason.OTHER: "it could not be loaded",
}
