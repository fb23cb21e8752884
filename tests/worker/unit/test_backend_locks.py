"""Who waits for whom: all names of one backend exclude each other, others do not."""

import asyncio

import pytest

from corral.worker.installing.installer import BackendLocks


class Names:
    """What each name means at the moment."""

    def __init__(self, **meanings: str) -> None:
        self.meanings = meanings

    async def identify(self, names: frozenset[str]) -> frozenset[str]:
        await asyncio.sleep(0)
        return frozenset(self.meanings.get(name, name) for name in names)


class Holder:
    def __init__(self, locks: BackendLocks, *names: str) -> None:
        self.inside = asyncio.Event()
        self.leave = asyncio.Event()
        self.task = asyncio.create_task(self._hold(locks, names))

    async def _hold(self, locks: BackendLocks, names: tuple[str, ...]) -> None:
        async with locks.hold(*names):
            self.inside.set()
            await self.leave.wait()

    async def end(self) -> None:
        self.leave.set()
        await self.task


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("one", "other"), [("alias", "concrete"), ("concrete", "meta"), ("a", "a")])
async def test_names_of_one_backend_exclude_each_other(one: str, other: str) -> None:
    locks = BackendLocks(Names(alias="concrete", meta="concrete").identify)
    first = Holder(locks, one)
    await first.inside.wait()
    second = Holder(locks, other)
    await settle()
    assert not second.inside.is_set()
    await first.end()
    await second.inside.wait()
    await second.end()


async def test_other_backends_go_on() -> None:
    locks = BackendLocks(Names().identify)
    holders = [Holder(locks, name) for name in ("a", "b", "c")]
    await settle()
    inside_together = [holder.inside.is_set() for holder in holders]
    for holder in holders:
        await holder.end()
    assert inside_together == [True, True, True]


async def test_several_names_are_taken_without_a_circle() -> None:
    """Both are kept from `a` first: were the names taken as they are given, the second would hold `b` meanwhile."""
    locks = BackendLocks(Names().identify)
    before = Holder(locks, "a")
    await before.inside.wait()
    first, second = Holder(locks, "a", "b"), Holder(locks, "b", "a")
    await settle()
    await before.end()
    await settle()
    assert [first.inside.is_set(), second.inside.is_set()] == [True, False]
    await first.end()
    await settle()
    assert second.inside.is_set()
    await second.end()


async def test_a_name_that_got_another_meaning_meanwhile_is_looked_up_again() -> None:
    names = Names()
    locks = BackendLocks(names.identify)
    installing = Holder(locks, "x")
    await installing.inside.wait()
    waiting = Holder(locks, "x")
    await settle()
    names.meanings["x"] = "cpu-x"
    building = Holder(locks, "cpu-x")
    await building.inside.wait()
    await installing.end()
    await settle()
    assert not waiting.inside.is_set()
    await building.end()
    await waiting.inside.wait()
    await waiting.end()


async def test_a_cancelled_wait_leaves_the_lock_to_others() -> None:
    locks = BackendLocks(Names().identify)
    first = Holder(locks, "a")
    await first.inside.wait()
    second, third = Holder(locks, "a"), Holder(locks, "a")
    await settle()
    second.task.cancel()
    await first.end()
    await third.inside.wait()
    await third.end()
    assert second.task.cancelled()
