"""A process that pulls models, each time in a child that is a frontend of its own and may be killed at any step.

    python -m chaos.pull_driver

Orders come from `chaos/pulls.py`, as `chaos/crash_driver.py` says. The steps are what the frontend and its download do
to files, and the transactions of the frontend.
"""

import asyncio
import os
import traceback
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from sqlalchemy import event

from chaos.crash_driver import take_orders, write_site
from chaos.crash_shim import Shim
from corral.base.clock import SystemClock
from corral.bus.config import BusConfig
from corral.frontend.backends.catalogue import Lookups
from corral.frontend.config import ControlConfig
from corral.frontend.models.decide.pulling import PullAsk, PullPolicy
from corral.frontend.operations.decide.operation import OperationState
from corral.frontend.store.db import Database
from corral.frontend.store.leases import free_all
from corral.frontend.store.secrets import Secrets, SecretsKey
from corral.hubs.access import HubAccess
from corral.hubs.config import HubsConfig
from corral.oci.config import ImagesConfig
from corral.processes.control import Control, Stores, build_control
from tests.kit.bus import MemoryBus, MemoryServer

_ROOT: Final = Path(__file__).absolute().parents[1]
_MOST_TURNS: Final = 20
KEY: Final = "the one pull"


def main() -> None:
    take_orders(_act)


def _act(order: dict[str, Any]) -> None:
    code = 1
    try:
        folder, site = Path(order["folder"]), Path(order["site"])
        limits = {"root": str(folder / "models"), "trace": order["trace"], "fatal": order["fatal"]}
        write_site(site, limits, takes_parent=order["takes_parent"])
        shim = Shim(**limits, takes_parent=False)
        shim.arm()
        asyncio.run(_pulled(order, folder, site, shim))
        code = 0
    except Exception:  # noqa: BLE001 - whatever it is, it is told
        traceback.print_exc()
    finally:
        os._exit(code)


async def _pulled(order: dict[str, Any], folder: Path, site: Path, shim: Shim) -> None:
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        database = await Database.open(f"sqlite:///{folder / 'corral.db'}")
        stack.push_async_callback(database.close)
        for engine in database.engines:
            event.listen(engine.sync_engine, "commit", lambda _: shim.step("commit", "database"))
        await free_all(database, at=clock.now())
        hub = await stack.enter_async_context(HubAccess.open(HubsConfig(hf_url=order["hub"])))
        bus = await stack.enter_async_context(MemoryBus(MemoryServer()))
        secrets = await Secrets.open(database, SecretsKey(bytes(32)), at=clock.now())
        control = await build_control(
            _config(folder, site), clock, Stores(database, secrets), bus, lookups=Lookups(hub=hub)
        )
        await _bring_about(control, PullAsk(reference=order["reference"], by="chaos", idempotency_key=KEY))


async def _bring_about(control: Control, ask: PullAsk) -> None:
    """Accept it, if it was not accepted before, and go on until it is done; after a death of the child at once."""
    context = control.context
    operation = await context.pulls.service.start(ask)
    for _ in range(_MOST_TURNS):
        await context.operations.dispatcher.tick()
        operation = await context.operations.service.get(operation.id)
        if operation.state is OperationState.DONE:
            return
        await context.operations.service.retry(operation.id, by="chaos")
    raise AssertionError(f"it is {operation.state} after {_MOST_TURNS} turns: {operation.targets}")


def _config(folder: Path, site: Path) -> ControlConfig:
    environment = {"PATH": os.defpath, "PYTHONPATH": f"{site}{os.pathsep}{_ROOT}"}
    config = ControlConfig(
        data=folder,
        bus=BusConfig(url="nats://127.0.0.1:1"),
        database_url="unused",
        models_path=folder / "models",
        secrets_key_file=folder / "secrets.key",
        registration_token="chaos",
        pulls=PullPolicy(free_bytes=0, connections=2),
    )
    return replace(config, images=ImagesConfig(environment=environment))


if __name__ == "__main__":
    main()
