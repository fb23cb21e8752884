"""The HTTP server of the control process: binds early, serves until cancelled, then ends what is open."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Final

import uvicorn
from starlette.applications import Starlette

from corral.base.errors import AddressInUse, PathNotUsable, SettingInvalid

_BACKLOG: Final = 1024
_GRACE_SECONDS: Final = 3
_TICK_SECONDS: Final = 1.0


def bind(host: str, port: int) -> socket.socket:
    """Take the address now, so that a taken port is said before anything else happens."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(
                f"port {port} on {host} is taken by another program; choose another with --port"
            ) from None
        raise SettingInvalid("host", f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    listener.setblocking(False)
    return listener


def bind_socket(path: Path) -> socket.socket:
    """A Unix socket that only we may use; what an earlier process left there is replaced."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if _is_served(path):
            raise AddressInUse(f"another control listens on {path}")
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(_BACKLOG)
    except AddressInUse:
        listener.close()
        raise
    except OSError as error:
        listener.close()
        raise PathNotUsable(f"cannot listen on {path}: {error.strerror or error}") from error
    listener.setblocking(False)
    return listener


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(path)) == 0


class _QuietServer(uvicorn.Server):
    """Leaves signals to the process that runs it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        """Until cancelled. Uvicorn's own wakes ten times a second to see whether it should end."""
        while not self.should_exit:
            await self.on_tick(0)  # writes the date that answers carry
            await asyncio.sleep(_TICK_SECONDS)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        raise NotImplementedError("signals are handled by the composition root")


class AdminServer:
    def __init__(self, app: Starlette, listener: socket.socket) -> None:
        self._listener = listener
        self._server = _QuietServer(
            uvicorn.Config(
                app,
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=_GRACE_SECONDS,
            )
        )

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    async def run(self, *, ending: Callable[[], None]) -> None:
        """Serve until cancelled. `ending` is called before requests under way get their last few seconds."""
        try:
            await self._server.serve(sockets=[self._listener])
        finally:
            ending()
            self._server.should_exit = True
            if self._server.started:
                await self._server.shutdown(sockets=[self._listener])
