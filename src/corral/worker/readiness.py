"""Whether this worker can be given work, and if not, why."""

from typing import Protocol

from corral.worker.membership.presence import Presence


class BusLink(Protocol):
    @property
    def connected(self) -> bool: ...

    @property
    def refused(self) -> frozenset[str]: ...


class WorkerReadiness:
    """Registered with a frontend and connected to NATS, which lets it listen. A pending node is ready: what it waits
    for is a person."""

    def __init__(self, presence: Presence, bus: BusLink) -> None:
        self._presence = presence
        self._bus = bus

    def problems(self) -> list[str]:
        """Every reason against it; none means ready."""
        reasons = {
            "shutting down": self._presence.is_leaving,
            "not registered with a frontend": self._presence.member is None,
            "not connected to NATS": not self._bus.connected,
        }
        refused = [f"not allowed to listen to {subject}" for subject in sorted(self._bus.refused)]
        return [reason for reason, holds in reasons.items() if holds] + refused
