"""Rules of scheduling: what they may say, what becomes of a set of them, and LocalAI's grammar of seeds."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.base.errors import InvalidInput
from corral.base.ids import NodeId
from corral.frontend.models.decide.model import Catalogue, ModelSpec
from corral.frontend.serving.decide.scheduling import (
    RuleSource,
    RuleStamp,
    SchedulingRule,
    SchedulingWish,
    check,
    in_words,
    read_seeds,
    rules_in_force,
    seeds_of,
    update,
)
from corral.wire.labels import NodeLabels
from tests.kit.clock import START
from tests.kit.samples import a_node, after

FILE = RuleStamp(source=RuleSource.FILE, by="ann", at=after(10))


def a_rule(model: str, **wish: Any) -> SchedulingRule:
    return SchedulingRule(
        id=f"id-of-{model}",
        wish=SchedulingWish(model=model, **wish),
        source=RuleSource.API,
        created_at=START,
        updated_at=START,
        updated_by="eva",
    )


class TestCheck:
    @pytest.mark.parametrize(
        ("fields", "complaint"),
        [
            ({"model": ""}, "model_name: is required"),
            ({"model": "a\nb"}, "model_name: must be one line"),
            ({"model": " a"}, "model_name: must be one line"),
            ({"model": "a" * 201}, "model_name: must be one line of up to 200 characters"),
            ({"model": "\ud800"}, "model_name: must be one line"),
            ({"spread_all": True, "min_replicas": 1}, "spread_all: and min_replicas/max_replicas are mutually exclus"),
            ({"spread_all": True, "max_replicas": 1}, "spread_all: and min_replicas/max_replicas are mutually exclus"),
            ({"min_replicas": -1}, "min_replicas: must be >= 0"),
            ({"max_replicas": -1}, "max_replicas: must be >= 0"),
            ({"min_replicas": 10_001}, "min_replicas: must be <= 10000, got 10001"),
            ({"min_replicas": 2, "max_replicas": 1}, "min_replicas: must be <= max_replicas"),
            ({"node_selector": {"": "a"}}, "node_selector: a label has an empty key"),
            ({"idle_seconds": -1}, "idle_seconds: must be from 0"),
            ({"idle_seconds": 10, "spread_all": True}, "idle_seconds: and spread_all are mutually exclusive"),
            ({"route_policy": "random"}, "route_policy: must be one of"),
            ({"min_prefix_match": 1.1}, "min_prefix_match: must be in [0,1], got 1.1"),
            ({"min_prefix_match": float("nan")}, "min_prefix_match: must be in [0,1], got nan"),
            ({"balance_abs_threshold": -1}, "balance_abs_threshold: must be >= 0"),
            ({"balance_rel_threshold": 0.5}, "balance_rel_threshold: must be 0 (inherit) or >= 1"),
            ({"balance_rel_threshold": float("inf")}, "balance_rel_threshold: must be 0 (inherit) or >= 1"),
        ],
    )
    def test_what_cannot_be_is_refused_by_its_field(self, fields: dict[str, Any], complaint: str) -> None:
        with pytest.raises(InvalidInput) as refused:
            check(SchedulingWish(**{"model": "m", **fields}))
        assert refused.value.message.startswith(complaint)

    @pytest.mark.parametrize(
        "fields",
        [
            {},
            {"min_replicas": 2},
            {"min_replicas": 2, "max_replicas": 2},
            {"max_replicas": 3, "idle_seconds": 0},
            {"spread_all": True, "node_selector": {"a": "b"}},
            {"balance_rel_threshold": 1.5, "balance_abs_threshold": 2, "min_prefix_match": 1, "route_policy": ""},
        ],
    )
    def test_what_can_be_passes(self, fields: dict[str, Any]) -> None:
        wish = SchedulingWish(model="m", **fields)
        assert check(wish) is wish


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "loaded when somebody asks"),
        ({"min_replicas": 2, "max_replicas": 2}, "exactly 2"),
        ({"min_replicas": 2}, "at least 2"),
        ({"min_replicas": 1, "max_replicas": 3, "idle_seconds": 600}, "1 to 3, unloaded after 10m 0s without requests"),
        ({"spread_all": True, "node_selector": {"z": "a"}}, "one replica on every node, on nodes with z=a"),
        (
            {"pinned_nodes": (NodeId("x"),), "idle_seconds": 0},
            "loaded when somebody asks, only on x, never unloaded when idle",
        ),
    ],
)
def test_a_rule_in_words(fields: dict[str, Any], words: str) -> None:
    assert in_words(SchedulingWish(model="m", **fields)) == words


def test_a_node_is_allowed_by_its_labels_and_by_pins() -> None:
    node = a_node(labels=NodeLabels(reported={"zone": "a"}))
    wish = SchedulingWish(model="m", node_selector={"zone": "a"})
    assert wish.allows(node)
    assert not SchedulingWish(model="m", node_selector={"zone": "b"}).allows(node)
    assert not SchedulingWish(model="m", pinned_nodes=(NodeId("other"),)).allows(node)
    assert SchedulingWish(model="m", pinned_nodes=(NodeId("other"), node.id)).allows(node)


class TestUpdate:
    def test_writes_what_is_new_or_different_and_drops_what_is_named(self) -> None:
        current = [a_rule("a", min_replicas=1), a_rule("b"), a_rule("c")]
        wishes = [SchedulingWish(model="a", min_replicas=2), SchedulingWish(model="d")]
        changed = update(current, wishes, FILE, ids={"a": "no", "d": "new"}, drop=["b", "nobody"])

        assert (changed.added, changed.changed, changed.removed) == (("d",), ("a",), ("b",))
        assert [(rule.model, rule.id, rule.source, rule.updated_by) for rule in changed.write] == [
            ("a", "id-of-a", RuleSource.FILE, "ann"),
            ("d", "new", RuleSource.FILE, "ann"),
        ]
        assert [rule.created_at for rule in changed.write] == [START, FILE.at]

    def test_the_same_again_changes_nothing(self) -> None:
        wishes = [SchedulingWish(model="a", spread_all=True)]
        first = update([], wishes, FILE, ids={"a": "new"})
        assert update(first.write, wishes, FILE, ids={"a": "other"}).is_nothing

    def test_the_same_from_elsewhere_changes_its_owner_only(self) -> None:
        changed = update([a_rule("a")], [SchedulingWish(model="a")], FILE, ids={"a": ""})
        assert (changed.changed, [rule.source for rule in changed.write]) == ((), [RuleSource.FILE])


def test_a_rule_follows_its_alias_unless_the_model_has_its_own() -> None:
    models = [ModelSpec(name="big"), ModelSpec(name="prod", alias_of="big"), ModelSpec(name="small")]
    catalogue = Catalogue(models={spec.name: spec for spec in models})
    own, by_alias, unknown = a_rule("big", min_replicas=2), a_rule("prod", min_replicas=1), a_rule("gone")

    assert rules_in_force([by_alias, unknown], catalogue) == {"big": by_alias}
    assert rules_in_force([by_alias, own], catalogue) == {"big": own}
    assert rules_in_force([own, by_alias], catalogue) == {"big": own}


class TestSeeds:
    def test_are_read_as_localai_reads_them(self) -> None:
        text = json.dumps(
            [
                {"model_name": "a", "replicas": "all", "node_selector": {"gpu": "yes"}},
                {"model_name": "b", "min_replicas": 1, "max_replicas": 3, "replicas": "auto"},
                {"model_name": "c", "replicas": True},
                {"model_name": "d", "replicas": False, "spread_all": None},
                {"model_name": "e", "route_policy": "round_robin", "balance_rel_threshold": 2, "min_prefix_match": 0.5},
                {"model_name": "f", "idle_seconds": 60},
            ]
        )
        assert read_seeds(text) == (
            SchedulingWish(model="a", spread_all=True, node_selector={"gpu": "yes"}),
            SchedulingWish(model="b", min_replicas=1, max_replicas=3),
            SchedulingWish(model="c", spread_all=True),
            SchedulingWish(model="d"),
            SchedulingWish(model="e", route_policy="round_robin", balance_rel_threshold=2.0, min_prefix_match=0.5),
            SchedulingWish(model="f", idle_seconds=60),
        )
        assert read_seeds("  ") == read_seeds("null") == seeds_of([]) == ()

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ("{", "is no JSON: "),
            ("[" * 100_000, "is no JSON: "),
            ("{}", "must be a list of rules, each with a model_name"),
            ('["a"]', "[0]: must be a mapping with a model_name"),
            ("[{}]", "[0].model_name: is required"),
            ('[{"model_name": 3}]', "[0].model_name: must be a text, got '3'"),
            ('[{"model_name": "a", "replica": 1}]', "[0] (a): has no field 'replica'; it may have model_name, "),
            ('[{"model_name": "a", "replicas": 3}]', "[0] (a).replicas: is no text; use min_replicas/max_replicas"),
            ('[{"model_name": "a", "replicas": "many"}]', "[0] (a).replicas: is 'many'; it may be"),
            ('[{"model_name": "a", "min_replicas": true}]', "[0] (a).min_replicas: must be a whole number, got 'True'"),
            ('[{"model_name": "a", "min_replicas": 1.5}]', "[0] (a).min_replicas: must be a whole number"),
            ('[{"model_name": "a", "min_replicas": 2, "max_replicas": 1}]', "[0] (a).min_replicas: must be <= max_"),
            ('[{"model_name": "a", "replicas": "all", "min_replicas": 1}]', "[0] (a).spread_all: and min_replicas"),
            ('[{"model_name": "a", "node_selector": ["x"]}]', "[0] (a).node_selector: must be a mapping"),
            ('[{"model_name": "a", "node_selector": {"x": 1}}]', "[0] (a).node_selector: has x: 1, and both must be"),
            ('[{"model_name": "a", "min_prefix_match": NaN}]', "[0] (a).min_prefix_match: must be in [0,1]"),
            ('[{"model_name": "a", "balance_rel_threshold": 1e999}]', "[0] (a).balance_rel_threshold: must be 0"),
            ('[{"model_name": "a", "min_prefix_match": "x"}]', "[0] (a).min_prefix_match: must be a number, got 'x'"),
        ],
    )
    def test_a_wrong_one_is_named(self, text: str, complaint: str) -> None:
        with pytest.raises(InvalidInput) as refused:
            read_seeds(text)
        assert refused.value.message.startswith(complaint)

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: (
                st.lists(inner, max_size=4)
                | st.dictionaries(st.sampled_from(["model_name", "replicas", "node_selector", "min_replicas"]), inner)
            ),
            max_leaves=12,
        )
    )
    def test_nothing_but_a_refusal_comes_of_nonsense(self, document: object) -> None:
        with contextlib.suppress(InvalidInput):
            assert all(check(wish) == wish for wish in seeds_of(document))
