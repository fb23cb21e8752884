"""What fetching and unpacking may use: sizes, numbers, times. Every limit has a name that errors tell."""

from dataclasses import dataclass
from typing import Final

from corral.base.setting_kinds import size, whole
from corral.base.settings import setting

_KIB: Final = 1024
_MIB: Final = 1024 * _KIB

MANIFEST_BYTES: Final = 4 * _MIB
"""Of a manifest, an index or an answer with a token: registries have the same bound."""
SIGNATURE_BYTES: Final = _MIB
"""Of a payload that is signed, or of a bundle. Those of images have some ten thousand."""
MAX_SIGNATURES: Final = 32
"""Of one image, that are looked at until one is right."""
MAX_LAYERS: Final = 512
"""Docker's own bound is 127."""


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
    """What must stay free on the disk."""
    expected_ratio: float = 2.5
    """How much room a compressed byte will take, for the look at the disk before the first one is fetched."""
    path_bytes: int = 4095
    """Of a whole name."""
    name_bytes: int = 255
    """Of each part of it, as file systems have it."""
    depth: int = 128
    """Directories in directories. Each costs a descriptor when a tree is removed."""
    header_bytes: int = _MIB
    """Of an extended header in an archive: names and times."""
    extents: int = 65536
    """Of one sparse file."""


RATIO_COUNTS_FROM: Final = 64 * _MIB
"""Below this, nobody minds what comes out."""
ZSTD_WINDOW_BYTES: Final = 128 * _MIB
"""What a decompressor may ask for in memory: the same as `zstd` itself allows."""


# Settings that errors tell, so that people know what to turn.
ENTRIES_KNOB: Final = "images.unpack_max_entries"
BYTES_KNOB: Final = "images.unpack_max_bytes"
RATIO_KNOB: Final = "images.unpack_max_ratio"
INTEGRITY_KNOB: Final = "images.require_backend_integrity"
