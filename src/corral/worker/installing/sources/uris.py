"""Images and archives by their uri, without a gallery: `oci://`, a bare reference, `ocifile://`, an OCI layout, and
archives behind a URL or on this machine.
"""

from functools import partial

from corral.oci.errors import SourceInvalid
from corral.oci.references import default_name, names_an_entry, parse_source
from corral.worker.installing.backend_metadata import Metadata
from corral.worker.installing.orders import CannotInstall, InstallableBackend, InstallOrder
from corral.worker.installing.sources.pulling import PullArtefact, Pulls


class UriSource:
    """Takes every uri but names of gallery entries; whatever is wrong with it is said."""

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
