"""What pulls can be told by whoever runs the program, and how an order is made of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from corral.base.errors import InvalidInput
from corral.oci.auth import Credential, StoredCredentials, credential_for, read_stored
from corral.oci.errors import PolicyInvalid, SourceInvalid
from corral.oci.integrity import judge_sources
from corral.oci.limits import UnpackLimits
from corral.oci.network import Network
from corral.oci.orders import PullOrder
from corral.oci.platforms import this_platform
from corral.oci.references import RegistryImage, parse_source
from corral.oci.signatures.policy import Verification, read_policy


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagesConfig:
    """For all pulls of one program."""

    credentials: tuple[Credential, ...] = field(default=(), repr=False)
    """Logins that come from settings. They are believed before those of files."""
    auth_files: tuple[Path, ...] = ()
    """Files of Docker or Podman with logins, read for each pull: a login that changes needs no restart."""
    network: Network = field(default_factory=Network, repr=False)
    limits: UnpackLimits = field(default_factory=UnpackLimits)
    require_integrity: bool = False
    """Whether sources are refused of which neither a signature nor a hash shows what they must hold."""
    trusted_root: Path | None = None
    """Whom to trust with keyless signatures; None: Sigstore's public instance, as its library knows it."""
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
    config: ImagesConfig,
    sources: Sequence[str],
    *,
    target: Path,
    cache: Path,
    pin: Pin | None = None,
    verification: Mapping[str, str] | None = None,
) -> tuple[PullOrder, Sequence[str]]:
    """An order with only the logins that its sources need; and notes: of logins without effect, and of sources of which
    nothing shows what they must hold. Reads files.

    `verification` is the policy of the gallery that the sources come from. PolicyInvalid names what is wrong with it;
    IntegrityRequired the source that is refused for want of a policy or a hash.
    """
    stored = read_stored(config.auth_files)
    known = pin or Pin()
    policy = _policy(verification or {})
    gaps = judge_sources(
        sources, has_policy=policy is not None, sha256=known.sha256, is_required=config.require_integrity
    )
    order = PullOrder(
        sources=tuple(sources),
        target=str(target),
        cache=str(cache),
        platform=this_platform(),
        expected_digest=known.digest,
        sha256=known.sha256,
        verification=policy,
        trusted_root=str(config.trusted_root or ""),
        credentials=_needed(sources, config, stored),
        network=config.network,
        limits=config.limits,
        parallel=config.parallel,
        keep_layers=config.keep_layers,
        niceness=config.niceness,
    )
    return order, (*stored.notes, *gaps)


def _policy(stated: Mapping[str, str]) -> Verification | None:
    try:
        return read_policy(stated)
    except InvalidInput as error:
        raise PolicyInvalid(f"the gallery's {error}") from error


def _needed(sources: Sequence[str], config: ImagesConfig, stored: StoredCredentials) -> tuple[Credential, ...]:
    found: list[Credential] = []
    for uri in sources:
        try:
            source = parse_source(uri)
        except SourceInvalid:
            continue  # the puller will say so
        if isinstance(source, RegistryImage):
            fitting = credential_for((*config.credentials, *stored.credentials), source.reference)
            found += [fitting] if fitting is not None and fitting not in found else []
    return tuple(found)
