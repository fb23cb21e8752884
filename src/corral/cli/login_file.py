"""`login.json`, in which commands find the key of the user who logged in. It is for one frontend."""

import contextlib
from pathlib import Path
from typing import Final

import msgspec

from corral.base.private_files import read_private, write_private
from corral.base.unreadable_json import UNREADABLE_JSON

NAME: Final = "login.json"


class LoginFile(msgspec.Struct, kw_only=True):
    url: str
    user: str
    key: str


def read_login(data: Path) -> LoginFile | None:
    """Return None when nobody is logged in."""
    text = read_private(data / NAME)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=LoginFile)
    except UNREADABLE_JSON:
        return None


def write_login(data: Path, login: LoginFile) -> None:
    """Write the file atomically, with mode 0600."""
    write_private(data / NAME, msgspec.json.encode(login))


def forget_login(data: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        (data / NAME).unlink()
