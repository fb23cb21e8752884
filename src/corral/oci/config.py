"""What pulls can be told by whoever runs the program, how an order is made of it, and whether a signature, a digest or
a hash covers its sources. Fetches nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from corral.base.errors import InvalidInput
from corral.oci.auth import Credential, StoredCredentials, credential_for, read_stored
from corral.oci.errors import IntegrityRequired, PolicyInvalid, SourceInvalid
from corral.oci.limits import INTEGRITY_KNOB, UnpackLimits
from corral.oci.manifests import this_platform
from corral.oci.network import Network
from corral.oci.orders import PullOrder
from corral.oci.references import ArchiveUrl, ImageFile, LocalSource, RegistryImage, parse_source
from corral.oci.signatures.policy import Verification, read_policy


def judge_sources(sources: Sequence[str], *, has_policy: bool, sha256: str, is_required: bool) -> tuple[str, ...]:
    """Sentences about sources of which nothing shows what they hold; IntegrityRequired where that is not allowed."""
    gaps = [gap for uri in sources if (gap := _gap(uri, has_policy=has_policy, sha256=sha256))]
    if gaps and is_required:
        raise IntegrityRequired(f"{gaps[0]}, and {INTEGRITY_KNOB} asks for that")
    return tuple(f"{gap}; whatever comes is installed unless {INTEGRITY_KNOB} is set" for gap in gaps)


def _gap(uri: str, *, has_policy: bool, sha256: str) -> str:
    """What is missing; empty for what is covered, and for what is on this machine as a directory."""
    try:
        source = parse_source(uri)
    except SourceInvalid:
        return ""  # the puller will say so
    match source:
        case RegistryImage(reference=reference):
            if has_policy or reference.digest:
                return ""
            return f"{uri}: its gallery has no `verification`, and the uri no digest: nothing shows who made the image"
        case ImageFile():
            return "" if has_policy else f"{uri}: an image in a file has no signature: nothing shows who made it"
        case ArchiveUrl():
            is_directory = False
        case LocalSource(path=path):
            is_directory = path.is_dir()
    if is_directory or sha256:
        return ""
    return f"{uri}: its entry has no `sha256`: nothing shows what the archive must hold"


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
