"""Fleets that are attacked: one as `corral up` makes it, one of parts that are run apart."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from corral.base.ids import new_secret
from corral.bus.server import NatsServer
from corral.wire.keys import new_key
from tests.kit.databases import DatabaseSource
from tests.kit.ports import lasting_port, lasting_range
from tests.kit.threats import AttackedFleet, ask_http
from tests.kit.waiting import wait_until

WORKERS = ("worker-1", "worker-2")
WORKER_PORTS = 20
PATIENCE = {"CORRAL_UNHEALTHY_AFTER": "100", "CORRAL_OFFLINE_AFTER": "200"}
"""Heartbeats that a worker may miss: on a busy machine it is late, and tests read of its status what an attack did."""


@contextmanager
def embedded(folder: Path, run_up: Callable[..., AbstractContextManager[Any]]) -> Iterator[AttackedFleet]:
    """`corral up`: its own NATS server, and SQLite."""
    with run_up(folder, **PATIENCE) as up:
        state = up.until_ready()

        def worker_pids() -> dict[str, int]:
            return dict(zip(WORKERS, up.state()["pids"]["workers"], strict=True))

        yield AttackedFleet(
            url=state["url"],
            nats_url=f"nats://{state['nats_url'].rpartition('/')[2].rpartition('@')[2]}",
            admin_key=state["keys"]["admin"],
            registration_token=state["keys"]["registration"],
            database=f"sqlite:///{up.data / 'corral.db'}",
            folders=(up.data,),
            pids=lambda: [up.process.pid, *below(up.process.pid)],
            worker_pids=worker_pids,
            worker_folders={name: up.data / "workers" / name[-1] for name in WORKERS},
        )


def below(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


@contextmanager
def apart(folder: Path, start: Callable[..., AbstractContextManager[Any]], database: str) -> Iterator[AttackedFleet]:
    """Each part by itself: a NATS server whose account the frontend mints users of, PostgreSQL, and workers that know
    nothing but the frontend's address and the registration token."""
    nats = NatsServer(folder / "nats", port=lasting_port())
    nats.prepare()
    port, token, key = lasting_port(), new_secret(), new_key()
    url = f"http://127.0.0.1:{port}"
    own = {"CORRAL_DATABASE": database, "CORRAL_REGISTRATION_TOKEN": token, "CORRAL_ADMIN_KEYS": key}
    own |= {"CORRAL_DATA": str(folder / "frontend"), "CORRAL_PORT": str(port), **nats.frontend_environment}
    own |= PATIENCE
    with ExitStack() as stack:
        stack.enter_context(running_server(nats))
        frontend = stack.enter_context(start(folder, ["frontend"], **own))
        wait_until(lambda: is_ready(frontend, url), "the frontend to be ready", seconds=120)
        workers = {}
        for name in WORKERS:
            settings = {"CORRAL_REGISTER_TO": url, "CORRAL_REGISTRATION_TOKEN": token, **worker_settings(folder, name)}
            workers[name] = stack.enter_context(start(folder, ["worker"], **settings)).process.pid
        fleet = AttackedFleet(
            url=url,
            nats_url=nats.url,
            admin_key=key,
            registration_token=token,
            database=database,
            folders=(folder,),
            pids=lambda: [pid for own in (frontend.process.pid, *workers.values()) for pid in (own, *below(own))],
            worker_pids=lambda: workers,
            worker_folders={name: folder / name for name in WORKERS},
        )
        wait_until(lambda: set(WORKERS) <= fleet.nodes().keys(), "the workers to register", seconds=60)
        for name in WORKERS:
            fleet.good("POST", f"/api/v1/nodes/{fleet.victim(name)}/approve")
        yield fleet


@contextmanager
def running_server(nats: NatsServer) -> Iterator[None]:
    argv = nats.child.command().argv
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={})
    try:
        yield
    finally:
        process.kill()
        process.wait()


def worker_settings(folder: Path, name: str) -> dict[str, str]:
    ports = lasting_range(WORKER_PORTS)
    return {
        "CORRAL_NODE_NAME": name,
        "CORRAL_DATA": str(folder / name),
        "CORRAL_ADDRESS": f"127.0.0.1:{ports[0]}",
        "CORRAL_HTTP_ADDRESS": f"127.0.0.1:{ports[0] - 1}",
        "CORRAL_MAX_PORT": str(ports[-1]),
        "CORRAL_HEARTBEAT_INTERVAL": "1s",
    }


def is_ready(frontend: Any, url: str) -> bool:
    assert frontend.process.poll() is None, frontend.output
    try:
        return ask_http("GET", f"{url}/api/v1/ready").status == 200
    except OSError:
        return False


@pytest.fixture(scope="module", params=["embedded", pytest.param("apart", marks=pytest.mark.postgres)])
def fleet(
    request: pytest.FixtureRequest,
    module_folder: Path,
    run_up: Callable[..., AbstractContextManager[Any]],
    run_process: Callable[..., AbstractContextManager[Any]],
    database_source: DatabaseSource,
) -> Iterator[AttackedFleet]:
    """Two healthy workers; tests leave them as they were."""
    folder = module_folder / request.param
    folder.mkdir()
    with ExitStack() as stack:
        if request.param == "embedded":
            fleet = stack.enter_context(embedded(folder, run_up))
        else:
            server = database_source.postgres
            name = server.copy_database("template1")
            stack.callback(server.drop_database, name)
            fleet = stack.enter_context(apart(folder, run_process, server.url(name)))
        fleet.until_healthy(*WORKERS)
        yield fleet
