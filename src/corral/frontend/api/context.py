"""What handlers work with: the rooms of the frontend, and who is calling."""

import asyncio
from dataclasses import dataclass

from corral.base.clock import Clock
from corral.frontend.access.principals import NodeClaim, Principal
from corral.frontend.access.room import AccessRoom
from corral.frontend.backends.room import BackendsRoom
from corral.frontend.config import ControlConfig
from corral.frontend.diagnosis.readiness import ControlReadiness
from corral.frontend.models.room import ModelsRoom
from corral.frontend.nodes.room import NodesRoom
from corral.frontend.operations.room import OperationsRoom
from corral.frontend.record.room import Foundation, RecordRoom
from corral.frontend.rules.room import RulesRoom
from corral.frontend.serving.room import ServingRoom


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminContext:
    """The rooms of the frontend, built in `processes/control.py`. Routes may use all of them."""

    config: ControlConfig
    foundation: Foundation
    record: RecordRoom
    access: AccessRoom
    nodes: NodesRoom
    operations: OperationsRoom
    backends: BackendsRoom
    models: ModelsRoom
    serving: ServingRoom
    rules: RulesRoom
    readiness: ControlReadiness
    stopping: asyncio.Event
    """Set when the process is about to end, so that open event streams end first."""

    @property
    def clock(self) -> Clock:
        return self.foundation.clock

    @property
    def metrics_public(self) -> bool:
        return self.config.metrics_public

    @property
    def max_body(self) -> int:
        return self.config.max_body


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who calls: an administrator, a worker, or anybody on public routes."""

    principal: Principal | None = None
    claim: NodeClaim | None = None

    @property
    def name(self) -> str:
        return self.principal.name if self.principal is not None else "anonymous"
