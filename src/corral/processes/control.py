"""The control process: what it opens, its rooms, and their end in reverse order."""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from datetime import timedelta
from typing import Final

from corral.base.clock import Clock, SystemClock
from corral.base.errors import DatabaseUnavailable, SecretsKeyMismatch
from corral.base.private_files import make_private_directory
from corral.base.retry import Backoff
from corral.bus.client import NatsBus
from corral.bus.replies import FRONTEND_INBOX
from corral.frontend.access.credentials import Credentials, FirstKeys
from corral.frontend.access.store import Keys
from corral.frontend.api.server import AdminServer, bind, bind_socket
from corral.frontend.app import build_app
from corral.frontend.backends.catalogue import GalleryCatalogue, Lookups, RegistryImages
from corral.frontend.config import ControlConfig
from corral.frontend.store.db import Database
from corral.frontend.store.leases import free_all
from corral.frontend.store.migrations import upgrade
from corral.frontend.store.secrets import Secrets, SecretsKey, was_sealed
from corral.galleries.fetching import RegistryArtefacts
from corral.galleries.galleries import open_galleries
from corral.processes.control_rooms import Control, Stores, build_control

log = logging.getLogger(__name__)

_DATABASE_PATIENCE: Final = timedelta(seconds=60)
"""How long a start waits for a database that does not answer, before it says so and ends."""


@asynccontextmanager
async def open_control(
    config: ControlConfig, *, clock: Clock | None = None
) -> AsyncIterator[tuple[Control, AdminServer]]:
    """Bind, open the database, make the first keys, connect to NATS. Nothing is served yet."""
    the_clock = clock or SystemClock()
    async with AsyncExitStack() as stack:
        make_private_directory(config.data)
        with ExitStack() as early:
            # A taken port is told before anything else; a socket is taken last, when the database is ours.
            port = early.enter_context(bind(config.host, config.port)) if config.socket is None else None
            database = await stack.enter_async_context(open_database(config.database_url))
            if database.is_ours_alone:
                await free_all(database, at=the_clock.now())
            listener = stack.enter_context(port or bind_socket(config.socket or config.data / "control.sock"))
            early.pop_all()
        key = await load_secrets_key(config, database)
        stores = Stores(database, await Secrets.open(database, key, at=the_clock.now()))
        bus = await stack.enter_async_context(NatsBus(config.bus, name="corral-control", inbox_prefix=FRONTEND_INBOX))
        lookups = await stack.enter_async_context(_open_lookups(config, the_clock))
        control = await build_control(config, the_clock, stores, bus, lookups=lookups)
        yield control, AdminServer(build_app(control.context), listener)


@asynccontextmanager
async def _open_lookups(config: ControlConfig, clock: Clock) -> AsyncIterator[Lookups]:
    if config.galleries is None or config.images is None:
        yield Lookups()
        return
    registry, images = RegistryArtefacts(config.images, clock=clock), RegistryImages(config.images, clock)
    async with open_galleries(config.galleries, registry=registry, clock=clock) as galleries:
        yield Lookups(galleries=GalleryCatalogue(galleries), images=images)


def _dialled(host: str) -> str:
    """How a client on this machine writes the address that we listen on."""
    if host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        return "127.0.0.1" if host == "0.0.0.0" else "[::1]"  # noqa: S104
    return f"[{host}]" if ":" in host else host


@asynccontextmanager
async def open_database(url: str) -> AsyncIterator[Database]:
    """Open and migrate. One that does not answer yet gets a minute, with a word in the log for every try."""
    backoff = Backoff(first=timedelta(milliseconds=500), cap=timedelta(seconds=5))
    deadline = asyncio.get_running_loop().time() + _DATABASE_PATIENCE.total_seconds()
    for attempt in itertools.count(1):
        try:
            database = await Database.open(url)
            break
        except DatabaseUnavailable as error:
            if asyncio.get_running_loop().time() > deadline:
                raise
            log.warning("waiting for the database", extra={"event": "database.waiting", "reason": error.message})
            await asyncio.sleep(backoff.delay(attempt).total_seconds())
    try:
        await upgrade(database)
        yield database
    finally:
        await database.close()


async def load_secrets_key(config: ControlConfig, database: Database) -> SecretsKey:
    """A new key is made for a new database only: in place of a lost one it would fit nothing."""
    if config.secrets_key:
        return SecretsKey.from_text(config.secrets_key)
    if not config.secrets_key_file.exists() and await was_sealed(database):
        raise SecretsKeyMismatch(
            f"the secrets key {config.secrets_key_file} is missing, and this database was sealed with it;"
            " restore it from a backup or copy it from another frontend, or set CORRAL_SECRETS_KEY"
        )
    return SecretsKey.load_or_create(config.secrets_key_file)


async def run_control(
    config: ControlConfig, stop: asyncio.Event, *, announce_keys: Callable[[Credentials, ControlConfig], None]
) -> None:
    """The whole life of a control process. `announce_keys` gets the keys that this start made, which may be none."""
    async with open_control(config) as (control, server):
        announce_keys(control.credentials, config)
        url = f"unix:{config.socket}" if config.socket else f"http://{_dialled(config.host)}:{server.port}"
        log.info("control is ready", extra={"event": "control.ready", "url": url})
        await control.run(stop, server)
        log.info("control stops", extra={"event": "control.stopping"})


async def reset_admin_key(config: ControlConfig) -> str:
    """Mint an administrator key directly in the database, and revoke the one that was lost."""
    clock = SystemClock()
    database = await Database.open(config.database_url, lock=False)
    try:
        await upgrade(database)
        secrets = await Secrets.open(database, await load_secrets_key(config, database), at=clock.now())
        first_keys = FirstKeys(Keys(database), secrets, clock.now)
        new = await first_keys.reset_admin(by="reset on the machine")
        if config.credentials_file is not None:
            await first_keys.keep(config.credentials_file, new.key)
        return new.key
    finally:
        await database.close()
