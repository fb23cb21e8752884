"""Bodies of requests that are held until they are passed on: how large one may be, and all of them together."""

from dataclasses import dataclass

from corral.gateway.answers import Refusal
from corral.gateway.config import Limits


@dataclass(slots=True, kw_only=True)
class Bodies:
    """How many bytes of bodies are held at the moment."""

    held: int = 0


class HeldBody:
    """What is held of one client's request."""

    __slots__ = ("_all", "_held", "_limits")

    def __init__(self, bodies: Bodies, limits: Limits) -> None:
        self._all = bodies
        self._limits = limits
        self._held = 0

    def add(self, size: int) -> None:
        """Raises Refusal. It is held all the same, until it is released."""
        bodies = self._all
        self._held += size
        bodies.held += size
        if self._held > self._limits.body:
            raise body_too_large(self._limits.body)
        if bodies.held > self._limits.bodies:
            refusal = Refusal.busy(503, "too many requests are being received", code="overloaded")
            refusal.closes = True
            raise refusal

    def release(self) -> None:
        self._all.held -= self._held
        self._held = 0


def body_too_large(limit: int) -> Refusal:
    knob = "the setting gateway.max_request (CORRAL_MAX_REQUEST) allows more"
    return Refusal(413, f"the body is larger than {limit} bytes; {knob}", code="body_too_large", closes=True)
