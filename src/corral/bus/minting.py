"""Mints NATS users for nodes and for this frontend, and says what each kind of them may hear and say.

Only control imports this file: its libraries cost each process 8 MB.
"""

import hashlib
import hmac
from datetime import datetime, timedelta
from typing import Final

from corral.base.ids import NodeId
from corral.base.values import PartlyPrinted
from corral.bus.credentials import UserJwt
from corral.bus.nkey_claims import ClaimsKey
from corral.bus.replies import FRONTEND_INBOX, answers_of
from corral.wire import subjects

MAX_SAID: Final = 1024 * 1024
"""Bytes that a Corral node may send at once: control reads no more of a report, and an answer is rarely a tenth of it.
The worker says that an answer is too large instead of sending it."""
MOST_SUBSCRIPTIONS: Final = 64
"""Subscriptions of one connection of a node: several times those of a worker. The server keeps the subject of each in
memory, so that with any number of them one node could end it for all."""
_UNLIMITED: Final = {"subs": -1, "data": -1, "payload": -1}
_OF_NODE: Final = {**_UNLIMITED, "subs": MOST_SUBSCRIPTIONS}
FRONTEND_SUBJECTS: Final = (
    "nodes.>",
    "gallery.>",
    "agent.>",
    "staging.>",
    "state.>",
    "jobs.>",
    "mcp.>",
    "cache.>",
    "prefixcache.>",
    "finetune.>",
    "responses.>",
    "corral.>",
    f"{FRONTEND_INBOX}.>",
)
_AGENT_SUBSCRIBES: Final = (
    "agent.execute",
    "agent.*.cancel",
    "jobs.*.cancel",
    "jobs.mcp-ci.new",
    "mcp.tools.execute",
    "mcp.discovery",
)
"""What LocalAI's agents subscribe to when they start: one that is refused ends. Corral sends nothing there."""


class IssuedUser(PartlyPrinted, frozen=True, kw_only=True):
    """A user that a node was given."""

    unprinted = ("user",)

    user: UserJwt
    public_key: str
    issued_at: datetime
    expires_at: datetime


class Minter:
    """Makes users of a NATS account, and signs them with its key. Raises InvalidInput for another kind of seed."""

    def __init__(self, account_seed: str, lifetime: timedelta) -> None:
        self._account = ClaimsKey(account_seed, "account")
        self.lifetime = lifetime

    @property
    def account(self) -> str:
        """The public key of the NATS account that signs the users."""
        return self._account.public

    def mint(
        self, node_id: NodeId, *, node_type: str, is_corral: bool, approved_at: datetime, at: datetime
    ) -> IssuedUser:
        """Return a user for a node that was approved then.

        Its key follows from the account's, the node and the approval: all that a node is given between two approvals
        is one user, whose end is one line of claims and does not concern the next.
        """
        about = f"corral node {node_id} {approved_at.timestamp():.6f}"
        key = ClaimsKey.make("user", hmac.digest(self._account.raw, about.encode(), hashlib.sha256))
        node, expires_at = subjects.token(node_id), at + self.lifetime
        claims: dict[str, object] = {
            "exp": int(expires_at.timestamp()),
            "iat": int(at.timestamp()),
            "iss": self.account,
            "name": f"{'corral' if is_corral else 'localai'}-{node_type}-{node}",
            "sub": key.public,
            "nats": {
                **_permissions(node, node_type, is_corral=is_corral),
                "issuer_account": self.account,
                "type": "user",
                "version": 2,
            },
        }
        user = UserJwt(self._account.sign(claims), key.seed)
        return IssuedUser(user=user, public_key=key.public, issued_at=at, expires_at=expires_at)

    def mint_frontend(self, *, at: datetime) -> UserJwt:
        """Return a user for this process. It does not expire: who makes it could make another at any time, and it is
        kept in memory only."""
        key, may = ClaimsKey.make("user"), {"allow": list(FRONTEND_SUBJECTS)}
        claims: dict[str, object] = {
            "iat": int(at.timestamp()),
            "iss": self.account,
            "name": "corral-frontend",
            "sub": key.public,
            "nats": {
                "pub": may,
                "sub": may,
                **_UNLIMITED,
                "issuer_account": self.account,
                "type": "user",
                "version": 2,
            },
        }
        return UserJwt(self._account.sign(claims), key.seed)


def _permissions(node: str, node_type: str, *, is_corral: bool) -> dict[str, object]:
    """Return what a node may hear and say. The lists of LocalAI's nodes are those of its frontends, less what its
    workers never use; see ADR 0060."""
    prefix, answers = f"nodes.{node}", answers_of(node)
    if node_type == "agent":
        hears = [*_AGENT_SUBSCRIBES, f"{prefix}.backend.stop"]
        return {"pub": {"allow": [answers]}, "sub": {"allow": hears}, **_OF_NODE}
    reports = [f"{prefix}.backend.install.*.progress"]
    limits = _OF_NODE
    if is_corral:
        reports += [f"{prefix}.corral.replica.>", f"{prefix}.corral.inventory"]
        limits = {**_OF_NODE, "payload": MAX_SAID}
    # What a node says it does not hear: many connections that read nothing would each have the server keep a copy.
    return {"pub": {"allow": [*reports, answers]}, "sub": {"allow": [f"{prefix}.>"], "deny": reports}, **limits}
