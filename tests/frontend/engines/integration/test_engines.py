"""Engines that somebody else runs, at the frontend: stored, shown, looked at, and told to gateways."""

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import select

from corral.base.own_network import ForbiddenAddress
from corral.bus.port import Bus
from corral.frontend.diagnosis.doctor.engines import check_engines
from corral.frontend.engines.decide import EngineState
from corral.frontend.record.decide import EventKind
from corral.frontend.store.db import Database
from corral.frontend.store.schema import external_engines
from corral.frontend.store.secrets import SecretsKey
from corral.wire.models import ModelList, ModelView
from corral.wire.view import GatewayReport, ReplicaFailure
from tests.kit.clock import ManualClock
from tests.kit.engine import EngineConnection, EngineRequest, StubEngine, json_answer
from tests.kit.frontend import TRUSTED_TOKEN, Frontend, frontend_config, open_frontend

PATH = "/api/v1/external-engines"
KEY = "sk-a-key-that-nobody-sees-again"
LISTING = b'{"object":"list","data":[{"id":"there"},{"id":"other"}]}'


class ListingEngine:
    """Lists its models for whoever has the key."""

    def __init__(self) -> None:
        self.key = KEY
        self.status = 200
        self.body = LISTING

    async def __call__(self, asked: EngineRequest, connection: EngineConnection) -> bool:
        status = self.status if asked.header("Authorization") == f"Bearer {self.key}" else 401
        await connection.send(json_answer(self.body, status=status))
        return True


@pytest.fixture
def listing() -> ListingEngine:
    return ListingEngine()


@pytest.fixture
async def engine(listing: ListingEngine) -> AsyncIterator[StubEngine]:
    async with StubEngine(listing) as opened:
        yield opened


def ask(engine: StubEngine, **changes: object) -> dict[str, object]:
    base = {"model": "far", "name": "desk", "url": engine.url, "remote_model": "there", "key": KEY}
    return {**base, **changes}


async def add(frontend: Frontend, engine: StubEngine, **changes: object) -> Any:
    answer = await frontend.call("POST", PATH, ask(engine, **changes))
    assert answer.status == 201, answer.body
    return answer.json()


async def state_of(frontend: Frontend, id: str) -> tuple[str, str]:
    view: Any = (await frontend.call("GET", f"{PATH}/{id}")).json()
    return view["state"], view["reason"]


async def look(frontend: Frontend, clock: ManualClock, after: float = 20.0) -> None:
    """Have all engines looked at, after a time in which all of them became due."""
    await clock.advance(timedelta(seconds=after))
    await frontend.control.context.engines.watch.sweep()


async def ensured(frontend: Frontend) -> Any:
    """What a gateway hears that asks for the model."""
    made: Any = (await frontend.call("POST", "/api/v1/keys", {"name": "g", "scopes": ["gateway"]})).json()
    answer = await frontend.call("POST", "/api/v1/gateway/ensure", {"model": "far"}, key=made["key"])
    return answer.json()


async def view_of(frontend: Frontend) -> Any:
    keeper = frontend.control.context.serving.view
    await keeper.refresh()
    return keeper.current


async def test_an_engine_is_added_shown_changed_and_removed(
    frontend: Frontend, engine: StubEngine, database: Database
) -> None:
    added = await add(frontend, engine, weight=3, fallback_order=1)
    assert added["url"] == f"{engine.url}/v1"
    assert (added["has_key"], added["state"], added["uses"]) == (True, "unknown", ["chat", "completion"])
    assert "key" not in added
    listed: Any = (await frontend.call("GET", PATH)).json()
    assert [view["id"] for view in listed] == [added["id"]]

    changed = await frontend.call("PUT", f"{PATH}/{added['id']}", {**ask(engine, weight=5), "key": "new-key"})
    assert (changed.status, changed.json()["weight"]) == (200, 5)
    kept = {name: value for name, value in ask(engine, weight=5, is_enabled=False).items() if name != "key"}
    again: Any = (await frontend.call("PUT", f"{PATH}/{added['id']}", kept)).json()
    assert (again["has_key"], again["state"]) == (True, "disabled")
    stored = await frontend.control.context.engines.service.get(added["id"])
    assert stored.key == "new-key"

    async with database.look() as connection:
        [row] = (await connection.execute(select(external_engines))).all()
    assert b"new-key" not in bytes(row.sealed_key)
    assert (await frontend.call("DELETE", f"{PATH}/{added['id']}")).status == 204
    assert (await frontend.call("GET", f"{PATH}/{added['id']}")).status == 404
    assert (await frontend.call("DELETE", f"{PATH}/{added['id']}")).status == 404

    events = await frontend.control.context.record.events.after(0, limit=1000)
    kinds = [each.event.kind for each in events if each.event.kind.startswith("engine.")]
    assert kinds == [EventKind.ENGINE_ADDED, *[EventKind.ENGINE_CHANGED] * 2, EventKind.ENGINE_REMOVED]
    told = json.dumps([dict(each.event.data) for each in events])
    assert "new-key" not in told
    assert KEY not in told
    assert '"key": "changed"' in told


async def test_bad_input_is_refused_with_the_field(frontend: Frontend, engine: StubEngine) -> None:
    for changes, field in (
        ({"url": "http://169.254.169.254/latest"}, "url"),
        ({"url": "http://user:secret-word@10.0.0.1/v1"}, "url"),
        ({"weight": 0}, "weight"),
        ({"ca": "no certificate", "url": "https://10.0.0.1"}, "ca"),
        ({"uses": ["cooking"]}, "uses"),
        ({"name": "a/b"}, "name"),
        ({"max_concurrent": "many"}, "max_concurrent"),
    ):
        answer = await frontend.call("POST", PATH, ask(engine, **changes))
        assert (answer.status, answer.json()["error"]["field"]) == (400, field)  # type: ignore[index,call-overload]
        assert b"secret-word" not in answer.body
    assert (await frontend.call("POST", PATH, b"{")).status == 400
    assert (await frontend.call("GET", PATH)).json() == []


async def test_only_administrators_may(frontend: Frontend, engine: StubEngine) -> None:
    created: Any = (await frontend.call("POST", "/api/v1/keys", {"name": "k", "scopes": ["inference"]})).json()
    for method, path in (("GET", PATH), ("POST", PATH), ("DELETE", f"{PATH}/x"), ("POST", f"{PATH}/x/test")):
        assert (await frontend.call(method, path, ask(engine), key=created["key"])).status == 403
        assert (await frontend.call(method, path, ask(engine), key="")).status == 401


async def test_a_name_is_one_of_its_model(frontend: Frontend, engine: StubEngine) -> None:
    first = await add(frontend, engine)
    assert (await frontend.call("POST", PATH, ask(engine))).status == 409
    second = await add(frontend, engine, name="other")
    assert (await frontend.call("PUT", f"{PATH}/{second['id']}", ask(engine, name="desk"))).status == 409
    await add(frontend, engine, model="near")
    assert first["id"] != second["id"]


async def test_a_change_of_another_revision_is_refused(
    frontend: Frontend, engine: StubEngine, clock: ManualClock
) -> None:
    added = await add(frontend, engine)
    await clock.advance(timedelta(seconds=1))
    path, headers = f"{PATH}/{added['id']}", {"If_Match": f'"{added["revision"]}"'}
    assert (await frontend.call("PUT", path, ask(engine, weight=2), **headers)).status == 200
    assert (await frontend.call("PUT", path, ask(engine, weight=3), **headers)).status == 412


async def test_of_two_changes_at_once_one_is_told_so(frontend: Frontend, engine: StubEngine) -> None:
    """On a clock that stands still: what guards the write must not be the same afterwards."""
    added = await add(frontend, engine)
    service = frontend.control.context.engines.service
    before = await service.get(added["id"])
    for weight in (2, 3):
        changed = await frontend.call("PUT", f"{PATH}/{added['id']}", ask(engine, weight=weight))
        assert changed.status == 200
    assert (await service.get(added["id"])).changed_at > before.changed_at
    assert not await service._store.replace(before, seen=before.changed_at, events=[])


async def test_a_name_that_leads_to_a_forbidden_address_is_refused_and_seen_later_too(
    frontend: Frontend, engine: StubEngine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = await add(frontend, engine)
    await look(frontend, clock)

    async def rebound(host: str, port: int) -> list[str]:
        raise ForbiddenAddress(f"{host} has the address 169.254.169.254, which is link-local")

    monkeypatch.setattr("corral.frontend.engines.addresses.allowed_addresses", rebound)
    answer = await frontend.call("POST", PATH, ask(engine, name="other", url="http://metadata.test"))
    assert (answer.status, answer.json()["error"]["field"]) == (400, "url")  # type: ignore[index,call-overload]
    await look(frontend, clock)
    state, reason = await state_of(frontend, added["id"])
    assert (state, "link-local" in reason) == ("misconfigured", True)
    assert added["id"] not in (await view_of(frontend)).replicas


async def test_a_model_of_engines_alone_is_listed_with_them(
    frontend: Frontend, engine: StubEngine, clock: ManualClock
) -> None:
    added = await add(frontend, engine)
    await look(frontend, clock)
    [listed] = msgspec.json.decode((await frontend.call("GET", "/api/v1/models")).body, type=ModelList).items
    shown = msgspec.json.decode((await frontend.call("GET", "/api/v1/models/far")).body, type=ModelView)
    assert shown == listed
    assert (listed.name, listed.state, listed.replicas) == ("far", "elsewhere", [])
    assert [(found.name, found.state) for found in listed.engines] == [(added["name"], "up")]


async def test_a_key_is_not_sent_to_another_host_than_it_was_given_for(frontend: Frontend, engine: StubEngine) -> None:
    added = await add(frontend, engine)
    moved = {name: value for name, value in ask(engine, url="http://10.9.9.9:1/v1").items() if name != "key"}
    answer = await frontend.call("PUT", f"{PATH}/{added['id']}", moved)
    assert answer.status == 400
    assert b"must be given again" in answer.body
    assert (await frontend.call("PUT", f"{PATH}/{added['id']}", {**moved, "key": ""})).status == 200


async def test_corral_s_own_addresses_are_refused(frontend: Frontend, engine: StubEngine) -> None:
    node = {"name": "w1", "address": f"127.0.0.1:{engine.port}", "http_address": "127.0.0.1:50050"}
    assert (await frontend.register(node, token=TRUSTED_TOKEN)).status in (200, 201)
    for url in (
        engine.url,
        "http://localhost:50050/v1",
        "http://[::ffff:127.0.0.1]:50050/v1",
        "http://[64:ff9b::7f00:1]:50050",
    ):
        answer = await frontend.call("POST", PATH, ask(engine, url=url))
        assert answer.status == 400
        assert b"is Corral itself" in answer.body


async def test_an_engine_goes_down_comes_back_and_gateways_hear_of_it(
    frontend: Frontend, engine: StubEngine, listing: ListingEngine, clock: ManualClock
) -> None:
    added = await add(frontend, engine)
    id = added["id"]
    assert id in (await view_of(frontend)).replicas  # nobody has looked yet
    await look(frontend, clock)
    assert await state_of(frontend, id) == ("up", "")
    entry = (await view_of(frontend)).replicas[id]
    assert (entry.engine.model, entry.engine.base, entry.key, entry.rank) == ("there", "/v1", KEY, 0)
    assert (await view_of(frontend)).models["far"].owned_by == "external"

    await engine.stop()
    await look(frontend, clock)
    assert await state_of(frontend, id) == ("failing", "connection refused")
    assert (await view_of(frontend)).replicas[id].rank == 500
    await look(frontend, clock)
    await look(frontend, clock)
    assert await state_of(frontend, id) == ("down", "connection refused")
    assert id not in (await view_of(frontend)).replicas
    assert "far" in (await view_of(frontend)).models
    told = await ensured(frontend)
    assert (told["state"], told["reason"]) == ("failed", "engines_away")
    assert "desk is down: connection refused" in told["message"]

    await engine.listen()
    await look(frontend, clock)
    assert await state_of(frontend, id) == ("up", "")
    assert id in (await view_of(frontend)).replicas
    assert (await ensured(frontend))["state"] == "loaded"


@pytest.mark.parametrize(
    ("status", "state", "words"),
    [
        (401, "misconfigured", "it does not take its key (401)"),
        (403, "misconfigured", "it does not take its key (403)"),
        (404, "misconfigured", "it answers 404 to GET /v1/models"),
        (301, "misconfigured", "it answers 301"),
        (500, "failing", "it answers 500 to GET /v1/models"),
        (429, "up", "too much to do"),
    ],
)
async def test_what_an_answer_means(
    frontend: Frontend,
    engine: StubEngine,
    listing: ListingEngine,
    clock: ManualClock,
    status: int,
    state: str,
    words: str,
) -> None:
    listing.status = status
    added = await add(frontend, engine)
    await look(frontend, clock)
    seen, reason = await state_of(frontend, added["id"])
    assert seen == state
    assert words in reason


async def test_a_wrong_key_is_told_as_such_and_mended_by_the_right_one(
    frontend: Frontend, engine: StubEngine, clock: ManualClock
) -> None:
    added = await add(frontend, engine, key="wrong")
    tried: Any = (await frontend.call("POST", f"{PATH}/{added['id']}/test")).json()
    assert (tried["state"], tried["reason"]) == ("misconfigured", "it does not take its key (401)")
    assert added["id"] not in (await view_of(frontend)).replicas
    assert (await frontend.call("PUT", f"{PATH}/{added['id']}", ask(engine))).status == 200
    await look(frontend, clock)
    assert await state_of(frontend, added["id"]) == ("up", "")


async def test_a_trial_tells_whether_the_model_is_there(frontend: Frontend, engine: StubEngine) -> None:
    here, gone = await add(frontend, engine), await add(frontend, engine, name="two", remote_model="nowhere")
    tried: Any = (await frontend.call("POST", f"{PATH}/{here['id']}/test")).json()
    assert (tried["state"], tried["has_model"], tried["models"]) == ("up", True, ["there", "other"])
    tried = (await frontend.call("POST", f"{PATH}/{gone['id']}/test")).json()
    assert (tried["state"], tried["has_model"], tried["reason"]) == ("up", False, "it does not list nowhere")


async def test_requests_that_failed_make_an_engine_the_last_choice(
    frontend: Frontend, engine: StubEngine, clock: ManualClock
) -> None:
    added = await add(frontend, engine)
    await look(frontend, clock)
    failures = [ReplicaFailure(replica=added["id"], reason="closed"), ReplicaFailure(replica="other", reason="x")]
    report = GatewayReport(gateway="g", sequence=1, failures=failures, in_flight={added["id"]: 2})
    frontend.control.context.serving.gateways.take(report)
    assert await state_of(frontend, added["id"]) == ("failing", "a request failed: closed")
    view: Any = (await frontend.call("GET", f"{PATH}/{added['id']}")).json()
    assert view["in_flight"] == 2
    await look(frontend, clock, after=1)
    assert (await state_of(frontend, added["id"]))[0] == "failing"
    await look(frontend, clock)
    assert await state_of(frontend, added["id"]) == ("up", "")


async def test_an_engine_that_hangs_or_talks_for_ever_ends_in_time(
    frontend: Frontend, engine: StubEngine, listing: ListingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corral.frontend.engines.watch.PATIENCE", timedelta(milliseconds=200))

    async def hanging(_: EngineRequest, connection: EngineConnection) -> bool:
        await connection.until_gone()
        return False

    added = await add(frontend, engine)
    engine.behave = hanging
    tried: Any = (await frontend.call("POST", f"{PATH}/{added['id']}/test")).json()
    assert (tried["state"], tried["reason"]) == ("down", "timed out")
    listing.body = b"[" * 2_000_000
    engine.behave = listing
    tried = (await frontend.call("POST", f"{PATH}/{added['id']}/test")).json()
    assert (tried["state"], tried["has_model"]) == ("up", None)


async def test_a_limit_is_shared_by_the_gateways(frontend: Frontend, engine: StubEngine) -> None:
    added = await add(frontend, engine, max_concurrent=10)
    for gateway in ("g1", "g2", "g3"):
        frontend.control.context.serving.gateways.take(GatewayReport(gateway=gateway, sequence=1))
    assert (await view_of(frontend)).replicas[added["id"]].limit == 3


async def test_a_state_of_one_engine_changes_the_mark_of_the_view(
    frontend: Frontend, engine: StubEngine, clock: ManualClock
) -> None:
    added = await add(frontend, engine)
    keeper = frontend.control.context.serving.view
    before = keeper.mark()
    await look(frontend, clock)
    assert keeper.mark() != before
    assert frontend.control.context.engines.watch.of(added["id"]).state is EngineState.UP


async def test_the_doctor_and_the_metrics_tell_of_engines(
    frontend: Frontend, engine: StubEngine, clock: ManualClock
) -> None:
    context = frontend.control.context
    assert (await check_engines(context)).summary == "none elsewhere"
    added = await add(frontend, engine, key="wrong")
    await look(frontend, clock)
    found = await check_engines(context)
    assert (found.level, "far/desk: it does not take its key (401)" in found.summary) == ("problem", True)
    assert "corral engines test far/desk" in found.remedy
    page = (await frontend.call("GET", "/metrics")).body.decode()
    assert 'corral_external_engines{state="misconfigured"} 1' in page
    assert (await frontend.call("PUT", f"{PATH}/{added['id']}", ask(engine))).status == 200
    await look(frontend, clock)
    assert (await check_engines(context)).summary == "1 elsewhere, none fails"
    await engine.stop()
    await look(frontend, clock)
    assert (await check_engines(context)).level == "warning"


async def test_every_frontend_hears_of_engines_and_looks_for_itself(
    database: Database, clock: ManualClock, bus: Bus, tmp_path: Path, engine: StubEngine
) -> None:
    key = SecretsKey.generate()
    async with (
        open_frontend(database, clock, bus, frontend_config(tmp_path / "one"), key=key) as one,
        open_frontend(database, clock, bus, frontend_config(tmp_path / "two"), key=key) as two,
    ):
        added = await add(one, engine)
        assert (await view_of(two)).replicas[added["id"]].key == KEY
        await look(two, clock)
        assert await state_of(two, added["id"]) == ("up", "")
        assert await state_of(one, added["id"]) == ("unknown", "")
        assert (await two.call("DELETE", f"{PATH}/{added['id']}")).status == 204
        assert added["id"] not in (await view_of(one)).replicas
        await look(one, clock)
        assert len(engine.requests) == 1  # nobody looks at what was removed
