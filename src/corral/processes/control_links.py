"""What control is connected to beside its database: NATS, galleries, hubs and an object storage."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from corral.base.clock import Clock
from corral.bus.config import without_logins
from corral.bus.credentials import CredentialsProvider, UserJwt
from corral.files.storage import SharedStorage, StorageConfig
from corral.frontend.backends.catalogue import GalleryCatalogue, Lookups, RegistryImages
from corral.frontend.config import ControlConfig
from corral.galleries.fetching import RegistryArtefacts
from corral.galleries.galleries import open_galleries
from corral.galleries.model_galleries import open_model_galleries
from corral.hubs.access import HubAccess
from corral.wire.registration import NatsOffer

log = logging.getLogger(__name__)


def frontend_user(config: ControlConfig, clock: Clock) -> CredentialsProvider | None:
    """Return who makes this process's own user of NATS; None where the settings name one."""
    minter = config.minter
    if minter is None or config.bus.jwt:
        return None

    async def provide() -> UserJwt:
        return minter.mint_frontend(at=clock.now())

    return provide


def nats_offer(config: ControlConfig) -> Callable[[], NatsOffer]:
    """Return a function that says where workers find NATS, and by which authorities this frontend checks it.

    The file of authorities is read each time, because it may be renewed. If it cannot be read, the last content is
    used.
    """
    urls = without_logins(config.nats_advertise_url or config.bus.url).split(",")
    path, authorities = config.bus.tls_ca, ""

    def offer() -> NatsOffer:
        nonlocal authorities
        try:
            authorities = "" if path is None else path.read_text(errors="replace")
        except OSError as error:
            extra = {"event": "nats.old_authorities"}
            log.warning("workers get the NATS authorities of before: %s", error, extra=extra)
        return NatsOffer(urls=list(urls), tls_ca=authorities)

    return offer


def warn_of_shared_logins(config: ControlConfig) -> None:
    if config.minter is None:
        log.warning(
            "NATS has no users of nodes: who has one worker's login can read and answer the messages of all; "
            "set CORRAL_NATS_ACCOUNT_SEED, see the guide to several frontends",
            extra={"event": "nats.shared_logins"},
        )


@asynccontextmanager
async def open_storage(config: StorageConfig | None) -> AsyncIterator[SharedStorage | None]:
    if config is None:
        yield None
        return
    from corral.files.s3_bucket import open_bucket

    async with open_bucket(config) as bucket:
        yield bucket


@asynccontextmanager
async def open_lookups(config: ControlConfig, clock: Clock) -> AsyncIterator[Lookups]:
    async with AsyncExitStack() as stack:
        hub = None
        if config.hubs is not None:
            hub = await stack.enter_async_context(HubAccess.open(config.hubs, clock=clock))
        if config.galleries is None or config.images is None:
            yield Lookups(hub=hub)
            return
        registry, images = RegistryArtefacts(config.images, clock=clock), RegistryImages(config.images, clock)
        galleries = await stack.enter_async_context(open_galleries(config.galleries, registry=registry, clock=clock))
        models = await stack.enter_async_context(open_model_galleries(config.galleries, registry=registry, clock=clock))
        yield Lookups(galleries=GalleryCatalogue(galleries), images=images, models=models, hub=hub)
