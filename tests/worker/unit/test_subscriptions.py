"""Which subjects a worker listens to."""

from typing import Any

from corral.base.ids import NodeId
from corral.bus.port import Message
from corral.wire import subjects
from corral.wire.registration import Feature
from corral.worker.membership.lifecycle import NodeSubscriptions
from corral.worker.membership.registration import AcceptedRegistration


class FakeBus:
    def __init__(self) -> None:
        self.subjects: list[str] = []

    async def subscribe(self, subject: str, handler: Any, **_: Any) -> "FakeSubscription":
        self.subjects.append(subject)
        return FakeSubscription(self, subject)


class FakeSubscription:
    def __init__(self, bus: FakeBus, subject: str) -> None:
        self._bus = bus
        self._subject = subject

    async def close(self) -> None:
        self._bus.subjects.remove(self._subject)


async def handle(_: Message) -> None: ...


def member(node_id: str, *features: str) -> AcceptedRegistration:
    return AcceptedRegistration(node_id=NodeId(node_id), bearer="b", features=frozenset(features))


def listening(bus: Any) -> NodeSubscriptions:
    return NodeSubscriptions(bus, {subjects.backend_list: handle, subjects.backend_rollback: handle})


async def test_subjects_of_ours_are_only_for_frontends_that_know_them() -> None:
    """A NATS user that a LocalAI fleet gives us may not be allowed to hear anything else."""
    bus = FakeBus()
    node = listening(bus)
    await node.follow(member("n1"))
    assert bus.subjects == ["nodes.n1.backend.list"]
    await node.follow(member("n1", Feature.BACKEND_ROLLBACK))
    assert bus.subjects == ["nodes.n1.backend.list", "nodes.n1.corral.backend.rollback"]
    await node.follow(member("n1"))
    assert bus.subjects == ["nodes.n1.backend.list"]


async def test_another_id_moves_all_and_the_same_one_moves_nothing() -> None:
    bus = FakeBus()
    node = listening(bus)
    await node.follow(member("n1", Feature.BACKEND_ROLLBACK))
    await node.follow(member("n2", Feature.BACKEND_ROLLBACK))
    await node.follow(member("n2", Feature.BACKEND_ROLLBACK))
    assert bus.subjects == ["nodes.n2.backend.list", "nodes.n2.corral.backend.rollback"]
