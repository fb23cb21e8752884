"""The worker's current membership. Written by the loop that maintains it, read by everyone else."""

from dataclasses import dataclass, field

from corral.base.ids import NodeId
from corral.bus.credentials import UserJwt


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedRegistration:
    """A registration that a frontend accepted."""

    node_id: NodeId
    bearer: str = field(repr=False)
    """What to present from now on."""
    status: str = ""
    """How the frontend saw this node when it answered; empty when it did not say."""
    is_corral: bool = False
    """The frontend is Corral; otherwise it is LocalAI."""
    features: frozenset[str] = frozenset()
    """Extensions that the frontend named, too."""
    nats_user: UserJwt | None = field(default=None, repr=False)
    """NATS credentials from the frontend, if it provides them."""


class Presence:
    """The membership at this moment; None before the first registration and while the frontend has forgotten us."""

    def __init__(self) -> None:
        self._member: AcceptedRegistration | None = None
        self.bearer = ""
        """Bearer of the last membership, which backends keep expecting while the frontend has forgotten us."""
        self.is_leaving = False

    @property
    def member(self) -> AcceptedRegistration | None:
        return self._member

    @member.setter
    def member(self, member: AcceptedRegistration | None) -> None:
        self._member = member
        if member is not None:
            self.bearer = member.bearer

    @property
    def is_with_localai(self) -> bool:
        """A LocalAI frontend has us."""
        return self._member is not None and not self._member.is_corral
