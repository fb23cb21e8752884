"""`corral worker --check`: builds what the checks need from a worker's configuration, and runs them once."""

import socket
from importlib import import_module
from pathlib import Path

from corral.base.http_client import open_session
from corral.base.private_files import read_private
from corral.processes.worker import LOCK_FILE
from corral.worker.config import WorkerConfig
from corral.worker.hardware.gpus import MachineGpus, detectors_of_this_machine
from corral.worker.membership import addresses
from corral.worker.membership.identity import JOINED_FILE, MEMORY_FILE, SECRET_FILE
from corral.worker.membership.join_check import CheckedMachine, CheckLimits, CheckLine, JoinChecks
from corral.worker.membership.own_addresses import host_towards
from corral.worker.membership.pinned_fleet import PinnedFleet


async def check_worker(config: WorkerConfig, *, limits: CheckLimits | None = None) -> list[CheckLine]:
    """Try everything once. Nothing is written, and the frontend changes nothing."""
    host = socket.gethostname()
    if config.frontend.is_joining:
        host = await host_towards(config.frontend.urls) or host
    machine = CheckedMachine(
        config=config,
        places=addresses.decide(config.addresses, host),
        gpus=await MachineGpus(
            detectors_of_this_machine(lambda: import_module("pynvml")), timeout=config.gpu_timeout
        ).read(),
        bearer=config.frontend.join_code or _own_secret(config.data_path) or config.frontend.registration_token,
        lock=config.data_path / LOCK_FILE,
    )
    frontend = config.frontend
    async with open_session(timeout=frontend.timeout, connect_timeout=frontend.connect_timeout) as session:
        fleet = PinnedFleet(session, frontend.fleet_pin)
        return await JoinChecks(machine, session, fleet, limits or CheckLimits()).run()


def _own_secret(data: Path) -> str:
    """The secret that an earlier start of the worker made; empty when no frontend has registered this machine yet."""
    if not any((data / name).exists() for name in (MEMORY_FILE, JOINED_FILE)):
        return ""
    content = read_private(data / SECRET_FILE)
    return "" if content is None else content.decode("ascii", errors="replace").strip()
