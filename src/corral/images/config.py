"""What pulls can be told by whoever runs the program, and how an order is made of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from corral.images.auth import Credential, StoredCredentials, credential_for, read_stored
from corral.images.errors import SourceInvalid
from corral.images.limits import UnpackLimits
from corral.images.network import Network
from corral.images.orders import PullOrder
from corral.images.platforms import this_platform
from corral.images.references import Remote, parse_source


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagesConfig:
    """For all pulls of one program."""

    credentials: tuple[Credential, ...] = field(default=(), repr=False)
    """Logins that come from settings. They are believed before those of files."""
    auth_files: tuple[Path, ...] = ()
    """Files of Docker or Podman with logins, read for each pull: a login that changes needs no restart."""
    network: Network = field(default_factory=Network, repr=False)
    limits: UnpackLimits = field(default_factory=UnpackLimits)
    parallel: int = 3
    keep_layers: bool = False
    niceness: int = 10
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What pullers are started with, of which they get only what they need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """What the content must be; empty where nobody knows."""

    digest: str = ""
    """Of the index or of the image for this machine."""
    sha256: str = ""
    """Of an archive that is no image."""


def make_order(
    config: ImagesConfig, sources: Sequence[str], *, target: Path, cache: Path, pin: Pin | None = None
) -> tuple[PullOrder, Sequence[str]]:
    """An order with only the logins that its sources need; and notes about logins that have no effect. Reads files."""
    stored = read_stored(config.auth_files)
    known = pin or Pin()
    order = PullOrder(
        sources=tuple(sources),
        target=str(target),
        cache=str(cache),
        platform=this_platform(),
        expected_digest=known.digest,
        sha256=known.sha256,
        credentials=_needed(sources, config, stored),
        network=config.network,
        limits=config.limits,
        parallel=config.parallel,
        keep_layers=config.keep_layers,
        niceness=config.niceness,
    )
    return order, stored.notes


def _needed(sources: Sequence[str], config: ImagesConfig, stored: StoredCredentials) -> tuple[Credential, ...]:
    found: list[Credential] = []
    for uri in sources:
        try:
            source = parse_source(uri)
        except SourceInvalid:
            continue  # the puller will say so
        if isinstance(source, Remote):
            fitting = credential_for((*config.credentials, *stored.credentials), source.reference)
            found += [fitting] if fitting is not None and fitting not in found else []
    return tuple(found)
