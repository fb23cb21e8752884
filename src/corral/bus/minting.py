"""Mints NATS users for nodes. Only control imports this file: its libraries cost each process 8 MB."""

import base64
import json
import secrets
from datetime import datetime, timedelta
from typing import Final

import nkeys
from cryptography.hazmat.primitives import hashes

from corral.base.errors import InvalidInput
from corral.base.ids import NodeId
from corral.bus.credentials import UserJwt
from corral.bus.replies import FRONTEND_INBOX
from corral.wire import subjects

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
