"""A real PostgreSQL server for tests: private, on loopback, gone with the process that started it."""

import contextlib
import itertools
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Final, Self

import psutil

from corral.base.errors import ChildFailed
from tests.kit.ports import lasting_port
from tests.kit.postgres_binaries import Launcher, find_binaries

_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 20.0
_POLL_SECONDS: Final = 0.02
_MEMORY: Final = "/dev/shm"
_MEMORY_NEEDED: Final = 1024**3
_LAST_LINES: Final = 20
_ADMINISTRATOR: Final = "corral"
_FORGETFUL: Final = {
    # Speed: nothing here has to survive the machine.
    "fsync": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
}
_SINCE_STRATEGIES: Final = 15
"""The first version that copies a database block by block, unless it is asked to copy files as all before it did."""
_SETTINGS: Final = {
    "shared_buffers": "32MB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "min_wal_size": "32MB",
    "max_wal_size": "128MB",
    # Enough for many frontends in one test.
    "max_connections": "120",
    "unix_socket_directories": "",
    "listen_addresses": "127.0.0.1",
}


class PostgresServer:
    """`with PostgresServer() as server:` gives a running server; `url()` names a database on it.

    A durable one is for measuring: on a disk, and with every commit written through, as people run it.
    """

    def __init__(self, binaries: Path | None = None, *, durable: bool = False) -> None:
        self._settings = _SETTINGS if durable else {**_SETTINGS, **_FORGETFUL}
        directory = None if durable else _fast_directory()
        self._home = Path(tempfile.mkdtemp(prefix="corral-postgres-", dir=directory))
        self._launcher = Launcher(binaries or find_binaries(), self._home)
        self._password = secrets.token_urlsafe(16)
        self._port = lasting_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._console: _Console | None = None
        self._numbers = itertools.count(1)
        self._spares: dict[str, str] = {}

    def __enter__(self) -> Self:
        try:
            self._initialise()
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end(signal.SIGQUIT)
        shutil.rmtree(self._home, ignore_errors=True)

    def __repr__(self) -> str:
        return f"PostgresServer(port={self._port})"

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://{_ADMINISTRATOR}:{self._password}@127.0.0.1:{self._port}/{database}"

    @property
    def port(self) -> int:
        return self._port

    @property
    def folder(self) -> Path:
        """The server's own directory, gone with it."""
        return self._home

    def configure(self, settings: Mapping[str, str], files: Mapping[str, str]) -> None:
        """Before the start: settings beside the usual ones, and files that only the server may read, by their names."""
        self._settings = {**self._settings, **settings}
        for name, content in files.items():
            path = self._home / name
            path.touch(0o600)
            path.write_text(content)
            self._launcher.own(path)

    @property
    def password(self) -> str:
        return self._password

    @property
    def processes(self) -> list[psutil.Process]:
        """The server and its children; none while it does not run."""
        if self._process is None:
            return []
        server = psutil.Process(self._process.pid)
        return [server, *server.children(recursive=True)]

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Suspend the server inside the block. The server stops first: then no child of it comes or goes."""
        self.processes[0].suspend()
        everything = self.processes
        try:
            for process in everything:
                process.suspend()
            yield
        finally:
            for process in everything:
                process.resume()

    def run(self, statement: str) -> None:
        """Run a statement as the administrator, outside of a transaction."""
        console = self._open_console()
        console.send(statement)
        self._finish(console)

    def _open_console(self) -> "_Console":
        if self._console is None:
            arguments = ["-X", "-q", "-h", "127.0.0.1", "-p", str(self._port), "-U", _ADMINISTRATOR, "postgres"]
            self._console = _Console(self._launcher.talk("psql", arguments, self._password))
        return self._console

    def _finish(self, console: "_Console") -> None:
        """Wait for all answers. A failed console is not used again, so that no test after this one fails with it."""
        try:
            console.finish()
        except ChildFailed as failure:
            self._close_console()
            raise ChildFailed(f"{failure}; the server's last lines: {self._last_lines()}") from failure

    def _close_console(self) -> None:
        console, self._console = self._console, None
        self._spares.clear()
        if console is not None:
            console.close()

    def _last_lines(self) -> str:
        return self.log.read_text(errors="replace")[-2000:]

    def create_database(self, name: str, *, template: str = "template1") -> str:
        """Copy a template, which must have no connections; return the URL of the copy."""
        self.run(self._create(name, template))
        return self.url(name)

    def copy_database(self, template: str) -> str:
        """The name of a copy that is yours. The next one is made while you work: copying takes a while."""
        ready = self._spares.pop(template, None)
        if ready is None:
            ready = self._new_name()
            self._open_console().send(self._create(ready, template))
        self._finish(self._open_console())
        self._spares[template] = self._new_name()
        self._open_console().send(self._create(self._spares[template], template))
        return ready

    def _create(self, name: str, template: str) -> str:
        """Files are copied in less than half of the time that blocks take, as nothing waits for the disk here."""
        version = int((self._data / "PG_VERSION").read_text())
        strategy = " STRATEGY FILE_COPY" if version >= _SINCE_STRATEGIES else ""
        return f'CREATE DATABASE "{name}" TEMPLATE "{template}"{strategy}'

    def _new_name(self) -> str:
        return f"copy_{next(self._numbers)}"

    def drop_database(self, name: str) -> None:
        """Drop a database soon, with all sessions that are still open."""
        self._open_console().send(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def start(self) -> None:
        """Start on the same port and the same data, and wait until it answers."""
        settings = [f"--{name}={value}" for name, value in self._settings.items()]
        arguments = ["-D", str(self._data), "-p", str(self._port), *settings]
        self._process = self._launcher.start("postgres", arguments, log=self.log)
        deadline = time.monotonic() + _START_SECONDS
        while not self._is_ready(self._process.pid):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise ChildFailed(f"PostgreSQL did not start: {self._last_lines()}")
            time.sleep(_POLL_SECONDS)

    def stop(self) -> None:
        """An orderly shutdown that ends all sessions."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Kill it, as if the machine had lost power."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        self.stop()
        self.start()

    @property
    def _data(self) -> Path:
        return self._home / "data"

    @property
    def log(self) -> Path:
        """What the server writes; all statements too, after `log_statements`."""
        return self._home / "log"

    def log_statements(self, which: str = "all") -> None:
        """Log statements of sessions that begin from now on; `none` ends it."""
        self.run(f"ALTER SYSTEM SET log_statement = '{which}'")
        self.run("SELECT pg_reload_conf()")

    def _initialise(self) -> None:
        password = self._home / "password"
        password.touch(0o600)
        password.write_text(self._password)
        self._launcher.own(password)
        login = ["-U", _ADMINISTRATOR, "--auth=scram-sha-256", f"--pwfile={password}"]
        self._launcher.run("initdb", ["-D", str(self._data), *login, "--encoding=UTF8", "--locale=C", "--no-sync"])
        password.unlink()

    def _is_ready(self, pid: int) -> bool:
        """The server's own file says so, and says that it speaks of this very process."""
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"

    def _end(self, how: signal.Signals) -> None:
        self._close_console()
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_SECONDS)
            _kill_for_sure(family)
        process.kill()
        process.wait()


class _Console:
    """One psql that stays open: a statement costs no new process and no new login."""

    def __init__(self, psql: subprocess.Popen[str]) -> None:
        self._psql = psql
        self._unanswered: deque[tuple[str, str]] = deque()

    def send(self, statement: str) -> None:
        """Ask for it; `finish` tells whether it worked."""
        end = secrets.token_hex(8)
        commands, _ = self._pipes()
        self._unanswered.append((statement, end))
        with contextlib.suppress(BrokenPipeError):  # then `finish` reads what psql said before it ended
            commands.write(f"{statement};\n\\echo {end}\n")
            commands.flush()

    def finish(self) -> None:
        """Wait for everything that was sent."""
        while self._unanswered:
            statement, end = self._unanswered.popleft()
            if problem := self._read_until(end):
                raise ChildFailed(f"{problem} in: {statement}")

    def _read_until(self, end: str) -> str | None:
        """The first error before the end of an answer."""
        problem = None
        lines: deque[str] = deque(maxlen=_LAST_LINES)
        for line in self._pipes()[1]:
            if line.strip() == end:
                return problem
            lines.append(line.strip())
            if problem is None and ("ERROR" in line or "FATAL" in line):
                problem = line.strip()
        return problem or f"psql ended with {self._psql.wait()} after {' / '.join(lines) or 'no word'}"

    def close(self) -> None:
        self._psql.kill()
        self._psql.wait()
        for pipe in self._pipes():
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        if self._psql.stdin is None or self._psql.stdout is None:
            raise RuntimeError("psql was started without pipes")
        return self._psql.stdin, self._psql.stdout


def _kill_for_sure(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=_STOP_SECONDS)


def _fast_directory() -> str | None:
    """Memory, where there is plenty of it: copying a database there takes a third of the time."""
    with contextlib.suppress(OSError):
        if shutil.disk_usage(_MEMORY).free > _MEMORY_NEEDED:
            return _MEMORY
    return None
