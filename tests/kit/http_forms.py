"""Which struct stands for which HTTP message of LocalAI's protocol; the companion of `wire_forms.py` for NATS."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from corral.adapter.dialects.requests import ChatRequest, EmbeddingRequest, parse
from corral.base.errors import InvalidInput
from corral.wire import go_json
from corral.wire.backends import InstalledBackend
from corral.wire.galleries import BackendRow
from corral.wire.localai_models import ModelResponse
from corral.wire.logs import InitialLines, LiveLine
from corral.wire.nodes import NodeView
from corral.wire.operation_views import (
    Acknowledgement,
    History,
    JobStarted,
    JobStatus,
    ModelApplied,
    NodeBackendAsk,
    OperationItems,
)
from corral.wire.refusals import Acknowledged, Refusal
from corral.wire.registration import (
    ApproveResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    RegisterRequest,
    RegisterResponse,
    ReplicaInFlight,
)
from corral.wire.view import Loading
from tests.kit import file_heads
from tests.kit.wire_forms import Differs, MessageTally, NoForm, RecordedMessage, Struct, differing, hold, must_refuse

_ID = "[^/]+"


class LocalAiReplicaRow(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A replica as LocalAI's frontends send it. Ours leave out what only LocalAI's scheduler knows.

    A field with a default factory is always sent, any other default is not.
    """

    id: str = msgspec.field(default_factory=str)
    node_id: str = msgspec.field(default_factory=str)
    model_name: str = msgspec.field(default_factory=str)
    replica_index: int = msgspec.field(default_factory=int)
    address: str = msgspec.field(default_factory=str)
    state: str = msgspec.field(default_factory=str)
    in_flight: int = msgspec.field(default_factory=int)
    last_used: str = msgspec.field(default_factory=str)
    loading_by: str = ""
    backend_type: str = ""
    config_revision: str = ""
    effective_options_hash: str = ""
    cleanup_error: str = ""
    cleanup_attempts: int = 0
    cleanup_next_retry_at: str = ""
    created_at: str = msgspec.field(default_factory=str)
    updated_at: str = msgspec.field(default_factory=str)


class Route(NamedTuple):
    method: str
    path: str
    """A regular expression for the whole of it."""
    request: Struct | None
    answer: Struct
    """Struct of a successful response; others are errors."""
    is_list: bool = False


ROUTES = (
    Route("POST", "/api/node/register", RegisterRequest, RegisterResponse),
    Route("POST", f"/api/node/{_ID}/heartbeat", HeartbeatRequest, HeartbeatResponse),
    Route("POST", f"/api/nodes?/{_ID}/(drain|resume|deregister)", None, Acknowledged),
    Route("DELETE", f"/api/nodes?/{_ID}", None, Acknowledged),
    Route("GET", f"/api/node/{_ID}/models", None, LocalAiReplicaRow, is_list=True),
    Route("GET", "/api/nodes/models", None, LocalAiReplicaRow, is_list=True),
    Route("GET", f"/api/nodes/{_ID}/models", None, LocalAiReplicaRow, is_list=True),
    Route("POST", f"/api/nodes/{_ID}/approve", None, ApproveResponse),
    Route("GET", "/api/nodes", None, NodeView, is_list=True),
    Route("GET", f"/api/nodes/{_ID}/backends", None, InstalledBackend, is_list=True),
    Route("GET", f"/api/nodes/(?!scheduling){_ID}", None, NodeView),
    Route("POST", f"/api/nodes/{_ID}/models/unload", None, Acknowledged),
    Route("POST", "/backend/shutdown", None, Acknowledged),
    Route("POST", f"/api/nodes/{_ID}/backends/(install|upgrade)", NodeBackendAsk, JobStarted),
    Route("POST", f"/api/backends/(install|delete|upgrade)/{_ID}", None, JobStarted),
    Route("POST", "/api/backends/install-external", NodeBackendAsk, JobStarted),
    Route("GET", f"/api/backends/job/{_ID}", None, JobStatus),
    Route("GET", "/backends", None, BackendRow, is_list=True),
    Route("GET", "/api/operations", None, OperationItems),
    Route("GET", "/api/operations/history", None, History),
    Route("POST", f"/api/operations/{_ID}/(cancel|pause|dismiss)", None, Acknowledgement),
    Route("PATCH", f"/api/models/config-json/{_ID}", None, ModelResponse),
    Route("POST", "/models/reload", None, ModelResponse),
    Route("POST", f"/models/delete/{_ID}", None, ModelApplied),
)
"""The first matching route is used."""

TYPED_ELSEWHERE: Mapping[str, str] = {
    f"(GET|PUT|PATCH|DELETE) /api/nodes/{_ID}/(labels|max-replicas-per-model|vram-budget)(/.*)?": "bare values, "
    "played against our routes by test_golden_nodes.py",
    f"GET /api/nodes/{_ID}/backend-logs": "a bare list of names",
    "(GET|POST|DELETE) /api/nodes/scheduling(/.*)?": "played against our routes by test_golden_nodes.py",
    "(GET|POST) /(api/)?backends/upgrades(/.*)?": "newer versions are not asked for like this yet",
    "GET /api/models/[^/]+/load-status": "only a refusal was recorded",
    "POST /backends/apply": "two documents in one body",
    "GET /api/features": "about LocalAI itself",
}
"""Answers of the administrators' routes that have no struct in `protocol/`, and why. Their refusals are read."""


def hold_exchange(message: RecordedMessage, tally: MessageTally) -> str:
    """A worker's or an administrator's call to a frontend; the path that was called."""
    status, path = message["status"], message["path"]
    route = _route(message)
    if route is not None and route.request is not None and "request" in message:
        _hold_body(route.request, message, tally)
    answer = message.get("response")
    if isinstance(answer, dict) and isinstance(answer.get("error"), dict | str) and status >= 400:
        hold(_bytes(answer), Refusal, tally, ours=True)
    elif route is not None and status < 400:
        _hold_answer(route, message, tally)
    elif any(re.fullmatch(pattern, f"{message['method']} {path}") for pattern in TYPED_ELSEWHERE):
        tally.plain += 1
    else:
        raise NoForm(f"{message['method']} {path} {status}")
    return str(path)


def _route(message: RecordedMessage) -> Route | None:
    fits = (
        route
        for route in ROUTES
        if route.method == message["method"] and re.fullmatch(route.path, message["path"]) is not None
    )
    return next(fits, None)


def _hold_body(struct: Struct, message: RecordedMessage, tally: MessageTally) -> None:
    """A heartbeat of a wrong type is refused as a whole here; the route then takes what can be read of it."""
    data = _bytes(message["request"])
    answer = message.get("response", {})
    refused = isinstance(answer, dict) and "invalid request body" in str(answer.get("error", ""))
    if "text/plain" in message["headers"].get("Content-Type", ""):
        tally.unread += 1
    elif refused or "wrong type" in message.get("note", ""):
        must_refuse(data, struct, tally)
    else:
        hold(data, struct, tally, ours=message["direction"].startswith("LocalAI worker"))


def _hold_answer(route: Route, message: RecordedMessage, tally: MessageTally) -> None:
    ours = message["direction"].endswith("LocalAI frontend")
    struct = ReplicaInFlight if route.answer is LocalAiReplicaRow and not ours else route.answer
    documents = message["response"] if route.is_list else [message["response"]]
    for document in documents:
        hold(_bytes(document), struct, tally, ours=ours)
    if not documents:
        tally.plain += 1


def hold_file_exchange(message: RecordedMessage, tally: MessageTally) -> str:
    """A call to a worker's HTTP port about files."""
    answered_by_localai = message["direction"].endswith("LocalAI worker")
    if message["method"] == "PUT":
        _hold_upload(message, tally)
    hold_answer = _file_answer(message["method"], message["path"], message["status"])
    hold_answer(message, tally, answered_by_localai)
    return str(message["path"])


def _hold_upload(message: RecordedMessage, tally: MessageTally) -> None:
    headers = message.get("headers", {})
    if str(message.get("response", "")).startswith("invalid Content-Range"):
        try:
            file_heads.UploadHead.parse(headers)
        except InvalidInput:
            tally.refused += 1
            return
        raise Differs(f"LocalAI refuses {headers}")
    head = file_heads.UploadHead.parse(headers)
    tally.read += 1
    if message["direction"].startswith("LocalAI"):
        _same_headers(_without(headers, "authorization", "content-length"), head.headers(), tally)


def _file_answer(method: str, path: str, status: int) -> Callable[[RecordedMessage, MessageTally, bool], None]:
    if path.startswith(file_heads.FILES):
        match method, status:
            case "HEAD", 200:
                return _hold_file_head
            case ("PUT", 308) | ("PUT", 416):
                return _hold_position
            case ("PUT", 200) | ("POST", 200):
                return _body_of(file_heads.LocalPath)
    if path.startswith(file_heads.FILE_LIST) and status == 200:
        return _body_of(file_heads.FileList)
    return _plain


def _hold_file_head(message: RecordedMessage, tally: MessageTally, ours: bool) -> None:
    head = file_heads.FileHead.parse(message["response_headers"])
    tally.read += 1
    if ours:
        _same_headers(_folded(message["response_headers"]), head.headers(), tally)


def _hold_position(message: RecordedMessage, tally: MessageTally, ours: bool) -> None:
    size = file_heads.size_told(message["response_headers"])
    total = file_heads.UploadHead.parse(message["headers"]).range
    tally.read += 1
    if not ours or total is None:
        return
    is_short = message["status"] == 308
    written = file_heads.more_wanted_headers(size) if is_short else file_heads.wrong_start_headers(size, total.total)
    _same_headers(_without(message["response_headers"], "content-type", "content-length"), written, tally)


def _body_of(struct: Struct) -> Callable[[RecordedMessage, MessageTally, bool], None]:
    def hold_body(message: RecordedMessage, tally: MessageTally, ours: bool) -> None:
        hold(_bytes(message.get("response", message.get("accepted_response"))), struct, tally, ours=ours)

    return hold_body


def _plain(message: RecordedMessage, tally: MessageTally, _: bool) -> None:
    """A body of bytes, or a refusal in words, which the player of the routes compares."""
    tally.plain += 1


def hold_log_exchange(message: RecordedMessage, tally: MessageTally) -> str:
    """A call to a worker's HTTP port about logs."""
    if "first_frame" in message:
        hold_frame(message["first_frame"], InitialLines, tally)
    elif "frame" in message:
        hold_frame(message["frame"], LiveLine, tally)
    else:
        tally.plain += 1
    return str(message["path"])


def hold_frame(frame: Mapping[str, Any], struct: Struct, tally: MessageTally) -> None:
    kind = frame["type"]
    if kind != struct.__struct_config__.tag:
        raise Differs(f"{struct.__struct_config__.tag} instead of {kind}")
    hold(_bytes(frame), struct, tally, ours=True)


def hold_inference(message: RecordedMessage, tally: MessageTally) -> str:
    """A client's question. Answers come from engines; only what a frontend says itself is compared."""
    request = EmbeddingRequest if message["path"].endswith("embeddings") else ChatRequest
    parse(_bytes(message["request"]), request)
    tally.read += 1
    answer = message.get("response")
    if isinstance(answer, dict) and "error" in answer:
        go_json.decode(_bytes({"error": answer["error"]}), Refusal)
        tally.read += 1
    if isinstance(answer, dict) and "loading" in answer:
        ours = go_json.decode(_bytes(answer["loading"]), Loading).for_client()
        if missing := answer["loading"].keys() - ours.keys():
            raise AssertionError(f"a client is not told {', '.join(sorted(missing))} of a load")
        tally.read += 1
    return str(message["path"])


def _bytes(document: object) -> bytes:
    return document.encode() if isinstance(document, str) else json.dumps(document).encode()


def _folded(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _without(headers: Mapping[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in _folded(headers).items() if name not in names}


def _same_headers(recorded: Mapping[str, str], got: Mapping[str, str], tally: MessageTally) -> None:
    if differences := list(differing(dict(recorded), _folded(got))):
        raise Differs("; ".join(differences))
    tally.written += 1
