"""Why a model is where it is, all replicas with what they take, and what a change would do, over the API."""

from datetime import timedelta
from typing import Any

import pytest

from corral.frontend.access.keys import KeyOwner
from corral.wire.keys import Scope
from corral.wire.view import Finished, GatewayReport, GatewayShare
from tests.kit.world import MODEL, World

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
"""The other database is for the tests of what is stored."""


async def get(world: World, path: str, status: int = 200, **more: Any) -> Any:
    answer = await world.frontend.call("GET", path, **more)
    assert answer.status == status, answer.body
    return answer.json()


async def suppose(world: World, body: object, status: int = 200) -> Any:
    answer = await world.frontend.call("POST", "/api/v1/what-if", body)
    assert answer.status == status, answer.body
    return answer.json()


async def test_why_tells_the_place_of_a_model_and_every_node_s_verdict(world: World) -> None:
    (world.models / "small.gguf").write_bytes(b"weights" * 1000)
    await world.write(MODEL + "threads: 2\n")
    await world.node("w1")
    await world.loaded()
    await world.node("w2")
    view = await get(world, "/api/v1/models/small/why")

    assert view["summary"] == "small is loaded on w1; one more would go to w2"
    assert [(one["node"], one["code"], one["replicas"]) for one in view["verdicts"]] == [
        ("w2", "fits", 0),
        ("w1", "no_slot", 1),
    ]
    assert view["verdicts"][1]["why"] == "already has 1 of 1 replicas of it"
    assert [(one["node"], one["state"], one["backend"]) for one in view["replicas"]] == [("w1", "loaded", "echo")]
    assert view["needs"]["disk"] == 7000
    assert view["jobs"] == []


async def test_why_knows_aliases_and_names_with_slashes_and_refuses_unknown_ones(world: World) -> None:
    await world.write("name: short\nalias: small\n", "short.yaml")
    await world.write(MODEL.replace("name: small", "name: family/small"), "family.yaml")
    await world.write(MODEL.replace("name: small", "name: tell-me/why"), "odd.yaml")

    assert (await get(world, "/api/v1/models/short/why"))["model"] == "small"
    nested = await get(world, "/api/v1/models/family%2Fsmall/why")
    assert (nested["model"], nested["summary"]) == (
        "family/small",
        "family/small is not loaded; no node has joined yet",
    )
    assert (await get(world, "/api/v1/models/tell-me/why"))["name"] == "tell-me/why"
    assert (await get(world, "/api/v1/models/tell-me%2Fwhy/why"))["model"] == "tell-me/why"
    unknown = await get(world, "/api/v1/models/smal/why", 404)
    assert unknown["error"]["message"] == "the model 'smal' does not exist; did you mean small?"


async def test_why_tells_what_its_loads_do(world: World) -> None:
    await world.loads.ensure("small")
    waiting = await get(world, "/api/v1/models/small/why")
    assert waiting["summary"] == "small is not loaded; 1 load waiting for a place; no node has joined yet"

    await world.node("w1")
    world.loader.error = "no such architecture"
    await world.loads.tick()
    view = await get(world, "/api/v1/models/small/why")
    (job,) = view["jobs"]
    assert (job["state"], job["reason"], job["is_permanent"]) == ("failed", "refused_by_engine", True)
    assert "no such architecture" in job["message"]
    assert view["summary"].startswith("small is not loaded; 1 load failed; one more would go to w1")


async def test_load_status_tells_steps_and_whether_it_makes_sense_to_wait(world: World) -> None:
    await world.write("name: short\nalias: small\n", "short.yaml")
    node = await world.node("w1")
    node.error = "the registry does not answer"
    await world.loads.ensure("small")
    await world.loads.tick()

    passing = await get(world, "/api/models/short/load-status")
    assert (passing["state"], passing["reason"], passing["retry_in_seconds"]) == ("failed", "engine_not_started", 5)
    assert "is_permanent" not in passing
    await world.clock.advance(timedelta(seconds=6))
    node.error, world.loader.error = "", "no such architecture"
    await world.loads.ensure("small")
    await world.loads.tick()
    lasting = await get(world, "/api/models/small/load-status")
    assert (lasting["is_permanent"], "retry_in_seconds" in lasting) == (True, False)


async def test_those_who_wait_see_how_far_a_load_is_and_nothing_of_machines(world: World) -> None:
    await world.write("name: short\nalias: small\n", "short.yaml")
    path = "/api/v1/model-loads/short"
    assert await get(world, path) == {"model": "small", "loading": None}
    assert (await world.frontend.call("GET", "/api/v1/model-loads/smal")).status == 404
    node = await world.node("w1")
    node.error = "the registry does not answer"
    await world.loads.ensure("small")
    await world.loads.tick()
    assert "the registry does not answer" in (await get(world, path))["loading"]["message"]

    ring = world.frontend.control.context.access.key_ring
    made = await ring.create("app", [Scope.INFERENCE], by="test", lifetime=None)
    seen = (await get(world, path, key=made.key))["loading"]
    sentence = "the engine that it needs could not be installed or started"
    assert (seen["state"], seen["reason"], seen["message"]) == ("failed", "engine_not_started", sentence)
    assert "w1" not in str(seen)
    owner = KeyOwner(models=frozenset({"other"}))
    limited = await ring.create("limited", [Scope.INFERENCE], by="test", lifetime=None, owner=owner)
    assert (await world.frontend.call("GET", path, key=limited.key)).status == 404


async def test_all_replicas_are_listed_with_what_gateways_told(world: World) -> None:
    await world.node("w1")
    replica = await world.loaded()
    gateways = world.frontend.control.context.serving.gateways
    (before,) = (await get(world, "/api/v1/replicas"))["items"]
    assert (before["model"], before["node"], before["tokens_per_second"]) == ("small", "w1", None)

    line = Finished(
        replica=replica.id, model="small", key="k", outcome="ok", requests=1, completion_tokens=50, answer_seconds=2.0
    )
    gateways.take(GatewayReport(gateway="g", sequence=1, in_flight={replica.id: 3}, finished=[line]))
    gateways.hear_of(GatewayShare(frontend="f", gateway="g2", answered={replica.id: (10, 2.0)}))
    (after,) = (await get(world, "/api/v1/replicas"))["items"]
    assert (after["in_flight"], after["tokens_per_second"], after["why"]) == (3, 15.0, "asked")


async def test_what_if_tells_who_moves_and_who_stays_behind(world: World) -> None:
    node = await world.node("w1")
    await world.loaded()
    down = {"node": node.id, "becomes": "down"}
    lost = await suppose(world, down)
    assert lost["summary"] == "1 model without any replica"
    (gone,) = lost["consequences"]
    assert (gone["model"], gone["fate"], gone["node"], gone["why"]) == ("small", "service_lost", "w1", "w1 is offline")
    assert gone["verdicts"][0]["code"] == "not_healthy"

    other = await world.node("w2")
    moved = await suppose(world, down)
    assert moved["change"] == "w1 goes down"
    assert [(one["fate"], one["to_node"], one["to_node_id"]) for one in moved["consequences"]] == [
        ("moves", "w2", other.id)
    ]
    scaled = await suppose(world, {"model": "small", "replicas": 2})
    assert [(one["fate"], one["to_node"]) for one in scaled["consequences"]] == [("added", "w2")]
    deleted = await suppose(world, {"backend": "echo", "becomes": "deleted"})
    assert [(one["fate"], one["is_interrupted"]) for one in deleted["consequences"]] == [("moves", True)]
    assert (await world.loads.ensure("small")).node == "w1"  # nothing was changed


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({}, 400, "must name one of node, model and backend, got none"),
        ({"node": "n", "model": "small"}, 400, "must name one of node, model and backend, got node and model"),
        ({"node": "nobody", "becomes": "down"}, 404, "there is no node nobody"),
        ({"node": "n", "becomes": "happy"}, 400, "becomes: must be down or drained, got 'happy'"),
        ({"model": "small"}, 400, "replicas: must be a number from 0 to 1000, got None"),
        ({"model": "small", "replicas": 1001}, 400, "replicas: must be a number from 0 to 1000, got 1001"),
        ({"model": "nobody", "replicas": 1}, 404, "the model 'nobody' does not exist; `corral models list` shows all"),
        ({"backend": "echo"}, 400, "becomes: must be deleted, got ''"),
    ],
)
async def test_a_question_that_makes_no_sense_is_refused(world: World, body: object, status: int, message: str) -> None:
    assert (await suppose(world, body, status))["error"]["message"] == message
