"""A frontend in the test's own event loop: the real services on a real database, called without sockets."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from starlette.applications import Starlette

from corral.base.clock import Clock
from corral.base.tasks import running
from corral.bus.config import BusConfig
from corral.bus.port import Bus
from corral.frontend.app import build_app
from corral.frontend.backends.catalogue import Lookups
from corral.frontend.config import ControlConfig
from corral.frontend.serving.loading.model_loader import BackendLoader
from corral.frontend.store.db import Database
from corral.frontend.store.secrets import Secrets, SecretsKey
from corral.processes.control import Control, Stores, build_control
from corral.wire.keys import Scope
from tests.kit.asgi import AsgiAnswer, call

REGISTRATION_TOKEN = "tok"
TRUSTED_TOKEN = "trusted-token-of-this-test"


def frontend_config(data: Path, **changes: object) -> ControlConfig:
    base = ControlConfig(
        data=data,
        bus=BusConfig(url="nats://127.0.0.1:1"),
        database_url="unused",
        models_path=data / "models",
        port=0,
        secrets_key_file=data / "secrets.key",
        registration_token=REGISTRATION_TOKEN,
        trusted_registration_token=TRUSTED_TOKEN,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontend:
    """The frontend under test."""

    control: Control
    secrets: Secrets
    app: Starlette
    admin_key: str

    async def call(
        self, method: str, url: str, body: object = None, *, key: str | None = None, **headers: str
    ) -> AsgiAnswer:
        """`key` is the bearer, the administrator's by default; an empty one sends no header."""
        bearer = self.admin_key if key is None else key
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if bearer:
            sent["authorization"] = f"Bearer {bearer}"
        data = b""
        if body is not None:
            data = body if isinstance(body, bytes) else msgspec.json.encode(body)
            sent.setdefault("content-type", "application/json")
        return await call(self.app, method, url, headers=sent, body=data)

    async def register(self, body: Mapping[str, object], *, token: str = REGISTRATION_TOKEN) -> AsgiAnswer:
        return await self.call("POST", "/api/node/register", {"token": token, **body}, key=token)

    async def settle(self) -> None:
        """Confirm that control hears, and announce what changed, as the loops would within a second."""
        await self.control.context.nodes.hearing.tick()
        await self.control.context.nodes.health.sweep()


@asynccontextmanager
async def open_frontend(
    database: Database,
    clock: Clock,
    bus: Bus,
    config: ControlConfig,
    *,
    key: SecretsKey,
    loader: BackendLoader | None = None,
    lookups: Lookups | None = None,
) -> AsyncIterator[Frontend]:
    """Heartbeats run; the other loops are stepped by the test through `settle()`, so that time is the test's."""
    async with AsyncExitStack() as stack:
        stores = Stores(database, await Secrets.open(database, key, at=clock.now()))
        control = await build_control(config, clock, stores, bus, loader=loader, lookups=lookups or Lookups())
        await stack.enter_async_context(running(control.context.nodes.heartbeats.run(), name="heartbeats"))
        await control.context.nodes.hearing.tick()
        admin_key = control.credentials.new_admin_key
        if admin_key is None:
            new = await control.context.access.key_ring.create("test", [Scope.ADMIN], by="test", lifetime=None)
            admin_key = new.key
        yield Frontend(control=control, secrets=stores.secrets, app=build_app(control.context), admin_key=admin_key)
