"""Requests about one model's processes: free the model, or stop exactly one process.

Only processes of this worker are touched, whatever address a request names.
"""

import asyncio
import logging
from datetime import timedelta

from corral.base.errors import CorralError
from corral.base.tasks import task_group
from corral.wire.models import ModelStopReply, ModelStopRequest, UnloadRequest
from corral.wire.replicas import ProcessKey
from corral.worker.membership.addresses import parse_host_port
from corral.worker.processes.process import Connect, Launch
from corral.worker.processes.supervisor import Supervisor

log = logging.getLogger(__name__)


class WorkerModels:
    def __init__(self, supervisor: Supervisor, *, connect: Connect, free_within: timedelta) -> None:
        self._supervisor = supervisor
        self._connect = connect
        self._free_within = free_within

    async def unload(self, request: UnloadRequest) -> None:
        """Have the model's processes give it back; they go on. Many backends cannot, which is no mistake here."""
        async with task_group() as group:
            for launch in self._supervisor.running():
                if _is_meant(launch, request):
                    group.create_task(self._free(launch), name=f"free {launch.key}")

    async def stop(self, request: ModelStopRequest) -> ModelStopReply:
        """End the process of this key, if it is the one at that address; gone when this returns."""
        reply = ModelStopReply(process_key=request.process_key)
        key = ProcessKey.parse(request.process_key)
        process = self._supervisor.find(key) if key is not None and str(key) == request.process_key else None
        if process is None:
            reply.terminated = True
            return reply
        reply.matched, reply.address = True, process.launch.address
        if not _is_at(process.launch, request.expected_address):
            reply.error = (
                f"address mismatch for process {process.launch.key}: recorded {_quoted(reply.address)}, "
                f"expected {_quoted(request.expected_address)}"
            )
            return reply
        stopped = await self._supervisor.stop([process.launch.key], force=request.force)
        reply.freed = process.freed
        problems = [f"freeing process {process.launch.key}: {process.not_freed}"] if process.not_freed else []
        problems += [f"process {left} did not end" for left in stopped.left]
        reply.terminated, reply.error = not stopped.left, "; ".join(problems)
        return reply

    async def _free(self, launch: Launch) -> None:
        link = self._connect(launch.address, launch.token)
        try:
            async with asyncio.timeout(self._free_within.total_seconds() + 1):
                await link.free(timeout=self._free_within)
        except (CorralError, TimeoutError) as error:
            told = {"event": "backend.not_freed", "key": str(launch.key)}
            log.info("backend did not free its model: %s", error, extra=told)
        finally:
            await link.close()


def _is_meant(launch: Launch, request: UnloadRequest) -> bool:
    """By its model; and where an address is given it must be there as well, since ports are used again."""
    is_model = launch.key.model_id == request.model_name
    return is_model and (not request.address or _is_at(launch, request.address))


def _is_at(launch: Launch, address: str) -> bool:
    """Compare ports only: frontends know the advertised host, the worker itself uses loopback."""
    parsed = parse_host_port(address)
    return parsed is not None and parsed.port == launch.port


def _quoted(text: str) -> str:
    return f'"{text}"'
