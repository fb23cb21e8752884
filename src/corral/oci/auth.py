"""Registry credentials as Docker and Podman store them, and how to answer a registry's authentication challenge."""

import base64
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from corral.base.unreadable_json import UNREADABLE_JSON
from corral.oci.errors import RegistryRefused
from corral.oci.references import DOCKER_HUB, HUB_NAMES, Reference

_MAX_CONFIG_BYTES: Final = 1024 * 1024
_MAX_HEADER: Final = 8192
_PARAMETER: Final = re.compile(r'(?<![a-zA-Z_])([a-zA-Z_]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')
"""Begins only where a word does: what is searched comes from a stranger, and takes time by its length."""


class Credential(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A login for a registry, or for the repositories below a path of it."""

    place: str
    """Where the login is valid, such as `quay.io` or `quay.io/team`."""
    username: str = ""
    password: str = ""
    identity_token: str = ""
    """A refresh token that replaces user and password; the registry's token service exchanges it for access tokens."""
    access_token: str = ""
    """A token that is sent as it is, before the registry asks for anything."""

    def __repr__(self) -> str:
        return f"Credential(place={self.place!r})"

    def basic(self) -> str:
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode()


class _AuthEntry(msgspec.Struct, frozen=True, kw_only=True):
    auth: str = ""
    username: str = ""
    password: str = ""
    identitytoken: str = ""


class _Config(msgspec.Struct, frozen=True, kw_only=True):
    auths: Mapping[str, _AuthEntry] = msgspec.field(default_factory=dict)
    helpers: Mapping[str, str] = msgspec.field(default_factory=dict, name="credHelpers")
    store: str = msgspec.field(default="", name="credsStore")


class StoredCredentials(msgspec.Struct, frozen=True, kw_only=True):
    """The credentials of the files, and notes about entries that have no effect."""

    credentials: tuple[Credential, ...] = ()
    notes: tuple[str, ...] = msgspec.field(default=())


def config_files(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the paths of the credential files of Docker and Podman, highest precedence first."""
    home = environment.get("HOME", "")
    candidates = (
        environment.get("REGISTRY_AUTH_FILE", ""),
        _below(environment.get("DOCKER_CONFIG", ""), "config.json"),
        _below(environment.get("XDG_RUNTIME_DIR", ""), "containers/auth.json"),
        _below(home, ".docker/config.json"),
        _below(home, ".config/containers/auth.json"),
    )
    return tuple(Path(candidate) for candidate in candidates if candidate)


def _below(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else ""


def read_auths(text: str) -> tuple[Credential, ...]:
    """Parse the logins of a Docker configuration. Raise ValueError, without the text, when it is invalid."""
    try:
        config = msgspec.json.decode(text, type=_Config)
    except UNREADABLE_JSON:
        raise ValueError from None
    notes: list[str] = []
    credentials = tuple(_credentials_of(config, notes, Path("auths")))
    if notes or not credentials:
        raise ValueError
    return credentials


def read_stored(files: Iterable[Path]) -> StoredCredentials:
    """Read the credentials of all existing files. An unreadable file becomes a note: most images need no login."""
    credentials: list[Credential] = []
    notes: list[str] = []
    for file in files:
        try:
            with file.open("rb") as opened:
                config = msgspec.json.decode(opened.read(_MAX_CONFIG_BYTES), type=_Config)
        except FileNotFoundError:
            continue
        except (OSError, *UNREADABLE_JSON) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not a Docker configuration"
            notes.append(f"{file} is not used: {reason}")
            continue
        credentials += _credentials_of(config, notes, file)
        if config.helpers or config.store:
            notes.append(f"{file} names credential helpers, which are not run; write the login into `auths`")
    return StoredCredentials(credentials=tuple(credentials), notes=tuple(notes))


def _credentials_of(config: _Config, notes: list[str], file: Path) -> Iterable[Credential]:
    for key, entry in config.auths.items():
        username, password = entry.username, entry.password
        if entry.auth:
            try:
                username, _, password = base64.b64decode(entry.auth, validate=True).decode().partition(":")
            except ValueError:  # neither base64 nor text
                notes.append(f"{file}: the login of {place_of(key)} cannot be read")
                continue
            password = password.rstrip("\0")
        if username or password or entry.identitytoken:
            yield Credential(
                place=place_of(key), username=username, password=password, identity_token=entry.identitytoken
            )


def place_of(key: str) -> str:
    """Normalise a key of a credential file: some are URLs, and Docker Hub has had several names."""
    place = key.partition("://")[2] or key
    host, _, path = place.strip("/").partition("/")
    if host in HUB_NAMES:
        host = DOCKER_HUB
    return host if path in ("", "v1", "v2") else f"{host}/{path}"


def credential_for(credentials: Iterable[Credential], reference: Reference) -> Credential | None:
    """Return the credential with the longest matching place; the first of equal ones."""
    fitting = [credential for credential in credentials if f"{reference.name}/".startswith(f"{credential.place}/")]
    return max(fitting, key=lambda credential: len(credential.place), default=None)


class Challenge(msgspec.Struct, frozen=True, kw_only=True):
    """What a registry asks for in `WWW-Authenticate`."""

    scheme: str
    realm: str = ""
    service: str = ""
    scope: str = ""


def read_challenge(headers: Iterable[str]) -> Challenge:
    """Return the first challenge that we can answer. Raise RegistryRefused when there is none."""
    for header in headers:
        scheme, _, rest = header[:_MAX_HEADER].partition(" ")
        if scheme.lower() == "basic":
            return Challenge(scheme="basic")
        if scheme.lower() == "bearer":
            parameters = {match[1].lower(): match[2] or match[3] or "" for match in _PARAMETER.finditer(rest)}
            if parameters.get("realm"):
                return Challenge(
                    scheme="bearer",
                    realm=parameters["realm"],
                    service=parameters.get("service", ""),
                    scope=parameters.get("scope", ""),
                )
    raise RegistryRefused("the registry wants a login, and does not say of which kind")
