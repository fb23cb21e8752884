"""Which frontend a command talks to, and with which key: settings first, then the login and the
`up.json` of the data directory.
"""

import contextlib
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from corral.base.errors import NotFound, PathNotUsable, PeerUnavailable
from corral.base.private_files import read_private, write_private
from corral.base.setting_kinds import SECRET
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.cli.client import ApiClient, FrontendTarget
from corral.cli.options import command_sources, settings_options, warn
from corral.processes.settings import ClientSettings
from corral.processes.settings_sources import resolve
from corral.processes.up_file import NAME, read_up_file

_WITHOUT: Final = "without CORRAL_KEY and --key-file the key of this machine's `corral up` is used"


class NoFrontendKnown(PeerUnavailable):
    """Neither a setting nor an `up.json` names a frontend."""


def target_of(settings: ClientSettings) -> FrontendTarget:
    """The frontend that these settings name; NoFrontendKnown when they name none."""
    try:
        running = read_up_file(settings.data)
    except PathNotUsable:
        if not (settings.url and (settings.key or settings.key_file)):
            raise
        running = None
    login = read_login(settings.data)
    if settings.url:
        url, origin = settings.url, "--url or CORRAL_URL"
    elif running is not None:
        url, origin = running.url, str(settings.data / NAME)
    elif login is not None:
        url, origin = login.url, str(settings.data / LOGIN_NAME)
    else:
        raise NoFrontendKnown(
            f"no frontend is known: there is no {settings.data / NAME}; start one with `corral up`, or name one with "
            "--url, CORRAL_URL or --data"
        )
    target = FrontendTarget(url=url, key=_stated_key(settings), origin=origin, timeout=settings.timeout)
    local_key = running.keys.admin if running is not None and running.url == url else ""
    if target.key:
        return replace(target, renewal=_WITHOUT, alternative=_WITHOUT) if local_key else target
    if login is not None and login.url == url:
        again = f"`corral login --user {login.user}` logs in again, `corral logout` forgets the login"
        return replace(target, key=login.key, renewal=again)
    # The key of the local fleet is for that fleet alone: it must not be sent to another address.
    return replace(target, key=local_key)


def _stated_key(settings: ClientSettings) -> str:
    """The key that a setting holds or names a file of; empty when none does."""
    if settings.key or settings.key_file is None:
        return settings.key
    return read_key_file(settings.key_file)


def read_key_file(path: Path) -> str:
    """The key in a private file; NotFound or PathNotUsable when there is none."""
    text = read_private(path)
    if text is None:
        raise NotFound(f"there is no key file {path}; check --key-file or CORRAL_KEY_FILE")
    try:
        return SECRET.read(text.decode().strip())
    except ValueError:
        raise PathNotUsable(f"the key file {path} does not hold a key: it needs {SECRET.allowed}") from None


connected = settings_options(client=None)
"""Adds the settings of a client, such as --url, to a command."""


def open_settings() -> ClientSettings:
    """The settings by which the running command finds its frontend."""
    sources = command_sources()
    settings = resolve(ClientSettings, sources)
    warn(sources.warnings)
    return settings


def open_client() -> ApiClient:
    """A client of the frontend that the running command talks to."""
    return ApiClient(target_of(open_settings()))


LOGIN_NAME: Final = "login.json"


class LoginFile(msgspec.Struct, kw_only=True):
    url: str
    user: str
    key: str


def read_login(data: Path) -> LoginFile | None:
    """The stored login; None when no user is logged in."""
    text = read_private(data / LOGIN_NAME)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=LoginFile)
    except UNREADABLE_JSON:
        return None


def write_login(data: Path, login: LoginFile) -> None:
    """Write the file atomically, with mode 0600."""
    write_private(data / LOGIN_NAME, msgspec.json.encode(login))


def forget_login(data: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        (data / LOGIN_NAME).unlink()
