"""`up.json`, in which scripts and commands find the fleet of `corral up`. It exists only while the fleet is ready."""

import contextlib
from pathlib import Path
from typing import Final

import msgspec

from corral.base.private_files import read_private, write_private
from corral.base.unreadable_json import UNREADABLE_JSON

NAME: Final = "up.json"
LOCK: Final = "up.lock"
"""Locked for as long as a `corral up` runs in the data directory."""


class UpKeys(msgspec.Struct, kw_only=True):
    admin: str
    registration: str


class UpPids(msgspec.Struct, kw_only=True):
    """Process ids; 0 while a process is being restarted."""

    up: int = 0
    """`corral up` itself; 0 from versions that did not tell."""
    frontend: int
    control: int
    gateways: list[int] = []
    nats: int
    workers: list[int] = []


class UpFile(msgspec.Struct, kw_only=True):
    url: str
    nats_url: str
    """Where NATS listens, without a login: each node has a user of its own."""
    keys: UpKeys
    pids: UpPids


def read_up_file(data: Path) -> UpFile | None:
    """Return None when there is no file, or it is not one of `corral up`."""
    text = read_private(data / NAME)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=UpFile)
    except UNREADABLE_JSON:
        return None


def write_up_file(data: Path, content: UpFile) -> None:
    """Write the file atomically, with mode 0600."""
    write_private(data / NAME, msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")


def remove_up_file(data: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        (data / NAME).unlink()
