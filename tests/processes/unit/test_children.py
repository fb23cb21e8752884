"""Supervised children: readiness, restarts, final exit codes, the order of stops, and no leak at any cancellation."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest

from corral.base.clock import SystemClock
from corral.base.errors import ChildFailed, PathNotUsable
from corral.base.processes import ChildCommand, Output
from corral.base.retry import Backoff
from corral.processes.children import Child, Children, RestartPolicy

POLICY = RestartPolicy(
    backoff=Backoff(first=timedelta(seconds=1), cap=timedelta(seconds=4), spread=0), stable_after=timedelta(seconds=60)
)
FOREVER = "while :; do sleep 1000; done"


class HeldClock:
    """Time stands still; every sleeper waits until the test lets it go."""

    def __init__(self) -> None:
        self.time = 0.0
        self._reads: asyncio.Queue[None] = asyncio.Queue()
        self._sleepers: asyncio.Queue[tuple[float, asyncio.Event]] = asyncio.Queue()

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.time, UTC)

    def monotonic(self) -> float:
        self._reads.put_nowait(None)
        return self.time

    async def next_read(self) -> None:
        """Wait until somebody looks at the clock."""
        async with asyncio.timeout(60):
            await self._reads.get()

    async def sleep(self, seconds: float) -> None:
        over = asyncio.Event()
        self._sleepers.put_nowait((seconds, over))
        await over.wait()

    async def next_sleep(self) -> float:
        """Wait until somebody sleeps, wake them, say how long they meant to."""
        async with asyncio.timeout(60):
            seconds, over = await self._sleepers.get()
        over.set()
        return seconds


class Pids:
    """Remembers what it was told, and wakes up who waits for more."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[dict[str, int]] = asyncio.Queue()

    def __call__(self, pids: Mapping[str, int]) -> None:
        self.told.put_nowait(dict(pids))

    async def next(self) -> dict[str, int]:
        async with asyncio.timeout(60):
            return await self.told.get()


@pytest.fixture
def clock() -> HeldClock:
    return HeldClock()


@pytest.fixture
def pids() -> Pids:
    return Pids()


@pytest.fixture
async def children(clock: HeldClock, pids: Pids) -> AsyncIterator[Children]:
    async with Children(clock=clock, policy=POLICY, on_change=pids) as children:
        yield children


async def at_once() -> None:
    """Ready as soon as it runs."""


async def never() -> None:
    await asyncio.Event().wait()


def child(
    script: str = FOREVER, *, name: str = "one", ready: Callable[[], Awaitable[None]] = at_once, **fields: object
) -> Child:
    command = ChildCommand(argv=["sh", "-c", script], env={"PATH": os.defpath}, output=Output.TAIL)
    return Child(name=name, command=lambda: command, ready=ready, **fields)  # type: ignore[arg-type]


def attempts(*scripts: str) -> Callable[[], ChildCommand]:
    """A command that is another one at each start."""
    left = iter(scripts)
    return lambda: ChildCommand(argv=["sh", "-c", next(left)], env={"PATH": os.defpath}, output=Output.TAIL)


def ends_with(code: int) -> str:
    return f"exit {code}"


async def test_a_started_child_is_ready_and_its_pid_is_told(children: Children, pids: Pids) -> None:
    asked = asyncio.Event()

    async def ready() -> None:
        asked.set()

    await children.start(child(ready=ready))

    assert asked.is_set()
    assert await pids.next() == children.pids
    assert psutil.pid_exists(children.pids["one"])
    assert children.restarts == {"one": 0}


async def test_a_child_that_ends_before_it_is_ready_has_failed_with_its_last_words(children: Children) -> None:
    with pytest.raises(ChildFailed, match=r"one ended before it was ready \(exit code 3\)\n    no such port") as failed:
        await children.start(child("echo no such port >&2; exit 3", ready=never))

    assert failed.value.fields["exit_code"] == 3
    assert failed.value.fields["tail"] == ["no such port"]
    assert children.pids == {}


async def test_a_child_killed_before_it_is_ready_names_the_signal(children: Children) -> None:
    with pytest.raises(ChildFailed, match=r"signal 9"):
        await children.start(child("kill -9 $$", ready=never))


async def test_a_child_that_is_not_ready_in_time_has_failed_and_is_stopped(children: Children, pids: Pids) -> None:
    with pytest.raises(ChildFailed, match=r"one was not ready within 0\.01 s"):
        await children.start(child(ready=never, ready_within=timedelta(milliseconds=10)))

    assert list(await pids.next()) == ["one"]
    assert await pids.next() == {}


async def test_a_readiness_check_that_fails_fails_the_start(children: Children) -> None:
    async def ready() -> None:
        raise ConnectionRefusedError("nobody there")

    with pytest.raises(ChildFailed, match="one was not ready: nobody there"):
        await children.start(child(ready=ready))


async def test_one_failure_stops_the_rest_of_its_group_and_leaves_the_others(children: Children) -> None:
    await children.start(child(name="first"))

    with pytest.raises(ChildFailed, match="bad ended"):
        await children.start(child(name="good", ready=never), child("exit 1", name="bad", ready=never))

    assert list(children.pids) == ["first"]


async def test_a_child_that_dies_is_started_again_after_a_pause(
    children: Children, clock: HeldClock, pids: Pids
) -> None:
    await children.start(child())
    first = (await pids.next())["one"]
    os.kill(first, signal.SIGKILL)

    assert await pids.next() == {}
    assert await clock.next_sleep() == 1
    second = (await pids.next())["one"]
    assert second != first
    assert children.restarts == {"one": 1}


async def test_pauses_grow_while_it_keeps_dying_and_shrink_after_it_was_stable(
    children: Children, clock: HeldClock, pids: Pids
) -> None:
    await children.start(child())
    pauses = []
    for lifetime in (0, 0, 0, 61, 0):
        pid = (await pids.next())["one"]
        await clock.next_read()  # its good health begins
        clock.time += lifetime
        os.kill(pid, signal.SIGKILL)
        await clock.next_read()
        assert await pids.next() == {}
        pauses.append(await clock.next_sleep())

    assert pauses == [1, 2, 4, 1, 2]


async def test_a_restart_that_fails_is_tried_again(children: Children, clock: HeldClock, pids: Pids) -> None:
    command = attempts("sleep 1000", "exit 1", "sleep 1000")
    checks = iter([at_once, never, at_once])
    await children.start(Child(name="one", command=command, ready=lambda: next(checks)()))
    os.kill((await pids.next())["one"], signal.SIGKILL)

    assert [await clock.next_sleep(), await clock.next_sleep()] == [1, 2]
    assert [bool(await pids.next()) for _ in range(4)] == [False, True, False, True]
    assert children.restarts == {"one": 2}


async def test_a_command_that_cannot_be_made_is_tried_again(children: Children, clock: HeldClock, pids: Pids) -> None:
    commands = iter([attempts("sleep 1000"), _disk_full, attempts("sleep 1000")])
    await children.start(Child(name="one", command=lambda: next(commands)(), ready=at_once))
    os.kill((await pids.next())["one"], signal.SIGKILL)

    assert [await clock.next_sleep(), await clock.next_sleep()] == [1, 2]
    assert await pids.next() == {}
    assert list(await pids.next()) == ["one"]


def _disk_full() -> ChildCommand:
    raise PathNotUsable("the disk is full")


async def test_a_final_exit_code_before_readiness_ends_the_supervisor(
    children: Children, clock: HeldClock, pids: Pids
) -> None:
    checks = iter([at_once, never])
    one = Child(
        name="one",
        command=attempts("sleep 1000", "echo wrong key; exit 78"),
        ready=lambda: next(checks)(),
        final_exit_codes=frozenset({78}),
    )
    await children.start(one)
    os.kill((await pids.next())["one"], signal.SIGKILL)
    assert await clock.next_sleep() == 1

    with pytest.raises(ChildFailed, match="wrong key") as failed:
        await children.run()
    assert failed.value.fields["exit_code"] == 78


async def test_a_final_exit_code_of_a_child_that_was_ready_earns_one_more_start(
    children: Children, clock: HeldClock, pids: Pids, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    command = attempts(f"read line < {go}; exit 78", "sleep 1000")
    await children.start(Child(name="one", command=command, ready=at_once, final_exit_codes=frozenset({78})))
    await asyncio.to_thread(go.write_text, "go\n")

    assert await clock.next_sleep() == 1
    assert [len(await pids.next()) for _ in range(3)] == [1, 0, 1]


async def test_a_final_exit_code_of_a_supervisor_is_final_also_after_it_was_ready(
    children: Children, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    command = attempts(f"read line < {go}; echo wrong key; exit 78")
    one = Child(name="one", command=command, ready=at_once, final_exit_codes=frozenset({78}), final_when_ready=True)
    await children.start(one)
    await asyncio.to_thread(go.write_text, "go\n")

    with pytest.raises(ChildFailed, match=r"(?s)one ended.*wrong key") as failed:
        await children.run()
    assert failed.value.fields["exit_code"] == 78
    assert [bool(record.exc_info) for record in caplog.records if record.message == "child given up"] == [False]


async def test_a_fault_in_a_check_is_not_hidden_by_restarts(children: Children, clock: HeldClock, pids: Pids) -> None:
    async def faulty() -> None:
        raise ZeroDivisionError

    checks = iter([at_once, faulty])
    await children.start(child(ready=lambda: next(checks)()))
    os.kill((await pids.next())["one"], signal.SIGKILL)
    await clock.next_sleep()

    with pytest.raises(ZeroDivisionError):
        await children.run()


async def test_the_last_group_stops_first(clock: HeldClock, tmp_path: Path) -> None:
    book = tmp_path / "book"

    def writes(name: str) -> Child:
        up = tmp_path / f"{name}.up"
        os.mkfifo(up)

        async def ready() -> None:
            await asyncio.to_thread(up.read_text)

        script = f"trap 'echo {name} >> {book}; exit 0' TERM; echo > {up}; while :; do sleep 0.01; done"
        return child(script, name=name, ready=ready)

    async with Children(clock=clock) as children:
        await children.start(writes("nats"))
        await children.start(writes("frontend"))
        await children.start(writes("worker"), writes("worker"[::-1]))

    stopped = book.read_text().split()
    assert sorted(stopped[:2]) == sorted(["worker", "rekrow"])
    assert stopped[2:] == ["frontend", "nats"]
    assert children.pids == {}


async def test_the_bound_holds_however_stubborn_the_children_are(clock: HeldClock) -> None:
    stubborn = f"trap '' TERM; {FOREVER}"
    async with asyncio.timeout(60):
        async with Children(clock=clock, stop_within=timedelta(0)) as children:
            await children.start(child(stubborn, name="one", stop_grace=timedelta(hours=1)))
            await children.start(child(stubborn, name="two", stop_grace=timedelta(hours=1)))
    assert children.pids == {}


async def test_a_callback_that_fails_harms_nobody(clock: HeldClock, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: Mapping[str, int]) -> None:
        raise OSError("disk full")

    async with Children(clock=clock, on_change=fail) as children:
        await children.start(child())
        assert len(children.pids) == 1
    assert "disk full" in caplog.text


async def test_a_stop_during_the_pause_before_a_restart_leaves_nothing(
    children: Children, clock: HeldClock, pids: Pids
) -> None:
    await children.start(child())
    os.kill((await pids.next())["one"], signal.SIGKILL)
    await pids.next()
    await children.stop()
    assert children.pids == {}
    assert pids.told.empty()


@pytest.mark.parametrize("steps", [*range(12), *range(12, 60, 6)])
async def test_cancelled_at_any_point_it_leaves_nothing(steps: int) -> None:
    """The fixture `no_leaks` of all tests is the judge."""

    async def life() -> None:
        async with Children(clock=SystemClock(), stop_within=timedelta(seconds=1)) as children:
            await children.start(child("trap '' TERM; sleep 1000", name="one"))
            await children.start(child(name="two", ready=never), child(name="three"))

    task = asyncio.create_task(life())
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    for _ in range(steps % 5):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
