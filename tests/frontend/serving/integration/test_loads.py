"""Cold loads and what gateways are told of them, on a bus in memory and on both databases."""

import asyncio
from contextlib import aclosing
from datetime import timedelta

import msgspec
import pytest

from corral.base.clock import SystemClock
from corral.base.errors import Conflict, CorralError, NotFound
from corral.base.ids import NodeId, OperationId
from corral.base.tasks import Poke
from corral.frontend.nodes.client import NodeBusy, NodeRefused, NodeUnreachable
from corral.frontend.record.decide import EventKind
from corral.frontend.serving.decide.load_job import LoadProgress
from corral.frontend.serving.loading import reason_of
from corral.rpc.errors import BackendBusy, BackendGone, LoadFailed
from corral.wire import go_json, subjects
from corral.wire.backends import InstallBytes, InstallProgress
from corral.wire.keys import Scope
from corral.wire.models import REASON_SENTENCES, LoadReason
from corral.wire.replicas import ProcessKey, ReplicaAccess
from corral.wire.view import MODEL_GONE, Beat, GatewayReport, ReplicaFailure, View, ViewChange
from tests.kit.waiting import WAIT_TIMEOUT, within_timeout
from tests.kit.world import MODEL, SECRET, World, view_of


async def test_a_hundred_who_ask_share_one_load(world: World) -> None:
    node = await world.node("w1")
    asked = await asyncio.gather(*(world.loads.ensure("small") for _ in range(100)))
    await asyncio.gather(*(world.loads.tick() for _ in range(5)))

    assert {status.state for status in asked} == {"pending"}
    assert [(one.backend, one.model_id, one.replica_index) for one in node.installs] == [("echo", "small", 0)]
    assert world.loader.loads == [("127.0.0.1:7000", SECRET + "w1", "small.gguf")]
    assert (await world.loads.ensure("small")).state == "loaded"


async def test_gateways_are_told_of_the_model_its_replica_and_the_keys(world: World) -> None:
    await world.node("w1")
    before = await view_of(world.control)
    await world.loads.ensure("small")
    await world.loads.tick()
    after = await view_of(world.control)

    assert list(before.models) == ["small"]
    assert before.replicas == {}
    (replica,) = after.replicas.values()
    assert (replica.url, replica.key, replica.node_name, replica.rank) == ("http://127.0.0.1:7001", "k1", "w1", 0)
    assert after.version == before.version + 1
    assert [entry.scopes for entry in after.keys.values()] == [("admin",)]


async def test_gateways_are_told_what_a_model_is_for_and_what_its_replica_answers(world: World) -> None:
    node = await world.node("w1")
    node.routes = ["/v1/responses", "/v1/chat/completions", "/no/route"]
    await world.loads.ensure("small")
    await world.loads.tick()
    view = await view_of(world.control)

    assert view.models["small"].uses == ("chat", "completion", "embeddings")
    (replica,) = view.replicas.values()
    assert replica.routes == ("/v1/chat/completions", "/v1/responses")
    assert replica.url.endswith(str(replica.front_port - 1)), "two after the port of gRPC, and one after that of HTTP"
    node.running[0] = msgspec.structs.replace(node.running[0], corral=ReplicaAccess(url=replica.url, key=replica.key))
    await world.control.context.serving.health.sweep()
    (replica,) = (await view_of(world.control)).replicas.values()
    assert (replica.routes, replica.front_port) == (None, 0)


async def test_who_follows_gets_the_view_then_changes_and_beats(world: World) -> None:
    await world.node("w1")
    await view_of(world.control)
    async with aclosing(world.control.context.serving.view.follow()) as messages:
        assert isinstance(await anext(messages), View)
        (world.models / "more.yaml").write_text(MODEL.replace("small", "more"), encoding="utf-8")
        await world.control.context.models.watch.look()
        await world.control.context.serving.view.refresh()
        change = await anext(messages)
        assert isinstance(change, ViewChange)
        assert [entry.name for entry in change.models] == ["more"]
        world.control.context.serving.view.ring()
        assert isinstance(await anext(messages), Beat)


async def test_keys_of_every_scope_are_told_so_that_a_gateway_can_say_which_one_is_missing(world: World) -> None:
    new = await world.control.context.access.key_ring.create("g", [Scope.GATEWAY], by="test", lifetime=None)

    entry = (await view_of(world.control)).keys[new.record.hash]

    assert entry.scopes == ("gateway",)


async def test_a_revoked_key_leaves_the_view(world: World) -> None:
    key = (await world.control.context.access.key_ring.create("k", [Scope.INFERENCE], by="test", lifetime=None)).record
    assert key.hash in (await view_of(world.control)).keys
    await world.control.context.access.key_ring.revoke(key.id, by="test")

    assert key.hash not in (await view_of(world.control)).keys


async def test_a_model_without_a_node_waits_and_says_for_what(world: World) -> None:
    await world.loads.ensure("small")
    await world.loads.tick()

    status = await world.loads.ensure("small")
    assert (status.state, status.message) == ("pending", "no node has joined yet")
    assert status.reason is LoadReason.NO_PLACE
    node = await world.node("w1")
    await world.clock.advance(timedelta(seconds=2))
    await world.loads.tick()
    assert len(node.installs) == 1


async def test_a_model_that_cannot_be_loaded_fails_with_its_reason_and_cools_down(world: World) -> None:
    node = await world.node("w1")
    world.loader.error = "no such file"
    await world.loads.ensure("small")
    await world.loads.tick()

    failed = await world.loads.ensure("small")
    assert failed.state == "failed"
    assert "no such file" in failed.message
    assert failed.reason is LoadReason.REFUSED_BY_ENGINE
    assert node.stops
    await world.loads.tick()
    assert len(node.installs) == 1
    world.loader.error = ""
    await world.clock.advance(timedelta(seconds=5))
    assert (await world.loads.ensure("small")).state == "pending"
    await world.loads.tick()
    assert (await world.loads.ensure("small")).state == "loaded"


async def test_a_load_tells_what_is_being_done_and_how_far_it_is(world: World) -> None:
    node = await world.node("w1")
    node.held = asyncio.Event()
    await world.loads.ensure("small")
    loading = asyncio.create_task(world.loads.tick())
    await within_timeout(node.asked.wait(), lambda: "the node to be asked for an install")
    assert (await world.loads.ensure("small")).progress == LoadProgress(phase="installing")

    (request,) = node.installs
    message = InstallProgress(
        op_id=request.op_id,
        node_id=node.id,
        phase="downloading",
        percentage=25.0,
        corral=InstallBytes(sequence=1, current=25, total=100, attempt=1),
    )
    heard = Poke()
    with world.control.context.operations.progress.rings(heard, OperationId(request.op_id)):
        await world.bus.publish(subjects.install_progress(node.id, request.op_id), go_json.encode(message))
        await within_timeout(heard.wait(SystemClock(), WAIT_TIMEOUT), lambda: "the progress to be heard")
    progress = (await world.loads.ensure("small")).progress
    assert progress == LoadProgress(phase="downloading", current_bytes=25, total_bytes=100)
    node.held.set()
    await loading
    assert (await world.loads.ensure("small")).progress == LoadProgress()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Conflict("echo is about to be deleted there"), LoadReason.BEING_REMOVED),
        (NodeRefused("no such backend", node_id=NodeId("n")), LoadReason.ENGINE_NOT_STARTED),
        (NodeUnreachable("away"), LoadReason.MACHINE_AWAY),
        (NodeBusy("slow"), LoadReason.TIMED_OUT),
        (LoadFailed("a:1", "bad magic"), LoadReason.REFUSED_BY_ENGINE),
        (BackendBusy("a:1"), LoadReason.TIMED_OUT),
        (BackendGone("a:1"), LoadReason.ENGINE_ENDED),
        (NotFound("?"), LoadReason.OTHER),
    ],
)
def test_every_way_to_fail_has_a_word_for_clients(error: CorralError, reason: LoadReason) -> None:
    assert reason_of(error) is reason
    assert reason in REASON_SENTENCES


async def test_a_node_that_refuses_is_passed_over_for_another(world: World) -> None:
    first, second = await world.node("w1"), await world.node("w2")
    first.error = "backend not found"
    await world.loads.ensure("small")
    await world.loads.tick()

    assert (len(first.installs), len(second.installs)) == (1, 1)
    assert (await world.loads.ensure("small")).node == "w2"


async def test_a_control_that_starts_anew_knows_what_is_loaded_before_any_node_speaks(world: World) -> None:
    await world.node("w1")
    await world.loads.ensure("small")
    await world.loads.tick()
    before = await view_of(world.control)

    assert (await view_of(await world.again())).replicas == before.replicas


async def test_a_replica_is_not_lost_by_one_report_without_it_and_is_by_two(world: World) -> None:
    node = await world.node("w1")
    await world.loads.ensure("small")
    await world.loads.tick()
    await world.control.context.serving.health.sweep()
    node.running, before = [], node.running
    await world.control.context.serving.health.sweep()
    assert (await view_of(world.control)).replicas
    node.running = before
    await world.control.context.serving.health.sweep()
    node.running = []
    await world.control.context.serving.health.sweep()
    await world.control.context.serving.health.sweep()

    assert (await view_of(world.control)).replicas == {}
    events = await world.control.context.record.events.after(0, limit=99)
    assert events[-1].event.kind is EventKind.REPLICA_LOST


async def test_another_process_in_its_place_ends_a_replica_at_once(world: World) -> None:
    node = await world.node("w1")
    await world.loads.ensure("small")
    await world.loads.tick()
    (process,) = node.running
    node.running = [msgspec.structs.replace(process, corral=ReplicaAccess(url="http://127.0.0.1:7001", key="k2"))]
    await world.control.context.serving.health.sweep()

    assert (await view_of(world.control)).replicas == {}


async def test_a_process_without_its_model_has_it_loaded_again(world: World) -> None:
    """Somebody else freed it, say: the process runs on, and its node reports it."""
    node = await world.node("w1")
    await world.loaded()
    (replica,) = (await view_of(world.control)).replicas
    report = GatewayReport(gateway="g", sequence=1, failures=[ReplicaFailure(replica=replica, reason=MODEL_GONE)])
    world.control.context.serving.gateways.take(report)
    await world.control.context.serving.health.sweep()
    assert (await view_of(world.control)).replicas == {}
    await world.loaded()

    assert len(world.loader.loads) == 2
    assert [one.process_key for one in node.installs] == [ProcessKey("small", 0)] * 2
    assert replica not in (await view_of(world.control)).replicas


async def test_an_unknown_model_is_not_found(world: World) -> None:
    with pytest.raises(NotFound):
        await world.loads.ensure("nobody")


async def test_a_bad_file_is_named_and_the_others_still_serve(world: World) -> None:
    (world.models / "bad.yaml").write_text("name: [", encoding="utf-8")
    (world.models / "loop.yaml").write_text("&a\nname: x\nself: *a\n", encoding="utf-8")
    (world.models / "typed.yaml").write_text(MODEL.replace("small", "typed") + "threads: many\n", encoding="utf-8")
    (world.models / ".hidden.yaml").write_text("[", encoding="utf-8")
    await world.control.context.models.watch.look()

    answer = await world.frontend.call("GET", "/api/v1/models")
    listed = msgspec.json.decode(answer.body)
    assert [one["name"] for one in listed["items"]] == ["small"]
    assert [one["source"] for one in listed["problems"]] == ["bad.yaml", "loop.yaml", "typed.yaml"]


async def test_gateway_routes_want_the_scope_gateway(world: World) -> None:
    calls = [("POST", "/api/v1/gateway/report"), ("POST", "/api/v1/gateway/ensure"), ("GET", "/api/v1/gateway/view")]
    for method, path in calls:
        assert (await world.frontend.call(method, path, {})).status == 403
        assert (await world.frontend.call(method, path, {}, key="wrong")).status == 401


async def test_a_gateway_reports_and_asks_over_http(world: World) -> None:
    await world.node("w1")
    own = "key-of-the-gateways"
    asked = await world.frontend.call("POST", "/api/v1/gateway/ensure", {"model": "small"}, key=own)
    await world.loads.tick()
    report = {"gateway": "g", "sequence": 1, "in_flight": {"r": 2}}
    reported = await world.frontend.call("POST", "/api/v1/gateway/report", report, key=own)

    assert msgspec.json.decode(asked.body)["state"] == "pending"
    assert reported.status == 204
    assert world.control.context.serving.gateways.in_flight() == {"r": 2}
    assert (await world.frontend.call("POST", "/api/v1/gateway/report", b"{", key=own)).status == 400
    assert (await world.frontend.call("POST", "/api/v1/gateway/ensure", {"model": "x"}, key=own)).status == 404
    model = msgspec.json.decode((await world.frontend.call("GET", "/api/v1/models/small")).body)
    assert (model["state"], model["replicas"][0]["node"]) == ("loaded", "w1")


async def test_a_worker_that_can_translate_is_told_how(world: World) -> None:
    await world.write(MODEL + "system_prompt: be kind\nstopwords: [END]\ntemplate:\n  chat: '{{.Input}}'\n")
    node = await world.node("w1")
    await world.loaded()

    sent = msgspec.json.decode(msgspec.json.encode(node.installs[0]))["corral"]["model"]
    assert sent == {
        "name": "small",
        "identity": "small.gguf",
        "system_prompt": "be kind",
        "templates": {"chat": "{{.Input}}"},
        "defaults": {"stop": ["END"], "threads": world.control.context.config.threads, "max_tokens": 4096},
    }


@pytest.mark.parametrize("adapts", [True, False])
async def test_only_a_backend_that_is_asked_directly_is_told_what_requests_leave_open(
    world: World, adapts: bool
) -> None:
    await world.write(MODEL + "  temperature: 0.5\n")
    node = await world.node("w1")
    node.adapts = adapts
    await world.loaded()

    assert world.loader.options == [[] if adapts else ["default_temperature:0.5", "default_max_tokens:4096"]]


async def test_a_worker_that_did_not_name_the_feature_is_told_nothing(world: World) -> None:
    node = await world.node("w1", features=["node-secret"])
    await world.loaded()

    assert "corral" not in msgspec.to_builtins(node.installs[0])


async def test_a_url_that_changed_is_learned_from_the_nodes_report(world: World) -> None:
    node = await world.node("w1")
    replica = await world.loaded()
    (process,) = node.running
    moved = ReplicaAccess(url="http://127.0.0.1:7005", key="k1")
    node.running = [msgspec.structs.replace(process, corral=moved)]
    await world.control.context.serving.health.sweep()

    (entry,) = (await view_of(world.control)).replicas.values()
    assert (entry.id, entry.url, entry.key) == (replica.id, "http://127.0.0.1:7005", "k1")


async def test_a_control_that_starts_anew_learns_urls_that_changed_meanwhile(world: World) -> None:
    node = await world.node("w1")
    await world.loaded()
    (process,) = node.running
    node.running = [msgspec.structs.replace(process, corral=ReplicaAccess(url="http://127.0.0.1:7005", key="k1"))]
    again = await world.again()
    await again.context.serving.health.sweep()

    (entry,) = (await view_of(again)).replicas.values()
    assert entry.url == "http://127.0.0.1:7005"


async def test_a_report_without_a_url_takes_none_away(world: World) -> None:
    node = await world.node("w1")
    await world.loaded()
    (process,) = node.running
    node.running = [msgspec.structs.replace(process, corral=msgspec.UNSET)]
    await world.control.context.serving.health.sweep()

    (entry,) = (await view_of(world.control)).replicas.values()
    assert entry.url == "http://127.0.0.1:7001"
