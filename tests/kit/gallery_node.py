"""A node that installs from galleries and registries, without the worker: for tests of installs."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Self

import msgspec

from corral.galleries.config import GalleriesConfig
from corral.galleries.galleries import Galleries, open_galleries
from corral.galleries.gallery import GallerySource
from corral.galleries.readings import Readings
from corral.oci.config import ImagesConfig
from corral.oci.limits import Network
from corral.oci.references import digest_of
from corral.worker.installing.directory_source import DirectorySource
from corral.worker.installing.image_source import GalleryBackends, PullArtefact, Pulls, UriSource
from corral.worker.installing.orders import Delivered, Fetching
from corral.worker.installing.progress import InstallStep
from corral.worker.processes.process import BackendLink
from tests.kit.backend_node import SleepingNode
from tests.kit.galleries import NoRegistry
from tests.kit.images import a_layer

SLEEPS: Final = b"#!/bin/sh\nexec sleep 1000\n"
GALLERY: Final = "g"


class HealthyBackend:
    """A backend that is healthy at once."""

    async def health(self, *, timeout: timedelta) -> None: ...

    async def free(self, *, timeout: timedelta) -> None: ...

    async def close(self) -> None: ...


def backend_layers(version: str, *, size: int = 0) -> list[bytes]:
    """A backend of two layers that only sleeps, and tells its version in a file."""
    return [a_layer({"run.sh": SLEEPS}), a_layer({"version": version.encode(), "weights": os.urandom(size)})]


class WrittenPulls(Pulls):
    """Delivers without a process and without a registry, for tests of what comes before and after."""

    def __init__(self) -> None:
        self.asked: list[PullArtefact] = []

    async def fetch(self, artefact: PullArtefact, fetching: Fetching) -> Delivered:
        self.asked.append(artefact)
        digest = digest_of(" ".join(artefact.uris).encode())
        if digest in fetching.have:
            return Delivered(digest=digest, is_unchanged=True)
        (fetching.into / "run.sh").write_bytes(SLEEPS)
        fetching.report(InstallStep(text="written", done=len(SLEEPS), total=len(SLEEPS)))
        return Delivered(digest=digest, platform_digest=digest)


class _DeferredGalleries:
    """Galleries that are opened after their reader is made."""

    def __init__(self, opened: Callable[[], Galleries | None]) -> None:
        self._opened = opened

    @property
    def sources(self) -> Sequence[GallerySource]:
        return self._now().sources

    async def read(self, sources: Sequence[GallerySource] | None = None) -> Readings:
        return await self._now().read(sources)

    async def refresh(self, sources: Sequence[GallerySource] | None = None) -> Readings:
        return await self._now().refresh(sources)

    async def recheck(self, readings: Readings) -> Readings:
        return await self._now().recheck(readings)

    def _now(self) -> Galleries:
        opened = self._opened()
        assert opened is not None
        return opened


@dataclass(kw_only=True)
class GalleryNode(SleepingNode):
    """A node with one gallery, `g`, whose index is a file that tests write."""

    images: ImagesConfig = field(
        default_factory=lambda: ImagesConfig(environment={"PATH": os.defpath}, network=Network(attempts=1), niceness=0)
    )
    gallery_url: str = ""
    """Used instead of the file."""
    link: Callable[[], BackendLink] = HealthyBackend
    """How one talks to the backends from now on."""
    is_pulling: bool = True
    """Else nothing is fetched, and every artefact is a backend at once."""

    def __post_init__(self) -> None:
        self.index = self.folder / "index.yaml"
        self.system = self.folder / "system"
        self.layers = self.folder / "backends" / ".corral" / "layers"
        self.connect = lambda *_: self.link()
        self._opened: Galleries | None = None
        self.pulls = Pulls(self.images, cache=self.layers) if self.is_pulling else WrittenPulls()
        pulls = self.pulls
        offered = GalleryBackends(_DeferredGalleries(lambda: self._opened), pulls, capability=self.capability)
        self.sources = [DirectorySource(), UriSource(pulls), offered]
        super().__post_init__()

    async def __aenter__(self) -> Self:
        source = GallerySource(name=GALLERY, url=self.gallery_url or self.index.as_uri())
        config = GalleriesConfig(sources=(source,), cache=self.folder / "galleries")
        opened = open_galleries(config, registry=NoRegistry(), clock=self.clock)
        self._opened = await self._stack.enter_async_context(opened)
        return await super().__aenter__()

    def offer(self, *entries: dict[str, object]) -> None:
        """These are all that the gallery has."""
        self.index.write_bytes(msgspec.json.encode(entries))  # JSON is YAML

    async def reply(self, subject: str, **request: object) -> dict[str, Any]:
        answer = await self.ask(subject, msgspec.json.encode(request))
        assert answer is not None
        decoded: dict[str, Any] = msgspec.json.decode(answer)
        return decoded

    async def listed(self) -> dict[str, dict[str, Any]]:
        backends = (await self.reply("backend.list"))["backends"] or []
        return {entry["name"]: entry for entry in backends}

    @property
    def on_disk(self) -> list[str]:
        return sorted(path.name for path in self.installed.iterdir() if path.name != ".corral")
