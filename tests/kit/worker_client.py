"""A frontend's side of the bus: asks one worker, and reads what it answers."""

import json
from datetime import timedelta
from typing import Any, Final

import msgspec

from corral.base.errors import BusTimeout
from corral.base.ids import NodeId
from corral.bus.client import NatsBus
from corral.wire import go_json, subjects
from corral.wire.backends import InstallReply, InstallRequest
from corral.wire.replicas import RunningReply
from tests.kit.waiting import eventually

NODE: Final = NodeId("11111111-2222-4333-8444-555555555555")
SOON: Final = timedelta(seconds=30)
_UNANSWERED: Final = timedelta(seconds=0.5)


class WorkerClient:
    """Sends requests to one node, always the same."""

    def __init__(self, bus: NatsBus) -> None:
        self.bus = bus

    async def ask(self, subject: Any, data: bytes = b"{}") -> dict[str, Any]:
        answer = await self.bus.request(subject(NODE), data, timeout=SOON)
        decoded: dict[str, Any] = json.loads(answer)
        return decoded

    async def install(self, backend: str, model: str = "") -> InstallReply:
        request = msgspec.json.encode(InstallRequest(backend=backend, model_id=model))
        answer = await self.bus.request(subjects.backend_install(NODE), request, timeout=SOON)
        return go_json.decode(answer, InstallReply)

    async def running(self) -> list[str]:
        answer = await self.bus.request(subjects.models_running(NODE), b"", timeout=SOON)
        models = msgspec.json.decode(answer, type=RunningReply).models
        return sorted(f"{model.model_id}#{model.replica_index}" for model in models)

    async def until_nothing_runs(self) -> None:
        """A stop is not answered, so poll until it is done."""

        async def is_idle() -> bool:
            return not await self.running()

        await eventually(is_idle, "the end of all processes")

    async def stop(self, payload: bytes) -> None:
        """Send a stop as a request: a timeout shows that there is no reply."""
        try:
            await self.bus.request(subjects.backend_stop(NODE), payload, timeout=_UNANSWERED)
        except BusTimeout:
            return
        raise AssertionError("backend.stop was answered")
