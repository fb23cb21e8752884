"""Who we are to a NATS server: user JWTs with their seeds, and TLS files. Mistakes are found before connecting."""

import base64
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final

import msgspec

from corral.base.errors import InvalidInput
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.bus.config import BusConfig
from corral.bus.endpoints import parse_endpoints

_SEED_BYTES: Final = 2 + 32 + 2
"""Prefix, key, checksum."""


@dataclass(frozen=True, slots=True)
class UserJwt:
    """A user JWT and the seed that proves it is ours."""

    jwt: str = field(repr=False)
    seed: str = field(repr=False)

    def __post_init__(self) -> None:
        if not self.jwt:
            raise InvalidInput("NATS user JWT", "is empty")
        if not _is_user_seed(self.seed):
            raise InvalidInput("NATS user seed", "is no user seed; those are 58 characters and start with SU")


def _is_user_seed(seed: str) -> bool:
    """Checked here because the client library, given a broken one, fails in a way it cannot clean up after."""
    try:
        decoded = base64.b32decode(seed + "=" * (-len(seed) % 8))
    except ValueError:
        return False
    return seed.startswith("SU") and len(decoded) == _SEED_BYTES


CredentialsProvider = Callable[[], Awaitable[UserJwt | None]]
"""Asked before every connection, so that rotated credentials need only a reconnect. None: those of the URL."""


async def no_credentials() -> None:
    """Log in as the URL says."""


def fixed_credentials(jwt: str, seed: str) -> CredentialsProvider:
    """The same ones each time."""
    credentials = UserJwt(jwt.strip(), seed.strip())

    async def provide() -> UserJwt:
        return credentials

    return provide


def credentials_from_files(jwt_file: Path, seed_file: Path) -> CredentialsProvider:
    """Read anew each time; now as well, so that a missing file stops the start and not a reconnect."""
    _read(jwt_file, "NATS user JWT file"), _read(seed_file, "NATS user seed file")

    async def provide() -> UserJwt:
        return UserJwt(_read(jwt_file, "NATS user JWT file"), _read(seed_file, "NATS user seed file"))

    return provide


def credentials_of(config: BusConfig) -> CredentialsProvider:
    """What the configuration says: a JWT, else the login of the URL."""
    return fixed_credentials(config.jwt, config.seed) if config.jwt or config.seed else no_credentials


def names_user(config: BusConfig) -> bool:
    """Does the configuration itself say who we are?"""
    return bool(config.jwt) or any(one.user or one.token for one in parse_endpoints(config.url))


def lifetime_of(jwt: str) -> timedelta | None:
    """From when it was made to its end, by the clock of whoever made it; None: for ever, or nobody can tell."""
    try:
        _, claims, _ = jwt.split(".")
        told = msgspec.json.decode(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)), type=_Claims)
        return timedelta(seconds=told.exp - told.iat) if 0 < told.iat < told.exp else None
    except (ValueError, OverflowError, *UNREADABLE_JSON):
        return None


class _Claims(msgspec.Struct):
    iat: float = 0
    exp: float = 0


def _read(path: Path, what: str) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(what, f"cannot read {path}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files. Any of them makes TLS a must, also for servers named by nats:// URLs."""

    ca: Path | None = None
    """Whom to believe, instead of the system's authorities."""
    certificate: Path | None = None
    """Ours; goes with `key`."""
    key: Path | None = None

    @property
    def given(self) -> bool:
        return any((self.ca, self.certificate, self.key))


def tls_context(files: TlsFiles) -> ssl.SSLContext:
    """InvalidInput that names the file when one is missing, unusable, or without its other half."""
    if (files.certificate is None) != (files.key is None):
        given, missing = ("certificate", "key") if files.key is None else ("key", "certificate")
        raise InvalidInput(f"NATS TLS {given}", f"was given without a {missing}; both are needed, or neither")
    for what, path in (("CA", files.ca), ("certificate", files.certificate), ("key", files.key)):
        if path is not None and not path.is_file():
            raise InvalidInput(f"NATS TLS {what}", f"there is no file {path}")
    try:
        context = ssl.create_default_context(cafile=files.ca)
    except (ssl.SSLError, OSError) as error:
        raise InvalidInput("NATS TLS CA", f"cannot use {files.ca}: {error}") from error
    if files.certificate is not None:
        try:
            context.load_cert_chain(files.certificate, files.key)
        except (ssl.SSLError, OSError) as error:
            raise InvalidInput("NATS TLS certificate", f"cannot use {files.certificate}: {error}") from error
    return context
