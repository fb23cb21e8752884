"""What people decided about the confinement of a backend."""

from collections.abc import Iterable
from datetime import datetime

import msgspec

from corral.base.errors import InvalidInput
from corral.wire.confinement import BackendNetwork, ConfinementWish, PolicyAsk, read_network

MOST_REASON = 500
_LONGEST_NAME = 200


class BackendPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How one backend is confined. A backend without a policy is, with the network of its manifest or the setting."""

    backend: str
    network: BackendNetwork | None = None
    """None: as manifest and setting say."""
    is_confined: bool = True
    reason: str = ""
    """Why it is not confined."""
    changed_at: datetime
    changed_by: str


def wish_for(backend: str, policies: Iterable[BackendPolicy]) -> ConfinementWish:
    """What holds for a backend that is asked for by this name. Policies of other names can only restrict: an image
    chooses its alias itself, and must not get an exemption by it."""
    by_name = {policy.backend: policy for policy in policies}
    same_name = by_name.pop(backend, None)
    most = {name: policy.network.value for name, policy in by_name.items() if policy.is_confined and policy.network}
    return ConfinementWish(
        network=(same_name and same_name.network) or "",
        is_off=same_name is not None and not same_name.is_confined,
        most=most,
    )


def decide_policy(backend: str, ask: PolicyAsk, *, at: datetime, by: str) -> BackendPolicy:
    """Return the policy that the request asks for. InvalidInput names the field that makes no sense."""
    if not backend.strip() or len(backend) > _LONGEST_NAME or not backend.isprintable():
        raise InvalidInput("backend", f"must be printable text of 1 to {_LONGEST_NAME} characters")
    network = read_network(ask.network)
    if ask.network and network is None:
        raise InvalidInput("network", f"{ask.network[:40]!r} is not one of {', '.join(BackendNetwork)}")
    reason = ask.reason.strip()
    if len(reason) > MOST_REASON or not reason.isprintable():
        raise InvalidInput("reason", f"must be one line of at most {MOST_REASON} characters")
    if not ask.is_confined and not reason:
        raise InvalidInput("reason", "is needed: say why the backend may not be confined")
    if not ask.is_confined and network is not None:
        raise InvalidInput("network", "cannot be restricted for a backend that is not confined; leave one of them out")
    if ask.is_confined and network is None:
        raise InvalidInput("network", "is needed, unless the backend is not confined; to go back, delete the policy")
    return BackendPolicy(
        backend=backend, network=network, is_confined=ask.is_confined, reason=reason, changed_at=at, changed_by=by
    )
