"""Invitations: codes that let machines join, how long and how often, and what they make of a node that uses one."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from corral.base.errors import CorralError
from corral.base.ids import InvitationId
from corral.base.values import PartlyPrinted
from corral.frontend.nodes.decide.node import Node


class InvitationRefused(CorralError):
    """A join code that admits nobody."""

    code = "join_code_refused"


class InvitationState(StrEnum):
    OPEN = "open"
    USED = "used"
    EXPIRED = "expired"
    REVOKED = "revoked"


class Invitation(PartlyPrinted, frozen=True, kw_only=True):
    unprinted = ("hash",)

    id: InvitationId
    hash: str
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    auto_approve: bool = False
    max_uses: int = 1
    uses: int = 0
    created_at: datetime
    created_by: str
    expires_at: datetime
    revoked_at: datetime | None = None

    def state(self, now: datetime) -> InvitationState:
        if self.revoked_at is not None:
            return InvitationState.REVOKED
        if self.uses >= self.max_uses:
            return InvitationState.USED
        return InvitationState.EXPIRED if now >= self.expires_at else InvitationState.OPEN


def refuse_ended(invitation: Invitation, now: datetime) -> None:
    """Raise InvitationRefused, with the reason, when the invitation admits nobody any more."""
    used = "was used already" if invitation.max_uses == 1 else f"was used by all {invitation.uses} machines it is for"
    why = {
        InvitationState.REVOKED: "was revoked",
        InvitationState.USED: used,
        InvitationState.EXPIRED: f"expired at {invitation.expires_at:%Y-%m-%d %H:%M:%S} UTC",
    }.get(invitation.state(now))
    if why is not None:
        raise InvitationRefused(f"the join code {why}; ask for another one (corral nodes invite)")


def accept(node: Node, invitation: Invitation, *, at: datetime) -> Node:
    """Return the node as the invitation makes it: labelled, and approved where it says so and nothing is suspected."""
    facts = node.facts
    if invitation.auto_approve and facts.approved_at is None and facts.suspicion is None:
        by = f"invitation {invitation.id} of {invitation.created_by}"
        facts = replace(facts, approved_at=at, approved_by=by)
    return replace(node, facts=facts, labels=node.labels.merge(invitation.labels), invitation_id=invitation.id)
