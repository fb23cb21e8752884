"""Images and archives by their uri, pulled by a child process straight into the directory in which they are made."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from corral.oci.config import ImagesConfig, Pin, make_order
from corral.oci.errors import DiskFull, ImageError, SourceInvalid
from corral.oci.orders import PullOrder, PullProgress, words_of
from corral.oci.puller import Puller
from corral.oci.references import default_name, names_an_entry, parse_source
from corral.wire.backends import Phase
from corral.worker.installing.backend_metadata import Metadata
from corral.worker.installing.orders import CannotInstall, Delivered, Fetching, InstallableBackend, InstallOrder, NoRoom
from corral.worker.installing.progress import InstallStep

log = logging.getLogger(__name__)

_MAKE_ROOM: Final = "make room, or set another backends directory (LOCALAI_BACKENDS_PATH)"


@dataclass(frozen=True, slots=True, kw_only=True)
class PullArtefact:
    """What to pull, and from where."""

    uris: tuple[str, ...]
    """The primary uri, then its mirrors and other tags, in the order to try."""
    sha256: str = ""
    """Hash of an archive that is not an image; empty when unknown."""
    verification: Mapping[str, str] = field(default_factory=dict)
    """Signature policy of the gallery; empty when no signature is needed."""


class Pulls:
    """Starts puller processes, and forwards their progress."""

    def __init__(self, config: ImagesConfig, *, cache: Path) -> None:
        self._config = config
        self._cache = cache

    async def fetch(self, artefact: PullArtefact, fetching: Fetching) -> Delivered:
        """Pull. Raise CannotInstall in LocalAI's words, with our reason. Cancelling this ends the puller."""
        try:
            return await self._pull(artefact, fetching)
        except DiskFull as error:
            raise NoRoom(f"{_failed(artefact)}: {error.message}; {_MAKE_ROOM}") from error
        except ImageError as error:
            raise CannotInstall(f"{_failed(artefact)}: {error.message}") from error

    async def _pull(self, artefact: PullArtefact, fetching: Fetching) -> Delivered:
        order = await asyncio.to_thread(self._order, artefact, fetching)
        async with Puller(order, environment=self._config.environment) as puller:
            async for progress in puller.progress():
                fetching.report(_step(progress, artefact))
            result = await puller.result()
        return Delivered(
            digest=result.digest,
            platform_digest=result.platform_digest,
            source="" if result.source == artefact.uris[0] else result.source,
            is_unchanged=result.is_unchanged,
            is_settled=order.is_durable,
        )

    def _order(self, artefact: PullArtefact, fetching: Fetching) -> PullOrder:
        """Build the puller's order. The only place that passes on the gallery's signature policy."""
        pin = Pin(sha256=artefact.sha256)
        order, notes = make_order(
            self._config,
            artefact.uris,
            target=fetching.into,
            cache=self._cache,
            pin=pin,
            verification=artefact.verification,
        )
        for note in notes:
            log.warning("%s", note, extra={"event": "install.noted"})
        return msgspec.structs.replace(order, have=fetching.have)


def _failed(artefact: PullArtefact) -> str:
    return f'failed to download backend "{artefact.uris[0]}"'


def _step(progress: PullProgress, artefact: PullArtefact) -> InstallStep:
    return InstallStep(
        what=words_of(progress, artefact.uris[0]),
        done=progress.current_bytes,
        total=progress.total_bytes,
        share=progress.percentage,
        phase=Phase(progress.phase),
    )


class UriSource:
    """Accepts every uri that is not the name of a gallery entry; errors are reported for it."""

    def __init__(self, pulls: Pulls) -> None:
        self._pulls = pulls

    async def find(self, order: InstallOrder) -> InstallableBackend | None:
        if not order.uri or names_an_entry(order.uri):
            return None
        try:
            source = parse_source(order.uri)
        except SourceInvalid as error:
            raise CannotInstall(error.message) from error
        name = order.name or default_name(source)
        if not name:
            raise CannotInstall("specifying a name is required for OCI images")
        metadata = Metadata(name=name, alias=order.alias, uri=order.uri)
        return InstallableBackend(metadata=metadata, fetch=partial(self._pulls.fetch, PullArtefact(uris=(order.uri,))))
