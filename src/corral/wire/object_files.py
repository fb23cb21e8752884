"""`files.*`: files that travel through object storage. Only workers that have one listen.

A reply has what was asked for, or nothing but an error.
"""

import msgspec
from msgspec import UNSET, UnsetType


class EnsureRequest(msgspec.Struct, kw_only=True):
    """Have an object on the node's disk."""

    key: str = ""


class LocalPathReply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Answer to `files.ensure` and `files.temp`."""

    local_path: str = ""
    error: str = ""


class StageRequest(msgspec.Struct, kw_only=True):
    """Put a file of the node into the storage."""

    local_path: str = ""
    key: str = ""


class StageReply(msgspec.Struct, kw_only=True, omit_defaults=True):
    key: str = ""
    error: str = ""


class ListRequest(msgspec.Struct, kw_only=True):
    """Which files are below a directory of the node: `models/…`, `data/…`, or its cache."""

    key_prefix: str = ""


class ListedFiles(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Paths relative to the directory; null when there are none."""

    files: list[str] | UnsetType | None = UNSET
    error: str = ""
