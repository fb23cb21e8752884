"""Silence counts only while control could hear."""

from datetime import timedelta
from typing import Any

from corral.frontend.nodes.decide.liveness import LivenessPolicy
from corral.frontend.nodes.liveness import HearingKeeper
from corral.frontend.nodes.store.liveness import HearingPeriods
from corral.frontend.store.db import Database
from tests.kit.bus import MemoryBus, MemoryServer
from tests.kit.clock import ManualClock

SECOND = timedelta(seconds=1)
POLICY = LivenessPolicy()


async def keep(keeper: HearingKeeper, clock: ManualClock, seconds: int) -> None:
    for _ in range(seconds):
        await clock.advance(SECOND)
        await keeper.tick()


def keeper(database: Database, bus: Any, clock: ManualClock) -> HearingKeeper:
    return HearingKeeper(HearingPeriods(database), bus, clock, POLICY)


async def test_an_unbroken_time_grows(database: Database, bus: Any, clock: ManualClock) -> None:
    one = keeper(database, bus, clock)
    await one.tick()
    start = clock.now()
    await keep(one, clock, 10)
    assert (one.current.since, one.current.until) == (start, clock.now())


async def test_after_an_outage_of_all_frontends_a_new_time_begins(
    database: Database, bus: Any, clock: ManualClock
) -> None:
    await keep(keeper(database, bus, clock), clock, 5)
    await clock.advance(timedelta(minutes=5))

    restarted = keeper(database, bus, clock)
    await restarted.tick()

    assert restarted.current.since == clock.now()


async def test_the_restart_of_one_frontend_among_several_resets_nothing(
    database: Database, bus: Any, clock: ManualClock
) -> None:
    stays = keeper(database, bus, clock)
    await stays.tick()
    start = clock.now()
    await keep(stays, clock, 60)

    restarted = keeper(database, bus, clock)
    await restarted.tick()

    assert restarted.current.since == start


async def test_a_frontend_without_nats_learns_from_the_others(database: Database, clock: ManualClock) -> None:
    near, far = MemoryServer(), MemoryServer()
    async with MemoryBus(near) as near_bus, MemoryBus(far) as far_bus:
        one, other = keeper(database, near_bus, clock), keeper(database, far_bus, clock)
        await one.tick()
        near.go_down()
        for _ in range(10):
            await clock.advance(SECOND)
            await one.tick()
            await other.tick()
        await one.tick()
        assert one.current == other.current
        assert one.current.until == clock.now()


async def test_without_nats_anywhere_the_proof_grows_old(database: Database, clock: ManualClock) -> None:
    server = MemoryServer()
    async with MemoryBus(server) as bus:
        one = keeper(database, bus, clock)
        await one.tick()
        deaf_since = clock.now()
        server.go_down()
        await keep(one, clock, 60)
        assert one.current.until == deaf_since

        server.come_up()
        await one.tick()
        assert one.current.since == clock.now()


async def test_a_clock_that_was_set_begins_a_new_time(database: Database, bus: Any, clock: ManualClock) -> None:
    for jump in (timedelta(hours=1), -timedelta(hours=2)):
        one = keeper(database, bus, clock)
        await keep(one, clock, 3)
        clock.jump(jump)
        await one.tick()
        assert one.current.since == one.current.until == clock.now()
