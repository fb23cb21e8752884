"""A real nginx for tests, with nothing but `proxy_pass` or nothing but files: on loopback, without root, gone with the
test.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Final

from corral.base.errors import ChildFailed
from tests.kit.ports import lasting_port
from tests.kit.tied import tied
from tests.kit.waiting import eventually

_FETCHED: Final = Path(__file__).absolute().parents[2] / ".build" / "programs" / "nginx"
_LOOPBACK: Final = "127.0.0.1"
_CONFIG: Final = """
daemon off;
master_process off;
pid {home}/nginx.pid;
error_log {home}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {home}/body;
    proxy_temp_path {home}/proxy;
    fastcgi_temp_path {home}/fastcgi;
    uwsgi_temp_path {home}/uwsgi;
    scgi_temp_path {home}/scgi;
    {upstream}
    server {{
        listen {address};
        location / {{ {answer} }}
    }}
}}
"""
"""What a `location` needs to be a proxy, and where a process without root may write. All else is nginx's default."""


def find_nginx() -> str:
    """The system's own, or the one that `make setup` fetched."""
    program = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin") or (_FETCHED.exists() and str(_FETCHED))
    if not program:
        raise ChildFailed("there is no nginx: install Debian's package, or run `make setup` with a network")
    return program


def nginx_before(port: int, home: Path) -> AbstractAsyncContextManager[int]:
    """The port of an nginx that passes everything to this one."""
    return _running(home, f"proxy_pass http://{_LOOPBACK}:{port};")


def nginx_preferring(ports: Sequence[int], home: Path) -> AbstractAsyncContextManager[int]:
    """The port of an nginx that passes everything to the first of these that answers, and names the host that it was
    asked as."""
    servers = [f"server {_LOOPBACK}:{port} max_fails=1 fail_timeout=1s" for port in ports]
    upstream = "; ".join([servers[0], *(f"{server} backup" for server in servers[1:])])
    answer = "proxy_pass http://all; proxy_set_header Host $http_host;"
    return _running(home, answer, upstream=f"upstream all {{ {upstream}; }}")


def nginx_serving(folder: Path, home: Path) -> AbstractAsyncContextManager[int]:
    """The port of an nginx that serves the files of a folder."""
    return _running(home, f"root {folder}; sendfile on;")


@asynccontextmanager
async def _running(home: Path, answer: str, *, upstream: str = "") -> AsyncIterator[int]:
    own = lasting_port()
    config = home / "nginx.conf"
    config.write_text(_CONFIG.format(home=home, address=f"{_LOOPBACK}:{own}", answer=answer, upstream=upstream))
    process = await asyncio.create_subprocess_exec(
        *tied((find_nginx(), "-e", str(home / "error.log"), "-p", str(home), "-c", str(config))),
        stdin=asyncio.subprocess.DEVNULL,
    )
    try:
        await eventually(lambda: _answers(own), "nginx listens")
        yield own
    finally:
        process.kill()
        await process.wait()


async def _answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(_LOOPBACK, port)
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True
