"""A worker tries its own addresses, and says what is wrong with them before a request finds out."""

import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from corral.frontend.diagnosis.doctor.addresses import BACKEND_PORTS
from corral.worker.http import HttpServer
from corral.worker.membership.addresses import AddressConfig, Addresses, HostPort, decide
from corral.worker.membership.own_addresses import OwnAddresses
from corral.worker.processes.ports import LINUX_EPHEMERAL, can_listen, usable_ranges
from tests.kit.clock import ManualClock
from tests.kit.ports import lasting_port

GUIDE = Path(__file__).parents[3] / "docs/guides/add-a-machine.md"
NOWHERE = "192.0.2.1"
"""An address of nobody, by RFC 5737."""


@pytest.fixture
async def places() -> AsyncIterator[Addresses]:
    http = HttpServer(address=HostPort("127.0.0.1", 0), readiness=list, bearers=list, me="me-1")
    async with http:
        yield Addresses(
            base_port=50051,
            max_port=65535,
            advertise="127.0.0.1:50051",
            backend_bind="127.0.0.1",
            http_bind=HostPort("127.0.0.1", http.port),
            advertise_http=f"127.0.0.1:{http.port}",
        )


def own(places: Addresses, *, me: str = "me-1") -> OwnAddresses:
    port = lasting_port()
    return OwnAddresses(
        places, [range(port, port + 1)], lambda port: can_listen("127.0.0.1", port), me=me, clock=ManualClock()
    )


async def test_a_worker_that_answers_where_it_says_has_no_problem(places: Addresses) -> None:
    checked = own(places)
    await checked.look()

    assert checked.problems == ()


async def test_an_http_address_where_nobody_listens_is_found(places: Addresses) -> None:
    checked = own(replace(places, advertise_http=f"127.0.0.1:{lasting_port()}"))
    await checked.look()

    (problem,) = checked.problems
    assert (
        "from the machine itself nothing answers there (Connect call failed" in problem or "refused" in problem.lower()
    )
    assert "set advertise_http_address (LOCALAI_ADVERTISE_HTTP_ADDR)" in problem


async def test_another_worker_at_the_own_address_is_found(places: Addresses) -> None:
    checked = own(places, me="me-2")
    await checked.look()

    (problem,) = checked.problems
    assert "another program answers there" in problem


async def test_backends_that_cannot_be_reached_are_found_with_the_ports_to_open(
    places: Addresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corral.worker.membership.own_addresses._PATIENCE_SECONDS", 0.2)
    checked = own(replace(places, advertise=f"{NOWHERE}:50051"))
    await checked.look()

    (problem,) = checked.problems
    assert f"its backends are at {NOWHERE}" in problem
    assert "open the ports" in problem
    again = own(replace(places, advertise="[::1]:50051"))
    with socket.socket(socket.AF_INET6) as taken:
        taken.bind(("::1", 0))
        await again.look()
    assert "does not lead to it" in again.problems[0]


async def test_what_is_mended_is_no_problem_any_more(places: Addresses) -> None:
    checked = own(places, me="me-2")
    await checked.look()
    checked._me = "me-1"
    await checked.look()

    assert checked.problems == ()


def test_the_guide_and_doctor_name_the_ports_that_are_used() -> None:
    usual = decide(AddressConfig(), "host")
    (ports,) = usable_ranges(usual.base_port, usual.max_port, LINUX_EPHEMERAL)
    text = " ".join(GUIDE.read_text(encoding="utf-8").split())

    assert f"{ports.start} to {ports.stop - 1}" == BACKEND_PORTS
    assert f"Those are {ports.start} to {ports.stop - 1} on Linux" in text
    assert f"port {usual.http_bind.port} for its own HTTP server" in text
    assert f"the range begins at the base port ({usual.base_port})" in text
