"""When a worker says which backends it has, and to whom."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from corral.base.errors import BusUnavailable
from corral.base.ids import NodeId
from corral.base.tasks import running
from corral.wire.backends import InstalledBackend, InventoryReport, fingerprint
from corral.wire.registration import Feature
from corral.worker.membership.registration import AcceptedRegistration, Presence
from corral.worker.membership.reports import InventoryReports
from tests.kit.backend_node import Published
from tests.kit.waiting import eventually

ECHO = InstalledBackend(name="echo", version="1", digest="sha256:1")
OTHER = InstalledBackend(name="other", is_system=True)


class Disk:
    def __init__(self, *backends: InstalledBackend) -> None:
        self.backends: list[InstalledBackend] | Exception = list(backends)

    async def listing(self) -> list[InstalledBackend]:
        if isinstance(self.backends, Exception):
            raise self.backends
        return self.backends


@pytest.fixture
def presence() -> Presence:
    presence = Presence()
    presence.member = AcceptedRegistration(node_id=NodeId("n1"), bearer="b", features=frozenset({Feature.INVENTORY}))
    return presence


def reports(disk: Disk, bus: Any, presence: Presence) -> InventoryReports:
    return InventoryReports(disk.listing, bus, presence)


async def test_what_is_there_is_said_once_and_again_when_it_changed(presence: Presence) -> None:
    disk, bus = Disk(ECHO), Published()
    told = reports(disk, bus, presence)
    await told.look()
    await told.look()
    disk.backends = [OTHER, ECHO]
    await told.look()
    disk.backends = [ECHO, OTHER]  # in no order
    await told.look()
    assert [subject for subject, _ in bus.messages] == ["nodes.n1.corral.inventory"] * 2
    assert msgspec.json.decode(bus.messages[1][1], type=InventoryReport).backends == [OTHER, ECHO]
    assert told.fingerprint == fingerprint([ECHO, OTHER])


async def test_a_frontend_that_did_not_ask_for_it_is_told_nothing(presence: Presence) -> None:
    assert presence.member is not None
    bus = Published()
    presence.member = replace(presence.member, features=frozenset())
    await reports(Disk(ECHO), bus, presence).look()
    presence.member = None
    await reports(Disk(ECHO), bus, presence).look()
    assert bus.messages == []


async def test_another_frontend_is_told_anew(presence: Presence) -> None:
    assert presence.member is not None
    bus = Published()
    told = reports(Disk(ECHO), bus, presence)
    await told.look()
    presence.member = replace(presence.member, node_id=NodeId("n2"))
    await told.look()
    assert [subject for subject, _ in bus.messages] == ["nodes.n1.corral.inventory", "nodes.n2.corral.inventory"]


async def test_what_could_not_be_said_is_said_later(presence: Presence) -> None:
    class Down(Published):
        up = False

        async def publish(self, subject: str, data: bytes) -> None:
            if not self.up:
                raise BusUnavailable("NATS is away")
            await super().publish(subject, data)

    bus = Down()
    told = reports(Disk(ECHO), bus, presence)
    await told.look()
    assert told.fingerprint == fingerprint([ECHO])  # which the heartbeats tell meanwhile
    bus.up = True
    await told.look()
    assert len(bus.messages) == 1


async def test_of_a_disk_that_cannot_be_read_nothing_is_claimed(presence: Presence) -> None:
    disk, bus = Disk(ECHO), Published()
    told = reports(disk, bus, presence)
    await told.look()
    disk.backends = OSError("input/output error")
    await told.look()
    assert (told.fingerprint, len(bus.messages)) == ("", 1)


@pytest.mark.parametrize("field", ["name", "installed_at", "gallery_url", "version", "uri", "digest"])
def test_every_difference_shows_in_the_fingerprint(field: str) -> None:
    assert fingerprint([ECHO]) != fingerprint([msgspec.structs.replace(ECHO, **{field: "x"})])
    assert fingerprint([]) != fingerprint([ECHO])


async def test_every_heartbeat_has_the_disk_looked_at_and_what_breaks_ends_nothing(presence: Presence) -> None:
    disk, bus = Disk(ECHO), Published()
    told = reports(disk, bus, presence)
    disk.backends = RuntimeError("a mistake")
    async with running(told.run(), name="inventory"):
        assert told.tell() == ""
        disk.backends = [ECHO]
        assert await eventually(lambda: _now(told.tell()), "the first fingerprint") == fingerprint([ECHO])
        assert len(bus.messages) == 1


async def _now(found: str) -> str:
    return found
