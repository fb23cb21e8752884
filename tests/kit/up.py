"""Corral as people run it: real processes in a directory of their own, and a look at what they leave behind."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.kit.ports import lasting_port
from tests.kit.processes import words_of
from tests.kit.waiting import wait_until

CORRAL = [sys.executable, "-P", "-m", "corral"]
STOP_SECONDS = 60
"""Far more than it takes: how quickly it stops depends on the machine."""


def environment(home: Path, **more: str) -> dict[str, str]:
    """No setting of the machine reaches the processes."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return {**kept, "HOME": str(home), **more}


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def call(method: str, url: str, body: object = None, *, key: str = "") -> Answer:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return Answer(response.status, response.read())
    except urllib.error.HTTPError as error:
        return Answer(error.code, error.read())
    except OSError:
        return Answer(0, b"")


class Running:
    """A process of ours with everything it started."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, home: Path) -> None:
        self.process = process
        self._log = log
        self._home = home
        self._seen: set[psutil.Process] = set()

    @property
    def output(self) -> str:
        """Standard output and standard error, in the order of writing."""
        return self._log.read_text(errors="replace")

    def look(self) -> None:
        """Remember every process that belongs to it now."""
        try:
            own = psutil.Process(self.process.pid)
            self._seen.update([own, *own.children(recursive=True)])
        except psutil.NoSuchProcess:
            return

    def left(self) -> list[str]:
        """What it started and what still lives."""
        return [f"{process.pid} {' '.join(words_of(process))}" for process in self._seen if _is_alive(process)]

    def stop(self, number: signal.Signals) -> int:
        """Send a signal and wait for the end; the exit code."""
        self.look()
        self.process.send_signal(number)
        return self.process.wait(timeout=STOP_SECONDS)

    def end(self) -> None:
        """After a test, whatever became of it."""
        self.look()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        wait_until(lambda: not self.left(), "the end of all its processes", seconds=STOP_SECONDS)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class RunningUp(Running):
    """`corral up` with its data directory."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, home: Path, data: Path) -> None:
        super().__init__(process, log, home)
        self.data = data

    @property
    def file(self) -> Path:
        return self.data / "up.json"

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(self.file.read_text())
        return state

    @property
    def url(self) -> str:
        return str(self.state()["url"])

    @property
    def admin_key(self) -> str:
        return str(self.state()["keys"]["admin"])

    def new_key(self, name: str, *scopes: str) -> str:
        """Make another key."""
        answer = self.api("POST", "/api/v1/keys", {"name": name, "scopes": list(scopes)})
        if answer.status != 201:
            raise AssertionError(f"no key {name}: {answer.status} {answer.body!r}")
        return str(answer.json()["key"])

    def until_ready(self) -> dict[str, Any]:
        def is_ready() -> bool:
            assert self.process.poll() is None, self.output
            return self.file.exists()

        wait_until(is_ready, "up.json", seconds=180)
        self.look()
        return self.state()

    def call(self, method: str, path: str, body: object = None, *, key: str) -> Answer:
        return call(method, self.state()["url"] + path, body, key=key)

    def api(self, method: str, path: str, body: object = None) -> Answer:
        """As the administrator."""
        return self.call(method, path, body, key=self.state()["keys"]["admin"])

    def nodes(self) -> dict[str, dict[str, Any]]:
        answer = self.api("GET", "/api/v1/nodes")
        return {node["name"]: node for node in answer.json()["items"]} if answer.status == 200 else {}

    def until_healthy(self, *names: str) -> None:
        def healthy() -> bool:
            nodes = self.nodes()
            return all(nodes.get(name, {}).get("status") == "healthy" for name in names)

        wait_until(healthy, f"{', '.join(names)} to be healthy", seconds=120)

    def corral(self, *arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
        return run_corral(self._home, *arguments, "--data", str(self.data), typed=typed)


def run_corral(
    home: Path, *arguments: str, before: Callable[[], None] | None = None, typed: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    """A command that ends by itself; `before` is called in its process, before it starts. `typed` is its input."""
    return subprocess.run(
        [*CORRAL, *arguments],
        preexec_fn=before,
        env=environment(home, **variables),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        input=typed,
    )


@contextmanager
def started(
    home: Path, arguments: Sequence[str], log: Path, *, command: Sequence[str] = CORRAL, **variables: str
) -> Iterator[subprocess.Popen[bytes]]:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*command, *arguments],
            env=environment(home, **variables),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    yield process


@contextmanager
def running_up(folder: Path, *arguments: str, command: Sequence[str] = CORRAL, **variables: str) -> Iterator[RunningUp]:
    """`corral up` on a free port, in `folder/fleet`, without provisions and with its log on its output.

    Nothing of it is left afterwards.
    At its first start its NATS gets a port that the fleet of another test does not take while this one is away.
    """
    data = folder / "fleet"
    variables = {"CORRAL_VERBOSE": "true", "CORRAL_PROVISIONS": str(folder / "none"), **variables}
    everything = ["up", "--data", str(data), "--port", "0", *arguments]
    if not (data / "nats").exists():
        variables = {"CORRAL_NATS_PORT": str(lasting_port()), **variables}
    with started(folder, everything, folder / "up.log", command=command, **variables) as process:
        up = RunningUp(process, folder / "up.log", folder, data)
        try:
            yield up
        finally:
            up.end()


@contextmanager
def running(folder: Path, arguments: Sequence[str], **variables: str) -> Iterator[Running]:
    """Any command that goes on until it is stopped; nothing of it is left afterwards."""
    log = folder / f"{arguments[0]}-{len(list(folder.iterdir()))}.log"
    with started(folder, arguments, log, **variables) as process:
        found = Running(process, log, folder)
        try:
            yield found
        finally:
            found.end()
