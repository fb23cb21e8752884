"""Images and archives by their uri, without a gallery: `oci://`, a bare reference, `ocifile://`, an OCI layout, and
archives behind a URL or on this machine.
"""

from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import unquote, urlsplit

from corral.agent.backend_metadata import Metadata
from corral.agent.install_orders import CannotInstall, Found, InstallOrder
from corral.agent.install_sources.pulling import Artefact, Pulls
from corral.images.errors import SourceInvalid
from corral.images.references import ArchiveUrl, ImageFile, LocalPath, Remote, Source, parse_source

_ENDINGS: Final = (".tar.gz", ".tar.zst", ".tar.xz", ".tar.bz2", ".tgz", ".tar")


class UriSource:
    """Takes every uri but names of gallery entries; whatever is wrong with it is said."""

    def __init__(self, pulls: Pulls) -> None:
        self._pulls = pulls

    async def find(self, order: InstallOrder) -> Found | None:
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
        return Found(metadata=metadata, fetch=partial(self._pulls.fetch, Artefact(uris=(order.uri,))))


def names_an_entry(uri: str) -> bool:
    """Whether it is no uri but the name of a backend in a gallery, which LocalAI's workers accept in its place."""
    return "/" not in uri


def default_name(source: Source) -> str:
    """What a backend is called that nobody named; empty for images in registries, which have no good name."""
    match source:
        case Remote():
            return ""
        case ImageFile(path=path) | LocalPath(path=path):
            return _stem(path.name)
        case ArchiveUrl(url=url):
            return _stem(PurePosixPath(unquote(urlsplit(url).path)).name)


def _stem(name: str) -> str:
    for ending in _ENDINGS:
        if name.lower().endswith(ending) and len(name) > len(ending):
            return name[: -len(ending)]
    return Path(name).stem
