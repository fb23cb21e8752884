"""Hears from nodes that a process ended by itself, and takes its replica out of the view at once.

A hint that makes it fast: whoever misses one learns the same from the node's next reports. It is believed only of the
very process that was loaded, on the node that says so.
"""

import logging
from typing import Final

from corral.base.clock import Clock
from corral.base.errors import CorralError, InvalidInput
from corral.base.ids import NodeId
from corral.bus.port import Message
from corral.frontend.nodes.client import MOST_BYTES
from corral.frontend.nodes.decide.process import port_of
from corral.frontend.nodes.report_intake import ReportIntake, ReportLimits
from corral.frontend.serving.decide.replica import Replica, ReplicaState
from corral.frontend.serving.replica_health import ReplicaHealth
from corral.frontend.serving.store.replicas import ReplicaStore
from corral.wire import go_json, subjects
from corral.wire.keys import hash_secret, same
from corral.wire.replica import ReplicaExited

log = logging.getLogger(__name__)

_SHOWN_LINES: Final = 20
_SHOWN_CHARACTERS: Final = 500


EXIT_LIMITS: Final = ReportLimits(reports_per_node=100, reports_in_all=1000, bytes_per_node=8 * MOST_BYTES)
"""Each report costs a read of all living replicas. A hundred processes that end at once on a node, as when its memory
is full, and ten nodes of that kind, are heard; what is dropped is found by the next look at all replicas."""


class ReplicaExits:
    def __init__(self, replicas: ReplicaStore, health: ReplicaHealth, clock: Clock) -> None:
        self._replicas = replicas
        self._health = health
        self._intake = ReportIntake(clock, EXIT_LIMITS, _warn_dropped)

    async def on_message(self, message: Message) -> None:
        """Duplicates, late ones and unknown ones change nothing."""
        node_id = subjects.node_of(message.subject)
        if not self._intake.takes(node_id, message.data):
            return
        try:
            report = go_json.decode(message.data, ReplicaExited)
            await self._take(node_id, report)
        except InvalidInput as error:
            log.warning("ignoring an exit report: %s", error, extra={"event": "replica.exit_unread", "node": node_id})
        except CorralError as error:
            log.info("an exit is looked at later: %s", error, extra={"event": "replica.exit_later", "node": node_id})
            self._health.poke.ring()

    async def _take(self, node_id: NodeId, report: ReplicaExited) -> None:
        there = [one for one in await self._replicas.living() if one.node_id == node_id and _is_of(report, one)]
        loaded = [one for one in there if one.state is ReplicaState.LOADED]
        if loaded:
            errors = [line[:_SHOWN_CHARACTERS] for line in report.tail[-_SHOWN_LINES:]]
            await self._health.lose(loaded, report.reason[:_SHOWN_CHARACTERS] or "its process ended", errors=errors)
        elif there:
            self._health.poke.ring()


def _warn_dropped(node_id: NodeId, why: str) -> None:
    log.warning("an exit report is dropped: %s", why, extra={"event": "replica.exits_dropped", "node": node_id})


def _is_of(report: ReplicaExited, replica: Replica) -> bool:
    """Keys are new at every start, and only the node and control know them: whoever has none cannot report an exit.

    A replica without a key is known by its port, which may be used again later.
    """
    if (report.model_id, report.replica_index) != (replica.model, replica.index):
        return False
    if replica.state is not ReplicaState.LOADED:
        return True
    if replica.key:
        return same(report.key_hash, hash_secret(replica.key))
    return port_of(report.address) == port_of(replica.address)
