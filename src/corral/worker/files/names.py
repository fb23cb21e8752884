"""Names beside a file: its hash, the hash it shall have, and where it lies while it is being received. Pure.

The first two are LocalAI's, so that its workers and ours can follow each other on one disk.
"""

import hashlib
import os
import secrets
from typing import Final

HASH_SUFFIX: Final = ".sha256"
TARGET_SUFFIX: Final = ".sha256.target"
PART_PREFIX: Final = ".corral-part-"
NEW_PREFIX: Final = ".corral-new-"


def hash_name(name: str) -> str:
    return name + HASH_SUFFIX


def target_name(name: str) -> str:
    return name + TARGET_SUFFIX


def part_name(name: str) -> str:
    """Where ranges of this file are gathered: always the same, so that an upload can go on after a restart."""
    return PART_PREFIX + hashlib.sha256(os.fsencode(name)).hexdigest()[:32]


def new_name() -> str:
    """For something that will be renamed in the same breath, or never."""
    return NEW_PREFIX + secrets.token_hex(16)


def is_ours(name: str) -> bool:
    """A name that no key may mean."""
    return name.startswith((PART_PREFIX, NEW_PREFIX))
