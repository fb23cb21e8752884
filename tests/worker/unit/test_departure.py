"""Leaving in good order, in a hurry, and when nobody answers."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from corral.base.errors import CorralError, PeerRefused, PeerUnavailable
from corral.worker.config import DepartureConfig
from corral.worker.membership.lifecycle import Departure
from corral.worker.membership.registration import AcceptedRegistration


class Frontend:
    """Answers, fails or hangs, call by call; everything that reached it is written down."""

    def __init__(self, *in_flight: int) -> None:
        self._in_flight = list(in_flight)
        self.calls: list[str] = []
        self.fails: dict[str, CorralError] = {}
        self.hangs: set[str] = set()
        self.asked = asyncio.Event()

    async def drain(self, member: AcceptedRegistration) -> None:
        await self._called("drain")

    async def in_flight(self, member: AcceptedRegistration) -> int:
        await self._called("models")
        return self._in_flight.pop(0) if len(self._in_flight) > 1 else self._in_flight[0]

    async def deregister(self, member: AcceptedRegistration) -> None:
        await self._called("deregister")

    async def _called(self, call: str) -> None:
        self.calls.append(call)
        self.asked.set()
        if call in self.hangs:
            await asyncio.Event().wait()
        if call in self.fails:
            raise self.fails[call]


class Calls:
    """Open calls at this worker's backends, one look after the other; the last one stays."""

    def __init__(self) -> None:
        self.counts = [0]
        self.looks = 0

    async def count(self) -> int:
        self.looks += 1
        return self.counts.pop(0) if len(self.counts) > 1 else self.counts[0]


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def hurry() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
def departure(clock: Any, hurry: asyncio.Event, calls: Calls) -> Any:
    def make(frontend: Frontend, **config: Any) -> Departure:
        return Departure(
            frontend=frontend, calls=calls.count, clock=clock, config=DepartureConfig(**config), hurry=hurry
        )

    return make


async def test_an_idle_worker_drains_looks_once_and_says_good_bye(
    departure: Any, clock: Any, member: AcceptedRegistration
) -> None:
    frontend = Frontend(0)

    await departure(frontend).leave(member)

    assert frontend.calls == ["drain", "models", "deregister"]
    assert clock.slept == []


async def test_requests_in_flight_are_waited_for(departure: Any, clock: Any, member: AcceptedRegistration) -> None:
    frontend = Frontend(2, 2, 1, 0)

    await departure(frontend).leave(member)

    assert frontend.calls == ["drain", "models", "models", "models", "models", "deregister"]
    assert clock.slept == [1, 1, 1]


async def test_requests_that_never_end_are_not_waited_for_longer_than_the_bound(
    departure: Any, clock: Any, member: AcceptedRegistration, caplog: pytest.LogCaptureFixture
) -> None:
    frontend = Frontend(3)

    await departure(frontend, drain_timeout=timedelta(seconds=4.5)).leave(member)

    assert clock.slept == [1, 1, 1, 1, 0.5]
    assert frontend.calls[-1] == "deregister"
    assert [record.message for record in caplog.records] == ["still in flight: 3"]


@pytest.mark.parametrize("failure", [PeerUnavailable("refused"), PeerRefused("pending", status=409)])
async def test_a_drain_that_fails_is_skipped(
    departure: Any, member: AcceptedRegistration, failure: CorralError
) -> None:
    frontend = Frontend(5)
    frontend.fails = {"drain": failure}

    await departure(frontend).leave(member)

    assert frontend.calls == ["drain", "deregister"]


async def test_a_look_that_fails_ends_the_waiting(departure: Any, member: AcceptedRegistration) -> None:
    frontend = Frontend(5)
    frontend.fails = {"models": PeerUnavailable("gone")}

    await departure(frontend).leave(member)

    assert frontend.calls == ["drain", "models", "deregister"]


async def test_a_good_bye_that_fails_is_only_a_warning(
    departure: Any, member: AcceptedRegistration, caplog: pytest.LogCaptureFixture
) -> None:
    frontend = Frontend(0)
    frontend.fails = {"deregister": PeerUnavailable("gone")}

    await departure(frontend).leave(member)

    assert [record.message for record in caplog.records] == ["leaving without a good-bye: gone"]


async def test_calls_that_hang_are_given_up_one_by_one(departure: Any, member: AcceptedRegistration) -> None:
    frontend = Frontend(0)
    frontend.hangs = {"drain", "deregister"}

    await departure(frontend, call_timeout=timedelta(milliseconds=1)).leave(member)

    assert frontend.calls == ["drain", "deregister"]


async def test_the_whole_departure_is_bounded(departure: Any, member: AcceptedRegistration) -> None:
    frontend = Frontend(0)
    frontend.hangs = {"drain"}
    bounds = {"drain_timeout": timedelta(0), "margin": timedelta(milliseconds=1), "call_timeout": timedelta(hours=1)}

    await departure(frontend, **bounds).leave(member)

    assert frontend.calls == ["drain"]


def test_the_default_bound_is_localais() -> None:
    assert DepartureConfig().timeout == timedelta(seconds=60)


@pytest.mark.parametrize("stuck_in", ["drain", "models"])
async def test_hurry_cuts_everything_short_but_the_good_bye(
    departure: Any, member: AcceptedRegistration, hurry: asyncio.Event, stuck_in: str
) -> None:
    frontend = Frontend(7)
    frontend.hangs = {stuck_in}

    async with asyncio.TaskGroup() as group:
        leaving = group.create_task(departure(frontend, call_timeout=timedelta(hours=1)).leave(member))
        while stuck_in not in frontend.calls:
            frontend.asked.clear()
            await frontend.asked.wait()
        hurry.set()
        await leaving

    assert frontend.calls[-2:] == [stuck_in, "deregister"]


async def test_who_is_in_a_hurry_from_the_start_still_says_good_bye(
    departure: Any, member: AcceptedRegistration, hurry: asyncio.Event
) -> None:
    frontend = Frontend(7)
    hurry.set()

    await departure(frontend, drain_timeout=timedelta(days=1)).leave(member)

    assert frontend.calls[-1] == "deregister"


async def test_open_calls_are_waited_for_where_the_frontend_forgot_them(
    departure: Any, clock: Any, member: AcceptedRegistration, calls: Calls
) -> None:
    calls.counts = [3, 1, 0]
    frontend = Frontend(1, 0)

    await departure(frontend).leave(member)

    assert frontend.calls == ["drain", *["models"] * 4, "deregister"]
    assert calls.looks == 3


async def test_open_calls_are_waited_for_only_so_long(
    departure: Any, clock: Any, member: AcceptedRegistration, calls: Calls
) -> None:
    calls.counts = [1]
    frontend = Frontend(0)
    await departure(frontend, drain_timeout=timedelta(seconds=3)).leave(member)
    assert sum(clock.slept) == 3
    assert frontend.calls[-1] == "deregister"


async def test_a_corral_frontend_knows_what_is_in_flight(
    departure: Any, member: AcceptedRegistration, calls: Calls
) -> None:
    """Its gateways keep connections open, so looking at them would wait for nothing."""
    calls.counts = [1]
    await departure(Frontend(0)).leave(replace(member, is_corral=True))
    assert calls.looks == 0
