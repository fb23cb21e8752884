"""When a worker asks for a certificate, and what it says while it has none."""

import socket
from datetime import timedelta
from typing import Any

import pytest

from corral.base.clock import SystemClock
from corral.base.errors import PeerRefused, PeerUnavailable
from corral.base.ids import NodeId
from corral.wire.fleet_tls import FleetRole, IssuedCertificate
from corral.wire.registration import Feature
from corral.worker.door.keeper import Door
from corral.worker.door.tls_entrance import LONGEST_SLEEP, RETRY, NodeCertificate
from corral.worker.membership.registration import AcceptedRegistration, Presence
from tests.kit.clock import ManualClock
from tests.kit.fleet_tls import NODE, OTHER_NODE, TestFleet, door_command

LASTS = timedelta(hours=2)


class SigningFrontend:
    """Signs, or fails as a test says."""

    def __init__(self) -> None:
        self.fleet = TestFleet()
        self.signed: list[str] = []
        self.error: Exception | None = None

    async def certificate(self, member: AcceptedRegistration, csr: str) -> IssuedCertificate:
        if self.error is not None:
            raise self.error
        self.signed.append(csr)
        return self.fleet.authority.issue(csr, FleetRole.NODE, lifetime=LASTS, node_id=member.node_id)


def member(node_id: str = NODE, *features: str) -> AcceptedRegistration:
    return AcceptedRegistration(node_id=NodeId(node_id), bearer="b", is_corral=True, features=frozenset(features))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(SystemClock().now())  # the authority of a test goes by the machine's


@pytest.fixture
def parts(clock: ManualClock) -> Any:
    frontend, presence = SigningFrontend(), Presence()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        door = Door(listener, door_command, clock)
        yield frontend, presence, NodeCertificate(frontend, presence, door, clock)


async def test_a_certificate_is_renewed_after_half_of_its_life_with_a_new_key(parts: Any, clock: ManualClock) -> None:
    frontend, presence, certificate = parts
    assert await certificate.step() == LONGEST_SLEEP  # not registered yet
    presence.member = member(NODE, Feature.FLEET_TLS)
    await certificate.step()
    await certificate.step()
    assert len(frontend.signed) == 1
    assert certificate.context is not None
    await clock.advance(LASTS / 2 - timedelta(seconds=1))
    await certificate.step()
    assert len(frontend.signed) == 1
    await clock.advance(timedelta(seconds=1))
    await certificate.step()
    assert len(set(frontend.signed)) == 2


async def test_a_frontend_that_is_away_is_asked_again_and_the_old_certificate_serves(
    parts: Any, clock: ManualClock
) -> None:
    frontend, presence, certificate = parts
    presence.member = member(NODE, Feature.FLEET_TLS)
    await certificate.step()
    await clock.advance(LASTS / 2)
    frontend.error = PeerUnavailable("nobody answers")
    assert await certificate.step() <= RETRY.cap
    assert certificate.problems() == ["the door with TLS is being started"]  # and no word of a missing certificate
    frontend.error = None
    await certificate.step()
    assert len(frontend.signed) == 2


async def test_a_certificate_that_is_not_renewed_is_a_problem_before_it_ends(
    parts: Any, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    frontend, presence, certificate = parts
    presence.member = member(NODE, Feature.FLEET_TLS)
    await certificate.step()
    frontend.error = PeerUnavailable("nobody answers")
    await clock.advance(LASTS / 2)
    await certificate.step()
    await certificate.step()
    assert [line.message for line in caplog.records] == [
        "the certificate of the fleet is not renewed yet: nobody answers"
    ]
    frontend.error = PeerUnavailable("the disk is full")
    await certificate.step()
    assert caplog.records[-1].message.endswith("the disk is full")
    await clock.advance(LASTS / 4)
    await certificate.step()
    (problem,) = certificate.problems()
    assert problem.startswith("the certificate of the fleet ends at 20")
    assert problem.endswith("and there is no other one: the disk is full")
    await clock.advance(LASTS / 4)
    await certificate.step()
    (problem,) = certificate.problems()
    assert problem.startswith("the certificate of the fleet ended at 20")
    assert len(caplog.records) == 4
    frontend.error = None
    await certificate.step()
    assert certificate.problems() == ["the door with TLS is being started"]


async def test_a_worker_that_lost_its_membership_says_that_its_certificate_ends(parts: Any, clock: ManualClock) -> None:
    _, presence, certificate = parts
    presence.member = member(NODE, Feature.FLEET_TLS)
    await certificate.step()
    presence.member = None
    await clock.advance(LASTS)
    assert "this worker is not registered" in certificate.problems()[0]


async def test_a_clock_that_is_set_back_does_not_put_off_the_renewal(parts: Any, clock: ManualClock) -> None:
    frontend, presence, certificate = parts
    presence.member = member(NODE, Feature.FLEET_TLS)
    await certificate.step()
    clock.jump(-timedelta(days=30))
    await clock.advance(LASTS / 2)
    await certificate.step()
    assert len(frontend.signed) == 2


async def test_a_clock_that_is_set_ahead_renews_at_once(parts: Any, clock: ManualClock) -> None:
    frontend, presence, certificate = parts
    presence.member = member(NODE, Feature.FLEET_TLS)
    await certificate.step()
    clock.jump(LASTS)
    await certificate.step()
    assert len(frontend.signed) == 2


async def test_what_is_wrong_is_said(parts: Any) -> None:
    frontend, presence, certificate = parts
    presence.member = member(NODE)
    await certificate.step()
    assert "turn it on there, or off here" in certificate.problems()[0]
    presence.member = member(NODE, Feature.FLEET_TLS)
    frontend.error = PeerRefused("the node waits for approval", status=409)
    await certificate.step()
    assert certificate.problems() == ["no certificate of the fleet: the node waits for approval"]


async def test_a_worker_that_became_another_node_gets_another_certificate(parts: Any) -> None:
    frontend, presence, certificate = parts
    presence.member = member(NODE, Feature.FLEET_TLS)
    await certificate.step()
    presence.member = member(OTHER_NODE, Feature.FLEET_TLS)
    await certificate.step()
    assert len(frontend.signed) == 2
