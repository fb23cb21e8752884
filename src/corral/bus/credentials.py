"""Users of NATS: credentials from settings, TLS files, and users that are minted for nodes."""

import base64
import json
import secrets
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import msgspec
import nkeys
from cryptography.hazmat.primitives import hashes

from corral.base.errors import InvalidInput
from corral.base.ids import NodeId
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.bus.config import BusConfig, parse_endpoints
from corral.bus.replies import FRONTEND_INBOX
from corral.wire import subjects

_SEED_BYTES: Final = 2 + 32 + 2
"""Prefix, key, checksum."""
_INBOX: Final = "_INBOX.>"
_HEADER: Final = {"typ": "JWT", "alg": "ed25519-nkey"}
_UNLIMITED: Final = {"subs": -1, "data": -1, "payload": -1}
_AGENT_SUBSCRIBES: Final = (
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


def names_user(config: BusConfig) -> bool:
    """Whether the configuration itself names a user."""
    return bool(config.jwt) or any(endpoint.user or endpoint.token for endpoint in parse_endpoints(config.url))


def lifetime_of(jwt: str) -> timedelta | None:
    """Return the time from issue to expiry, by the issuer's clock; None when it does not expire or is unreadable."""
    try:
        _, body, _ = jwt.split(".")
        claims = msgspec.json.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)), type=_Claims)
        return timedelta(seconds=claims.exp - claims.iat) if 0 < claims.iat < claims.exp else None
    except (ValueError, OverflowError, *UNREADABLE_JSON):
        return None


class _Claims(msgspec.Struct):
    iat: float = 0
    exp: float = 0


def tls_context(config: BusConfig) -> ssl.SSLContext:
    """Raise InvalidInput that names the file when one is missing, unusable, or without its other half."""
    ca, certificate, key = config.tls_ca, config.tls_cert, config.tls_key
    if (certificate is None) != (key is None):
        present, missing = ("certificate", "key") if key is None else ("key", "certificate")
        raise InvalidInput(f"NATS TLS {present}", f"was given without a {missing}; both are needed, or neither")
    for what, path in (("CA", ca), ("certificate", certificate), ("key", key)):
        if path is not None and not path.is_file():
            raise InvalidInput(f"NATS TLS {what}", f"there is no file {path}")
    try:
        context = ssl.create_default_context(cafile=ca)
    except (ssl.SSLError, OSError) as error:
        raise InvalidInput("NATS TLS CA", f"cannot use {ca}: {error}") from error
    if certificate is not None:
        try:
            context.load_cert_chain(certificate, key)
        except (ssl.SSLError, OSError) as error:
            raise InvalidInput("NATS TLS certificate", f"cannot use {certificate}: {error}") from error
    return context


class Minter:
    """Makes users of a NATS account, and signs them with its key. Raises InvalidInput for another kind of seed."""

    def __init__(self, account_seed: str, lifetime: timedelta) -> None:
        self._account = _account(account_seed)
        self.lifetime = lifetime

    def mint(self, node_id: NodeId, *, node_type: str, at: datetime) -> UserJwt:
        """Return a user with a new key pair, for a node that was admitted."""
        seed = nkeys.encode_seed(secrets.token_bytes(32), nkeys.PREFIX_BYTE_USER)
        account = self._account.public_key.decode()
        if node_type == "agent":
            may_publish = ["agent.>", "jobs.>", _INBOX]
            may_subscribe = [*_AGENT_SUBSCRIBES, subjects.backend_stop(node_id), _INBOX]
        else:
            node = f"nodes.{subjects.token(node_id)}"
            may_publish = [f"{node}.backend.install.*.progress", f"{node}.files.>", _INBOX]
            may_subscribe = [f"{node}.>", _INBOX]
        claims: dict[str, object] = {
            "exp": int((at + self.lifetime).timestamp()),
            "iat": int(at.timestamp()),
            "iss": account,
            "name": f"localai-{node_type}-{subjects.token(node_id)}",
            "sub": nkeys.from_seed(bytearray(seed)).public_key.decode(),
            "nats": {
                "pub": {"allow": may_publish},
                "sub": {"allow": may_subscribe, "deny": [f"{FRONTEND_INBOX}.>"]},
                **_UNLIMITED,
                "issuer_account": account,
                "type": "user",
                "version": 2,
            },
        }
        digest = hashes.Hash(hashes.SHA512_256())
        digest.update(_json(claims))
        jti = base64.b32encode(digest.finalize()).decode().rstrip("=")
        text = f"{_part(_json(_HEADER))}.{_part(_json({'jti': jti, **claims}))}"
        return UserJwt(f"{text}.{_part(self._account.sign(text.encode()))}", seed.decode())


def _account(seed: str) -> nkeys.KeyPair:
    """Return the key of an account's seed, which is encoded again to check it: the library ignores the checksum."""
    try:
        prefix, raw = nkeys.decode_seed(bytearray(seed.encode("ascii")))
        is_whole = nkeys.encode_seed(bytes(raw), prefix).decode() == seed
    except (nkeys.NkeysError, ValueError, IndexError) as error:
        raise InvalidInput("NATS account seed", "is no seed; that of an account starts with SA") from error
    if not is_whole or prefix != nkeys.PREFIX_BYTE_ACCOUNT:
        problem = "is mistyped, or the seed of something else; that of an account starts with SA"
        raise InvalidInput("NATS account seed", problem)
    return nkeys.from_seed(bytearray(seed.encode("ascii")))


def _json(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
