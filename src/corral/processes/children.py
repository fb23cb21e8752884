"""Supervised children: started in order, restarted when they die, stopped in reverse order within a time limit.

Knows nothing of what the children do. Used by the launchers, `corral up` and `corral frontend`:

    async with Children(clock=clock) as children:
        await children.start(nats)
        await children.start(worker_1, worker_2)  # a group: started together, stopped together
        await run_services(stop, children=children.run())

The caller of `start` gets its failure: `start` does not retry the first start, `start_patiently` does. After it was
ready once, a child is restarted forever, with growing pauses, until it ends with one of its final exit codes
*before it is ready*: only then is it certain that the next start would fail too. That ends `run()`. The launcher of a
frontend is ready before its own children are; its final exit codes count at any time.
"""

import asyncio
import itertools
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Self

import msgspec

from corral.base.clock import Clock
from corral.base.errors import ChildFailed, CorralError
from corral.base.processes import Child, ChildProcess, describe_exit, failure_of, start_process, until_ready
from corral.base.retry import Backoff
from corral.base.tasks import first_failure, start_task, task_group
from corral.processes.exit_codes import NOT_WORTH_A_RESTART, ExitCode

__all__ = ["FINAL", "FINAL_BUT_IN_USE", "Child", "Children", "RestartPolicy", "own_command", "start_patiently"]

log = logging.getLogger(__name__)

STOP_WITHIN: Final = timedelta(seconds=30)
FINAL: Final[frozenset[int]] = frozenset(NOT_WORTH_A_RESTART)
FINAL_BUT_IN_USE: Final = FINAL - {ExitCode.IN_USE}
"""For children that may find their port free at the next start, or get another one."""
_BACKOFF: Final = Backoff(first=timedelta(milliseconds=250), cap=timedelta(seconds=30))


class RestartPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Pauses before restarts, and the healthy time after which past failures are forgotten."""

    backoff: Backoff = _BACKOFF
    stable_after: timedelta = timedelta(seconds=60)


@dataclass(slots=True, kw_only=True)
class _KeptChild:
    child: Child
    process: ChildProcess | None = None
    restarts: int = 0
    keeper: asyncio.Task[None] | None = None


_DEFAULT_POLICY: Final = RestartPolicy()


class Children:
    """Owns its processes and tasks: none is left when the context ends, also by error or cancellation.

    `on_change` is called with the process ids by name whenever one starts or ends; it must be quick.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        policy: RestartPolicy = _DEFAULT_POLICY,
        on_change: Callable[[Mapping[str, int]], None] = lambda pids: None,
        stop_within: timedelta = STOP_WITHIN,
    ) -> None:
        self._clock = clock
        self._policy = policy
        self._on_change = on_change
        self._stop_within = stop_within
        self._groups: list[list[_KeptChild]] = []
        self._given_up: asyncio.Queue[Exception] = asyncio.Queue()

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the running children."""
        return {member.child.name: member.process.pid for member in self._all() if member.process is not None}

    @property
    def restarts(self) -> dict[str, int]:
        """Number of restarts of each child."""
        return {member.child.name: member.restarts for member in self._all()}

    async def start(self, *group: Child) -> None:
        """Start a group and return when all of it is ready. On ChildFailed no member of the group is running."""
        members = [_KeptChild(child=child) for child in group]
        self._groups.append(members)
        try:
            with first_failure(ChildFailed):
                async with task_group() as starts:
                    tasks = [
                        starts.create_task(self._start(member), name=f"start {member.child.name}") for member in members
                    ]
        except Exception:
            await self._stop_group(members, self._deadline(self._stop_within))
            self._groups.remove(members)
            raise
        for member, task in zip(members, tasks, strict=True):
            member.keeper = start_task(self._keep(member, task.result()), name=f"keep {member.child.name}")

    async def run(self) -> None:
        """Run until cancelled, or raise why a child can no longer be kept alive."""
        raise await self._given_up.get()

    async def stop(self) -> None:
        """Stop restarting, then stop the groups in reverse order. Kill what is left at the time limit."""
        deadline = self._deadline(self._stop_within)
        try:
            await self._end_keepers()
            for members in reversed(self._groups):
                await self._stop_group(members, deadline)
        finally:
            # The orderly stop may have been cancelled.
            unstopped = [(member, member.process) for member in self._all() if member.process is not None]
            for _, process in unstopped:
                process.kill()
            await self._end_keepers()
            for member, process in unstopped:
                await process.wait()
                self._changed(member, None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _start(self, member: _KeptChild) -> ChildProcess:
        """Start once. A failure stops the process; a cancellation leaves it to `stop`, which keeps the order."""
        process = start_process(member.child.command())
        self._changed(member, process)
        try:
            await until_ready(member.child, process)
        except Exception:
            await process.stop(member.child.stop_grace)
            self._changed(member, None)
            raise
        log.info("child ready", extra={"event": "child.ready", "child": member.child.name, "pid": process.pid})
        return process

    async def _keep(self, member: _KeptChild, process: ChildProcess) -> None:
        """Restart forever. A failure that a restart cannot repair ends the supervisor."""
        failures = 0
        try:
            while True:
                began = self._clock.monotonic()
                code = await process.wait()
                if self._clock.monotonic() - began >= self._policy.stable_after.total_seconds():
                    failures = 0
                ending = {"ending": describe_exit(code)}
                if process.tail:
                    ending["last_words"] = process.tail[-1]
                log.warning("child died", extra={"event": "child.died", "child": member.child.name, **ending})
                self._changed(member, None)
                if member.child.final_when_ready and code in member.child.final_exit_codes:
                    raise failure_of(member.child, process, f"ended ({describe_exit(code)})", code)
                process, failures = await self._restart(member, failures)
        except Exception as error:
            is_told = isinstance(error, CorralError)  # in full, by who runs the children
            log.exception(
                "child given up", exc_info=not is_told, extra={"event": "child.given_up", "child": member.child.name}
            )
            self._given_up.put_nowait(error)

    async def _restart(self, member: _KeptChild, failures: int) -> tuple[ChildProcess, int]:
        """Try until it is ready again; also return the number of failures in a row, including this one."""
        while True:
            failures += 1
            await self._clock.sleep(self._policy.backoff.delay(failures).total_seconds())
            member.restarts += 1
            try:
                return await self._start(member), failures
            except CorralError as error:
                if error.fields.get("exit_code") in member.child.final_exit_codes:
                    raise
                log.warning(
                    "child did not start: %s",
                    error,
                    extra={"event": "child.start_failed", "child": member.child.name, "failures": failures},
                )

    async def _stop_group(self, members: list[_KeptChild], deadline: float) -> None:
        time_left = timedelta(seconds=max(0.0, deadline - asyncio.get_running_loop().time()))

        async def stop(member: _KeptChild, process: ChildProcess) -> None:
            code = await process.stop(min(member.child.stop_grace, time_left))
            log.info("child stopped", extra={"event": "child.stopped", "child": member.child.name, "exit_code": code})
            self._changed(member, None)

        async with task_group() as stops:
            for member in members:
                if member.process is not None:
                    stops.create_task(stop(member, member.process), name=f"stop {member.child.name}")

    async def _end_keepers(self) -> None:
        keepers = [member.keeper for member in self._all() if member.keeper is not None]
        for keeper in keepers:
            keeper.cancel()
        if keepers:
            await asyncio.wait(keepers)  # their errors were reported by themselves

    def _changed(self, member: _KeptChild, process: ChildProcess | None) -> None:
        member.process = process
        try:
            self._on_change(self.pids)
        except Exception:
            log.exception("the callback for process ids failed", extra={"event": "child.callback_failed"})

    def _all(self) -> Iterator[_KeptChild]:
        return (member for members in self._groups for member in members)

    @staticmethod
    def _deadline(within: timedelta) -> float:
        return asyncio.get_running_loop().time() + within.total_seconds()


async def start_patiently(
    children: Children, *group: Child, clock: Clock, attempts: int | None = None, final: frozenset[int] = FINAL
) -> None:
    """Start a group, and retry until it is ready. Raise ChildFailed after a final exit code, or after the last
    attempt."""
    for attempt in itertools.count(1):
        try:
            await children.start(*group)
        except ChildFailed as error:
            if error.fields.get("exit_code") in final or attempt == attempts:
                raise
            log.warning("starting again: %s", error, extra={"event": "child.start_repeated", "attempt": attempt})
            await clock.sleep(_BACKOFF.delay(attempt).total_seconds())
        else:
            return


def own_command(*arguments: str) -> list[str]:
    """Return the command that starts another process of this program, wherever it is installed."""
    return [sys.executable, "-P", "-m", "corral", *arguments]
