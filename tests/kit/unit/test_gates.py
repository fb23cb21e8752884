"""Gates hold whoever comes, count them, and let them go in any case."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.kit.gates import Gates, gated


class Store:
    """Something with asynchronous methods."""

    def __init__(self) -> None:
        self.story: list[str] = []

    async def write(self, word: str) -> str:
        self.story.append(word)
        return word.upper()

    @asynccontextmanager
    async def begin(self, word: str) -> AsyncIterator[str]:
        self.story.append(f"begin {word}")
        yield word
        self.story.append(f"end {word}")


async def test_an_open_gate_changes_nothing() -> None:
    store, gates = Store(), Gates()
    held = gated(store, gates, "write", "begin")

    assert await held.write("a") == "A"
    async with held.begin("b") as word:
        assert word == "b"

    assert held.story == ["a", "begin b", "end b"]


async def test_whoever_comes_to_a_held_point_waits_until_the_end_of_the_block() -> None:
    store, gates = Store(), Gates()
    slow = gated(store, gates, "write")

    async with asyncio.TaskGroup() as group, gates.held_inside("write") as held:
        group.create_task(slow.write("slow"))
        await held.until_inside()
        await store.write("quick")
        assert store.story == ["quick"]

    assert store.story == ["quick", "slow"]


async def test_contexts_are_held_before_they_are_entered() -> None:
    store, gates = Store(), Gates()
    slow = gated(store, gates, "begin")

    async def work() -> None:
        async with slow.begin("slow"):
            pass

    async with asyncio.TaskGroup() as group, gates.held_inside("begin") as held:
        group.create_task(work())
        await held.until_inside()
        assert store.story == []

    assert store.story == ["begin slow", "end slow"]


async def test_several_are_counted_and_may_be_let_go_early() -> None:
    gates = Gates()

    async with asyncio.TaskGroup() as group, gates.held_inside("here") as held:
        tasks = [group.create_task(gates.pass_through("here")) for _ in range(3)]
        await held.until_inside(3)
        assert held.inside == 3
        held.let_go()
        await asyncio.wait(tasks)


async def test_a_point_cannot_be_held_twice() -> None:
    gates = Gates()
    async with gates.held_inside("here"):
        with pytest.raises(RuntimeError, match="held already"):
            async with gates.held_inside("here"):
                pass
