"""User JWTs that a frontend mints for the nodes of LocalAI, so that each may use its own subjects and no others.

The lists and the claims are LocalAI's, since its workers rely on them, with one thing added: LocalAI lets its nodes
listen to all of `_INBOX.>`, and here not to that part of it where the frontends are answered. The account's seed must
be that of its identity: an account's signing key would need the identity beside it.
"""

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
