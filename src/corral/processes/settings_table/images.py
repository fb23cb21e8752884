"""Settings of pulls."""

# ruff: noqa: RUF009 - `setting` declares a field, as `dataclasses.field` does

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from corral.processes.settings_kinds import EXISTING_FILE, HOSTS, REGISTRY_AUTH, SWITCH, size, whole
from corral.processes.settings_sources import setting
from corral.processes.settings_table.defaults import MIB

GIB: Final = 1024 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSettings:
    """How images of backends are fetched and unpacked."""

    section: ClassVar[str] = "images"
    title: ClassVar[str] = "Images of backends"

    registry_auth_file: Path | None = setting(
        EXISTING_FILE,
        """File with logins for registries, as `docker login` or `podman login` write it. By default the usual places
        of both are looked at. Credential helpers that are named there are not run.""",
        flag="--registry-auth-file",
        env=("CORRAL_REGISTRY_AUTH_FILE",),
        default=None,
        default_text="where Docker and Podman keep them",
    )
    registry_auth: str = setting(
        REGISTRY_AUTH,
        """Logins for registries, in the form of such a file; they are believed before those of files. None by default:
        most images are public.""",
        env=("CORRAL_REGISTRY_AUTH", "DOCKER_AUTH_CONFIG"),
        default="",
        secret=True,
    )
    plain_registries: tuple[str, ...] = setting(
        HOSTS,
        """Hosts that images may be fetched from without TLS. None by default: anybody on the way could change what
        comes. Those on this machine's loopback need no permission.""",
        flag="--plain-registries",
        env=("CORRAL_PLAIN_REGISTRIES",),
        default=(),
    )
    require_backend_integrity: bool = setting(
        SWITCH,
        """Whether backends are refused of which nothing shows what they must be: images of a gallery without a policy
        for signatures and without a digest, and archives without a SHA-256 sum. Directories on this machine are not
        looked at. Not by default, as in LocalAI: most galleries have no policy, and it is told in the log.""",
        flag="--require-backend-integrity",
        env=(
            "CORRAL_REQUIRE_BACKEND_INTEGRITY",
            "LOCALAI_REQUIRE_BACKEND_INTEGRITY",
            "REQUIRE_BACKEND_INTEGRITY",
        ),
        default=False,
    )
    trusted_root_file: Path | None = setting(
        EXISTING_FILE,
        """File that says whom to trust with keyless signatures: a `trusted_root.json` of Sigstore. By default the one
        of Sigstore's public instance that came with this version of Corral, so that nobody has to be asked. Give one
        for an instance of your own, or when the public one has new keys.""",
        flag="--trusted-root-file",
        env=("CORRAL_TRUSTED_ROOT_FILE",),
        default=None,
        default_text="Sigstore's public instance",
    )
    pull_parallel: int = setting(
        whole(1, 16),
        """Layers of one image that are fetched at a time. Three fill a usual line, and registries slow those down who
        open many.""",
        flag="--pull-parallel",
        env=("CORRAL_PULL_PARALLEL",),
        default=3,
    )
    pull_niceness: int = setting(
        whole(0, 19),
        """How far pulling and unpacking stand back behind everything else on the machine; 0: not at all. 10, because
        whoever waits for a token would notice, and whoever waits for an install would not.""",
        flag="--pull-niceness",
        env=("CORRAL_PULL_NICENESS",),
        default=10,
    )
    keep_layers: bool = setting(
        SWITCH,
        """Whether fetched layers stay on the disk after they were unpacked, so that images with the same ones need not
        fetch them again. Not by default: they take as much room as the backends.""",
        flag="--keep-layers",
        env=("CORRAL_KEEP_LAYERS",),
        default=False,
    )
    unpack_max_entries: int = setting(
        whole(1, 100_000_000),
        """Files, directories and links that one image may have. The largest backends have some 200,000; an archive that
        is made to do harm has no end.""",
        flag="--unpack-max-entries",
        env=("CORRAL_UNPACK_MAX_ENTRIES",),
        default=1_000_000,
    )
    unpack_max_bytes: int = setting(
        size(MIB, 1024 * 1024 * GIB, bounds="from 1MiB to 1048576GiB"),
        "What may come out of the layers of one image. The largest backends have some 30 GiB.",
        flag="--unpack-max-bytes",
        env=("CORRAL_UNPACK_MAX_BYTES",),
        default=100 * GIB,
        default_text="100GiB",
    )
    unpack_max_ratio: int = setting(
        whole(1, 1_000_000),
        """How many bytes may come out of a layer for one that goes in, once it is more than 64 MiB. Text has 10; what
        has 1,000 was made to fill disks.""",
        flag="--unpack-max-ratio",
        env=("CORRAL_UNPACK_MAX_RATIO",),
        default=200,
    )
    keep_previous: bool = setting(
        SWITCH,
        """Whether the version of a backend before the present one stays on the disk, so that `corral worker backends
        rollback` can go back to it without fetching anything. It does by default, as long as there is room.""",
        flag="--keep-previous",
        env=("CORRAL_KEEP_PREVIOUS",),
        default=True,
    )
    previous_min_free: int = setting(
        size(0, 1024 * 1024 * GIB, bounds="from 0 to 1048576GiB"),
        """What must be free on the disk of the backends for a version before to be kept. 10 GiB: models and the next
        backend need it more.""",
        flag="--previous-min-free",
        env=("CORRAL_PREVIOUS_MIN_FREE",),
        default=10 * GIB,
        default_text="10GiB",
    )
