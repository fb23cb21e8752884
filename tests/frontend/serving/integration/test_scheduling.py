"""Rules of scheduling through the API, in LocalAI's form and in our own, and from settings; on both databases."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from corral.base.errors import InvalidInput
from corral.bus.port import Bus
from corral.frontend.record.decide import EventKind
from corral.frontend.serving.decide.scheduling import SchedulingWish
from corral.frontend.serving.scheduling import read_seed_file
from corral.frontend.store.db import Database
from tests.kit.clock import ManualClock
from tests.kit.world import World, open_world

NATIVE, LOCALAI = "/api/v1/scheduling", "/api/nodes/scheduling"


@pytest.fixture
async def world(database: Database, clock: ManualClock, bus: Bus, tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(database, clock, bus, tmp_path) as world:
        yield world


async def ask(world: World, method: str, path: str, body: object = None, *, status: int = 200) -> Any:
    answer = await world.frontend.call(method, path, body)
    assert answer.status == status, answer.body
    return answer.json() if answer.body else None


async def error_of(world: World, method: str, path: str, body: object = None, *, status: int = 400) -> Any:
    return (await ask(world, method, path, body, status=status))["error"]


async def test_localai_s_rules_are_set_seen_and_deleted(world: World) -> None:
    assert await ask(world, "GET", LOCALAI) == []
    made = await ask(world, "POST", LOCALAI, {"model_name": "a/b c", "node_selector": {"z": "x"}, "spread_all": True})
    assert (made["model_name"], made["node_selector"], made["spread_all"]) == ("a/b c", '{"z":"x"}', True)
    assert (made["min_replicas"], made["max_replicas"], made["unsatisfiable_ticks"]) == (0, 0, 0)
    assert set(made) == {
        "id",
        "model_name",
        "node_selector",
        "min_replicas",
        "max_replicas",
        "spread_all",
        "unsatisfiable_ticks",
        "created_at",
        "updated_at",
    }
    assert await ask(world, "GET", f"{LOCALAI}/a%2Fb%20c") == made
    assert await ask(world, "GET", LOCALAI) == [made]
    assert await ask(world, "DELETE", f"{LOCALAI}/a%2Fb%20c", status=204) is None
    assert await ask(world, "DELETE", f"{LOCALAI}/a%2Fb%20c", status=204) is None
    assert await ask(world, "GET", LOCALAI) == []
    changes = await world.events(EventKind.SCHEDULING_CHANGED)
    assert [(event.data["added"], event.data["removed"]) for event in changes] == [(["a/b c"], []), ([], ["a/b c"])]


async def test_of_the_thresholds_what_is_left_out_stays_and_counts_are_replaced(world: World) -> None:
    await ask(world, "POST", LOCALAI, {"model_name": "m", "route_policy": "prefix_cache", "min_prefix_match": 0.4})
    await ask(world, "POST", LOCALAI, {"model_name": "m", "min_replicas": 2, "node_selector": {"a": "b"}})
    after = await ask(world, "POST", LOCALAI, {"model_name": "m", "max_replicas": 3, "balance_rel_threshold": 1.5})
    assert (after["route_policy"], after["min_prefix_match"], after["balance_rel_threshold"]) == (
        "prefix_cache",
        0.4,
        1.5,
    )
    assert (after["min_replicas"], after["max_replicas"], "node_selector" in after) == (0, 3, False)
    cleared = await ask(world, "POST", LOCALAI, {"model_name": "m", "route_policy": "", "min_prefix_match": 0})
    assert "route_policy" not in cleared
    assert "min_prefix_match" not in cleared


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "model_name is required"),
        ({"model_name": "m", "min_replicas": 2, "max_replicas": 1}, "min_replicas must be <= max_replicas"),
        ({"model_name": "m", "min_replicas": -1}, "min_replicas must be >= 0"),
        ({"model_name": "m", "max_replicas": -1}, "max_replicas must be >= 0"),
        (
            {"model_name": "m", "spread_all": True, "min_replicas": 1},
            "spread_all and min_replicas/max_replicas are mutually exclusive",
        ),
        ({"model_name": "m", "route_policy": "x"}, "route_policy must be one of"),
        ({"model_name": "m", "min_replicas": "two"}, "invalid request body: min_replicas: expected `int`"),
        ({"model_name": "m", "min_replicas": 10**30}, "invalid request body: "),
        ([], "invalid request body: "),
    ],
)
async def test_localai_s_refusals_have_its_words(world: World, body: object, message: str) -> None:
    refused = await error_of(world, "POST", LOCALAI, body)
    assert (refused["code"], refused["type"]) == (400, "node_error")
    assert refused["message"].startswith(message)


async def test_a_model_without_a_rule_is_told_in_localai_s_words(world: World) -> None:
    refused = await error_of(world, "GET", f"{LOCALAI}/none", status=404)
    assert refused == {"code": 404, "message": "no scheduling config for model", "type": "node_error"}


class TestNative:
    async def test_a_rule_is_put_patched_and_deleted(self, world: World) -> None:
        node = await world.node("w1")
        body = {"min_replicas": 1, "max_replicas": 2, "pinned_nodes": ["w1"], "idle_seconds": 60}
        put = await ask(world, "PUT", f"{NATIVE}/small", body)
        assert (put["pinned_nodes"], put["pinned_names"], put["idle_seconds"]) == ([node.id], ["w1"], 60)
        assert (put["source"], put["updated_by"], put["loaded"]) == ("api", "admin", 0)
        patched = await ask(world, "PATCH", f"{NATIVE}/small", {"max_replicas": 3, "idle_seconds": None})
        assert (patched["min_replicas"], patched["max_replicas"], patched["idle_seconds"]) == (1, 3, None)
        assert patched["pinned_nodes"] == [node.id]
        again = await ask(world, "PUT", f"{NATIVE}/small", {"spread_all": True})
        assert (again["min_replicas"], again["pinned_nodes"], again["spread_all"]) == (0, [], True)
        assert [item["model"] for item in (await ask(world, "GET", NATIVE))["items"]] == ["small"]
        await ask(world, "DELETE", f"{NATIVE}/small", status=204)
        assert (await error_of(world, "DELETE", f"{NATIVE}/small", status=404))["code"] == "not_found"
        assert (await error_of(world, "GET", f"{NATIVE}/small", status=404))["code"] == "not_found"

    async def test_a_rule_for_no_model_says_so(self, world: World) -> None:
        put = await ask(world, "PUT", f"{NATIVE}/org/unknown", {"min_replicas": 1})
        assert (put["model"], put["problem"]) == ("org/unknown", "no model has this name, or it is disabled")

    async def test_what_is_in_the_way_is_told(self, world: World) -> None:
        put = await ask(world, "PUT", f"{NATIVE}/small", {"min_replicas": 1})
        assert put["problem"] == "one more fits nowhere: no node has joined yet"
        shown = await ask(world, "GET", "/api/v1/models/small")
        assert shown["scheduling"]["problem"] == put["problem"]

    @pytest.mark.parametrize(
        ("body", "field", "words"),
        [
            ({"min_replicas": 2, "max_replicas": 1}, "min_replicas", "must be <= max_replicas"),
            ({"pinned_nodes": ["nobody"]}, "pinned_nodes", "no node has the id or name 'nobody'"),
            ({"idle_seconds": -5}, "idle_seconds", "must be from 0"),
            ({"node_selector": {"": "x"}}, "node_selector", "empty key"),
            ({"spread_all": 1}, "spread_all", "expected `bool`"),
        ],
    )
    async def test_bad_input_names_its_field(self, world: World, body: object, field: str, words: str) -> None:
        for method in ("PUT", "PATCH"):
            refused = await error_of(world, method, f"{NATIVE}/small", body)
            assert (refused["field"], words in refused["message"]) == (field, True), refused

    async def test_a_name_that_two_nodes_have_is_not_guessed(self, world: World) -> None:
        scheduling = world.control.context.serving.scheduling
        await world.node("w1")
        with pytest.raises(InvalidInput, match="no node has the id or name 'w'"):
            await scheduling.nodes_named(["w"])
        assert await scheduling.nodes_named([]) == ()

    async def test_a_file_declares_many_and_prunes_its_own(self, world: World) -> None:
        await ask(world, "PUT", f"{NATIVE}/by-hand", {"min_replicas": 1})
        rules = [{"model": "a", "min_replicas": 1}, {"model": "b", "spread_all": True}]
        first = await ask(world, "PUT", NATIVE, {"rules": rules})
        assert first == {"added": ["a", "b"], "changed": [], "removed": []}
        assert await ask(world, "PUT", NATIVE, {"rules": rules}) == {"added": [], "changed": [], "removed": []}
        pruned = await ask(world, "PUT", NATIVE, {"rules": [{"model": "a"}], "prune": "demanded"})
        assert pruned == {"added": [], "changed": ["a"], "removed": ["b"]}
        assert [item["model"] for item in (await ask(world, "GET", NATIVE))["items"]] == ["a", "by-hand"]
        everything = await ask(world, "PUT", NATIVE, {"rules": [], "prune": "all"})
        assert everything == {"added": [], "changed": [], "removed": ["a", "by-hand"]}

    @pytest.mark.parametrize(
        ("body", "words"),
        [
            ({"rules": [{"model": "a"}, {"model": "a"}]}, "rules[1].model: 'a' has two rules"),
            ({"rules": [{"model": "a", "min_replicas": -1}]}, "rules[0].min_replicas: must be >= 0"),
            ({"rules": [], "prune": "some"}, "prune: is 'some'"),
            ({"rules": [{}]}, "rules[0]"),
        ],
    )
    async def test_a_bad_set_changes_nothing(self, world: World, body: object, words: str) -> None:
        assert words in (await error_of(world, "PUT", NATIVE, body))["message"]
        assert (await ask(world, "GET", NATIVE))["items"] == []


class TestSettings:
    async def test_are_written_again_at_every_start_and_leave_others_alone(self, world: World) -> None:
        scheduling = world.control.context.serving.scheduling
        await ask(world, "PUT", f"{NATIVE}/other", {"min_replicas": 1})
        wishes = (SchedulingWish(model="m", min_replicas=2),)
        await scheduling.seed(wishes)
        await ask(world, "PATCH", f"{NATIVE}/m", {"min_replicas": 5})
        await scheduling.seed(wishes)
        await scheduling.seed(wishes)
        rules = {rule.model: (rule.wish.min_replicas, rule.source.value) for rule in await scheduling.all()}
        assert rules == {"m": (2, "setting"), "other": (1, "api")}
        assert len(await world.events(EventKind.SCHEDULING_CHANGED)) == 4

    def test_a_file_is_read_like_localai_s(self, tmp_path: Path) -> None:
        file = tmp_path / "rules.yaml"
        file.write_text("- model_name: a\n  replicas: all\n- model_name: b\n  min_replicas: 2\n", encoding="utf-8")
        assert read_seed_file(file) == (
            SchedulingWish(model="a", spread_all=True),
            SchedulingWish(model="b", min_replicas=2),
        )

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (b"a: [", "is not YAML"),
            (b"\xff", "is not UTF-8 text: see byte 0"),
            (b"model_name: a", "must be a list of rules"),
            (b"- model_name: a\n  replicas: 3", "[0] (a).replicas: is no text"),
            (b"#" * (1024 * 1024 + 1), "is larger than 1024 KiB"),
        ],
    )
    def test_a_file_that_cannot_be_used_is_named(self, tmp_path: Path, content: bytes, words: str) -> None:
        file = tmp_path / "rules.yaml"
        file.write_bytes(content)
        with pytest.raises(InvalidInput) as refused:
            read_seed_file(file)
        assert str(file) in refused.value.message
        assert words in refused.value.message

    def test_a_file_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidInput, match="No such file"):
            read_seed_file(tmp_path / "none.yaml")
