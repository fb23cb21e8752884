"""Fleet rules: what they mean, what goes against them, and when a node is told, line by line."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from corral.base.ids import NodeId, OperationId
from corral.frontend.backends.decide.backend import Artefact, BackendEntry, Inventory, Wish, payload_of, prove
from corral.frontend.operations.decide.intent import Intent, IntentState, Proven, Verb
from corral.frontend.operations.decide.operation import TargetStatus
from corral.frontend.rules.decide import (
    MOST_RULES,
    FleetRule,
    NameResolver,
    change,
    contradicting,
    is_met,
    is_missing,
    may_have,
    revision_of,
    rule_problem,
    set_problem,
    standing,
)
from corral.galleries.catalogue import BackendCatalogue
from corral.galleries.gallery import GalleryContent, GalleryEntry, GallerySource
from tests.kit.clock import START

BEFORE, AFTER = START - timedelta(seconds=1), START + timedelta(seconds=1)
ENTRY = BackendEntry(name="echo", uri="oci://a")
NAMES = NameResolver(catalogue=None)


def a_rule(name: str = "r", backend: str = "echo", *, uri: str = "", **selector: str) -> FleetRule:
    artefact = Artefact(backend=backend, uri=uri, name=backend if uri else "")
    return FleetRule(name=name, artefact=artefact, selector=selector, made_by="me", made_at=START)


def an_intent(verb: Verb = Verb.INSTALL, state: IntentState = IntentState.OPEN, *, uri: str = "") -> Intent:
    return Intent(
        node_id=NodeId("n"),
        verb=verb,
        subject="echo",
        payload=payload_of(Artefact(backend="echo", uri=uri)),
        operation_id=OperationId("op"),
        state=state,
        accepted_at=START,
        changed_at=START,
        next_try=START,
    )


def has(*entries: BackendEntry, at: object = AFTER) -> Inventory:
    return Inventory(entries=entries, seen_at=at)  # type: ignore[arg-type]


OPEN, SATISFIED, BLOCKED, CANCELLED = (
    IntentState.OPEN,
    IntentState.SATISFIED,
    IntentState.BLOCKED,
    IntentState.CANCELLED,
)


@pytest.mark.parametrize(
    ("intent", "report", "missing"),
    [
        (None, None, True),
        (None, has(), True),
        (None, has(ENTRY), False),
        (an_intent(state=CANCELLED), has(), True),
        (an_intent(state=CANCELLED), has(ENTRY), False),
        (an_intent(Verb.DELETE), has(ENTRY), True),
        (an_intent(Verb.DELETE, SATISFIED), has(), True),
        (an_intent(Verb.DELETE, BLOCKED), has(ENTRY), True),
        (an_intent(Verb.DELETE, CANCELLED), has(ENTRY), False),
        (an_intent(), has(), False),
        (an_intent(Verb.UPGRADE), has(), False),
        (an_intent(state=BLOCKED), has(), False),
        (an_intent(Verb.UPGRADE, BLOCKED), has(), True),
        (an_intent(Verb.UPGRADE, BLOCKED), has(ENTRY), False),
        (an_intent(state=SATISFIED), has(), True),
        (an_intent(state=SATISFIED), has(at=BEFORE), False),
        (an_intent(state=SATISFIED), has(at=START), False),
        (an_intent(state=SATISFIED), None, False),
        (an_intent(Verb.UPGRADE, SATISFIED), has(), True),
        (an_intent(Verb.UPGRADE, SATISFIED), has(ENTRY), False),
    ],
)
def test_a_node_is_told_once_for_each_thing_that_happened(
    intent: Intent | None, report: Inventory | None, missing: bool
) -> None:
    assert is_missing(a_rule(), "echo", intent, report) is missing


@pytest.mark.parametrize(
    ("intent", "report", "missing"),
    [
        (None, has(ENTRY), True),
        (an_intent(uri="oci://a"), has(), True),
        (an_intent(state=BLOCKED, uri="oci://a"), has(), True),
        (an_intent(state=SATISFIED, uri="oci://a"), has(ENTRY, at=BEFORE), True),
        (an_intent(uri="oci://b"), has(ENTRY), False),
        (an_intent(state=BLOCKED, uri="oci://b"), has(ENTRY), False),
        (an_intent(state=SATISFIED, uri="oci://b"), has(ENTRY), True),
        (an_intent(state=SATISFIED, uri="oci://b"), has(replace(ENTRY, uri="oci://b")), False),
        (an_intent(Verb.UPGRADE), has(replace(ENTRY, uri="oci://b")), False),
        (None, has(replace(ENTRY, uri="")), False),
    ],
)
def test_a_rule_with_a_uri_is_met_by_nothing_else(
    intent: Intent | None, report: Inventory | None, missing: bool
) -> None:
    assert is_missing(a_rule(uri="oci://b"), "echo", intent, report) is missing


def test_a_rule_with_a_bare_reference_is_met_by_the_same_image_with_a_scheme() -> None:
    """References are sent to nodes with `oci://`, which is how nodes then report them."""
    rule = a_rule(uri="registry.lan/echo:v1")
    sent = "oci://registry.lan/echo:v1"
    assert not is_missing(rule, "echo", an_intent(state=SATISFIED, uri=sent), has(replace(ENTRY, uri=sent)))


@pytest.mark.parametrize("uri", ["", "a", "oci://a", "oci://b"])
@pytest.mark.parametrize("entries", [(), (ENTRY,), (replace(ENTRY, uri=""),), (replace(ENTRY, name="other"),)])
def test_a_rule_is_met_by_what_would_prove_an_install(uri: str, entries: tuple[BackendEntry, ...]) -> None:
    rule, report = a_rule(uri=uri), has(*entries)
    proof = prove(Wish(verb=Verb.INSTALL, key="echo", artefact=rule.artefact), report, None)
    assert is_met(rule, "echo", report) is isinstance(proof, Proven)


def test_how_far_a_node_is_told_in_the_words_of_operations() -> None:
    rule = a_rule()
    assert standing(rule, "echo", None, has(ENTRY)) is TargetStatus.SUCCESS
    assert standing(rule, "echo", None, has()) is TargetStatus.QUEUED
    assert standing(rule, "echo", an_intent(Verb.DELETE), has(ENTRY)) is TargetStatus.QUEUED
    assert standing(rule, "echo", replace(an_intent(), attempts=1), has()) is TargetStatus.ERROR
    assert standing(rule, "echo", an_intent(state=BLOCKED), has()) is TargetStatus.BLOCKED
    assert standing(rule, "echo", an_intent(state=SATISFIED), has(at=BEFORE)) is TargetStatus.SUCCESS


@pytest.mark.parametrize(
    ("intent", "report", "there"),
    [
        (None, None, False),
        (None, has(), False),
        (None, has(ENTRY), True),
        (None, has(replace(ENTRY, is_system=True)), False),
        (an_intent(), has(), True),
        (an_intent(state=BLOCKED), has(), True),
        (an_intent(Verb.DELETE), has(ENTRY), False),
        (an_intent(Verb.DELETE, SATISFIED), has(), False),
        (an_intent(Verb.DELETE, CANCELLED), has(ENTRY), True),
        (an_intent(state=SATISFIED), None, True),
        (an_intent(state=SATISFIED), has(at=BEFORE), True),
        (an_intent(state=SATISFIED), has(), False),
    ],
)
def test_only_what_may_be_there_is_deleted(intent: Intent | None, report: Inventory | None, there: bool) -> None:
    assert may_have("echo", intent, report) is there


class TestContradictions:
    def contradicting_rule(self, rule: FleetRule, wish: Wish, **labels: str) -> FleetRule | None:
        return contradicting([rule], wish, labels, NAMES, "default")

    def test_a_delete_of_what_is_demanded_there(self) -> None:
        rule = a_rule(zone="a")
        delete = Wish(verb=Verb.DELETE, key="echo", artefact=Artefact(backend="echo"))
        assert self.contradicting_rule(rule, delete, zone="a") is rule
        assert self.contradicting_rule(rule, delete, zone="b") is None
        assert self.contradicting_rule(a_rule(backend="other"), delete) is None

    def test_an_install_from_elsewhere_where_the_rule_says_from_where(self) -> None:
        elsewhere = Wish(verb=Verb.INSTALL, key="echo", artefact=Artefact(backend="echo", uri="oci://x"))
        assert self.contradicting_rule(a_rule(), elsewhere) is None
        pinned = a_rule(uri="oci://a")
        assert self.contradicting_rule(pinned, elsewhere) is pinned
        same = replace(elsewhere, artefact=pinned.artefact)
        assert self.contradicting_rule(pinned, same) is None

    def test_never_an_upgrade(self) -> None:
        assert (
            self.contradicting_rule(
                a_rule(uri="oci://a"), Wish(verb=Verb.UPGRADE, key="echo", artefact=Artefact(backend="echo"))
            )
            is None
        )

    def test_by_any_name_of_the_backend(self) -> None:
        catalogue = BackendCatalogue([a_gallery()])
        delete = Wish(verb=Verb.DELETE, key="cpu-mock", artefact=Artefact(backend="cpu-mock"))
        names = NameResolver(catalogue=catalogue)
        assert contradicting([a_rule(backend="g@mock")], delete, {}, names, "default") is not None
        pinned = a_rule(backend="mine", uri="oci://a")
        aliased = replace(pinned, artefact=replace(pinned.artefact, alias="cpu-mock"))
        assert contradicting([aliased], delete, {}, NAMES, "default") is aliased


def a_gallery(*entries: GalleryEntry) -> GalleryContent:
    listed = entries or (
        GalleryEntry(name="mock", gallery="g", capabilities={"default": "cpu-mock"}),
        GalleryEntry(name="cpu-mock", gallery="g", uri="oci://r/cpu-mock"),
    )
    return GalleryContent(source=GallerySource(name="g", url="file:///g"), entries=listed)


class TestNames:
    def test_lead_through_galleries_to_a_directory(self) -> None:
        names = NameResolver(catalogue=BackendCatalogue([a_gallery()]))
        for name in ("mock", "g@mock", "cpu-mock"):
            assert names.key(Artefact(backend=name), "default") == "cpu-mock"

    def test_are_taken_as_they_are_where_there_is_no_gallery_or_it_does_not_know_them(self) -> None:
        assert NAMES.key(Artefact(backend="g@mock"), "default") == "mock"
        assert NameResolver(catalogue=BackendCatalogue([a_gallery()])).key(Artefact(backend="x"), "default") == "x"

    def test_lead_nowhere_while_a_gallery_cannot_be_read(self) -> None:
        assert NameResolver(catalogue=None, is_complete=False).key(Artefact(backend="mock"), "default") is None
        assert NameResolver(catalogue=None, is_complete=False).key(a_rule(uri="oci://a").artefact, "default") == "echo"


class TestSets:
    def test_have_a_revision_of_what_they_demand(self) -> None:
        one, other = a_rule("a", zone="1"), a_rule("b")
        assert revision_of([one, other]) == revision_of([other, replace(one, made_by="x", made_at=AFTER)])
        assert revision_of([one]) != revision_of([replace(one, selector={"zone": "2"})])
        assert revision_of([]) != revision_of([one])

    def test_a_rule_that_demands_the_same_keeps_its_maker(self) -> None:
        current = [a_rule("kept"), a_rule("changed"), a_rule("removed")]
        new = [replace(a_rule("kept"), made_by="you"), a_rule("changed", zone="a"), a_rule("added")]
        became = change(current, new)
        assert (became.added, became.changed, became.removed) == (("added",), ("changed",), ("removed",))
        assert [(one.name, one.made_by) for one in became.rules] == [("added", "me"), ("changed", "me"), ("kept", "me")]
        assert change(became.rules, new).is_nothing

    @pytest.mark.parametrize("name", ["", "a b", "-a", "a" * 64, "ä", "a/b"])
    def test_have_names_that_fit_into_urls(self, name: str) -> None:
        problem = rule_problem(a_rule(name))
        assert problem is not None
        assert problem[0] == "name"

    def test_have_labels_that_could_be_stored(self) -> None:
        assert rule_problem(a_rule(**{"k" * 200: "v"})) == ("labels", f"label key {'k' * 32!r}… exceeds 128 characters")
        assert rule_problem(a_rule(zone="a")) is None

    def test_cannot_want_two_things_in_one_place(self) -> None:
        one, other = a_rule("one", uri="oci://a"), a_rule("other", uri="oci://b", zone="b")
        problem = set_problem([one, other])
        assert problem is not None
        assert problem.startswith("one and other want echo from different places")
        assert set_problem([replace(one, selector={"zone": "a"}), other]) is None
        assert set_problem([a_rule("one"), other]) is None
        assert set_problem([one, a_rule("other", "another", uri="oci://b")]) is None

    def test_have_one_rule_of_each_name_and_not_too_many(self) -> None:
        assert set_problem([a_rule("a"), a_rule("a", "x")]) == "two rules are called a"
        assert "are the most" in (set_problem([a_rule(f"r{n}") for n in range(MOST_RULES + 1)]) or "")


ECHO_ONLY = BackendCatalogue(
    [GalleryContent(source=GallerySource(name="g", url="u"), entries=(GalleryEntry(name="echo", uri="oci://a"),))]
)


@pytest.mark.parametrize(
    ("names", "rule", "doubt"),
    [
        (NAMES, a_rule(backend="ecko"), ""),
        (NameResolver(catalogue=ECHO_ONLY), a_rule(), ""),
        (
            NameResolver(catalogue=ECHO_ONLY),
            a_rule(backend="ecko"),
            "no gallery has a backend 'ecko'; did you mean echo?",
        ),
        (NameResolver(catalogue=ECHO_ONLY), a_rule(backend="ecko", uri="oci://a"), ""),
        (NameResolver(catalogue=ECHO_ONLY), a_rule(backend="held"), ""),
        (
            NameResolver(catalogue=None, is_complete=False),
            a_rule(backend="ecko"),
            "the galleries cannot be read now, so nobody can tell whether one has a backend 'ecko'",
        ),
        (
            NameResolver(
                catalogue=BackendCatalogue(
                    [*ECHO_ONLY.galleries, GalleryContent(source=GallerySource(name="far", url="u"), entries=())]
                ),
                is_complete=False,
            ),
            a_rule(backend="whisper"),
            "no gallery has a backend 'whisper', and far cannot be read now",
        ),
    ],
)
def test_a_rule_for_a_backend_that_nobody_knows_is_in_doubt(names: NameResolver, rule: FleetRule, doubt: str) -> None:
    assert names.doubt(rule.artefact, {"held"}) == doubt
