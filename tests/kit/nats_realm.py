"""The embedded server, which knows no passwords, and the issuer of users in its account."""

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Self

from corral.base.ids import NodeId
from corral.bus.client import NatsBus
from corral.bus.config import BusConfig
from corral.bus.credentials import UserJwt, read_creds
from corral.bus.minting import IssuedUser, Minter
from corral.bus.nkey_claims import ClaimsKey
from corral.bus.revoking import Revoker
from corral.bus.server import NatsServer

_UNLIMITED: Final = {"subs": -1, "data": -1, "payload": -1}


@dataclass
class Realm:
    server: NatsServer
    account: ClaimsKey

    @classmethod
    @asynccontextmanager
    async def open(
        cls, folder: Path, *, port: int | None = None, connections: int | None = None
    ) -> AsyncIterator[Self]:
        async with NatsServer(folder, port=port, connections=connections) as server:
            yield cls(server, ClaimsKey(server.authority.account_seed, "account"))

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def revoker(self) -> Revoker:
        """What control has with the operator's seed."""
        authority = self.server.authority
        return Revoker(
            operator_seed=authority.operator_seed,
            system=read_creds(authority.system_creds.read_text()),
            account=authority.account,
            connect=lambda credentials: NatsBus(BusConfig(url=self.url), credentials=credentials),
        )

    def minter(self, lifetime: timedelta = timedelta(hours=1)) -> Minter:
        return Minter(self.account.seed, lifetime)

    def stranger(self) -> "Realm":
        """Makes users that this server does not know."""
        return Realm(self.server, ClaimsKey.make("account"))

    def user(self, *, lives: float = 3600) -> UserJwt:
        """Return a user with all permissions."""
        return self._user({}, {}, lives)

    def worker(self, node_id: str, *, lives: float = 3600) -> UserJwt:
        """Who may do what LocalAI's frontends allow the node."""
        own = f"nodes.{node_id}"
        publish = [f"{own}.backend.install.*.progress", f"{own}.files.>", "_INBOX.>"]
        return self._user({"allow": publish}, {"allow": [f"{own}.>", "_INBOX.>"]}, lives)

    def node(
        self, node_id: str, *, is_corral: bool = True, node_type: str = "backend", lives: float = 3600
    ) -> IssuedUser:
        """Return the user that a frontend of ours gives to a node."""
        now = datetime.now(UTC)
        minter = self.minter(timedelta(seconds=lives))
        return minter.mint(NodeId(node_id), node_type=node_type, is_corral=is_corral, approved_at=now, at=now)

    def _user(
        self, publish: Mapping[str, Sequence[str]], subscribe: Mapping[str, Sequence[str]], lives: float
    ) -> UserJwt:
        key, now = ClaimsKey.make("user"), int(time.time())
        claims = {"type": "user", "pub": publish, "sub": subscribe, "issuer_account": self.account.public, **_UNLIMITED}
        about = {"iat": now, "exp": int(now + lives), "name": "test", "sub": key.public}
        return UserJwt(self.account.sign({**about, "nats": {"version": 2, **claims}}), key.seed)
