"""A registry to talk to, with the login that its settings and files have for it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from corral.base.clock import Clock
from corral.oci.auth import StoredCredentials, credential_for, read_stored
from corral.oci.config import ImagesConfig
from corral.oci.http import HttpFetcher, open_fetcher_session
from corral.oci.patience import in_thread
from corral.oci.references import Reference
from corral.oci.registry import Registry


@asynccontextmanager
async def open_registry(
    reference: Reference,
    *,
    config: ImagesConfig,
    clock: Clock,
    actions: str = "pull",
    stored: StoredCredentials | None = None,
) -> AsyncIterator[Registry]:
    """For one image, until the end of the block. `actions` is what a token is asked for; `stored` are the logins of
    files, if they were read already."""
    if stored is None:
        stored = await in_thread(lambda: read_stored(config.auth_files))
    async with open_fetcher_session(config.network) as session:
        yield Registry(
            HttpFetcher(session, config.network),
            reference,
            credential=credential_for((*config.credentials, *stored.credentials), reference),
            network=config.network,
            clock=clock,
            actions=actions,
        )
