"""Install, stop, list and models.running as LocalAI's own binaries speak them, in both directions."""

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from corral.base.ids import NodeId
from corral.wire import go_json, subjects
from corral.wire.backends import InstallReply, InstallRequest, ListReply
from corral.wire.replicas import ProcessKey, ReplicaAccess, RunningModel, RunningReply, StopRequest
from tests.kit.backend_node import SleepingNode
from tests.kit.backend_scripts import write_backend

VECTORS = Path(__file__).parent / "vectors" / "backends.json"
NODE = NodeId("11111111-2222-4333-8444-555555555555")
FILES = ("nats_install.json", "nats_list.json", "nats_stop.json", "nats_models.json", "nats_bad_input.json")
REQUESTS: dict[str, type[msgspec.Struct]] = {"backend.install": InstallRequest, "backend.stop": StopRequest}
REPLIES: dict[str, type[msgspec.Struct]] = {
    "backend.install": InstallReply,
    "backend.list": ListReply,
    "models.running": RunningReply,
}
BUILT = frozenset({*REQUESTS, *REPLIES})

DELIBERATE = {
    "install right after backend.stop": "LocalAI answers with the process that is ending; ours waits and starts anew",
    "after race": "so ours runs, and LocalAI's does not",
    "cold load right after a model shutdown": "LocalAI refuses while the process is stopping; ours waits, then starts",
}
"""Every answer that differs from LocalAI's on purpose, and why. There are no others."""


@dataclass(frozen=True)
class Recorded:
    direction: str
    subject: str
    """Without the node."""
    data: bytes
    reply: Any
    note: str

    def __str__(self) -> str:
        return f"{self.direction}: {self.subject} {self.data!r} ({self.note})"

    @property
    def is_from_localai(self) -> bool:
        return self.direction.startswith("LocalAI frontend")

    @property
    def is_answered_by_localai(self) -> bool:
        return self.direction.endswith("LocalAI worker") and self.reply is not None


def read(path: Path) -> list[Recorded]:
    found = []
    for message in json.loads(path.read_text(encoding="utf-8"))["messages"]:
        subject = ".".join(message.get("subject", "").split(".")[2:])
        if subject in BUILT:
            data = message.get("bytes", "").encode()
            note = message.get("note", "")
            found.append(Recorded(message["direction"], subject, data, message.get("reply"), note))
    return found


@pytest.fixture(params=["vectors", "recordings"])
def messages(request: pytest.FixtureRequest) -> list[Recorded]:
    """Our own vectors from a clone alone, and the recordings where they are beside it."""
    if request.param == "vectors":
        return read(VECTORS)
    folder: Path = request.getfixturevalue("golden")
    return [message for file in FILES for message in read(folder / file)]


def test_every_request_of_a_frontend_is_understood_and_would_be_sent_alike(messages: list[Recorded]) -> None:
    sent = [message for message in messages if message.is_from_localai and message.subject in REQUESTS]
    assert sent
    for message in sent:
        struct = go_json.decode(message.data, REQUESTS[message.subject])
        assert json.loads(msgspec.json.encode(struct)) == json.loads(message.data), str(message)


def test_every_answer_of_a_worker_is_understood_and_would_be_given_alike(messages: list[Recorded]) -> None:
    answered = [message for message in messages if message.is_answered_by_localai]
    assert {message.subject for message in answered} == set(REPLIES)
    for message in answered:
        struct = go_json.decode(json.dumps(message.reply).encode(), REPLIES[message.subject])
        assert json.loads(msgspec.json.encode(struct)) == message.reply, str(message)


def test_subjects_are_localai_s() -> None:
    built = [subjects.backend_install, subjects.backend_stop, subjects.backend_list, subjects.models_running]
    names = ["backend.install", "backend.stop", "backend.list", "models.running"]
    assert [subject(NODE) for subject in built] == [f"nodes.{NODE}.{name}" for name in names]
    assert subjects.backend_install(NodeId("a.b*c> d")) == "nodes.a-b-c--d.backend.install"


def test_our_addition_is_one_field() -> None:
    access = ReplicaAccess(url="http://h:1", key="k")
    wanted = {"url": "http://h:1", "key": "k"}
    reply = InstallReply(success=True, address="h:2", corral=access)
    assert json.loads(msgspec.json.encode(reply)) == {"success": True, "address": "h:2", "corral": wanted}
    model = RunningModel(model_id="m", replica_index=0, address="h:2", corral=access)
    assert json.loads(msgspec.json.encode(model))["corral"] == wanted


@pytest.mark.parametrize(
    ("text", "key"),
    [("m#0", ("m", 0)), ("a#b#12", ("a#b", 12)), ("#0", ("", 0)), ("m#-1", ("m", -1)), ("m", None), ("m#x", None)],
)
def test_a_process_key_is_split_at_the_last_sign(text: str, key: ProcessKey | None) -> None:
    assert ProcessKey.parse(text) == key
    assert key is None or str(ProcessKey(*key)) == text


# The same questions put to a worker of ours.


class AlwaysHealthy:
    async def health(self, *, timeout: timedelta) -> None: ...

    async def free(self, *, timeout: timedelta) -> None: ...

    async def close(self) -> None: ...


class Node(SleepingNode):
    """Our handlers over real processes that only sleep."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            folder=folder,
            connect=lambda *_: AlwaysHealthy(),
            system=folder / "system",
        )

    async def reply(self, subject: str, data: bytes) -> Any:
        answer = await self.ask(subject, data)
        return None if answer is None else json.loads(answer)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """Everything that the recorded worker had installed at one time or another."""
    for name in ("mock", "dirb", "img2", "cpu-mockm", "ext"):
        write_backend(tmp_path / "backends", name, shell="exec sleep 1000")
    custom = write_backend(tmp_path / "backends", "custom", shell="exec sleep 1000")
    (custom / "metadata.json").write_text('{"name": "custom", "alias": "my-alias"}')
    (tmp_path / "backends" / "ext" / "metadata.json").write_text('{"name": "ext", "alias": "ea"}')
    (tmp_path / "backends" / "metamock").mkdir()
    meta = {"name": "metamock", "meta_backend_for": "cpu-mockm"}
    (tmp_path / "backends" / "metamock" / "metadata.json").write_text(json.dumps(meta))
    write_backend(tmp_path / "system", "sysmock", shell="exec sleep 1000")
    return tmp_path


@pytest.fixture
async def node(disk: Path) -> AsyncIterator[Node]:
    node = Node(disk)
    async with node:
        yield node


def is_possible(message: Recorded) -> bool:
    """Installing from elsewhere comes later; whatever fails at LocalAI's must fail here too."""
    if message.subject != "backend.install" or not message.reply["success"]:
        return True
    return not json.loads(message.data).get("force", False)


async def test_every_install_is_answered_alike(node: Node, messages: list[Recorded]) -> None:
    asked = [message for message in messages if message.is_answered_by_localai and is_possible(message)]
    asked = [message for message in asked if message.subject == "backend.install"]
    different = {message.note for message in asked if not await answers_alike(node, message)}
    assert different <= set(DELIBERATE)


async def answers_alike(node: Node, message: Recorded) -> bool:
    """Asked of a node on which nothing runs, so that no answer depends on the one before."""
    await node.reply("backend.stop", b"")
    reply = await node.reply(message.subject, message.data)
    if reply["success"]:
        assert reply["address"].startswith("127.0.0.3:223")
    is_refusal = str(message.reply.get("error", "")).startswith("invalid request")
    if is_refusal:
        assert reply["error"].startswith("invalid request: "), str(message)
    return set(reply) == set(message.reply) and reply["success"] == message.reply["success"]


async def test_every_stop_leaves_the_same_processes(node: Node, messages: list[Recorded]) -> None:
    """The recorded worker's whole afternoon: starts, stops by every name, and what ran after each."""
    played = list(afternoon(messages))
    for model in played[0].reply["models"]:
        await start_as_recorded(node, model["model_id"], model["replica_index"])
    different = set()
    for message in played:
        reply = await node.reply(message.subject, message.data)
        if message.subject == "backend.stop":
            assert reply is None
        elif not is_alike(message, reply):
            different.add(message.note)
    assert different <= set(DELIBERATE)
    assert len(played) > 10


def afternoon(messages: list[Recorded]) -> Iterator[Recorded]:
    notes = [message.note for message in messages]
    first = notes.index("before stops")
    yield from messages[first : notes.index("after race", first) + 1]


async def start_as_recorded(node: Node, model: str, replica: int) -> None:
    backends = {"custom": "custom", "m2": "my-alias", "img2": "img2", "m3": "metamock", "m4": "sysmock", "dirb": "dirb"}
    request = InstallRequest(backend=backends.get(model, "mock"), model_id=model, replica_index=replica)
    assert (await node.reply("backend.install", msgspec.json.encode(request)))["success"]


def is_alike(message: Recorded, reply: Any) -> bool:
    if message.subject == "backend.install":
        return set(reply) == set(message.reply) and reply["success"] == message.reply["success"]
    for model in reply["models"]:
        assert set(model) == {"model_id", "replica_index", "address"}
        assert model["address"].startswith("127.0.0.1:223")
    return running(reply) == running(message.reply)


def running(reply: Any) -> set[tuple[str, int]]:
    return {(model["model_id"], model["replica_index"]) for model in reply["models"]}


async def test_a_worker_s_list_has_the_recorded_form(node: Node) -> None:
    listed = await node.reply("backend.list", b"%%%")
    by_name = {entry.pop("name"): entry for entry in listed["backends"]}
    assert by_name["sysmock"] == {"is_system": True, "is_meta": False}
    assert by_name["metamock"] == {"is_system": False, "is_meta": True}
    assert "my-alias" not in by_name


async def test_no_backends_are_null(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        assert await node.reply("backend.list", b"{}") == {"backends": None}
        assert await node.reply("models.running", b"") == {"models": []}
