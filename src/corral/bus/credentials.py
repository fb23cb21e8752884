"""Users of NATS: credentials from files and settings, and users that are minted for nodes."""

import base64
import json
import secrets
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec
import nkeys
from cryptography.hazmat.primitives import hashes

from corral.base.errors import InvalidInput
from corral.base.ids import NodeId
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.bus.config import BusConfig
from corral.bus.endpoints import parse_endpoints
from corral.bus.replies import FRONTEND_INBOX
from corral.wire import subjects

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


_INBOX: Final = "_INBOX.>"
_HEADER: Final = {"typ": "JWT", "alg": "ed25519-nkey"}
_UNLIMITED: Final = {"subs": -1, "data": -1, "payload": -1}
_AGENT_HEARS: Final = (
    "agent.execute",
    "agent.*.cancel",
    "gallery.*.cancel",
    "gallery.*.progress",
    "jobs.*.cancel",
    "jobs.*.progress",
    "jobs.*.result",
    "jobs.mcp-ci.new",
    "mcp.tools.execute",
    "mcp.discovery",
    "staging.*.progress",
)


class Minter:
    """Signs with the key of a NATS account. InvalidInput for a seed that is not one of an account."""

    def __init__(self, account_seed: str, lifetime: timedelta) -> None:
        self._account = _account(account_seed)
        self.lifetime = lifetime

    def mint(self, node_id: NodeId, *, node_type: str, at: datetime) -> UserJwt:
        """A new key pair each time, for a node that was admitted."""
        seed = nkeys.encode_seed(secrets.token_bytes(32), nkeys.PREFIX_BYTE_USER)
        account = self._account.public_key.decode()
        may_say, may_hear = _agent(node_id) if node_type == "agent" else _backend(node_id)
        claims: dict[str, object] = {
            "exp": int((at + self.lifetime).timestamp()),
            "iat": int(at.timestamp()),
            "iss": account,
            "name": f"localai-{node_type}-{subjects.token(node_id)}",
            "sub": nkeys.from_seed(bytearray(seed)).public_key.decode(),
            "nats": {
                "pub": {"allow": may_say},
                "sub": {"allow": may_hear, "deny": [f"{FRONTEND_INBOX}.>"]},
                **_UNLIMITED,
                "issuer_account": account,
                "type": "user",
                "version": 2,
            },
        }
        return UserJwt(self._signed({"jti": _digest(claims), **claims}), seed.decode())

    def _signed(self, claims: dict[str, object]) -> str:
        text = f"{_part(_json(_HEADER))}.{_part(_json(claims))}"
        return f"{text}.{_part(self._account.sign(text.encode()))}"


def _account(seed: str) -> nkeys.KeyPair:
    """The library does not look at the checksum; written anew, a mistyped seed is another one."""
    try:
        prefix, raw = nkeys.decode_seed(bytearray(seed.encode("ascii")))
        is_whole = nkeys.encode_seed(bytes(raw), prefix).decode() == seed
    except (nkeys.NkeysError, ValueError, IndexError) as error:
        raise InvalidInput("NATS account seed", "is no seed; that of an account starts with SA") from error
    if not is_whole or prefix != nkeys.PREFIX_BYTE_ACCOUNT:
        problem = "is mistyped, or the seed of something else; that of an account starts with SA"
        raise InvalidInput("NATS account seed", problem)
    return nkeys.from_seed(bytearray(seed.encode("ascii")))


def _backend(node_id: NodeId) -> tuple[list[str], list[str]]:
    node = f"nodes.{subjects.token(node_id)}"
    return [f"{node}.backend.install.*.progress", f"{node}.files.>", _INBOX], [f"{node}.>", _INBOX]


def _agent(node_id: NodeId) -> tuple[list[str], list[str]]:
    return ["agent.>", "jobs.>", _INBOX], [*_AGENT_HEARS, subjects.backend_stop(node_id), _INBOX]


def _digest(claims: dict[str, object]) -> str:
    """What tells one JWT from another."""
    digest = hashes.Hash(hashes.SHA512_256())
    digest.update(_json(claims))
    return base64.b32encode(digest.finalize()).decode().rstrip("=")


def _json(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
