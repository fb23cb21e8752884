"""Values about the users of NATS that nodes are given, and which workers do not use theirs."""

from datetime import datetime
from enum import StrEnum

import msgspec

from corral.frontend.nodes.decide.node import Node
from corral.wire.registration import Feature, NatsLogin


class KnownUser(msgspec.Struct, frozen=True, kw_only=True):
    """A user as it is stored: without anything that logs in."""

    public_key: str
    issued_at: datetime
    expires_at: datetime


class LeftBehind(StrEnum):
    """Why a Corral worker logs in otherwise than as its own user, with what helps."""

    OLD = "upgrade Corral on its machine"
    SHARED = "remove nats_jwt and nats_seed from its settings"
    UNHEARD = "restart it: it registered before its frontend made users"


def left_behind(node: Node) -> LeftBehind | None:
    """Return why a node does not log in as its own user; None where it does, and for LocalAI's."""
    if node.peer is None:
        return None
    if Feature.NATS_USER not in node.peer.features:
        return LeftBehind.OLD
    if node.nats_login is None:
        return LeftBehind.UNHEARD
    return LeftBehind.SHARED if node.nats_login == NatsLogin.SHARED else None
