"""What the user sees, and how other programs are run: one set-up of a checkout at a time."""

import contextlib
import fcntl
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from .checkout import Checkout

Words: TypeAlias = Sequence[str | Path]
Result: TypeAlias = subprocess.CompletedProcess[str]


class Trouble(Exception):
    """Something the user has to know about: what failed and what to do, and the last words of who failed."""

    def __init__(self, advice: str, said: str = "") -> None:
        last_words = [f"    {line}" for line in said.strip().splitlines()[-12:]]
        super().__init__("\n".join([*last_words, advice]))


@contextlib.contextmanager
def step(title: str) -> Iterator[None]:
    """One line on the screen: what is being done, then how long it took."""
    print(f"{title} … ", end="", flush=True)
    started = time.monotonic()
    try:
        yield
    except BaseException:
        print("not done", flush=True)
        raise
    print(f"{time.monotonic() - started:.1f} s", flush=True)


class Runner:
    """Runs other programs while holding the checkout's lock.

    The programs inherit the lock: should this process be killed, the next one waits for what it left running.
    """

    def __init__(self, lock: int) -> None:
        self._lock = lock

    def succeed(self, command: Words, *, advice: str, env: Mapping[str, str] = os.environ) -> None:
        """Run a command that has to work; Trouble with the end of what it said, and the advice, if it does not."""
        result = self.attempt(command, env=env)
        if result.returncode != 0:
            raise Trouble(advice, result.stderr.strip() or result.stdout)

    def attempt(self, command: Words, *, env: Mapping[str, str] = os.environ, cwd: Path | None = None) -> Result:
        """Run a command and leave it to the caller what to think of the outcome."""
        return subprocess.run(
            [str(word) for word in command],
            cwd=cwd,
            env=dict(env),
            pass_fds=(self._lock,),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
        )


@contextlib.contextmanager
def exclusive(checkout: Checkout) -> Iterator[Runner]:
    """Only one of us at a time works on a checkout."""
    checkout.build.mkdir(exist_ok=True)
    with (checkout.build / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another set-up is at work in this checkout: waiting for it …", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield Runner(lock.fileno())
