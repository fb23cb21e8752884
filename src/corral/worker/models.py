"""Requests about one model: free it, stop exactly one of its processes, or remove its files.

Only processes of this worker are touched, whatever address a request names, and only files in the models'
directories, whatever links are on the way.
"""

import asyncio
import logging
import os
import shutil
import stat
from datetime import timedelta
from pathlib import Path

from corral.base.errors import CorralError
from corral.base.open_directories import Confined, DirectoryUnusable, PathEscapes, PathRefused, look
from corral.base.tasks import task_group
from corral.wire.models import OWN_FOLDER, ModelStopReply, ModelStopRequest, UnloadRequest
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
        """Have the model's processes free it and go on running. Many backends cannot, which is no error here."""
        async with task_group() as group:
            for launch in self._supervisor.running():
                # Where an address is given the process must be there as well, since ports are used again.
                is_there = not request.address or _is_at(launch, request.address)
                if launch.key.model_id == request.model_name and is_there:
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
                f'address mismatch for process {process.launch.key}: recorded "{reply.address}", '
                f'expected "{request.expected_address}"'
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
            facts = {"event": "backend.not_freed", "key": str(launch.key)}
            log.info("backend did not free its model: %s", error, extra=facts)
        finally:
            await link.close()


def _is_at(launch: Launch, address: str) -> bool:
    """Compare ports only: frontends know the advertised host, the worker itself uses loopback."""
    parsed = parse_host_port(address)
    return parsed is not None and parsed.port == launch.port


class ModelNameRefused(CorralError):
    """The name cannot be a model's."""

    code = "model_name_refused"


class ModelFiles:
    """The model files below one or more directories."""

    def __init__(self, folder: Path, *further: Path) -> None:
        self._folders = [Confined(each) for each in (folder, *further)]

    async def delete(self, name: str) -> None:
        """Remove a model's directory, or its file and the files `<name>.…` beside it. Idempotent."""
        await asyncio.to_thread(self._delete, name)

    def _delete(self, name: str) -> None:
        if not name:
            raise ModelNameRefused("empty model name")
        path = os.path.normpath(name.lstrip("/") or ".")
        parts = path.split("/")
        if path == "." or parts[0] == ".." or "\0" in path:
            raise _escapes(name)
        if parts[0] == OWN_FOLDER:
            raise ModelNameRefused(f"{name[:200]!r} is no model: Corral keeps files of its own in {OWN_FOLDER}")
        for folder in self._folders:
            try:
                with folder.reach_unlinked(parts, folder.base.joinpath(*parts)) as place:
                    _remove_files(place.name, place.directory)
            except PathEscapes as error:
                raise _escapes(name) from error
            except DirectoryUnusable:
                if folder.base.is_dir():
                    raise
            except (FileNotFoundError, NotADirectoryError, PathRefused):
                continue  # missing, or a name that no disk can have


def _remove_files(leaf: str, directory: int) -> None:
    if _is_directory(leaf, directory):
        shutil.rmtree(leaf, dir_fd=directory)
        return
    for name in os.listdir(directory):
        if (name == leaf or name.startswith(f"{leaf}.")) and not _is_directory(name, directory):
            os.unlink(name, dir_fd=directory)


def _is_directory(name: str, directory: int) -> bool:
    status = look(directory, name)
    return status is not None and stat.S_ISDIR(status.st_mode)


def _escapes(name: str) -> ModelNameRefused:
    return ModelNameRefused(f'model name "{name}" escapes models directory')
