"""A backend's process from its arguments to its exit."""

import argparse
import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NoReturn

from grpc import aio

from corral_backend_sdk.backend import Backend, Launch
from corral_backend_sdk.parent_watch import watch_parent
from corral_backend_sdk.server import SERVER_OPTIONS, Service

log = logging.getLogger("backend")

TOKEN_VARIABLE: Final = "LOCALAI_GRPC_AUTH_TOKEN"  # noqa: S105 - a name, not a token
KEY_VARIABLE: Final = "CORRAL_HTTP_KEY"
_GRACE_SECONDS: Final = 5.0
_LAST_SECONDS: Final = 12.0
"""Whatever hangs then, the process ends: supervisors kill after 15 s."""


def serve(make: Callable[[Launch], Backend]) -> NoReturn:
    """Serve until SIGTERM or SIGINT, then exit."""
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    launch = read_launch(sys.argv[1:], os.environ)
    watch_parent(os.environ)
    code = asyncio.run(_run(make(launch), launch, token=os.environ.get(TOKEN_VARIABLE, "")))
    sys.stderr.flush()
    os._exit(code)  # threads of an engine that still run must not hold up the exit


def read_launch(words: Sequence[str], environ: Mapping[str, str]) -> Launch:
    parser = argparse.ArgumentParser(description="A backend: serves one model over gRPC.")
    parser.add_argument("--addr", default="localhost:50051", help="where to serve gRPC, host:port")
    parser.add_argument("--http-addr", default="", help="where to serve the engine's own HTTP, host:port")
    parser.add_argument("--front-addr", default="", help="where to serve requests that need care, host:port")
    parser.add_argument("--model-name", default="", help="the name under which the engine's HTTP serves the model")
    given, unknown = parser.parse_known_args(words)
    if unknown:
        log.warning("ignored arguments: %s", " ".join(unknown))
    return Launch(
        address=given.addr,
        http_address=given.http_addr,
        front_address=given.front_addr,
        http_key=environ.get(KEY_VARIABLE, ""),
        model_name=given.model_name,
    )


async def _run(backend: Backend, launch: Launch, *, token: str) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    service = Service(backend, token=token, end=stop.set)
    server = aio.server(options=SERVER_OPTIONS)
    server.add_generic_rpc_handlers((service.handler(),))
    try:
        server.add_insecure_port(launch.address)
    except RuntimeError:
        log.error("%s: cannot listen on %s", backend.name, launch.address)  # noqa: TRY400 - gRPC's own text says less
        return 1
    await server.start()
    log.info("%s serves at %s", backend.name, launch.address)
    await stop.wait()
    log.info("%s ends", backend.name)
    _end_in_any_case()
    await server.stop(_GRACE_SECONDS)
    await service.session.free()
    return 0


def _end_in_any_case() -> None:
    timer = threading.Timer(_LAST_SECONDS, os._exit, (1,))
    timer.daemon = True
    timer.start()
