"""Users of NATS: credentials from settings, and TLS files."""

import base64
import re
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import msgspec

from corral.base.errors import InvalidInput
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.bus.config import BusConfig

_SEED_BYTES: Final = 2 + 32 + 2
"""Prefix, key, checksum."""
_CREDS: Final = re.compile(r"^-+BEGIN [A-Z ]+-+\s*([\w.-]+)\s*-+END [A-Z ]+-+\s*$", re.MULTILINE)
_CREDS_PARTS: Final = 2


@dataclass(frozen=True, slots=True)
class UserJwt:
    """A user JWT, and the seed of the key that it belongs to."""

    jwt: str = field(repr=False)
    seed: str = field(repr=False)

    def __post_init__(self) -> None:
        if not self.jwt:
            raise InvalidInput("NATS user JWT", "is empty")
        # Checked here because the client library cannot clean up after the failure that a broken seed causes.
        try:
            decoded = base64.b32decode(self.seed + "=" * (-len(self.seed) % 8))
        except ValueError:
            decoded = b""
        if not self.seed.startswith("SU") or len(decoded) != _SEED_BYTES:
            raise InvalidInput("NATS user seed", "is no user seed; those are 58 characters and start with SU")


CredentialsProvider = Callable[[], Awaitable[UserJwt | None]]
"""Called before every connection, so that rotated credentials need only a reconnect. None: those of the URL."""


def credentials_of(config: BusConfig) -> CredentialsProvider:
    """Return a provider of what the configuration says: a JWT, else the login of the URL."""
    credentials = UserJwt(config.jwt.strip(), config.seed.strip()) if config.jwt or config.seed else None

    async def provide() -> UserJwt | None:
        return credentials

    return provide


def read_creds(text: str) -> UserJwt:
    """Return the user of a file as NATS's own tools write it. Raise InvalidInput for any other text."""
    parts = _CREDS.findall(text)
    if len(parts) != _CREDS_PARTS:
        raise InvalidInput("NATS credentials", "are no file with a user JWT and its seed, as nsc writes it")
    return UserJwt(*parts)


def lifetime_of(jwt: str) -> timedelta | None:
    """Return the time from issue to expiry, by the issuer's clock; None when it does not expire or is unreadable."""
    claims = _claims_of(jwt)
    try:
        return timedelta(seconds=claims.exp - claims.iat) if 0 < claims.iat < claims.exp else None
    except OverflowError:
        return None


def payload_of(jwt: str) -> int | None:
    """Return how many bytes the user may send at once; None when nothing is said or it is unreadable."""
    most = _claims_of(jwt).nats.payload
    return most if most >= 0 else None


def _claims_of(jwt: str) -> "_Claims":
    try:
        _, body, _ = jwt.split(".")
        return msgspec.json.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)), type=_Claims)
    except (ValueError, *UNREADABLE_JSON):
        return _Claims()


class _UserClaims(msgspec.Struct):
    payload: int = -1


class _Claims(msgspec.Struct):
    iat: float = 0
    exp: float = 0
    nats: _UserClaims = msgspec.field(default_factory=_UserClaims)


def tls_context(config: BusConfig, authorities: str = "") -> ssl.SSLContext:
    """Raise InvalidInput that names the file when one is missing, unusable, or without its other half.

    `authorities` are certificates in PEM form, which count where the configuration names no file of them."""
    ca, certificate, key = config.tls_ca, config.tls_cert, config.tls_key
    if (certificate is None) != (key is None):
        present, missing = ("certificate", "key") if key is None else ("key", "certificate")
        raise InvalidInput(f"NATS TLS {present}", f"was given without a {missing}; both are needed, or neither")
    for kind, path in (("CA", ca), ("certificate", certificate), ("key", key)):
        if path is not None and not path.is_file():
            raise InvalidInput(f"NATS TLS {kind}", f"there is no file {path}")
    try:
        context = ssl.create_default_context(cafile=ca, cadata=authorities if authorities and ca is None else None)
    except (ssl.SSLError, OSError, TypeError, ValueError) as error:  # TypeError: what is offered is not even ASCII
        raise InvalidInput("NATS TLS CA", f"cannot use {ca or 'what the frontend offers'}: {error}") from error
    if certificate is not None:
        try:
            context.load_cert_chain(certificate, key)
        except (ssl.SSLError, OSError) as error:
            raise InvalidInput("NATS TLS certificate", f"cannot use {certificate}: {error}") from error
    return context
