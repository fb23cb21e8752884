"""Settings for pulls, how an order for a puller is made from them, and whether a signature, a digest or a hash covers
its sources. Does no network I/O."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final

import msgspec

from corral.base.errors import InvalidInput
from corral.base.setting_kinds import EXISTING_FILE, SWITCH, SettingKind, size, whole
from corral.base.settings import Derived, setting
from corral.oci.auth import Credential, config_files, credential_for, read_auths, read_stored
from corral.oci.errors import IntegrityRequired, PolicyInvalid, SourceInvalid
from corral.oci.limits import INTEGRITY_KNOB, Network, UnpackLimits
from corral.oci.manifests import this_platform
from corral.oci.orders import PullOrder
from corral.oci.references import ArchiveUrl, ImageFile, LocalSource, PullSource, RegistryImage, parse_source
from corral.oci.signatures.policy import read_policy

REGISTRY_AUTH: Final = SettingKind(
    placeholder="JSON", allowed="a Docker configuration with `auths` that hold a login", read=read_auths
)


def _gap(uri: str, source: PullSource, *, has_policy: bool, sha256: str) -> str:
    """Return what is missing to verify a source; empty if it is covered, or is a directory on this machine."""
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
    """How images of backends are fetched and unpacked."""

    section: ClassVar[str] = "images"
    title: ClassVar[str] = "Images of backends"

    auth_files: tuple[Path, ...] = setting(
        EXISTING_FILE.into(lambda file: (file,)),
        """File with logins for registries, as `docker login` or `podman login` write it. By default the usual places
        of both are looked at. Credential helpers that are named there are not run.""",
        name="registry_auth_file",
        default=Derived("where Docker and Podman keep them", lambda env, _: config_files(env), plain=()),
    )
    credentials: tuple[Credential, ...] = setting(
        REGISTRY_AUTH,
        """Logins for registries, in the form of such a file; they are believed before those of files. None by default:
        most images are public.""",
        name="registry_auth",
        aliases=("DOCKER_AUTH_CONFIG",),
        default=(),
        secret=True,
    )
    network: Network = field(default_factory=Network, repr=False)
    require_integrity: bool = setting(
        SWITCH,
        """Whether backends are refused of which nothing shows what they must be: images of a gallery without a policy
        for signatures and without a digest, and archives without a SHA-256 sum. Directories on this machine are not
        looked at. Not by default, as in LocalAI: most galleries have no policy, and the log says so.""",
        name="require_backend_integrity",
        aliases=("LOCALAI_REQUIRE_BACKEND_INTEGRITY", "REQUIRE_BACKEND_INTEGRITY"),
        default=False,
    )
    trusted_root: Path | None = setting(
        EXISTING_FILE,
        """File that says whom to trust with keyless signatures: a `trusted_root.json` of Sigstore. By default the one
        of Sigstore's public instance that came with this version of Corral, so that nobody has to be asked. Give one
        for an instance of your own, or when the public one has new keys.""",
        name="trusted_root_file",
        default=None,
        default_text="Sigstore's public instance",
    )
    parallel: int = setting(
        whole(1, 16),
        """Layers of one image that are fetched at a time. Three fill a usual line, and registries slow those down who
        open many.""",
        name="pull_parallel",
        default=3,
    )
    niceness: int = setting(
        whole(0, 19),
        """How far pulling and unpacking stand back behind everything else on the machine; 0: not at all. 10, because
        somebody who waits for a token would notice, and somebody who waits for an install would not.""",
        name="pull_niceness",
        default=10,
    )
    keep_layers: bool = setting(
        SWITCH,
        """Whether fetched layers stay on the disk after they were unpacked, so that images with the same ones need not
        fetch them again. Not by default: they take as much room as the backends.""",
        default=False,
    )
    limits: UnpackLimits = field(default_factory=UnpackLimits)
    keep_previous: bool = setting(
        SWITCH,
        """Whether the version of a backend before the present one stays on the disk, so that `corral worker backends
        rollback` can go back to it without fetching anything. It does by default, as long as there is room.""",
        default=True,
    )
    previous_min_free: int = setting(
        size("0", "1048576GiB"),
        """What must be free on the disk of the backends for a version before to be kept. 10 GiB: models and the next
        backend need it more.""",
        default="10GiB",
    )
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What pullers are started with; each of them gets only what it needs."""


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """What the content must be. Empty fields are not checked."""

    digest: str = ""
    """Digest of the index or of the image for this machine."""
    sha256: str = ""
    """Hash of an archive that is not an image."""


def make_order(
    config: ImagesConfig,
    sources: Sequence[str],
    *,
    target: Path,
    cache: Path,
    pin: Pin | None = None,
    verification: Mapping[str, str] | None = None,
) -> tuple[PullOrder, Sequence[str]]:
    """Return an order with only the logins that its sources need, and notes: logins without effect, and sources whose
    content nothing verifies. Reads files.

    `verification` is the policy of the gallery that the sources come from. PolicyInvalid says what is wrong with
    it; IntegrityRequired names the source that is refused because it has neither policy nor hash.
    """
    stored = read_stored(config.auth_files)
    content_pin = pin or Pin()
    try:
        policy = read_policy(verification or {})
    except InvalidInput as error:
        raise PolicyInvalid(f"the gallery's {error}") from error
    parsed = _parsed(sources)
    uncovered = (_gap(*pair, has_policy=policy is not None, sha256=content_pin.sha256) for pair in parsed.items())
    gaps = [gap for gap in uncovered if gap]
    if gaps and config.require_integrity:
        raise IntegrityRequired(f"{gaps[0]}, and {INTEGRITY_KNOB} asks for that")
    order = PullOrder(
        sources=tuple(sources),
        target=str(target),
        cache=str(cache),
        platform=this_platform(),
        expected_digest=content_pin.digest,
        sha256=content_pin.sha256,
        verification=policy,
        trusted_root=str(config.trusted_root or ""),
        credentials=_needed(parsed.values(), (*config.credentials, *stored.credentials)),
        network=config.network,
        limits=config.limits,
        parallel=config.parallel,
        keep_layers=config.keep_layers,
        niceness=config.niceness,
    )
    warnings = [f"{gap}; whatever comes is installed unless {INTEGRITY_KNOB} is set" for gap in gaps]
    return order, (*stored.notes, *warnings)


def _parsed(sources: Sequence[str]) -> dict[str, PullSource]:
    """The sources that can be read. The puller reports the others."""
    parsed: dict[str, PullSource] = {}
    for uri in sources:
        with suppress(SourceInvalid):
            parsed[uri] = parse_source(uri)
    return parsed


def _needed(sources: Iterable[PullSource], logins: Sequence[Credential]) -> tuple[Credential, ...]:
    """The logins that the registries of these sources want, each once."""
    images = [source.reference for source in sources if isinstance(source, RegistryImage)]
    needed = dict.fromkeys(credential_for(logins, reference) for reference in images)
    return tuple(credential for credential in needed if credential is not None)
