"""A frontend that says what a test tells it to, and commands run in the test's own process."""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest

from corral.base.ids import NodeId, OperationId
from corral.cli.main import run
from corral.frontend.operations.decide.operation import OperationState, Target, TargetStatus, state_of
from corral.frontend.operations.decide.reasons import Reason, sentence
from corral.processes.settings import gather
from corral.wire.nodes import NodeDetail, NodePage, PeerView
from corral.wire.operation_views import OperationUpdate, OperationView, TargetView

KEY = "corral_key-of-this-test"


@dataclass(frozen=True)
class Call:
    method: str
    path: str
    body: object
    headers: Mapping[str, str]


@dataclass
class StubFrontend:
    """Answers by method and path, with or without the query; what is not told is a 404."""

    url: str = ""
    answers: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    turns: dict[str, list[bytes]] = field(default_factory=dict)

    def tell(self, route: str, body: object, status: int = 200) -> None:
        self.answers[route] = (status, body if isinstance(body, bytes) else msgspec.json.encode(body))

    def tell_in_turn(self, route: str, *bodies: object) -> None:
        """One after the other, the last of them for ever."""
        self.turns[route] = [msgspec.json.encode(body) for body in bodies]

    def tell_operation(self, *looks: OperationView) -> None:
        """How it is at first, and what its stream tells of it then; the stream breaks at its end, and begins anew."""
        route = f"GET /api/v1/operations/{looks[0].id}"
        self.tell(route, looks[0])
        frames = (
            b"id: x:%d:0\ndata: %b\n\n" % (number, msgspec.json.encode(OperationUpdate(is_whole=True, operation=one)))
            for number, one in enumerate(looks[1:] or looks)
        )
        self.tell(f"{route}/stream", b"retry: 1\n\n: hello\n\n" + b"".join(frames))

    def tell_nodes(self, *nodes: NodeDetail) -> None:
        self.tell("GET /api/v1/nodes", NodePage(items=list(nodes), next_cursor=None))

    def answer(self, call: Call) -> tuple[int, bytes]:
        self.calls.append(call)
        missing = (404, b'{"error": {"code": "not_found", "message": "there is no such route"}}')
        whole = f"{call.method} {call.path}"
        if turns := self.turns.get(whole):
            return 200, turns.pop(0) if len(turns) > 1 else turns[0]
        return self.answers.get(whole) or self.answers.get(whole.partition("?")[0]) or missing


@pytest.fixture
def frontend() -> Iterator[StubFrontend]:
    stub = StubFrontend()

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            content = self.rfile.read(size)
            body = json.loads(content) if content else None
            status, answer = stub.answer(Call(self.command, self.path, body, dict(self.headers)))
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            pass

    for method in ("GET", "POST", "PATCH", "PUT", "DELETE"):
        setattr(Handler, f"do_{method}", Handler._serve)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        stub.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield stub
        server.shutdown()
        thread.join()


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    def json(self) -> object:
        return json.loads(self.out)


Corral = Callable[..., Outcome]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No setting of the machine reaches a command."""
    for name in gather({}).environment:
        if name.startswith(("CORRAL_", "LOCALAI_", "XDG_")) or name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TZ", "UTC")
    return tmp_path


@pytest.fixture
def corral(home: Path, capfd: pytest.CaptureFixture[str]) -> Corral:
    """Runs a command as the program does, without a process."""

    def call(*arguments: str) -> Outcome:
        capfd.readouterr()
        try:
            code = run(arguments)
        except SystemExit as ended:  # completion leaves that way
            code = int(ended.code or 0)
        out, err = capfd.readouterr()
        return Outcome(int(code), out, err)

    return call


@pytest.fixture
def connected(corral: Corral, frontend: StubFrontend, monkeypatch: pytest.MonkeyPatch) -> Corral:
    """The same, with the stub as its frontend."""
    monkeypatch.setenv("CORRAL_URL", frontend.url)
    monkeypatch.setenv("CORRAL_KEY", KEY)
    return corral


@pytest.fixture
def make_node() -> Callable[..., NodeDetail]:
    def make(name: str, id: str, **changes: object) -> NodeDetail:
        node = NodeDetail(
            id=id,
            name=name,
            node_type="backend",
            address="10.0.0.1:50051",
            http_address="10.0.0.1:50050",
            status="healthy",
            total_vram=0,
            available_vram=0,
            reserved_vram=0,
            total_ram=8 * 1024**3,
            available_ram=5 * 1024**3,
            total_disk=100 * 1024**3,
            available_disk=60 * 1024**3,
            gpu_vendor="",
            gpu_compute_capability="",
            max_replicas_per_model=1,
            max_replicas_per_model_manually_set=False,
            vram_budget_manually_set=False,
            last_heartbeat="2026-03-01T12:00:00Z",
            created_at="2026-03-01T11:00:00Z",
            updated_at="2026-03-01T12:00:00Z",
            model_count=0,
            in_flight_count=0,
            labels={"node.name": name},
            approved=True,
            approved_by="admin",
            approved_at="2026-03-01T11:05:00Z",
            draining=False,
            draining_by="",
            draining_since=None,
            deregistered_at=None,
            silent_seconds=3.2,
            heard_seconds_ago=3.2,
            heartbeat_seconds=10,
            has_secret=True,
            nats_login="own",
            incarnation="x",
            corral=PeerView(version="0.1.0", features=["nats-user"]),
            problems=[],
            admin_labels={},
            removed_labels=[],
        )
        return msgspec.structs.replace(node, **changes)

    return make


@pytest.fixture
def make_target() -> Callable[..., TargetView]:
    def make(name: str, status: str = "queued", reason: Reason | None = None, **changes: object) -> TargetView:
        target = TargetView(
            node_id=f"id-of-{name}",
            node_name=name,
            backend="echo",
            status=status,
            waits_for_node=False,
            message=sentence(reason),
            reason_code="" if reason is None else reason.code,
            reason_fields={} if reason is None else msgspec.to_builtins(reason.fields),
            attempts=0,
            changed_at="2026-03-01T12:00:00Z",
            percentage=100.0 if status == "success" else 0.0,
        )
        return msgspec.structs.replace(target, **changes)

    return make


@pytest.fixture
def make_operation() -> Callable[..., OperationView]:
    """With the state that the frontend would compute from these targets."""

    def make(*targets: TargetView, **changes: object) -> OperationView:
        operation = OperationView(
            id="0123abcd-0000-4000-8000-000000000000",
            verb="install",
            backend="echo",
            uri="",
            state=_state(targets).value,
            progress=12.5,
            asked_by="admin",
            accepted_at="2026-03-01T12:00:00Z",
            changed_at="2026-03-01T12:00:00Z",
            counts=dict(Counter(one.status for one in targets)),
            targets=list(targets),
        )
        return msgspec.structs.replace(operation, **changes)

    return make


def _state(targets: tuple[TargetView, ...]) -> OperationState:
    return state_of(
        Target(
            operation_id=OperationId("o"),
            node_id=NodeId(one.node_id),
            node_name=one.node_name,
            subject=one.backend,
            status=TargetStatus(one.status),
            waits_for_node=one.waits_for_node,
            changed_at=datetime(2026, 3, 1, tzinfo=UTC),
        )
        for one in targets
    )
