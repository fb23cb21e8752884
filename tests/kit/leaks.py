"""Leak checks: what a test started or opened must be gone when it ends.

Looked at after every test, see `tests/conftest.py`: tasks, child processes, threads and file descriptors. A look takes
a fraction of a millisecond; the slow parts (listing processes, collecting garbage) run only when there is a reason.
"""

import asyncio
import contextlib
import gc
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import psutil

LASTING_CHILDREN: Final = frozenset({"postgres", "psql", "weed"})
"""Servers that the kit starts once for the whole run: see `databases.py` and `s3.py`."""
LASTING_THREADS: Final = ("asyncio_", "uvloop_")
"""Threads of a loop's own pool: they end with the loop."""
_STARTS: Final = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn")
_ROUNDS: Final = 50
"""Turns that ending tasks and closing transports get: enough for a chain of callbacks without I/O."""
_THREAD_SECONDS: Final = 30.0
"""How long a thread that cannot be awaited, such as a disk check, may take on a busy machine."""
_LOOK_SECONDS: Final = 0.01
_OF_POLLERS: Final = frozenset({"anon_inode:[eventpoll]", "anon_inode:[eventfd]"})
"""What a native thread has that waits for sockets."""
_SHOWN: Final = 200
_DESCRIPTORS: Final = "/proc/self/fd"


async def tasks_left() -> list[str]:
    """The tasks of this loop that still run, apart from the caller; those about to end get some turns."""
    for _ in range(_ROUNDS):
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if not left:
            return []
        await asyncio.sleep(0)
    return sorted(_describe_task(task) for task in left if not task.done())


def _describe_task(task: "asyncio.Task[object]") -> str:
    frames = task.get_stack(limit=1)
    where = f" at {frames[-1].f_code.co_filename}:{frames[-1].f_lineno}" if frames else ""
    return f"task {task.get_name()!r}{where}"


class ChildWatch:
    """The children of this process. Lists them only after one was started: that takes milliseconds.

    The interpreter tells of a start with an audit event, beside a thousand others in each test. A method of a
    dictionary hears them all, in a fifth of the time of a function: it removes those that say that something started.
    """

    def __init__(self) -> None:
        self._unheard: dict[str, object] = {}
        self._seen: frozenset[int] = frozenset()
        sys.addaudithook(self._unheard.pop)  # called with an event and its arguments

    def look(self) -> frozenset[int]:
        if len(self._unheard) < len(_STARTS):
            self._unheard.update(dict.fromkeys(_STARTS))
            self._seen = frozenset(child.pid for child in psutil.Process().children())
        return self._seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What this process had at one moment."""

    watch: ChildWatch
    children: frozenset[int]
    threads: frozenset[threading.Thread]
    descriptors: Mapping[int, str]

    @classmethod
    def take(cls, watch: ChildWatch) -> Self:
        return cls(
            watch=watch,
            children=watch.look(),
            threads=frozenset(threading.enumerate()),
            descriptors=open_descriptors(),
        )

    def leaks(self) -> list[str]:
        """What was opened since and is still there, each described so that it can be found."""
        return [*self._children(), *self._threads(), *self._descriptors()]

    async def leaks_beside_tasks(self) -> list[str]:
        """Return leaks other than tasks from inside a loop, after giving its transports time to close."""
        for _ in range(_ROUNDS):
            if not self._new_descriptors():
                break
            await asyncio.sleep(0)
        return self.leaks()

    def _children(self) -> list[str]:
        new = self.watch.look() - self.children
        return [text for pid in sorted(new) if not _lasts(pid) and (text := _describe_child(pid))]

    def _threads(self) -> list[str]:
        new = [thread for thread in threading.enumerate() if thread not in self.threads]
        new = [thread for thread in new if not thread.name.startswith(LASTING_THREADS)]
        if new:
            gc.collect()  # gRPC ends its threads with its last channel, which the traceback of an error may still hold
        for thread in new:
            thread.join(_THREAD_SECONDS)
        return [f"thread {thread.name!r}" for thread in new if thread.is_alive()]

    def _descriptors(self) -> list[str]:
        if not self._new_descriptors():
            return []
        gc.collect()  # closes nothing by itself, but what only garbage holds open is told by a ResourceWarning
        ours = self._descriptors_left()
        if not ours:
            return []
        pipes, doors = _pipes_of(self.watch.look()), self._doors()
        left = [(number, what) for number, what in ours if what not in pipes and _door(number, what) not in doors]
        return [f"descriptor {number}: {describe_descriptor(number, what)}" for number, what in left]

    def _doors(self) -> frozenset[object]:
        """Addresses at which servers listened before: what they accept since then is theirs, and ends with them."""
        now = open_descriptors()
        still = [(number, what) for number, what in self.descriptors.items() if now.get(number) == what]
        return frozenset(_door(number, what, is_listening=True) for number, what in still) - {None}

    def _descriptors_left(self) -> list[tuple[int, str]]:
        """The new descriptors, once native threads had time to close theirs: gRPC does so after its last channel."""
        deadline = time.monotonic() + _THREAD_SECONDS
        while (new := self._new_descriptors()) and all(what in _OF_POLLERS for _, what in new):
            if time.monotonic() > deadline:
                break
            time.sleep(_LOOK_SECONDS)
        return new

    def _new_descriptors(self) -> list[tuple[int, str]]:
        before = self.descriptors
        return [(number, what) for number, what in open_descriptors().items() if before.get(number) != what]


def open_descriptors() -> dict[int, str]:
    """Numbers and what they lead to; empty where the system does not tell."""
    descriptors: dict[int, str] = {}
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(_DESCRIPTORS):
            with contextlib.suppress(FileNotFoundError):  # the one that this very look used
                descriptors[int(name)] = os.readlink(f"{_DESCRIPTORS}/{name}")
    return descriptors


def _lasts(pid: int) -> bool:
    """By its name, or by what it is about to become: the kit starts programs through a small launcher."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return not LASTING_CHILDREN.isdisjoint({process.name(), *map(os.path.basename, process.cmdline())})
    return False


def _describe_child(pid: int) -> str:
    """Describe a child; empty when it has ended. A zombie counts, because it was not reaped."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        status = process.status()
        command = "" if status == psutil.STATUS_ZOMBIE else " ".join(" ".join(process.cmdline()).split())
        return f"child process {pid} ({status}): {command[-_SHOWN:] or process.name()}"
    return ""


def _pipes_of(children: frozenset[int]) -> frozenset[str]:
    """Pipes to servers that live for the whole run stay open as long."""
    links = set()
    for pid in filter(_lasts, children):
        folder = Path("/proc") / str(pid) / "fd"
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                with contextlib.suppress(OSError):
                    links.add(os.readlink(folder / name))
    return frozenset(what for what in links if what.startswith("pipe:"))


def _door(number: int, what: str, *, is_listening: bool = False) -> object:
    """The own TCP address of a socket that listens, or of a connection; None of anything else."""
    if not what.startswith("socket:"):
        return None
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as ours:
        listens = bool(ours.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
        if ours.family in {socket.AF_INET, socket.AF_INET6} and listens is is_listening:
            return ours.getsockname()
    return None


def describe_descriptor(number: int, what: str) -> str:
    """What a descriptor leads to; of sockets also the two addresses, which are empty where they have no name."""
    if not what.startswith("socket:"):
        return what
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as ours:
        return f"{what} {ours.getsockname()} to {_peer(ours)}"
    return what


def _peer(ours: socket.socket) -> object:
    peer: Callable[[], object] = ours.getpeername
    try:
        return peer()
    except OSError:
        return "nobody"


def report(leaks: list[str]) -> str:
    """Format leaks as a message."""
    return "this test left something behind:\n" + "\n".join(f"  - {leak}" for leak in leaks)
