"""Limits on fetching and unpacking: sizes, counts, times. Error messages name the limit."""

from dataclasses import dataclass
from typing import Final

from corral.base.setting_kinds import size, whole
from corral.base.settings import setting

_KIB: Final = 1024
_MIB: Final = 1024 * _KIB

MANIFEST_BYTES: Final = 4 * _MIB
"""Maximum size of a manifest, an index or a token response; registries have the same limit."""
SIGNATURE_BYTES: Final = _MIB
"""Maximum size of a signed payload or a bundle. Usual ones have about ten kilobytes."""
MAX_SIGNATURES: Final = 32
"""Maximum number of signatures that are checked per image."""
MAX_LAYERS: Final = 512
"""Docker's own limit is 127."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackLimits:
    """Against archives that are made to do harm. The largest backend that we know has 30 GiB in 200,000 entries."""

    entries: int = setting(
        whole(1, 100_000_000),
        """Files, directories and links that one image may have. The largest backends have some 200,000; an archive that
        is made to do harm has no end.""",
        name="unpack_max_entries",
        default="1000000",
    )
    total_bytes: int = setting(
        size("1MiB", "1048576GiB"),
        "What may come out of the layers of one image. The largest backends have some 30 GiB.",
        name="unpack_max_bytes",
        default="100GiB",
    )
    ratio: float = setting(
        whole(1, 1_000_000),
        """How many bytes may come out of a layer for one that goes in, once it is more than 64 MiB. Text has 10; what
        has 1,000 was made to fill disks.""",
        name="unpack_max_ratio",
        default=200,
    )
    free_bytes: int = 256 * _MIB
    """Free disk space that must remain."""
    expected_ratio: float = 2.5
    """Estimated unpacked bytes per compressed byte, for the disk check before the download."""
    path_bytes: int = 4095
    """Maximum length of a path."""
    name_bytes: int = 255
    """Maximum length of each part of a path, as in file systems."""
    depth: int = 128
    """Maximum depth of directories. Each level costs a descriptor when a tree is removed."""
    header_bytes: int = _MIB
    """Maximum size of an extended header in an archive (names and times)."""
    extents: int = 65536
    """Maximum number of extents of one sparse file."""


RATIO_COUNTS_FROM: Final = 64 * _MIB
"""Below this size the compression ratio is not checked."""
ZSTD_WINDOW_BYTES: Final = 128 * _MIB
"""Maximum memory of the decompressor's window, as `zstd` itself allows."""


# Setting names for error messages, so that users know what to change.
ENTRIES_KNOB: Final = "images.unpack_max_entries"
BYTES_KNOB: Final = "images.unpack_max_bytes"
RATIO_KNOB: Final = "images.unpack_max_ratio"
INTEGRITY_KNOB: Final = "images.require_backend_integrity"
