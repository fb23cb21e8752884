"""What the frontend's diagnostics say of models and operations that need a person."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from corral.bus.port import Bus
from corral.frontend.access.fleet_tls import FleetTlsPolicy
from corral.frontend.api import web_page
from corral.frontend.api.web_page import PageFiles
from corral.frontend.backends.catalogue import Lookups
from corral.frontend.diagnosis.doctor.addresses import BACKEND_PORTS
from corral.frontend.serving.gateways.adapted import NO_ADAPTER
from corral.frontend.store.db import Database
from corral.frontend.store.rotation import KeyRotation
from corral.frontend.store.secrets import Secrets, SecretsKey, store_sealed
from corral.galleries.gallery import GalleryEntry, GallerySource
from corral.wire.models import LoadReason
from corral.wire.registration import Feature, features
from corral.worker.http import HttpServer
from corral.worker.membership.addresses import HostPort
from tests.kit.clock import ManualClock
from tests.kit.galleries import StaticCatalogue
from tests.kit.ports import lasting_port
from tests.kit.waiting import within_timeout
from tests.kit.world import SECRET, World, open_world

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
"""The other database is for the tests of what is stored."""

GALLERY = StaticCatalogue(
    GallerySource(name="g", url="https://g.example/index.yaml"),
    GalleryEntry(name="lonely", gallery="g", uri="oci://r/lonely"),
)


@pytest.fixture
async def world(database: Database, clock: ManualClock, bus: Bus, tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(database, clock, bus, tmp_path, lookups=Lookups(galleries=GALLERY)) as world:
        yield world


async def finding_of(world: World, check: str) -> tuple[str, str, str]:
    report: Any = (await world.frontend.call("GET", "/api/v1/doctor")).json()
    (finding,) = [one for one in report["findings"] if one["check"] == check]
    return finding["level"], finding["summary"], finding["remedy"]


async def test_a_change_of_the_secrets_key_is_warned_of_until_it_is_finished(world: World, database: Database) -> None:
    assert (await finding_of(world, "secrets key"))[0] == "ok"

    async def nothing_more(_: object) -> None: ...

    rotation = KeyRotation(database, world.stores.secrets)
    await rotation.begin(SecretsKey.generate(), at=world.clock.now(), also=nothing_more)
    level, summary, remedy = await finding_of(world, "secrets key")
    assert level == "warning"
    assert "the key before still opens everything" in summary
    assert "corral keys rotate" in remedy
    await world.frontend.control.context.access.sealing.look()
    await rotation.reseal()
    assert await rotation.finish(now=world.clock.now(), also=nothing_more)
    assert (await finding_of(world, "secrets key"))[0] == "ok"


async def test_secrets_that_the_key_does_not_open_are_named(world: World, database: Database) -> None:
    lost = Secrets(database, SecretsKey.generate()).seal("node/7", "sealed with a lost key", at=world.clock.now())
    async with database.begin() as connection:
        await store_sealed(connection, lost)
    level, summary, remedy = await finding_of(world, "secrets key")
    assert (level, "node/7" in summary) == ("problem", True)
    assert "--discard-unreadable" in remedy


async def test_a_model_that_cannot_be_loaded_is_a_problem_until_it_is(world: World) -> None:
    await world.write("name: small\nbackend: echo\nparameters: {model: none}\n")
    await world.node("w1")
    world.loader.error = "no GPU"
    await world.loads.ensure("small")
    await world.loads.tick()
    assert await finding_of(world, "models") == (
        "problem",
        "1 of 1 could not be loaded: small",
        "`corral models show small` tells why.",
    )

    world.loader.error = ""
    await world.clock.advance(timedelta(minutes=5))
    await world.loaded()
    assert (await finding_of(world, "models"))[:2] == ("ok", "1 known, none failed to load")


async def test_a_control_without_an_adapter_says_which_models_cannot_be_asked(world: World) -> None:
    """LocalAI's workers give a replica no URL, and only the launcher of a frontend starts an adapter for it."""
    await world.worker("l", "echo", is_corral=False)
    replica = await world.loaded()

    assert (replica.state, replica.needs_adapter) == ("loaded", True)
    level, summary, _ = await finding_of(world, "models")
    assert (level, summary) == ("problem", f"small cannot be asked on workers of LocalAI's: {NO_ADAPTER}")
    status = await world.loads.ensure("small")
    assert (status.state, status.message, status.reason) == ("failed", NO_ADAPTER, LoadReason.NOT_REACHABLE)
    shown: Any = (await world.frontend.call("GET", "/api/v1/models/small")).json()
    assert (shown["state"], shown["reason"]) == ("not_reachable", NO_ADAPTER)
    listed: Any = (await world.frontend.call("GET", "/api/v1/models")).json()
    assert [(model["state"], model["reason"]) for model in listed["items"]] == [("not_reachable", NO_ADAPTER)]


async def test_a_model_whose_file_is_gone_is_no_problem_any_more(world: World) -> None:
    await world.write("name: small\nbackend: echo\nparameters: {model: none}\n")
    await world.node("w1")
    world.loader.error = "no GPU"
    await world.loads.ensure("small")
    await world.loads.tick()
    await world.delete()
    assert (await finding_of(world, "models"))[0] == "ok"


async def test_files_that_were_passed_over_are_warned_of(world: World) -> None:
    for number in range(7):
        await world.write("name: [", name=f"bad{number}.yaml")
    level, summary, _ = await finding_of(world, "models")
    assert level == "warning"
    assert summary == "files were passed over: bad0.yaml, bad1.yaml, bad2.yaml, bad3.yaml, bad4.yaml and 2 more"


async def test_keys_that_nobody_knows_are_warned_of_and_a_second_file_of_a_known_name_too(world: World) -> None:
    await world.write("name: small\nbackend: echo\nparameters: {model: none}\nthraeds: 1\n")
    assert (await finding_of(world, "models"))[:2] == ("warning", "keys that nobody knows are in small.yaml")
    model: Any = (await world.frontend.call("GET", "/api/v1/models/small")).json()
    assert model["warnings"] == ["line 4: unknown key 'thraeds', which has no effect; did you mean threads?"]

    await world.write("name: small\nbackend: other\nparameters: {model: none}\n", name="a.yaml")
    assert (await finding_of(world, "models"))[:2] == ("warning", "files were passed over: a.yaml")
    model = (await world.frontend.call("GET", "/api/v1/models/small")).json()
    assert (model["backend"], [one["source"] for one in model["problems"]]) == ("echo", ["a.yaml"])


async def test_models_without_a_file_are_looked_at_and_lone_weights_are_named(world: World) -> None:
    (world.models / "lone.gguf").write_bytes(b"w")
    await world.control.context.models.watch.look()
    lone = "1 known, none failed to load; weights that no model uses: lone.gguf"
    assert (await finding_of(world, "models"))[:2] == ("ok", lone)
    text = "name: big\nbackend: echo\nparameters: {model: none}\nthraeds: 1\n"
    await world.control.context.models.changes.add(text, by="me")
    assert (await finding_of(world, "models"))[:2] == ("warning", "keys that nobody knows are in big")


async def test_operations_that_failed_are_warned_of_until_somebody_takes_them_back(world: World) -> None:
    (await world.backends("w1")).faults.refusal = "says no"
    started: Any = (
        await world.frontend.call("POST", "/api/v1/operations", {"verb": "install", "backend": "lonely"})
    ).json()
    assert (await finding_of(world, "operations"))[:2] == ("ok", "none has failed")
    await world.control.context.operations.dispatcher.tick()
    id = started["id"]
    assert await finding_of(world, "operations") == (
        "warning",
        f"1 failed: install lonely ({id[:8]})",
        f"See what to do with `corral ops show {id[:8]}`.",
    )

    await world.frontend.call("POST", f"/api/v1/operations/{id}/cancel")
    assert (await finding_of(world, "operations"))[0] == "ok"


async def test_an_install_of_what_nobody_knows_is_refused_with_the_near_name(world: World) -> None:
    node = await world.backends("w1")
    answer = await world.frontend.call("POST", "/api/v1/operations", {"verb": "install", "backend": "lonley"})
    error: Any = answer.json()
    assert (answer.status, error["error"]["field"]) == (400, "backend")
    assert "no gallery has a backend 'lonley'; did you mean lonely?" in error["error"]["message"]
    assert node.requests == []

    GALLERY.closed = True
    try:
        accepted = await world.frontend.call("POST", "/api/v1/operations", {"verb": "install", "backend": "lonley"})
        assert accepted.status == 202
    finally:
        GALLERY.closed = False


async def test_localai_s_routes_accept_what_nobody_knows_and_doctor_sees_that_it_is_blocked(world: World) -> None:
    await world.backends("w1")
    assert (await world.frontend.call("POST", "/backends/apply", {"id": "lonley"})).status == 200
    level, summary, _ = await finding_of(world, "operations")
    assert (level, summary.startswith("1 failed: install lonley")) == ("warning", True)


async def test_addresses_that_do_not_answer_are_a_problem_and_so_is_what_workers_found(world: World) -> None:
    assert (await finding_of(world, "addresses"))[:2] == ("ok", "0 tried from here, all answer")
    port = lasting_port()
    await world.node("w1", http_address=f"127.0.0.1:{port}")
    level, summary, remedy = await finding_of(world, "addresses")
    assert level == "problem"
    assert summary.startswith(f"1 of 1 do not answer this frontend: w1 at 127.0.0.1:{port} (")
    assert f"({BACKEND_PORTS} by default, see the worker's max_port)" in remedy

    async with HttpServer(address=HostPort("127.0.0.1", 0), readiness=list, bearers=list, me="other") as worker:
        await world.node("w1", http_address=f"127.0.0.1:{worker.port}")
        assert (await finding_of(world, "addresses"))[1].endswith("(another worker answers there)")


async def test_what_a_worker_found_wrong_with_itself_is_shown(world: World) -> None:
    node = await world.node("w1")
    problems = ["frontends are told that its backends are at 10.9.9.9", 7, "", "x" * 1000]
    body = {"corral": {"incarnation": "1", "problems": problems}}
    beat = asyncio.create_task(world.frontend.call("POST", f"/api/node/{node.id}/heartbeat", body, key=f"{SECRET}w1"))
    assert (await within_timeout(beat, lambda: "the heartbeat to be taken")).status == 200

    level, summary, _ = await finding_of(world, "addresses")
    assert (level, summary[:80]) == (
        "warning",
        "workers report: w1: frontends are told that its backends are at 10.9.9.9, w1: xxxxxxx"[:80],
    )
    shown: Any = (await world.frontend.call("GET", f"/api/v1/nodes/{node.id}")).json()
    assert shown["problems"] == [problems[0], "x" * 500]


async def test_workers_without_tls_are_named_where_it_is_on_and_those_with_it_where_it_is_off(world: World) -> None:
    assert (await finding_of(world, "fleet tls"))[:2] == ("ok", "off: traffic with workers is in plain text")
    await world.node("w1")
    await world.node("w2", features=features(Feature.FLEET_TLS))
    level, summary, remedy = await finding_of(world, "fleet tls")
    assert (level, "w2 speak TLS only" in summary, "Set fleet_tls" in remedy) == ("problem", True, True)

    world.frontend.control.context.nodes.tls.policy = FleetTlsPolicy(is_on=True)
    level, summary, remedy = await finding_of(world, "fleet tls")
    assert (level, summary) == ("warning", "on, and w1 still speak plain text")


async def test_a_rule_that_cannot_be_satisfied_is_told_with_its_reason(world: World) -> None:
    assert (await finding_of(world, "scaling"))[:2] == ("ok", "no model has a rule of scheduling")
    await world.write("name: small\nbackend: echo\nparameters: {model: none}\n")
    await world.node("w1")
    await world.frontend.call("PUT", "/api/v1/scheduling/small", {"min_replicas": 1})
    assert (await finding_of(world, "scaling"))[0] == "ok"
    await world.frontend.call("PUT", "/api/v1/scheduling/small", {"min_replicas": 1, "node_selector": {"a": "b"}})
    level, summary, remedy = await finding_of(world, "scaling")
    assert (level, "small: one more fits nowhere: w1 does not have the labels a=b" in summary) == ("warning", True)
    assert "`corral why small`" in remedy


async def test_a_gateway_elsewhere_that_is_no_trusted_proxy_is_named(
    database: Database, clock: ManualClock, bus: Bus, tmp_path: Path
) -> None:
    """What it passes on seems to come from itself: limits would count all its clients as one."""
    async with open_world(database, clock, bus, tmp_path, socket=tmp_path / "control.sock") as world:

        async def report(gateway: str, trusted: list[str] | None, **headers: str) -> None:
            body = {"gateway": gateway, "sequence": 1, "trusted_proxies": trusted}
            answer = await world.frontend.call(
                "POST", "/api/v1/gateway/report", body, key="key-of-the-gateways", **headers
            )
            assert answer.status == 204, answer.body

        await report("edge", [], x_forwarded_for="10.0.0.7")
        await report("own", None)  # of a version that does not tell
        assert (await finding_of(world, "gateways"))[:2] == ("ok", "2 report")
        await report("own", ["10.0.1.0/24", "no network"])
        level, summary, remedy = await finding_of(world, "gateways")
        assert (level, "the gateway at 10.0.0.7 counts as one address" in summary) == ("warning", True)
        assert "Name 10.0.0.7 in gateway.trusted_proxies" in remedy
        await report("own", ["10.0.0.0/24"])
        assert (await finding_of(world, "gateways"))[0] == "ok"


async def test_a_page_that_was_not_built_or_lost_files_is_told(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "page"
    (folder / "assets").mkdir(parents=True)
    monkeypatch.setattr(web_page, "_page_files", lambda: PageFiles(folder))
    (folder / "index.html").write_text("<!doctype html><p>nothing built</p>")
    level, summary, _ = await finding_of(world, "web page")
    assert (level, "placeholder, until `make ui`" in summary) == ("ok", True)
    (folder / "index.html").write_text('<script src="/ui/assets/a-1.js"></script><link href="/ui/assets/b-1.css">')
    (folder / "assets" / "a-1.js").write_text("1")
    level, summary, _ = await finding_of(world, "web page")
    assert (level, "lacks 1 file, assets/b-1.css for one" in summary) == ("problem", True)
    (folder / "assets" / "b-1.css").write_text("")
    await world.frontend.call("POST", "/api/v1/session", {"key": world.frontend.admin_key}, key="")
    assert (await finding_of(world, "web page"))[:2] == ("ok", "served at /ui/, 1 session")


async def test_users_who_can_administer_count_beside_keys(world: World) -> None:
    assert (await finding_of(world, "keys"))[:2] == ("ok", "1 administrator key is valid")
    accounts = world.control.context.access.users
    await accounts.create("alice", "operator", "correct horse battery", by="test")
    assert (await finding_of(world, "keys"))[1] == "1 administrator key is valid"
    await accounts.create("root", "admin", "correct horse battery", by="test")
    assert (await finding_of(world, "keys"))[1] == "1 user can log in as administrator; 1 such keys are valid"
