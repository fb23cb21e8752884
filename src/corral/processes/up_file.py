"""`up.json`: how scripts and commands find what `corral up` runs. There is one only while it is ready."""

import contextlib
from pathlib import Path
from typing import Final

import msgspec

from corral.base.errors import UNREADABLE_JSON
from corral.base.private_files import read_private, write_private

NAME: Final = "up.json"


class UpKeys(msgspec.Struct, kw_only=True):
    admin: str
    registration: str


class UpPids(msgspec.Struct, kw_only=True):
    """0 stands for a process that is being started again."""

    frontend: int
    control: int
    gateways: list[int] = []
    nats: int
    workers: list[int] = []


class UpFile(msgspec.Struct, kw_only=True):
    url: str
    nats_url: str
    """The workers' URL, with their user and password."""
    keys: UpKeys
    pids: UpPids


def read_up_file(data: Path) -> UpFile | None:
    """None when there is none, or what is there is not what `corral up` writes."""
    text = read_private(data / NAME)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=UpFile)
    except UNREADABLE_JSON:
        return None


def write_up_file(data: Path, content: UpFile) -> None:
    """Renamed into place, mode 0600: a reader sees all of it or none."""
    write_private(data / NAME, msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")


def remove_up_file(data: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        (data / NAME).unlink()
