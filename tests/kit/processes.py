"""Real `corral` processes, started, killed and suspended by tests. Each is gone at the end of its context."""

import contextlib
import json
import os
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final, Self

import aiohttp
import psutil

from corral.base.processes import ChildCommand, ChildProcess, Output, start_process
from corral.processes.children import own_command
from tests.kit.admin_api import AdminApi
from tests.kit.ports import lasting_port, lasting_range
from tests.kit.waiting import eventually

_LOOPBACK: Final = "127.0.0.1"
_START_SECONDS: Final = 60.0
_BACKEND_PORTS: Final = 20
"""Ports per worker: its backends must not take the port of another one that is restarted."""
_STOP_GRACE: Final = timedelta(seconds=15)
_NEW_KEYS: Final = re.compile(r"The new keys are in (.+), readable only by you")


class CorralProcess:
    """One command of ours. Nothing of this machine's environment reaches it but the path."""

    def __init__(self, name: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self.name = name
        self._arguments = arguments
        self._environment = {"PATH": os.environ.get("PATH", os.defpath), **environment}
        self._process: ChildProcess | None = None

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    def start(self) -> None:
        """Start, again if it has ended."""
        command = ChildCommand(argv=own_command(*self._arguments), env=self._environment, output=Output.TAIL)
        self._process = start_process(command)

    def set_variable(self, name: str, value: str | None) -> None:
        """Change its environment for the next start; None takes the variable away."""
        self._environment.pop(name, None)
        if value is not None:
            self._environment[name] = value

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        return self._running.pid

    def started(self) -> list[psutil.Process]:
        """Everything that it started, and what that started in turn, as far as it runs now."""
        return psutil.Process(self.pid).children(recursive=True)

    @property
    def output(self) -> str:
        """The last lines that it wrote in its latest life."""
        return "" if self._process is None else "\n".join(self._process.tail)

    async def stop(self) -> int:
        """Ask it to end in good order; its exit code."""
        return await self._running.stop(_STOP_GRACE)

    async def kill(self) -> None:
        """As `kill -9`, with its whole group; harmless when it has ended."""
        if self._process is not None:
            self._process.kill()
            await self._process.wait()

    def pause(self) -> None:
        """Suspend it: it exists, and does nothing."""
        os.killpg(self._running.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.killpg(self._running.pid, signal.SIGCONT)

    @property
    def _running(self) -> ChildProcess:
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process


class HttpProcess(CorralProcess, AdminApi):
    """A command that answers HTTP, on a port that stays its own."""

    def __init__(self, name: str, command: str, session: aiohttp.ClientSession, environment: Mapping[str, str]) -> None:
        self.port = lasting_port()
        AdminApi.__init__(self, session, f"http://{_LOOPBACK}:{self.port}")
        CorralProcess.__init__(
            self, name, [command], {"CORRAL_PORT": str(self.port), "CORRAL_HOST": _LOOPBACK, **environment}
        )

    async def until_ready(self) -> None:
        """Wait until it serves and has everything that it needs."""
        for path in ("/readyz", "/api/v1/ready"):
            await self._until_answers(path)

    async def until_serving(self) -> None:
        """Wait until it serves, whatever else is missing."""
        await self._until_answers("/healthz")

    async def _until_answers(self, path: str) -> None:
        async def is_there() -> bool:
            if not self.is_running:
                raise AssertionError(f"{self.name} ended:\n{self.output}")
            return await self.answers(path) == 200

        await eventually(is_there, f"200 from {self.name} for {path}", seconds=_START_SECONDS)

    async def answers(self, path: str) -> int:
        """Return the status of the response; 0 when there is none."""
        try:
            return (await self.call("GET", path)).status
        except (aiohttp.ClientError, OSError):
            return 0

    @property
    def new_keys(self) -> list[str]:
        """Administrator keys in the files that its output names."""
        return self._new_credentials("admin")

    @property
    def new_tokens(self) -> list[str]:
        """Registration tokens in the files that its output names."""
        return self._new_credentials("registration")

    def _new_credentials(self, name: str) -> list[str]:
        files = [json.loads(Path(file).read_text()) for file in _NEW_KEYS.findall(self.output)]
        return [file[name] for file in files if file[name]]


class FrontendProcess(HttpProcess):
    """`corral frontend`, which keeps its children alive."""

    def __init__(self, name: str, session: aiohttp.ClientSession, environment: Mapping[str, str]) -> None:
        super().__init__(name, "frontend", session, environment)


class ControlProcess(HttpProcess):
    """`corral control` alone, without restarts."""

    def __init__(
        self, session: aiohttp.ClientSession, environment: Mapping[str, str], *, name: str = "control"
    ) -> None:
        super().__init__(name, "control", session, environment)


class GatewayProcess(HttpProcess):
    """`corral gateway` alone."""

    def __init__(self, session: aiohttp.ClientSession, environment: Mapping[str, str]) -> None:
        super().__init__("gateway", "gateway", session, environment)


class WorkerProcess(CorralProcess):
    """`corral worker` with its own data directory."""

    def __init__(self, name: str, data: Path, environment: Mapping[str, str]) -> None:
        ports = lasting_range(_BACKEND_PORTS)
        own = {
            "CORRAL_NODE_NAME": name,
            "CORRAL_DATA": str(data),
            "CORRAL_ADDRESS": f"{_LOOPBACK}:{ports[0]}",
            "CORRAL_HTTP_ADDRESS": f"{_LOOPBACK}:{ports[0] - 1}",
            "CORRAL_MAX_PORT": str(ports[-1]),
        }
        super().__init__(name, ["worker"], {**own, **environment})


def said_once(processes: Sequence[HttpProcess], what: Callable[[HttpProcess], list[str]]) -> str:
    """Return the line that exactly one of the processes logged exactly once."""
    texts = [text for process in processes for text in what(process)]
    if len(texts) != 1:
        raise AssertionError(f"expected one line among {len(processes)} processes, found {len(texts)}")
    return texts[0]


async def ready_together(frontends: Sequence[HttpProcess]) -> str:
    """Wait until frontends on one new database are ready, and give all of them the administrator's key that one made.

    Returns the registration token of their fleet.
    """
    for frontend in frontends:
        await frontend.until_ready()
    key = said_once(frontends, lambda frontend: frontend.new_keys)
    for frontend in frontends:
        frontend.admin_key = key
    return said_once(frontends, lambda frontend: frontend.new_tokens)


def words_of(process: psutil.Process) -> list[str]:
    """Its command line; empty once it has ended."""
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def running_below(pid: int, word: str) -> list[psutil.Process]:
    """Children, and their children, that have this word on their command line."""
    return [child for child in psutil.Process(pid).children(recursive=True) if word in words_of(child)]
