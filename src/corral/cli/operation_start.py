"""Having an operation accepted once, although the answer may get lost."""

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Final

from corral.base.errors import PeerUnavailable
from corral.wire.operation_views import OperationView

_PAUSE_SECONDS: Final = 0.5


def accepted_once(send: Callable[[Mapping[str, str]], OperationView]) -> OperationView:
    """`send` gets headers that tell the frontend that a second call is the same one."""
    headers = {"Idempotency-Key": str(uuid.uuid4())}
    try:
        return send(headers)
    except PeerUnavailable:
        time.sleep(_PAUSE_SECONDS)  # it may have been accepted, and the answer lost
        return send(headers)
