"""Reads an image's own description from its manifest, locally or in a registry."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from corral.base.clock import Clock
from corral.base.tasks import in_thread
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.imaging.description import BackendDescription, described_by
from corral.imaging.layouts import read_contents
from corral.oci.config import ImagesConfig
from corral.oci.contents import content_of
from corral.oci.errors import SourceInvalid
from corral.oci.references import ArchiveUrl, ImageFile, LocalSource, PullSource, Reference, RegistryImage, parse_source
from corral.oci.registry import open_registry


class _Annotated(msgspec.Struct, frozen=True, kw_only=True):
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)


class DescribedImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image's description and its location for an index."""

    shown: str
    """As the user wrote it."""
    path: Path | None = None
    """Local path; None: in a registry."""
    is_archive: bool = False
    reference: str = ""
    digest: str = ""
    description: BackendDescription = msgspec.field(default_factory=lambda: BackendDescription(name=""))


async def image_facts(image: str, *, config: ImagesConfig, clock: Clock) -> DescribedImage:
    """Describe an image in a layout, in an archive of one, or in a registry. Layers are not read."""
    match await in_thread(lambda: _source(image)):
        case RegistryImage(reference=reference):
            return await _remote_facts(image, reference, config=config, clock=clock)
        case ImageFile(path=path) | LocalSource(path=path):
            return await in_thread(lambda: _local_facts(image, path, config))
        case ArchiveUrl():
            raise SourceInvalid(f"{image}: an archive on the web says nothing of itself; expected is an image")


def _source(image: str) -> PullSource:
    """Parse the location. An existing path is used even without a leading slash."""
    path = Path(image)
    return LocalSource(path=path.absolute()) if path.exists() else parse_source(image)


def _local_facts(image: str, path: Path, config: ImagesConfig) -> DescribedImage:
    contents = read_contents(path, config.limits)
    description = _described(content_of(contents.manifests[-1].part))
    return DescribedImage(
        shown=image,
        path=path,
        is_archive=path.is_file(),
        digest=contents.top.digest,
        description=description,
    )


async def _remote_facts(image: str, reference: Reference, *, config: ImagesConfig, clock: Clock) -> DescribedImage:
    async with open_registry(reference, config=config, clock=clock) as registry:
        document = await registry.manifest(reference.selector)
    described = _described(document.body)
    return DescribedImage(shown=image, reference=str(reference), digest=document.digest, description=described)


def _described(body: bytes) -> BackendDescription:
    try:
        return described_by(msgspec.json.decode(body, type=_Annotated).annotations)
    except UNREADABLE_JSON:
        return BackendDescription(name="")
