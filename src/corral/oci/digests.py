"""Digests: what content is called by those who want to be sure of it."""

import hashlib
import re
from typing import BinaryIO, Final, Protocol

from corral.oci.errors import SourceInvalid

_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_READ_BYTES: Final = 1024 * 1024


class Hash(Protocol):
    def update(self, data: bytes | memoryview, /) -> None: ...

    def hexdigest(self) -> str: ...


def is_digest(text: str) -> bool:
    """Whether it is one that we can check."""
    return _DIGEST.fullmatch(text) is not None


def check_digest(text: str) -> str:
    """The digest itself; SourceInvalid when it is none that we can check."""
    if not is_digest(text):
        raise SourceInvalid(f"{text[:200]!r} is not a digest; expected is sha256: and 64 hexadecimal digits")
    return text


def digest_of(content: bytes, *, like: str = "sha256:") -> str:
    hashed = new_hash(like)
    hashed.update(content)
    return f"{algorithm_of(like)}:{hashed.hexdigest()}"


def algorithm_of(digest: str) -> str:
    return digest.partition(":")[0]


def new_hash(digest: str) -> Hash:
    """Of the kind that this digest was made with."""
    return hashlib.new(algorithm_of(digest), usedforsecurity=True)


def feed_file(hashed: Hash, file: BinaryIO) -> int:
    """Hash from where the file stands to its end; how many bytes that were."""
    size = 0
    while piece := file.read(_READ_BYTES):
        hashed.update(piece)
        size += len(piece)
    return size
