"""What a tag names now, asked without fetching anything."""

import asyncio
from dataclasses import dataclass

from corral.base.clock import Clock
from corral.images.auth import credential_for, read_stored
from corral.images.config import ImagesConfig
from corral.images.errors import SourceInvalid
from corral.images.http import Fetcher, open_session
from corral.images.manifests import Index, choose_image, read_manifest
from corral.images.platforms import this_platform
from corral.images.references import Reference, Remote, parse_source
from corral.images.registry import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentDigests:
    """Of an image in a registry."""

    digest: str
    """Of the index, where there is one."""
    platform_digest: str
    """Of the image for this machine, as far as it can be told without fetching it."""


async def current_digests(uri: str, config: ImagesConfig, clock: Clock) -> CurrentDigests | None:
    """None for what is in no registry, and so has no tag that could move. ImageError when nobody can tell."""
    try:
        source = parse_source(uri)
    except SourceInvalid:
        return None
    return await _asked(source.reference, config, clock) if isinstance(source, Remote) else None


async def _asked(reference: Reference, config: ImagesConfig, clock: Clock) -> CurrentDigests:
    stored = await asyncio.to_thread(read_stored, config.auth_files)
    credential = credential_for((*config.credentials, *stored.credentials), reference)
    async with open_session(config.network) as session:
        fetcher = Fetcher(session, config.network)
        registry = Registry(fetcher, reference, credential=credential, network=config.network, clock=clock)
        top = await registry.manifest(reference.selector)
    read = read_manifest(top.body, name=str(reference))
    if not isinstance(read, Index):
        return CurrentDigests(digest=top.digest, platform_digest=top.digest)
    chosen = choose_image(read, this_platform(), name=str(reference))
    return CurrentDigests(digest=top.digest, platform_digest=chosen.digest)
