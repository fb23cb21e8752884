"""A NATS server in operator mode, which requires a user JWT, and the issuer of such users."""

import base64
import json
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import nkeys

from corral.bus.credentials import UserJwt
from corral.bus.server import NatsServer

_UNLIMITED: Final = {"subs": -1, "data": -1, "payload": -1}
_ACCOUNT: Final = {"limits": {**_UNLIMITED, "imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1}}


@dataclass
class NatsKey:
    """An nkey that signs JWTs."""

    seed: str
    public: str

    @classmethod
    def new(cls, prefix: int) -> Self:
        seed = nkeys.encode_seed(secrets.token_bytes(32), prefix)
        return cls(seed.decode(), nkeys.from_seed(bytearray(seed)).public_key.decode())

    def sign(self, subject: "NatsKey", claims: Mapping[str, object], **standard: object) -> str:
        """A NATS JWT: this key says something about the subject."""
        body: dict[str, Any] = {"jti": secrets.token_hex(8), "iat": int(time.time()), "iss": self.public}
        body |= {"name": "test", "sub": subject.public, "nats": {"version": 2, **claims}, **standard}
        head = {"typ": "JWT", "alg": "ed25519-nkey"}
        text = f"{_part(json.dumps(head).encode())}.{_part(json.dumps(body).encode())}"
        pair = nkeys.from_seed(bytearray(self.seed.encode()))
        return f"{text}.{_part(pair.sign(text.encode()))}"


@dataclass
class Realm:
    server: NatsServer
    account: NatsKey

    @classmethod
    @asynccontextmanager
    async def open(cls, folder: Path) -> AsyncIterator[Self]:
        operator, account = NatsKey.new(nkeys.PREFIX_BYTE_OPERATOR), NatsKey.new(nkeys.PREFIX_BYTE_ACCOUNT)
        extra = {
            "authorization": {"timeout": 5},
            "operator": operator.sign(operator, {"type": "operator"}),
            "resolver": "MEMORY",
            "resolver_preload": {account.public: operator.sign(account, {"type": "account", **_ACCOUNT})},
        }
        async with NatsServer(folder, extra=extra) as server:
            yield cls(server, account)

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.server.port}"

    def stranger(self) -> "Realm":
        """Makes users that this server does not know."""
        return Realm(self.server, NatsKey.new(nkeys.PREFIX_BYTE_ACCOUNT))

    def user(self, *, lives: float = 3600) -> UserJwt:
        """Return a user with all permissions."""
        return self._user({}, {}, lives)

    def worker(self, node_id: str, *, lives: float = 3600) -> UserJwt:
        """Who may do what LocalAI's frontends allow the node."""
        own = f"nodes.{node_id}"
        publish = [f"{own}.backend.install.*.progress", f"{own}.files.>", "_INBOX.>"]
        return self._user({"allow": publish}, {"allow": [f"{own}.>", "_INBOX.>"]}, lives)

    def _user(
        self, publish: Mapping[str, Sequence[str]], subscribe: Mapping[str, Sequence[str]], lives: float
    ) -> UserJwt:
        key = NatsKey.new(nkeys.PREFIX_BYTE_USER)
        claims = {"type": "user", "pub": publish, "sub": subscribe, "issuer_account": self.account.public, **_UNLIMITED}
        return UserJwt(self.account.sign(key, claims, exp=int(time.time() + lives)), key.seed)


def _part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
