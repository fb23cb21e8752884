"""Fleet rules on nodes that are only their messages: who gets what and when, and that nothing is done twice."""

from datetime import timedelta

import pytest

from corral.base.errors import Conflict, DatabaseUnavailable, InvalidInput
from corral.frontend.backends.catalogue import Lookups
from corral.frontend.backends.decide.backend import Artefact
from corral.frontend.backends.planning import Ask
from corral.frontend.diagnosis.doctor.operations import check_fleet_rules
from corral.frontend.operations.decide.intent import Verb
from corral.frontend.operations.decide.operation import Operation, OperationState, TargetStatus
from corral.frontend.record.decide import EventKind
from corral.frontend.rules.decide import FleetRule, revision_of
from corral.frontend.rules.enforcer import Prune
from corral.frontend.rules.service import ANY_REVISION, RulesChanged, RuleSetResult
from corral.frontend.rules.store import FleetRuleStore as RuleStore
from corral.galleries.build_uris import BackendRef
from corral.galleries.catalogue import BackendCatalogue
from corral.galleries.gallery import GalleryContent, GalleryEntry, GallerySource
from corral.galleries.readings import Readings
from corral.processes.control import Control, build_control
from corral.wire.backends import InstalledBackend, InstallRequest
from tests.kit.clock import START
from tests.kit.simulated_backends import SimulatedBackends
from tests.kit.world import SECRET, World

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
"""The other database is for the tests of what is stored."""

SECOND, DAY = timedelta(seconds=1), timedelta(days=1)


def a_rule(name: str = "r", backend: str = "echo", *, uri: str = "", **labels: str) -> FleetRule:
    artefact = Artefact(backend=backend, uri=uri, name=backend if uri else "")
    return FleetRule(name=name, artefact=artefact, selector=labels, made_by="me", made_at=START)


async def put(world: World, *rules: FleetRule, prune: Prune = Prune.NOTHING) -> RuleSetResult:
    """And have done what can be done now."""
    await world.clock.advance(SECOND)
    applied = await world.control.context.rules.service.put(
        rules, revision=ANY_REVISION, prune=prune, by="me", may_trust=True
    )
    await world.control.context.operations.dispatcher.tick()
    return applied


async def noticed(world: World) -> None:
    """Something happened to a node, and the rules hear of it."""
    await world.clock.advance(SECOND)
    await world.control.context.rules.enforcer.notice()
    await world.control.context.operations.dispatcher.tick()


async def reported(world: World, after: timedelta = SECOND) -> None:
    """Time passes, all nodes tell what they have, and the rules look at that."""
    await world.clock.advance(after)
    await world.frontend.settle()
    await world.control.context.backends.inventory.sweep()
    await world.control.context.rules.enforcer.sweep()
    await world.control.context.operations.dispatcher.tick()


async def operations(world: World) -> list[Operation]:
    return list(reversed(await world.control.context.operations.stores.operations.newest(limit=100)))


async def ask(
    world: World, verb: Verb, *nodes: SimulatedBackends, backend: str = "echo", **fields: object
) -> Operation:
    ref = BackendRef(backend=backend, uri=str(fields.pop("uri", "")), name=str(fields.pop("name", "")))
    ask = Ask(verb=verb, ref=ref, nodes=tuple(one.node_id for one in nodes), by="me", **fields)  # type: ignore[arg-type]
    await world.clock.advance(SECOND)
    operation = await world.control.context.backends.operations.start(ask)
    await world.control.context.operations.dispatcher.tick()
    return await world.control.context.operations.service.get(operation.id)


async def back(world: World, node: SimulatedBackends, name: str) -> None:
    """It listens again, and says so."""
    await node.listen(world.bus)
    await world.clock.advance(SECOND)
    beat = await world.frontend.call("POST", f"/api/node/{node.node_id}/heartbeat", {}, key=SECRET + name)
    assert beat.status == 200
    await world.frontend.settle()


def requests_of(node: SimulatedBackends) -> list[str]:
    return [verb for verb, _ in node.requests]


class TestARule:
    async def test_installs_on_the_nodes_it_means_by_one_operation_and_then_rests(self, world: World) -> None:
        meant = [await world.backends("w1", zone="a"), await world.backends("w2", is_corral=False, zone="a")]
        other = await world.backends("w3", zone="b")
        await put(world, a_rule("in-a", zone="a"))
        for _ in range(3):
            await reported(world)
        (operation,) = await operations(world)
        assert (operation.asked_by, operation.state) == ("fleet rule in-a", OperationState.DONE)
        assert [one.node_name for one in operation.targets] == ["w1", "w2"]
        assert [requests_of(one) for one in (*meant, other)] == [["install"], ["install"], []]

    async def test_asks_for_nothing_where_it_is_met_already(self, world: World) -> None:
        node = await world.backends("w1")
        await ask(world, Verb.INSTALL)
        await put(world, a_rule())
        await reported(world)
        assert (len(await operations(world)), requests_of(node)) == (1, ["install"])

    async def test_reaches_a_node_that_joins_later(self, world: World) -> None:
        await world.backends("w1")
        await put(world, a_rule())
        await noticed(world)
        late = await world.backends("w2")
        await noticed(world)
        assert "echo" in late.disk
        _, second = await operations(world)
        assert [one.node_name for one in second.targets] == ["w2"]

    async def test_hears_of_a_node_though_the_database_was_away_at_first(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await put(world, a_rule())
        await noticed(world)
        late = await world.backends("w1")

        async def fail(_: RuleStore) -> list[FleetRule]:
            raise DatabaseUnavailable("away")

        with monkeypatch.context() as patch:
            patch.setattr(RuleStore, "all", fail)
            with pytest.raises(DatabaseUnavailable):
                await noticed(world)
        await noticed(world)
        assert "echo" in late.disk

    async def test_waits_for_a_node_that_is_away_and_asks_for_it_once(self, world: World) -> None:
        node = await world.backends("w1")
        await node.stop()
        await put(world, a_rule())
        await reported(world, DAY)
        assert [one.state for one in await operations(world)] == [OperationState.WAITING]
        await back(world, node, "w1")
        await reported(world, timedelta(minutes=10))
        assert [one.state for one in await operations(world)] == [OperationState.DONE]
        assert requests_of(node) == ["install"]

    async def test_reaches_a_node_that_gets_its_label_later_and_lets_go_when_it_loses_it(self, world: World) -> None:
        node = await world.backends("w1")
        registry = world.control.context.nodes.registry
        await put(world, a_rule(zone="a"))
        await noticed(world)
        assert await operations(world) == []
        await registry.merge_labels(node.node_id, {"zone": "a"}, by="me")
        await noticed(world)
        assert "echo" in node.disk
        await registry.remove_label(node.node_id, "zone", by="me")
        await noticed(world)
        assert "echo" in node.disk
        assert (await ask(world, Verb.DELETE)).state is OperationState.DONE
        await reported(world)
        assert node.disk == {}

    async def test_puts_back_what_was_taken_away_on_the_node(self, world: World) -> None:
        node = await world.backends("w1")
        await put(world, a_rule())
        for _ in range(2):
            node.disk.clear()
            await world.control.context.rules.enforcer.sweep()
            assert node.disk == {}, "nobody has told that it is gone"
            await reported(world)
            assert "echo" in node.disk
        assert [one.state for one in await operations(world)] == [OperationState.DONE] * 3

    async def test_leaves_a_node_that_fails_to_its_pauses(self, world: World) -> None:
        node = await world.backends("w1")
        node.faults.refusal = "disk full"
        await put(world, a_rule())
        for _ in range(2):
            await reported(world)
        assert requests_of(node) == ["install"]
        for _ in range(10):
            await reported(world, timedelta(minutes=16))
        (operation,) = await operations(world)
        assert (operation.targets[0].status, operation.targets[0].attempts) == (TargetStatus.BLOCKED, 10)
        node.faults.refusal = ""
        await world.control.context.operations.service.retry(operation.id, by="me")
        await reported(world)
        assert "echo" in node.disk
        assert len(await operations(world)) == 1

    async def test_never_means_nodes_that_wait_for_approval(self, world: World) -> None:
        await world.frontend.register({"name": "stranger", "address": "127.0.0.1:50051"})
        await put(world, a_rule())
        await noticed(world)
        assert await operations(world) == []

    async def test_takes_the_place_of_a_delete_that_was_asked_for_before(self, world: World) -> None:
        node, absent = await world.backends("w1"), await world.backends("w2")
        await ask(world, Verb.INSTALL)
        await absent.stop()
        await ask(world, Verb.DELETE)
        assert node.disk == {}
        await put(world, a_rule())
        assert "echo" in node.disk
        await back(world, absent, "w2")
        await reported(world, DAY)
        assert (requests_of(absent), "echo" in absent.disk) == (["install"], True)

    async def test_follows_its_uri_and_drops_the_one_before(self, world: World) -> None:
        node = await world.backends("w1")
        node.faults.refusal = "no such image"
        await put(world, a_rule(backend="mine", uri="oci://r/mine:1"))
        node.faults.refusal = ""
        await put(world, a_rule(backend="mine", uri="oci://r/mine:2"))
        assert node.disk["mine"].uri == "oci://r/mine:2"
        assert (await operations(world))[0].state is OperationState.CANCELLED
        node.disk["mine"] = InstalledBackend(name="mine", uri="oci://r/other:1", installed_at="2029-01-01T00:00:00Z")
        await reported(world)
        assert node.disk["mine"].uri == "oci://r/mine:2"
        last = node.requests[-1][1]
        assert isinstance(last, InstallRequest)
        assert last.force

    async def test_beside_another_for_the_same_backend_asks_once(self, world: World) -> None:
        node = await world.backends("w1")
        pinned = a_rule("pinned", "mine", uri="oci://r/mine:1")
        applied = await put(world, a_rule("any", "mine"), pinned, a_rule("same", "mine"))
        assert [one.asked_by for one in applied.operations] == ["fleet rule pinned"]
        assert (requests_of(node), len(await operations(world))) == (["install"], 1)


class TestWhatGoesAgainstARule:
    async def test_is_refused_and_the_rule_is_named(self, world: World) -> None:
        node, other = await world.backends("w1", zone="a"), await world.backends("w2", zone="b")
        await put(world, a_rule("in-a", zone="a"), a_rule("pinned", "mine", uri="oci://r/mine:1"))
        for verb, backend, fields in (
            (Verb.DELETE, "echo", {}),
            (Verb.DELETE, "g@echo", {}),
            (Verb.INSTALL, "mine", {}),
            (Verb.INSTALL, "mine", {"uri": "oci://r/mine:2"}),
        ):
            with pytest.raises(Conflict, match=r"the fleet rule (in-a|pinned) demands (echo|mine)( from .*)? on w1"):
                await ask(world, verb, node, backend=backend, **fields)
        assert (await ask(world, Verb.DELETE, other)).state is OperationState.DONE
        assert (await ask(world, Verb.UPGRADE, node)).state is OperationState.DONE
        await world.control.context.rules.service.delete("in-a", by="me")
        assert (await ask(world, Verb.DELETE, node)).state is OperationState.DONE

    async def test_is_not_cancelled_but_what_only_upgrades_is(self, world: World) -> None:
        node = await world.backends("w1")
        node.faults.refusal = "no"
        (demanded,) = (await put(world, a_rule())).operations
        service = world.control.context.operations.service
        with pytest.raises(Conflict, match="the fleet rule r demands echo on w1; change or delete the rule first"):
            await service.cancel(demanded.id, by="me")
        await world.control.context.rules.service.delete("r", by="me")
        assert len(await service.cancel(demanded.id, by="me")) == 1
        node.faults.refusal = ""
        await put(world, a_rule())
        node.faults.refusal = "no"
        upgrade = await ask(world, Verb.UPGRADE)
        assert len(await service.cancel(upgrade.id, by="me")) == 1
        await reported(world)
        assert requests_of(node).count("install") == 2


class TestTheSet:
    async def test_put_again_changes_nothing(self, world: World) -> None:
        await world.backends("w1")
        first = await put(world, a_rule())
        again = await put(world, a_rule())
        assert (first.change.added, again.change.is_nothing, again.operations) == (("r",), True, ())
        assert len(await operations(world)) == 1
        assert len(await world.events(EventKind.FLEET_RULES_CHANGED)) == 1

    async def test_that_somebody_else_has_changed_is_not_overwritten(self, world: World) -> None:
        rules = world.control.context.rules.service
        await put(world, a_rule())
        with pytest.raises(RulesChanged, match="by now, not"):
            await rules.put([], revision=revision_of([]), prune=Prune.NOTHING, by="me")
        assert [one.rule.name for one in await rules.show()] == ["r"]

    @pytest.mark.parametrize(
        ("wrong", "field"),
        [
            (a_rule("a b"), "rules[1].name"),
            (a_rule(backend=""), "rules[1].backend"),
            (a_rule(backend=".mine", uri="oci://r/m"), "rules[1].name"),
            (a_rule(uri="oci://r/ m"), "rules[1].uri"),
            (a_rule("first"), "rules"),
        ],
    )
    async def test_that_is_wrong_is_refused_by_its_field(self, world: World, wrong: FleetRule, field: str) -> None:
        with pytest.raises(InvalidInput) as refused:
            await put(world, a_rule("first"), wrong)
        assert refused.value.field == field

    async def test_shows_how_far_nodes_are(self, world: World) -> None:
        await world.backends("w1")
        (await world.backends("w2")).faults.refusal = "disk full"
        await put(world, a_rule())
        (standing,) = await world.control.context.rules.service.show()
        assert {one.seen.node.name: one.standing for one in standing.places} == {
            "w1": TargetStatus.SUCCESS,
            "w2": TargetStatus.ERROR,
        }

    async def test_that_was_stored_by_a_frontend_that_died_is_enforced_by_another(self, world: World) -> None:
        node = await world.backends("w1")
        await RuleStore(world.control.context.database).replace([a_rule()], revision=revision_of([]), events=[])
        other = await world.again()
        await other.context.rules.enforcer.sweep()
        await other.context.operations.dispatcher.tick()
        assert "echo" in node.disk


class TestTwoFrontends:
    async def test_that_look_at_the_same_moment_start_one_operation(self, world: World) -> None:
        await world.backends("w1")
        other = await world.again()
        rules = [a_rule()]
        seen = await world.control.context.rules.enforcer._places.of(rules)

        class Remembered:
            async def of(self, *arguments: object) -> object:
                return seen

        for control in (world.control, other):
            control.context.rules.enforcer._places = Remembered()  # type: ignore[assignment]
            await control.context.rules.enforcer.converge(rules)
        assert len(await operations(world)) == 1

    async def test_have_one_that_makes_rounds_until_it_is_gone(self, world: World) -> None:
        await put(world, a_rule())
        other = await world.again()
        await world.control.context.rules.enforcer.sweep()
        await world.backends("w1")
        await other.context.rules.enforcer.sweep()
        assert await operations(world) == []
        await world.clock.advance(timedelta(seconds=31))
        await other.context.rules.enforcer.sweep()
        assert len(await operations(world)) == 1


class TestPruning:
    async def two_nodes(self, world: World) -> list[SimulatedBackends]:
        nodes = [await world.backends("w1", zone="a"), await world.backends("w2", zone="b")]
        for node in nodes:
            node.disk["system"] = InstalledBackend(name="system", is_system=True)
        await put(world, a_rule("everywhere"), a_rule("in-a", "extra", zone="a"))
        await ask(world, Verb.INSTALL, backend="by-hand")
        await reported(world)
        return nodes

    async def test_is_nothing_unless_asked_for(self, world: World) -> None:
        nodes = await self.two_nodes(world)
        await put(world)
        await reported(world)
        assert [sorted(one.disk) for one in nodes] == [
            ["by-hand", "echo", "extra", "system"],
            ["by-hand", "echo", "system"],
        ]

    async def test_takes_what_was_demanded_and_is_no_longer(self, world: World) -> None:
        nodes = await self.two_nodes(world)
        applied = await put(world, a_rule("everywhere", zone="a"), prune=Prune.DEMANDED)
        assert [sorted(one.disk) for one in nodes] == [["by-hand", "echo", "system"], ["by-hand", "system"]]
        started = {(one.verb, one.subject, one.asked_by) for one in applied.operations}
        assert started == {(Verb.DELETE, "echo", "me"), (Verb.DELETE, "extra", "me")}
        assert (await put(world, a_rule("everywhere", zone="a"), prune=Prune.DEMANDED)).operations == ()

    async def test_of_all_takes_whatever_no_rule_demands(self, world: World) -> None:
        nodes = await self.two_nodes(world)
        await put(world, a_rule("everywhere", zone="a"), prune=Prune.ALL)
        assert [sorted(one.disk) for one in nodes] == [["echo", "system"], ["system"]]

    async def test_takes_back_what_was_not_reached(self, world: World) -> None:
        node = await world.backends("w1")
        node.faults.refusal = "no"
        await put(world, a_rule())
        node.faults.refusal = ""
        await put(world, prune=Prune.DEMANDED)
        await reported(world, timedelta(hours=1))
        assert (node.disk, requests_of(node)) == ({}, ["install"])

    async def test_is_planned_as_it_is_done(self, world: World) -> None:
        await self.two_nodes(world)
        before = len(await operations(world))
        rules = [a_rule("everywhere", zone="a"), a_rule("new", "more")]
        diff = await world.control.context.rules.service.plan(rules, prune=Prune.ALL)
        acts = [(one.verb, one.backend, one.rule, [p.node.node.name for p in one.planned]) for one in diff.acts]
        assert acts == [
            (Verb.INSTALL, "more", "new", ["w1", "w2"]),
            (Verb.DELETE, "by-hand", "", ["w1", "w2"]),
            (Verb.DELETE, "echo", "", ["w2"]),
            (Verb.DELETE, "extra", "", ["w1"]),
        ]
        assert (diff.change.added, diff.change.changed, diff.change.removed) == (("new",), ("everywhere",), ("in-a",))
        assert len(await operations(world)) == before
        assert [one.rule.name for one in await world.control.context.rules.service.show()] == [
            "everywhere",
            "in-a",
        ]


class Galleries:
    """What can be looked up, as a test says."""

    def __init__(self, *entries: GalleryEntry) -> None:
        self.content: BackendCatalogue | None = None
        self.offer(*entries)

    def offer(self, *entries: GalleryEntry) -> None:
        source = GallerySource(name="g", url="file:///g")
        self.content = BackendCatalogue([GalleryContent(source=source, entries=entries)])

    async def catalogue(self) -> BackendCatalogue | None:
        return self.content

    async def rechecked(self) -> BackendCatalogue | None:
        return await self.catalogue()

    async def newest(self) -> BackendCatalogue | None:
        return self.content

    async def readings(self, *, newest: bool = False) -> Readings | None:
        return None


META = GalleryEntry(name="mock", gallery="g", capabilities={"default": "cpu-mock"})
BUILD = GalleryEntry(name="cpu-mock", gallery="g", uri="oci://r/cpu-mock")


class TestGalleries:
    async def control(self, world: World, galleries: Galleries) -> Control:
        control = await build_control(
            world.control.context.config, world.clock, world.stores, world.bus, lookups=Lookups(galleries=galleries)
        )
        await control.context.nodes.hearing.tick()
        return control

    async def test_lead_to_the_build_that_a_name_means(self, world: World) -> None:
        node = await world.backends("w1")
        node.disk["cpu-mock"] = InstalledBackend(name="cpu-mock")
        await world.control.context.backends.inventory.sweep()
        control = await self.control(world, Galleries(META, BUILD))
        await control.context.rules.service.put(
            [a_rule(backend="mock")], revision=ANY_REVISION, prune=Prune.NOTHING, by=""
        )
        assert await operations(world) == []

    async def test_that_cannot_be_read_start_nothing(self, world: World) -> None:
        await world.backends("w1")
        galleries = Galleries(META, BUILD)
        control = await self.control(world, galleries)
        for content in (None, BackendCatalogue([GalleryContent(source=GallerySource(name="g", url="file:///g"))])):
            galleries.content = content
            await control.context.rules.service.put(
                [a_rule(backend="mock")], revision=ANY_REVISION, prune=Prune.NOTHING, by=""
            )
            assert await operations(world) == []
        galleries.offer(META, BUILD)
        await control.context.rules.enforcer.sweep()
        assert [one.subject for one in (await operations(world))[0].targets] == ["cpu-mock"]

    async def test_that_nobody_knows_is_told_in_every_answer_and_by_doctor(self, world: World) -> None:
        await world.backends("w1")
        control = await self.control(world, Galleries(GalleryEntry(name="echo", gallery="g", uri="oci://r/echo")))
        rules = control.context.rules.service
        wanted, why = [a_rule(backend="ecko")], "no gallery has a backend 'ecko'; did you mean echo?"

        planned = await rules.plan(wanted, prune=Prune.NOTHING)
        applied = await rules.put(wanted, revision=ANY_REVISION, prune=Prune.NOTHING, by="")

        assert planned.doubts == applied.doubts == {wanted[0].name: why}
        (standing,) = await rules.show()
        assert standing.doubt == why
        finding = await check_fleet_rules(control.context)
        assert (finding.level, why in finding.summary) == ("warning", True)

    async def test_that_cannot_be_read_leave_a_rule_in_doubt(self, world: World) -> None:
        await world.backends("w1")
        galleries = Galleries()
        galleries.content = None
        control = await self.control(world, galleries)
        applied = await control.context.rules.service.put(
            [a_rule(backend="ecko")], revision=ANY_REVISION, prune=Prune.NOTHING, by=""
        )
        assert applied.operations == ()
        assert "nobody can tell whether one has a backend 'ecko'" in next(iter(applied.doubts.values()))

    async def test_that_get_a_fitting_build_later_free_what_was_blocked(self, world: World) -> None:
        await world.backends("w1")
        galleries = Galleries(GalleryEntry(name="other", gallery="g", uri="oci://r/other"))
        control = await self.control(world, galleries)
        await control.context.rules.service.put(
            [a_rule(backend="cpu-mock")], revision=ANY_REVISION, prune=Prune.NOTHING, by=""
        )
        await control.context.rules.enforcer.sweep()
        assert (await operations(world))[0].targets[0].status is TargetStatus.BLOCKED
        galleries.offer(BUILD)
        await world.clock.advance(timedelta(minutes=6))
        await control.context.nodes.hearing.tick()
        await control.context.rules.enforcer.sweep()
        (operation,) = await operations(world)
        assert operation.targets[0].status is TargetStatus.QUEUED
