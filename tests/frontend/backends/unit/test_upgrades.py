"""What is outdated: node by node, and across a fleet."""

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from corral.frontend.backends.decide.backend import BackendEntry, Holding
from corral.frontend.backends.decide.upgrades import Check, Comparison, Offer, assess, compare, offer_for
from corral.frontend.nodes.decide.node import NodeStatus, SeenNode
from corral.galleries.build_uris import Freshness
from tests.kit.samples import a_node

NOW = datetime(2030, 1, 1, tzinfo=UTC)
GALLERY = "http://g/index.yaml"
OFFER = Offer(backend="a", uri="r/a:latest", version="2", digest="i2", member_digests=frozenset({"amd2", "arm2"}))


def entry(version: str = "", digest: str = "", **changes: object) -> BackendEntry:
    made = BackendEntry(name="a", version=version, digest=digest, gallery_url=GALLERY, uri="r/a:latest")
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("has", "offer", "freshness"),
    [
        (entry("2", "i2"), OFFER, Freshness.CURRENT),
        (entry("2", "i1"), OFFER, Freshness.OUTDATED),
        (entry("1", "i2"), OFFER, Freshness.CURRENT),
        (entry("1", "i1", platform_digest="amd2"), OFFER, Freshness.CURRENT),
        (entry("1", "i1", platform_digest="amd1"), OFFER, Freshness.OUTDATED),
        (entry("2"), replace(OFFER, digest="", member_digests=frozenset()), Freshness.CURRENT),
        (entry("1"), OFFER, Freshness.OUTDATED),
        (entry(), OFFER, Freshness.OUTDATED),
        (entry("3"), replace(OFFER, digest="", member_digests=frozenset()), Freshness.OUTDATED),
        (entry("2", "i1"), replace(OFFER, digest="", member_digests=frozenset()), Freshness.CURRENT),
        (entry("1", "i1"), replace(OFFER, version=""), Freshness.OUTDATED),
        (entry("1"), replace(OFFER, version=""), Freshness.UNKNOWN),
        (entry("1", "i1"), None, Freshness.UNKNOWN),
        (entry("1", "i1", source_digest="i1"), None, Freshness.CURRENT),
        (entry("1", "i1", source_digest="i2"), None, Freshness.OUTDATED),
    ],
)
def test_digests_tell_first_then_versions(has: BackendEntry, offer: Offer | None, freshness: Freshness) -> None:
    judged, reason = assess(has, offer)
    assert (judged, bool(reason)) == (freshness, freshness is Freshness.UNKNOWN)


def test_the_version_that_is_offered_does_not_tell_whether_its_tag_was_moved() -> None:
    """LocalAI's workers report no digest of most images."""
    found = only(entry("2"), entry("2", "i2"), offers=(OFFER,))
    assert [(one.freshness, one.reason) for one in found.nodes] == [
        (
            Freshness.UNKNOWN,
            "the node reports no digest; the version 2 is the one offered, and its tag may have been moved since",
        ),
        (Freshness.CURRENT, ""),
    ]
    assert not found.needs_upgrade


def test_what_came_from_a_uri_is_compared_with_that_uri() -> None:
    external = Offer(backend="a", uri="r/mine:v1", is_external=True)
    offers = [OFFER, external]
    assert offer_for(entry(), offers) is OFFER
    assert offer_for(entry(gallery_url="", uri="r/mine:v1"), offers) is external
    assert offer_for(entry(gallery_url="", uri="r/gone:v1"), offers) is OFFER
    assert offer_for(entry(), [external]) is None
    assert offer_for(entry(gallery_url="", uri=""), [external]) is None


def holding(has: BackendEntry, name: str = "w") -> Holding:
    seen = SeenNode(node=a_node(name=name), status=NodeStatus.HEALTHY, silent_seconds=0.0, heard_seconds_ago=0.0)
    return Holding(seen=seen, entry=has, reported_at=NOW)


def only(*entries: BackendEntry, offers: tuple[Offer, ...] = ()) -> Comparison:
    holdings = [holding(one, f"w{number}") for number, one in enumerate(entries, start=1)]
    (found,) = compare({"a": holdings}, Check(at=NOW, offers=offers))
    return found


def names(judged: tuple[object, ...]) -> list[str]:
    return [one.holding.seen.node.name for one in judged]  # type: ignore[attr-defined]


def test_the_majority_and_who_differs() -> None:
    found = only(entry("1", "i1"), entry("1", "i1"), entry("2", "i9"))
    assert found.usual == ("1", "i1")
    assert (names(found.differing), names(found.outdated), found.needs_upgrade) == (["w3"], [], True)


def test_of_equally_many_the_newest_is_usual() -> None:
    found = only(entry("1", installed_at="2029-01-01"), entry("2", installed_at="2029-01-02"))
    assert (found.usual, names(found.differing)) == (("2", ""), ["w1"])


def test_who_has_what_is_offered_does_not_differ_whatever_the_others_have() -> None:
    found = only(entry("1", "i1"), entry("1", "i1"), entry("2", "i2"), offers=(OFFER,))
    assert (names(found.outdated), names(found.differing)) == (["w1", "w2"], [])


def test_nodes_that_have_the_same_member_of_two_indexes_are_all_current() -> None:
    same = entry("2", "i1", platform_digest="amd2")
    assert not only(same, entry("2", "i2", platform_digest="amd2"), offers=(OFFER,)).needs_upgrade


@pytest.mark.parametrize("other", [entry(), entry("1"), entry("", "i1")])
def test_who_tells_less_does_not_differ(other: BackendEntry) -> None:
    assert not only(entry("1", "i1"), entry("1", "i1"), other).needs_upgrade


def test_a_moved_tag_under_the_same_version_is_noticed() -> None:
    found = only(entry("2", "i1"), entry("2", "i1"), offers=(OFFER,))
    assert (names(found.outdated), found.usual) == (["w1", "w2"], ("2", "i1"))


def test_what_came_with_a_system_and_what_only_points_elsewhere_is_left_out() -> None:
    system = holding(entry("1", is_system=True))
    meta = holding(entry("1", is_meta=True))
    assert compare({"a": [system], "b": [meta]}, None) == []


def test_before_the_first_check_only_nodes_are_compared() -> None:
    (found,) = compare({"a": [holding(entry("1", "i1"))]}, None)
    assert (found.offer, found.needs_upgrade) == (None, False)
