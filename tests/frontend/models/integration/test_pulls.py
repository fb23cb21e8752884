"""Pulls from a real server, through a real child process, on both databases: accepted once, proven, resumed, ended."""

import asyncio
import hashlib
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from sqlalchemy import delete, select

from corral.bus.port import Bus
from corral.frontend.backends.catalogue import Lookups
from corral.frontend.models.decide.pulling import PullAsk, PullPolicy
from corral.frontend.models.stores import place_of
from corral.frontend.operations.decide.intent import IntentKind, IntentState
from corral.frontend.store.db import Database
from corral.frontend.store.schema import metadata
from corral.frontend.store.schema import models as models_table
from corral.hubs.access import HubAccess
from corral.hubs.config import HubsConfig
from corral.hubs.downloads.partial_files import FOLDER
from corral.wire.model_files import PruneView, PullPlanView, StorageView
from corral.wire.operation_views import Changed, OperationView
from tests.kit.clock import ManualClock
from tests.kit.file_server import FileServer, answering
from tests.kit.gguf import LLAMA, gguf
from tests.kit.hub_server import HuggingFaceServer
from tests.kit.images import a_file, gzipped, tar_of
from tests.kit.registry import FakeRegistry
from tests.kit.waiting import eventually
from tests.kit.world import World, open_world

CHAT = gguf(**LLAMA, tokenizer__chat_template="{{ messages }}") + bytes(800_000)
REPOSITORY = "org/Chat-GGUF"
REFERENCE = f"hf://{REPOSITORY}"
FILE = "chat-Q4_K_M.gguf"
FILE_URL = f"/{REPOSITORY}/resolve/0123456789abcdef0123456789abcdef01234567/{FILE}"
POLICY = PullPolicy(free_bytes=0, connections=1)


@pytest.fixture
def server() -> Iterator[HuggingFaceServer]:
    with HuggingFaceServer() as server:
        server.add_repository(REPOSITORY, {FILE: CHAT}, cardData={"license": "mit"})
        yield server


@dataclass(kw_only=True)
class Puller:
    """A frontend that pulls."""

    world: World
    models: Path

    async def ask(self, reference: str = REFERENCE, *, status: int = 202, **more: Any) -> OperationView:
        headers = {name: more.pop(name) for name in ("idempotency_key",) if name in more}
        body = {"reference": reference, **more}
        answer = await self.world.frontend.call("POST", "/api/v1/pulls", body, **headers)
        assert answer.status == status, answer.body
        return msgspec.json.decode(answer.body, type=OperationView) if status == 202 else answer.json()

    async def work(self) -> None:
        await self.world.control.context.operations.dispatcher.tick()

    async def shown(self, id: str) -> OperationView:
        return await self.get(f"/api/v1/operations/{id}", OperationView)

    async def get(self, path: str, kind: Any) -> Any:
        answer = await self.world.frontend.call("GET", path)
        assert answer.status == 200, answer.body
        return msgspec.json.decode(answer.body, type=kind)

    async def done(self, reference: str = REFERENCE, **more: Any) -> OperationView:
        started = await self.ask(reference, **more)
        await self.work()
        return await self.shown(started.id)


@pytest.fixture
async def puller(
    server: HuggingFaceServer, database: Database, clock: ManualClock, bus: Bus, tmp_path: Path
) -> AsyncIterator[Puller]:
    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(HubAccess.open(HubsConfig(hf_url=server.base)))
        lookups = Lookups(hub=hub)
        world = await stack.enter_async_context(
            open_world(database, clock, bus, tmp_path, lookups=lookups, pulls=POLICY)
        )
        yield Puller(world=world, models=world.models)


async def test_a_model_is_pulled_and_proven(puller: Puller, server: HuggingFaceServer) -> None:
    started = await puller.ask()
    assert (started.verb, started.backend, started.state) == ("pull", "chat", "running")
    (target,) = started.targets
    assert target.node_id.startswith("store:")
    assert target.node_name.endswith(f":{puller.models}")
    planned = server.sent

    await puller.work()

    shown = await puller.shown(started.id)
    assert (shown.state, shown.progress, shown.targets[0].message) == ("done", 100.0, "by digest")
    assert (puller.models / "chat" / FILE).read_bytes() == CHAT
    stored = await puller.world.control.context.pulls.service._tools.models.get("chat")
    assert stored is not None
    assert [(file.path, file.size, file.digest) for file in stored.files] == [
        (f"chat/{FILE}", len(CHAT), f"sha256:{hashlib.sha256(CHAT).hexdigest()}")
    ]
    assert (stored.source, stored.origin and stored.origin.licence) == ("pull", "mit")
    assert stored.files[0].shape is not None, "frontends without the file know what it takes"
    assert server.sent - planned == len(CHAT)
    again = await puller.ask()
    planned = server.sent
    await puller.work()
    assert again.id != started.id
    assert (await puller.shown(again.id)).targets[0].message == "already by digest"
    assert server.sent == planned


async def test_a_dry_run_tells_all_and_does_nothing(puller: Puller) -> None:
    plan = msgspec.convert(await puller.ask(status=200, dry_run=True), PullPlanView)
    assert (plan.name, plan.bytes, plan.needed_bytes, plan.licence) == ("chat", len(CHAT), len(CHAT), "mit")
    assert "name: chat" in plan.config
    assert plan.store.endswith(str(puller.models))
    assert plan.memory_bytes > len(CHAT)
    assert plan.free_bytes > 0
    planned = await puller.world.frontend.call("POST", "/api/v1/pulls/plan", {"reference": REFERENCE})
    assert (planned.status, msgspec.json.decode(planned.body, type=PullPlanView).files) == (200, plan.files)
    assert not (puller.models / "chat").exists()
    assert await puller.world.control.context.operations.stores.operations.newest(limit=9) == []


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_a_pull_is_started_only_on_the_plan_that_was_seen(puller: Puller, server: HuggingFaceServer) -> None:
    async def planned() -> PullPlanView:
        answer = await puller.world.frontend.call("POST", "/api/v1/pulls/plan", {"reference": REFERENCE})
        return msgspec.json.decode(answer.body, type=PullPlanView)

    seen = await planned()
    assert (await planned()).hash == seen.hash, "the same plan has the same hash"
    assert [line.split()[0] for line in seen.text.splitlines()][:4] == ["Model", "From", "Licence", "File"]
    server.add_repository(REPOSITORY, {FILE: CHAT + b"newer"}, cardData={"license": "mit"})

    stale: Any = await puller.ask(status=409, name=seen.name, plan_hash=seen.hash)

    assert (stale["error"]["code"], stale["plan"]["bytes"]) == ("stale_plan", len(CHAT) + len("newer"))
    assert await puller.world.control.context.operations.stores.operations.newest(limit=9) == []
    act = {"name": seen.name, "plan_hash": stale["plan"]["hash"], "idempotency_key": "once"}
    started = await puller.ask(**act)
    assert (await puller.ask(**act)).id == started.id
    await puller.work()
    assert (await puller.shown(started.id)).state == "done"
    assert (await puller.ask(**{**act, "plan_hash": "another"})).id == started.id, "who asked before gets the same"


async def test_a_lone_file_is_used_by_the_name_that_it_is_offered_by(puller: Puller, tmp_path: Path) -> None:
    (puller.models / "my chat.gguf").write_bytes(CHAT)
    (tmp_path / "outside.gguf").write_bytes(CHAT)
    (puller.models / "link.gguf").symlink_to(tmp_path / "outside.gguf")

    done = await puller.done("my chat.gguf")

    assert (done.state, done.backend, done.uri) == ("done", "my-chat", "my chat.gguf")
    stored = await puller.world.control.context.pulls.service._tools.models.get("my-chat")
    assert stored is not None
    assert [file.path for file in stored.files] == ["my chat.gguf"], "it stays where it is"
    for outside in ("link.gguf", "../outside.gguf", "none.gguf"):
        await puller.ask(outside, status=404)


async def test_those_who_ask_for_the_same_share_one_operation(puller: Puller, server: HuggingFaceServer) -> None:
    first = await puller.ask(idempotency_key="k1")
    assert (await puller.ask(idempotency_key="k1")).id == first.id
    assert (await puller.ask()).id == first.id
    many = await asyncio.gather(*(puller.ask() for _ in range(5)))
    assert {one.id for one in many} == {first.id}
    server.add_repository("org/other", {FILE: CHAT + b"other"})
    problem = await puller.ask("hf://org/other", status=409, name="chat")
    assert "another pull of chat is under way" in str(problem)
    await puller.work()
    assert (await puller.shown(first.id)).state == "done"
    taken = await puller.ask("hf://org/other", status=409, name="chat")
    assert "there is a model chat already (from hf://org/Chat-GGUF)" in str(taken)


async def test_a_name_that_nobody_chose_gives_way_to_models_of_other_origins(
    puller: Puller, server: HuggingFaceServer
) -> None:
    await puller.done()
    server.add_repository("other/Chat-GGUF", {FILE: CHAT + b"other"})

    done = await puller.done("hf://other/Chat-GGUF")

    assert done.backend == "chat-2"
    assert (await puller.done("hf://other/Chat-GGUF")).backend == "chat-2", "it is known by its origin"
    stored = await puller.world.control.context.pulls.service._tools.models.get("chat-2")
    assert stored is not None
    assert [file.path for file in stored.files] == [f"chat-2/{FILE}"]


async def test_all_at_once_begin_one_operation(puller: Puller) -> None:
    many = await asyncio.gather(*(puller.ask() for _ in range(8)))
    assert len({one.id for one in many}) == 1


@pytest.mark.parametrize(
    ("fault", "words"),
    [(answering(404), "404"), (answering(403), "403"), (answering(401), "HF_TOKEN")],
)
async def test_what_no_attempt_can_change_is_blocked_at_once(
    puller: Puller, server: HuggingFaceServer, fault: Any, words: str
) -> None:
    started = await puller.ask()
    server.faults[FILE_URL] += [fault] * 20
    await puller.work()
    blocked = await puller.shown(started.id)
    assert (blocked.state, blocked.targets[0].status) == ("failed", "blocked")
    assert words in blocked.targets[0].message
    server.faults[FILE_URL].clear()
    assert (await puller.ask()).id == started.id  # who asks again has it tried again
    await puller.work()
    assert (await puller.shown(started.id)).state == "done"


async def test_a_server_that_is_away_is_tried_again(puller: Puller, server: HuggingFaceServer) -> None:
    started = await puller.ask()
    server.faults[FILE_URL] += [answering(429, retry_after="4000")]
    await puller.work()
    failed = await puller.shown(started.id)
    assert (failed.targets[0].status, failed.targets[0].attempts) == ("error", 1)
    await puller.world.clock.advance(timedelta(seconds=31))
    await puller.work()
    assert (await puller.shown(started.id)).state == "done"


async def test_a_cancel_ends_the_download_and_a_retry_goes_on_with_its_bytes(
    puller: Puller, server: HuggingFaceServer
) -> None:
    started = await puller.ask()
    gate = threading.Event()
    sent: list[int] = []

    def hold(_: object) -> None:
        sent.append(1)
        if len(sent) == 24:
            gate.wait(60)

    async def is_held() -> bool:
        return len(sent) >= 24

    server.before_chunk = hold
    work = asyncio.ensure_future(puller.work())
    try:
        await eventually(is_held, "the server to stop")
        answer = await puller.world.frontend.call("POST", f"/api/v1/operations/{started.id}/cancel")
        changed = msgspec.json.decode(answer.body, type=Changed)
        assert changed.already_sent == []
        await work
    finally:
        gate.set()
    cancelled = await puller.shown(started.id)
    assert (cancelled.state, cancelled.targets[0].message) == ("cancelled", "cancelled by admin")
    partial = puller.models.joinpath(*FOLDER)
    assert [path.suffix for path in sorted(partial.iterdir())] == [".ledger", ".part"]
    server.before_chunk = lambda _: None
    again = await puller.ask()
    assert again.id != started.id
    before = server.sent
    await puller.work()
    assert (await puller.shown(again.id)).state == "done"
    assert server.sent - before < len(CHAT)
    assert list(partial.iterdir()) == []


async def test_progress_tells_of_each_file(puller: Puller, server: HuggingFaceServer) -> None:
    started = await puller.ask()
    gate = threading.Event()
    sent: list[int] = []

    def hold(_: object) -> None:
        sent.append(1)
        if len(sent) == 24:
            gate.wait(60)

    server.before_chunk = hold
    work = asyncio.ensure_future(puller.work())
    try:

        async def is_moving() -> bool:
            shown = await puller.shown(started.id)
            return shown.targets[0].current_bytes > 0

        await eventually(is_moving, "bytes")
        (target,) = (await puller.shown(started.id)).targets
    finally:
        gate.set()
        await work
    assert (target.status, target.phase, target.total_bytes) == ("downloading", "downloading", len(CHAT))
    (file,) = target.files
    assert (file.name, file.state, file.total_bytes) == (f"chat/{FILE}", "fetching", len(CHAT))
    assert 0 < file.current_bytes < len(CHAT)


async def test_too_little_room_is_told_before_the_first_byte(
    puller: Puller, server: HuggingFaceServer, database: Database, clock: ManualClock, bus: Bus, tmp_path: Path
) -> None:
    service = puller.world.control.context.pulls.service
    plan = await service.plan(PullAsk(reference=REFERENCE, by="me"))
    space = [PullPolicy(free_bytes=1 << 60), PullPolicy(free_bytes=0, quota_bytes=100_000)]
    for policy, words in zip(space, ("shall stay free (models_min_free)", "(models_quota)"), strict=True):
        msgspec.structs.force_setattr(service._tools, "policy", policy)
        problem = await puller.ask(status=409)
        assert words in str(problem)
        assert words in await service.refusal(plan)


@pytest.mark.parametrize(
    ("reference", "status", "words"),
    [
        ("", 400, "reference"),
        ("hf://org", 400, "hf://owner/name"),
        ("gopher://x", 400, "scheme"),
        ("hf://org/unknown", 404, "has no repository"),
        ("no-such-model", 404, "no-such-model"),
        ("org/Chat-GGUF", 404, "is it hf://org/Chat-GGUF?"),
        ("llama3.2:1b", 404, "is it ollama://llama3.2:1b?"),
        ("file:///no/such/file.gguf", 404, "cannot be read"),
    ],
)
async def test_a_reference_that_means_nothing_is_refused(
    puller: Puller, reference: str, status: int, words: str
) -> None:
    assert words in str(await puller.ask(reference, status=status))


async def test_a_file_of_the_machine_is_pulled(puller: Puller, tmp_path: Path) -> None:
    source = tmp_path / "my model.gguf"
    source.write_bytes(CHAT)
    shown = await puller.done(source.as_uri(), name="mine")
    assert (shown.state, shown.targets[0].message) == ("done", "whole; nobody promised a digest of some files")
    assert source.read_bytes() == CHAT


async def test_a_file_in_the_models_directory_stays_where_it_is(puller: Puller) -> None:
    puller.models.mkdir(exist_ok=True)
    (puller.models / "lone-Q4_0.gguf").write_bytes(CHAT)
    before = (puller.models / "lone-Q4_0.gguf").stat().st_ino
    done = await puller.done(str(puller.models / "lone-Q4_0.gguf"))
    assert (done.state, done.backend) == ("done", "lone")
    assert (puller.models / "lone-Q4_0.gguf").stat().st_ino == before
    assert not (puller.models / "lone").exists()


class ForgetfulRegistry(FakeRegistry):
    """Forgets the token with which a download begins, and breaks off the download."""

    forgets: bool = False

    def _serve(self, request: web.Request, media_type: str, content: bytes) -> web.Response:
        if self.forgets and request.headers.get("Range") == "bytes=0-0":  # somebody asks whether the token is good
            self.forgets = False
            self.faults["GET /v2/team/tiny/blobs"].append(self._forget)
        return super()._serve(request, media_type, content)

    async def _forget(self, request: web.Request, good: bytes) -> web.StreamResponse:
        self.tokens.clear()
        response = web.StreamResponse(status=206, headers={"Content-Range": f"bytes 0-{len(good) - 1}/{len(good)}"})
        response.content_length = len(good)
        await response.prepare(request)
        await response.write(good[: len(good) // 2])
        assert request.transport is not None
        request.transport.close()
        return response


async def test_a_model_in_an_image_is_pulled_however_short_its_token_lives(puller: Puller) -> None:
    async with ForgetfulRegistry(uses_tokens=True) as registry:
        registry.add_image("team/tiny", [gzipped(tar_of(a_file("tiny.gguf", CHAT)), level=0)])
        started = await puller.ask(f"oci://{registry.address}/team/tiny")
        registry.forgets = True
        await puller.work()
        shown = await puller.shown(started.id)
        assert (shown.state, shown.targets[0].message) == ("done", "by digest")
        presented = [request for request in registry.asked_for("/blobs/") if "Authorization" in request.headers]
        assert len(presented) >= 4
    assert (puller.models / "tiny" / "tiny.gguf").read_bytes() == CHAT


async def test_storage_tells_who_needs_what_and_a_prune_takes_the_rest(puller: Puller) -> None:
    await puller.done()
    (puller.models / "notes.txt").write_text("mine")
    storage = await puller.get("/api/v1/model-storage", StorageView)
    assert [(store.is_own, store.is_away) for store in storage.stores] == [(True, False)]
    assert storage.models["chat"] >= len(CHAT)
    assert [(file.path, file.kept) for file in storage.unneeded] == [("notes.txt", "it did not come by a pull")]
    context = puller.world.control.context
    await _forget(context.database, "chat")

    answer = await puller.world.frontend.call("POST", "/api/v1/model-storage/prune", {"dry_run": True})
    dry = msgspec.json.decode(answer.body, type=PruneView)
    assert ([file.path for file in dry.deleted], dry.dry_run) == ([f"chat/{FILE}"], True)
    assert (puller.models / "chat" / FILE).exists()

    answer = await puller.world.frontend.call("POST", "/api/v1/model-storage/prune")
    pruned = msgspec.json.decode(answer.body, type=PruneView)
    assert [file.path for file in pruned.deleted] == [f"chat/{FILE}"]
    assert [file.path for file in pruned.kept] == ["notes.txt"]
    assert not (puller.models / "chat").exists()
    assert (puller.models / "notes.txt").exists()


async def _forget(database: Database, name: str) -> None:
    async with database.begin() as connection:
        await connection.execute(delete(models_table).where(models_table.c.name == name))


async def test_a_pull_for_a_store_that_nobody_has_waits(puller: Puller) -> None:
    started = await puller.ask()
    keeper = puller.world.control.context.pulls.stores
    own = keeper.own
    assert own is not None
    object.__setattr__(keeper, "own", None)
    await puller.work()
    waiting = await puller.shown(started.id)
    assert (waiting.state, waiting.targets[0].waits_for_node) == ("waiting", True)
    assert "waits for a frontend that has this models directory" in waiting.targets[0].message
    keeper.own = own
    await puller.world.clock.advance(timedelta(seconds=31))
    await puller.work()
    assert (await puller.shown(started.id)).state == "done"
    (intent,) = await puller.world.control.context.operations.stores.intents.of_node(place_of(own.id))
    assert (intent.kind, intent.state) == (IntentKind.PULL, IntentState.SATISFIED)


async def test_a_model_that_is_being_pulled_is_not_removed_and_keeps_what_it_needs(
    puller: Puller, server: HuggingFaceServer
) -> None:
    await puller.done()
    await puller.done(name="same")  # the same bytes in a folder of its own
    server.add_repository(REPOSITORY, {FILE: CHAT + b"newer"})
    started = await puller.ask()
    answer = await puller.world.frontend.call("DELETE", "/api/v1/models/chat")
    assert (answer.status, b"is being pulled" in answer.body) == (409, True)
    assert (await puller.world.frontend.call("DELETE", "/api/v1/models/same")).status in (200, 202)
    await puller.work()
    assert (await puller.shown(started.id)).state == "done"
    assert (puller.models / "chat" / FILE).read_bytes() == CHAT + b"newer"


async def test_a_model_that_is_being_removed_is_not_pulled(puller: Puller) -> None:
    await puller.done()
    await puller.world.backends("w")
    assert (await puller.world.frontend.call("DELETE", "/api/v1/models/chat")).status in (200, 202)
    problem = await puller.ask(status=409)
    assert "is being removed" in str(problem)
    await puller.work()
    again = await puller.done()
    assert again.state == "done"
    assert (puller.models / "chat" / FILE).read_bytes() == CHAT


async def test_what_waited_for_a_directory_goes_on_when_it_is_there(puller: Puller) -> None:
    started = await puller.ask()
    room = puller.world.control.context.pulls
    own, room.stores.own = room.stores.own, None
    await puller.work()
    assert (await puller.shown(started.id)).state == "waiting"
    room.stores.own = own
    await room.look()  # no time has passed since
    await puller.work()
    assert (await puller.shown(started.id)).state == "done"


async def test_tokens_go_to_the_hub_and_nowhere_else(
    server: HuggingFaceServer,
    database: Database,
    clock: ManualClock,
    bus: Bus,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    token, cdn_files = "hf_very-secret-word", {FILE: CHAT}
    caplog.set_level(logging.DEBUG)
    async with AsyncExitStack() as stack:
        cdn = stack.enter_context(FileServer(host="localhost"))
        server.add_repository("org/Gated-GGUF", cdn_files, token=token, is_gated=True, cdn=cdn)
        hub = await stack.enter_async_context(HubAccess.open(HubsConfig(hf_url=server.base, hf_token=token)))
        world = await stack.enter_async_context(
            open_world(database, clock, bus, tmp_path, lookups=Lookups(hub=hub), pulls=POLICY)
        )
        puller = Puller(world=world, models=world.models)
        shown = await puller.done("hf://org/Gated-GGUF")
        assert shown.state == "done"
        assert cdn.requests
        assert not [request for request in cdn.requests if "Authorization" in request.headers]
        assert token not in caplog.text
        async with database.begin() as connection:
            for table in metadata.sorted_tables:
                rows = (await connection.execute(select(table))).all()
                assert token not in str(rows), table.name
    assert files_with(tmp_path, token) == []


def files_with(folder: Path, word: str) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and word.encode() in path.read_bytes()]


# Files that other models need.


async def test_a_pull_never_replaces_what_another_model_needs(puller: Puller, server: HuggingFaceServer) -> None:
    other = CHAT[:-1] + b"x"  # of the same size
    server.add_repository("other/Chat-GGUF", {FILE: other})
    server.add_repository("third/Chat-GGUF", {FILE: CHAT + b"longer"})
    assert (await puller.done(name="a b")).state == "done"
    path = puller.models / "a-b" / FILE

    refused: Any = await puller.ask("hf://other/Chat-GGUF", status=409, name="a/b")
    assert "the model a b needs another file as a-b/chat-Q4_K_M.gguf" in refused["error"]["message"]
    await puller.ask("hf://third/Chat-GGUF", status=409, name="a/b")
    await puller.ask(server.url(FILE_URL), status=409, name="a/b")  # nobody promises a digest
    assert path.read_bytes() == CHAT

    path.touch()  # so that nothing is known about it any more, and only its content tells
    assert (await puller.done("hf://other/Chat-GGUF", name="a/b")).state == "failed"
    assert path.read_bytes() == CHAT
    assert (await puller.done(name="A-B")).state == "done"  # the same file


async def test_two_pulls_do_not_bring_different_files_to_one_place(puller: Puller, server: HuggingFaceServer) -> None:
    server.add_repository("other/Chat-GGUF", {FILE: CHAT + b"other"})
    await puller.ask(name="a b")
    refused: Any = await puller.ask("hf://other/Chat-GGUF", status=409, name="a/b")
    assert "a-b/chat-Q4_K_M.gguf is being pulled for a b" in refused["error"]["message"]
    await puller.ask(name="a/b")


async def test_a_model_that_was_added_meanwhile_is_not_overwritten(puller: Puller) -> None:
    started = await puller.ask()
    text = "name: chat\nbackend: echo\nparameters: {model: x}\n"
    await puller.world.control.context.models.changes.add(text, by="ada")
    await puller.work()
    (target,) = (await puller.shown(started.id)).targets
    assert "there is a model chat already (by ada)" in target.message
    assert puller.world.control.context.models.catalogue.rows["chat"].changed_by == "ada"
