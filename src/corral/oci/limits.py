"""What fetching and unpacking may use: sizes, numbers, times. Every limit has a name that errors tell."""

from typing import Final

import msgspec

_KIB: Final = 1024
_MIB: Final = 1024 * _KIB
_GIB: Final = 1024 * _MIB

MANIFEST_BYTES: Final = 4 * _MIB
"""Of a manifest, an index or an answer with a token: registries have the same bound."""
SIGNATURE_BYTES: Final = _MIB
"""Of a payload that is signed, or of a bundle. Those of images have some ten thousand."""
MAX_SIGNATURES: Final = 32
"""Of one image, that are looked at until one is right."""
MAX_LAYERS: Final = 512
"""Docker's own bound is 127."""


class UnpackLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Against archives that are made to do harm. The largest backend that we know has 30 GiB in 200,000 entries."""

    entries: int = 1_000_000
    """Of the whole image. Each costs an inode and some 50 µs."""
    total_bytes: int = 100 * _GIB
    """Of everything that comes out of the archives, holes of sparse files included."""
    ratio: float = 200.0
    """How many bytes may come out for one that goes in; text has 10, and only what is made for it has 1,000."""
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
