"""Notifies the frontend immediately when a process ends by itself, if the frontend asked for it.

Only a hint, and lost while NATS is down: `models.running` is the truth.
"""

import logging
from typing import Protocol

import msgspec

from corral.base.errors import CorralError
from corral.wire import subjects
from corral.wire.keys import hash_secret
from corral.wire.registration import Feature
from corral.wire.replica import ReplicaExited
from corral.worker.membership.presence import Presence
from corral.worker.processes.process import Ending, Launch

log = logging.getLogger(__name__)


class ExitPublisher(Protocol):
    async def publish(self, subject: str, data: bytes) -> None: ...


class ExitReports:
    """Publishes one message for each."""

    def __init__(self, bus: ExitPublisher, presence: Presence) -> None:
        self._bus = bus
        self._presence = presence

    async def tell(self, launch: Launch, ending: Ending) -> None:
        member = self._presence.member
        if member is None or Feature.REPLICA_EXITS not in member.features:
            return
        report = ReplicaExited(
            model_id=launch.key.model_id,
            replica_index=launch.key.replica_index,
            address=launch.address,
            key_hash=hash_secret(launch.http_key),
            reason=ending.reason,
            tail=list(ending.tail),
        )
        try:
            await self._bus.publish(subjects.replica_exited(member.node_id), msgspec.json.encode(report))
        except CorralError as error:
            log.info("an exit was not reported: %s", error, extra={"event": "backend.exit_unsaid"})
