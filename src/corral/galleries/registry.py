"""What galleries need of a registry: indexes that are kept there as artefacts of one file."""

from dataclasses import dataclass, field
from typing import Protocol

from corral.base.errors import CorralError


class RegistryMissing(CorralError):
    """This program cannot read galleries from registries: give the index an http, https or file URL."""

    code = "registry_missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtefactFile:
    """The one file of an artefact."""

    digest: str
    """Of its manifest."""
    content: bytes = field(repr=False)


class ArtefactReader(Protocol):
    """Reads small artefacts from registries."""

    async def read_artefact(self, reference: str, *, known_digest: str, most_bytes: int) -> ArtefactFile | None:
        """The file of an artefact, verified; None when its digest is the known one, so that nothing is fetched.

        PeerUnavailable, PeerRefused or InvalidInput otherwise, also for one that is larger than allowed.
        """


class NoRegistry:
    """For programs without a client for registries."""

    async def read_artefact(self, reference: str, *, known_digest: str, most_bytes: int) -> ArtefactFile | None:
        raise RegistryMissing
