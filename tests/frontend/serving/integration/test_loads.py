"""Cold loads and what gateways are told of them, on a bus in memory and on both databases."""

import asyncio
from contextlib import aclosing
from datetime import timedelta

import msgspec
import pytest

from corral.base.clock import SystemClock
from corral.base.errors import Conflict, CorralError, NotFound
from corral.base.ids import NodeId, OperationId
from corral.base.tasks import Poke, running
from corral.frontend.nodes.client import NodeBusy, NodeRefused
from corral.frontend.nodes.contacts import NodeUnreachable
from corral.frontend.record.decide import EventKind
from corral.frontend.serving.decide.load_job import LoadProgress, LoadStepName, LoadWhy
from corral.frontend.serving.decide.replica import Replica, ReplicaState
from corral.frontend.serving.loading.load_work import reason_of
from corral.frontend.serving.store.replicas import ReplicaStore
from corral.rpc.errors import BackendBusy, BackendGone, LoadFailed
from corral.wire import go_json, subjects
from corral.wire.backends import InstallBytes, InstallProgress
from corral.wire.confinement import ConfinementWish, PolicyAsk
from corral.wire.keys import Scope
from corral.wire.models import REASON_SENTENCES, LoadReason
from corral.wire.registration import FEATURES, Feature
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
    assert world.loader.loads == [("127.0.0.1:7000", "t1", "small.gguf")]
    assert (await world.loads.ensure("small")).state == "loaded"


async def test_a_load_that_ends_while_somebody_asks_is_not_followed_by_another(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks looks for a replica, and then for a load; the load is over between the two."""
    await world.node("w1")
    await world.node("w2")
    await world.loads.ensure("small")
    look = ReplicaStore.living

    async def outdated(store: ReplicaStore) -> list[Replica]:
        monkeypatch.setattr(ReplicaStore, "living", look)
        living = await look(store)
        await world.loads.tick()
        return living

    monkeypatch.setattr(ReplicaStore, "living", outdated)
    status = await world.loads.ensure("small")

    assert status.state == "loaded"
    assert await world.loads.jobs() == []
    assert len(await world.control.context.serving.replicas.living()) == 1


async def test_a_load_that_is_taken_over_after_a_change_has_the_place_and_the_revision_of_the_change(
    world: World,
) -> None:
    """A replica that says the old revision and runs the new one would be kept when the change is taken back."""
    node = await world.node("w1")
    await world.loads.ensure("small")
    (held,) = await world.loads.claim()
    placed = await world.loads._work.place(held, {})
    assert placed is not None
    world.loads._working.clear()  # the frontend that held it has died
    await world.write(MODEL + "context_size: 8192\n")
    await world.clock.advance(timedelta(minutes=1))
    await world.loads.tick()

    (replica,) = await world.control.context.serving.replicas.living()
    assert replica.state is ReplicaState.LOADED
    assert world.loader.told[-1].ContextSize == 8192
    assert replica.revision == world.control.context.models.catalogue.find("small").revision
    assert [request.model_id for request in node.installs] == ["small"]
    first = await world.control.context.serving.replicas.get(placed.replica.id)
    assert first is not None
    assert (first.state, first.reason) == (ReplicaState.FAILED, "the model's configuration was changed")


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


async def test_a_process_is_started_with_the_cards_that_are_in_service(world: World) -> None:
    """A model of which nobody knows what it takes may use them all."""
    cards = [{"id": f"GPU-{letter}", "vendor": "nvidia", "total": 2**34, "free": 2**34} for letter in "abc"]
    node = await world.node("w1", cards=cards)
    await world.control.context.nodes.registry.put_card(node.id, "GPU-b", is_out=True, by="test")
    await world.loads.ensure("small")
    await world.loads.tick()

    (request,) = node.installs
    assert request.cards
    assert set(request.cards) <= {"GPU-a", "GPU-c"}


async def test_a_worker_that_did_not_name_the_feature_is_told_of_no_cards(world: World) -> None:
    features = [feature for feature in FEATURES if feature != "cards"]
    node = await world.node("w1", features=features, cards=[{"id": "GPU-a", "total": 2**34}])
    await world.loads.ensure("small")
    await world.loads.tick()

    (request,) = node.installs
    assert request.cards is None


async def test_the_secret_of_a_node_goes_to_none_of_its_processes(world: World) -> None:
    """What a process wants to hear is kept with its replica, sealed."""
    node = await world.node("w1")
    replica = await world.loaded()

    assert [request.wants_own_token for request in node.installs] == [True]
    assert [token for _, token, _ in world.loader.loads] == [replica.token] == ["t1"]
    assert "t1" not in repr(replica)


@pytest.mark.parametrize("knows", [True, False])
async def test_a_worker_is_told_what_was_decided_about_a_backend_if_it_can_confine(world: World, knows: bool) -> None:
    features = [feature for feature in FEATURES if knows or feature != Feature.CONFINEMENT]
    node = await world.node("w1", features=features)
    await world.control.context.backends.policies.put("echo", PolicyAsk(network="none"), by="test")
    await world.loads.ensure("small")
    await world.loads.tick()

    (request,) = node.installs
    assert request.confinement == (ConfinementWish(network="none") if knows else ConfinementWish())


async def test_a_worker_from_before_tokens_is_called_with_its_secret(world: World) -> None:
    features = [feature for feature in FEATURES if feature != Feature.REPLICA_TOKENS]
    node = await world.node("w1", features=features)
    replica = await world.loaded()

    assert [request.wants_own_token for request in node.installs] == [False]
    assert [token for _, token, _ in world.loader.loads] == [SECRET + "w1"]
    assert replica.token == ""


@pytest.mark.parametrize("token", ["with space", "with\nline", "x" * 257, "é"])
async def test_a_token_that_no_header_can_carry_is_refused(world: World, token: str) -> None:
    node = await world.node("w1")
    process = node.start("small", 0)
    assert process.corral
    process.corral.token = token
    await world.loads.ensure("small")
    await world.loads.tick()

    status = await world.loads.ensure("small")
    assert world.loader.loads == []
    assert "token for gRPC" in repr(status)
    assert token not in repr(status)


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


async def waits(world: World) -> timedelta:
    """How long the only load still waits, after a look if it is due."""
    await world.loads.tick()
    [job] = await world.loads.jobs()
    return job.retry_at - world.clock.now()


async def test_a_model_without_a_node_is_looked_at_ever_less_often_until_there_is_news(world: World) -> None:
    await world.loads.ensure("small")
    pauses = []
    for _ in range(7):
        pauses.append((await waits(world)).total_seconds())
        await world.clock.advance(timedelta(seconds=pauses[-1]))
    await waits(world)
    await world.clock.advance(timedelta(seconds=1))
    node = await world.node("w1")
    just_looked = await waits(world)
    await world.clock.advance(just_looked)
    await world.loads.tick()

    assert pauses == [2, 2, 4, 8, 16, 30, 30]
    assert just_looked == timedelta(seconds=2)
    assert len(node.installs) == 1


async def test_a_model_that_has_waited_for_a_while_uses_a_new_node_at_once(world: World) -> None:
    await world.loads.ensure("small")
    for _ in range(6):
        await world.clock.advance(await waits(world))
    await waits(world)
    await world.clock.advance(timedelta(seconds=3))
    node = await world.node("w1")
    await world.loads.tick()

    assert len(node.installs) == 1


async def test_the_loop_hears_of_a_node_that_takes_work_again(world: World) -> None:
    node, registry = await world.node("w1"), world.control.context.nodes.registry
    await registry.drain(node.id, by="test")
    await world.loads.ensure("small")
    for _ in range(6):
        await world.clock.advance(await waits(world))
    await waits(world)
    async with running(world.loads.run(), name="loads"):
        await world.clock.advance(timedelta(seconds=3))
        await registry.resume(node.id, by="test")
        await within_timeout(node.asked.wait(), "the node to be asked")


async def test_a_load_whose_requests_are_gone_is_taken_back(world: World) -> None:
    gateways = world.control.context.serving.gateways
    await world.loads.ensure("small")
    for number in range(25):
        gateways.take(GatewayReport(gateway="g", sequence=number, waiting={"small": 1}))
        await waits(world)
        await world.clock.advance(timedelta(seconds=30))
    wanted = await world.loads.jobs()
    gateways.take(GatewayReport(gateway="g", sequence=30))
    for _ in range(19):
        await waits(world)
        await world.clock.advance(timedelta(seconds=30))
        gateways.take(GatewayReport(gateway="g", sequence=31))
    await world.loads.ensure("small")
    for _ in range(20):
        await waits(world)
        await world.clock.advance(timedelta(seconds=30))
        gateways.take(GatewayReport(gateway="g", sequence=31))
    await world.loads.tick()

    assert len(wanted) == 1
    assert await world.loads.jobs() == []


async def test_a_load_that_a_person_wants_waits_on(world: World) -> None:
    spec = world.control.context.models.catalogue.find("small")
    await world.loads.add(spec, why=LoadWhy.PERSON)
    for _ in range(30):
        await waits(world)
        await world.clock.advance(timedelta(seconds=30))

    assert len(await world.loads.jobs()) == 1


async def test_who_unloads_a_model_takes_back_the_loads_that_wait(world: World) -> None:
    await world.loads.ensure("small")
    await waits(world)
    await world.control.context.serving.node_models.unload_everywhere("small", by="test")

    assert await world.loads.jobs() == []


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


async def test_a_load_that_an_engine_refuses_is_tried_on_another_node(world: World) -> None:
    first, second = await world.node("w1"), await world.node("w2")
    world.loader.error, world.loader.fails_at = "out of memory", {"127.0.0.1:7000"}
    second.start("other", 0)  # so that its next process has another port
    await world.loads.ensure("small")
    await world.loads.tick()

    assert (len(first.installs), len(second.installs)) == (1, 1)
    assert (await world.loads.ensure("small")).node == "w2"


async def test_a_job_keeps_when_each_of_its_steps_began_and_the_event_how_long_they_took(world: World) -> None:
    node = await world.node("w1")
    node.held = asyncio.Event()
    await world.loads.ensure("small")
    loading = asyncio.create_task(world.loads.tick())
    await within_timeout(node.asked.wait(), lambda: "the node to be asked for an install")
    (job,) = await world.loads.jobs()
    assert [step.name for step in job.steps] == [LoadStepName.PLACE, LoadStepName.INSTALL]
    await world.clock.advance(timedelta(seconds=3))
    node.held.set()
    await loading

    (told,) = await world.events(EventKind.MODEL_LOADED)
    assert told.data["seconds"] == {"place": 0.0, "install": 3.0, "stage": 0.0, "load": 0.0}
    assert told.data["why"] == "asked"


async def test_a_second_replica_is_loaded_beside_the_first(world: World) -> None:
    first, second = await world.node("w1"), await world.node("w2")
    spec = world.control.context.models.catalogue.find("small")
    assert await world.loads.add(spec, why=LoadWhy.MINIMUM, count=2) == 2
    await world.loads.tick()

    assert (len(first.installs), len(second.installs)) == (1, 1)
    living = await world.control.context.serving.replicas.living()
    assert [(one.state, one.why) for one in living] == [(ReplicaState.LOADED, LoadWhy.MINIMUM)] * 2


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
