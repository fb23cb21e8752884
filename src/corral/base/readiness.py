"""Starts a child process and waits until it is ready. Restarting it is the caller's decision."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from corral.base.errors import ChildFailed, CorralError
from corral.base.processes import ChildCommand, ChildProcess
from corral.base.tasks import task_group

SHOWN_LINES: Final = 20
"""Number of output lines that are shown in an error or a log line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """How to start a child, how to check that it is ready, and how to stop it."""

    name: str
    command: Callable[[], ChildCommand]
    """Called before every start, so that descriptors and one-time keys are new each time."""
    ready: Callable[[], Awaitable[None]]
    """Returns once the child works. Cancelled when the child ends before that."""
    ready_within: timedelta = timedelta(seconds=30)
    stop_grace: timedelta = timedelta(seconds=10)
    final_exit_codes: frozenset[int] = frozenset()
    """Exit codes after which a restart would fail in the same way, such as a wrong configuration."""


async def until_ready(child: Child, process: ChildProcess) -> None:
    """Wait until the child is ready. Raise ChildFailed when it ends early, its check fails, or the time is over."""

    async def fail_at_exit() -> None:
        code = await process.wait()
        raise _failure(child, process, f"ended before it was ready ({describe_exit(code)})", code)

    try:
        with first_of_group():
            async with asyncio.timeout(child.ready_within.total_seconds()), task_group() as group:
                watcher = group.create_task(fail_at_exit(), name=f"exit of {child.name}")
                await child.ready()
                watcher.cancel()
    except ChildFailed:
        raise
    except TimeoutError as error:
        problem = f"was not ready within {child.ready_within.total_seconds():g} s"
        raise _failure(child, process, problem, None) from error
    except (CorralError, OSError) as error:
        raise _failure(child, process, f"was not ready: {error}", None) from error


@contextmanager
def first_of_group() -> Iterator[None]:
    """Re-raise the error that says why the child failed, instead of the task group's exception group."""
    try:
        yield
    except ExceptionGroup as group:
        failed = [error for error in group.exceptions if isinstance(error, ChildFailed)]
        error = (failed or group.exceptions)[0]
        raise error from error.__cause__


def _failure(child: Child, process: ChildProcess, problem: str, code: int | None) -> ChildFailed:
    tail = process.tail[-SHOWN_LINES:]
    text = "".join(f"\n    {line}" for line in tail)
    return ChildFailed(f"{child.name} {problem}{text}", child=child.name, exit_code=code, tail=tail)


def describe_exit(code: int) -> str:
    """Describe an exit code for people."""
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
