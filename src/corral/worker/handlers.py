"""The node's subjects: each message becomes one call below, and its outcome the answer.

A caller without a reply waits for minutes, so every path ends with one.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol, TypeVar

import msgspec

from corral.base.errors import CorralError, InvalidInput, MessageTooLarge
from corral.bus.port import Handler, Message
from corral.wire import go_json, subjects
from corral.wire.backends import (
    ChangeReply,
    DeleteRequest,
    InstallReply,
    InstallRequest,
    ListReply,
    RollbackRequest,
    UpgradeRequest,
)
from corral.wire.models import (
    ADAPTED_ROUTES,
    ModelCommandReply,
    ModelDeleteRequest,
    ModelStopReply,
    ModelStopRequest,
    UnloadRequest,
)
from corral.wire.replicas import ReplicaAccess, RunningModel, RunningReply, StopRequest
from corral.worker.backends import BackendChange, Backends
from corral.worker.installing.progress import InstallReports
from corral.worker.membership.addresses import HostPort, parse_host_port
from corral.worker.membership.lifecycle import Subject
from corral.worker.models import ModelFiles, WorkerModels
from corral.worker.processes.process import Launch

log = logging.getLogger(__name__)

NOT_ENCODED: Final = b'{"error":"internal marshal error"}'
"""What LocalAI's workers say then."""
UNREADABLE: Final = "invalid request"
"""Some of LocalAI's handlers say no more."""

ReplyT = TypeVar("ReplyT", bound=msgspec.Struct)
MessageHandler = Callable[[Message], Awaitable[msgspec.Struct]]


class Failed(Protocol):
    """Makes the answer that says what went wrong: the type of a reply whose `success`, if any, is False by default."""

    def __call__(self, *, error: str) -> msgspec.Struct: ...


def replying(answer: MessageHandler, failed: Failed, *, unreadable: str = "invalid request: {error}") -> Handler:
    """A handler that answers with what `answer` gives, or with the reason why it gives nothing."""

    async def handle(message: Message) -> None:
        try:
            reply = await answer(message)
        except InvalidInput as error:
            reply = failed(error=unreadable.format(error=error))
        except CorralError as error:
            log.warning("%s: %s", message.subject, error, extra={"event": "command.failed"})
            reply = failed(error=error.message)
        except OSError as error:
            log.warning("%s: %s", message.subject, error, extra={"event": "command.failed"})
            reply = failed(error=f"{error.filename or 'disk'}: {error.strerror or error}")
        except Exception:
            log.exception("command failed", extra={"event": "command.failed", "subject": message.subject})
            reply = failed(error="internal error; see the worker's log")
        try:
            await message.respond(_encoded(reply))
        except MessageTooLarge as error:
            log.warning("%s: %s", message.subject, error, extra={"event": "command.answer_too_large"})
            await message.respond(_encoded(failed(error="the answer is too large for NATS")))

    return handle


def _encoded(reply: msgspec.Struct) -> bytes:
    try:
        return go_json.encode(reply)
    except (TypeError, ValueError):
        log.exception("a reply cannot be encoded", extra={"event": "command.not_encoded"})
        return NOT_ENCODED


class ModelHandlers:
    def __init__(self, models: WorkerModels, files: ModelFiles) -> None:
        self._models = models
        self._files = files

    def table(self) -> Mapping[Subject, Handler]:
        """Which subject goes to which handler."""
        return {
            subjects.model_unload: replying(self._unload, ModelCommandReply),
            subjects.model_stop: replying(self._stop, ModelStopReply),
            subjects.model_delete: replying(self._delete, ModelCommandReply, unreadable=UNREADABLE),
        }

    async def _unload(self, message: Message) -> ModelCommandReply:
        await self._models.unload(go_json.decode(message.data, UnloadRequest))
        return ModelCommandReply(success=True)

    async def _stop(self, message: Message) -> ModelStopReply:
        return await self._models.stop(go_json.decode(message.data, ModelStopRequest))

    async def _delete(self, message: Message) -> ModelCommandReply:
        await self._files.delete(go_json.decode(message.data, ModelDeleteRequest).model_name)
        return ModelCommandReply(success=True)


class BackendHandlers:
    """Bus handlers for requests about backends."""

    def __init__(
        self, backends: Backends, *, reports: InstallReports, changed: Callable[[], None], advertised: str
    ) -> None:
        """`changed` is called when something on the disk may be another one."""
        self._backends = backends
        self._reports = reports
        self._changed = changed
        self._advertised = advertised

    def table(self) -> Mapping[Subject, Handler]:
        """Which subject goes to which handler."""
        return {
            subjects.backend_install: replying(self._changing(self._install), InstallReply),
            subjects.backend_upgrade: replying(self._changing(self._upgrade), ChangeReply),
            subjects.backend_stop: self._stop,
            subjects.backend_delete: replying(self._changing(self._delete), ChangeReply),
            subjects.backend_rollback: replying(self._changing(self._roll_back), ChangeReply),
            subjects.backend_list: replying(self._list, ListReply),
            subjects.models_running: replying(self._running, RunningReply),
        }

    def _changing(self, answer: Callable[[Message], Awaitable[ReplyT]]) -> Callable[[Message], Awaitable[ReplyT]]:
        """Wrap a handler that changes backends: the inventory is read again afterwards, also after a failure."""

        async def act(message: Message) -> ReplyT:
            try:
                return await answer(message)
            finally:
                self._changed()

        return act

    async def _install(self, message: Message) -> InstallReply:
        request = go_json.decode(message.data, InstallRequest)
        async with self._reports.of(subjects.node_of(message.subject), request) as report:
            launch = await self._backends.install(request, report)
        return InstallReply(success=True, address=self._advertise(launch.port), corral=self._access(launch))

    async def _upgrade(self, message: Message) -> ChangeReply:
        request = go_json.decode(message.data, UpgradeRequest)
        async with self._reports.of(subjects.node_of(message.subject), request) as report:
            return _change_reply(await self._backends.upgrade(request, report))

    async def _delete(self, message: Message) -> ChangeReply:
        return _change_reply(await self._backends.delete(go_json.decode(message.data, DeleteRequest)))

    async def _roll_back(self, message: Message) -> ChangeReply:
        return _change_reply(await self._backends.roll_back(go_json.decode(message.data, RollbackRequest)))

    async def _list(self, _: Message) -> ListReply:
        return ListReply(backends=await self._backends.listing() or None)

    async def _running(self, _: Message) -> RunningReply:
        return RunningReply(
            models=[
                RunningModel(
                    model_id=launch.key.model_id,
                    replica_index=launch.key.replica_index,
                    address=launch.address,
                    corral=self._access(launch),
                )
                for launch in self._backends.running()
            ]
        )

    async def _stop(self, message: Message) -> None:
        """Stop what the request names.

        An empty request means every process; one that cannot be parsed must not mean that.
        """
        try:
            request = go_json.decode(message.data, StopRequest) if message.data else StopRequest()
        except InvalidInput as error:
            log.warning("ignoring a stop: %s", error, extra={"event": "backend.stop_ignored"})
            return
        if request.backend:
            await self._backends.stop(request.backend, force=request.force)
        else:
            await self._backends.stop_all(force=request.force)

    def _access(self, launch: Launch) -> ReplicaAccess | msgspec.UnsetType:
        port = self._backends.http_port(launch)
        if port is None and not launch.has_own_token:
            return msgspec.UNSET
        is_adapted = launch.http_port is None
        routes = ADAPTED_ROUTES if is_adapted else launch.home.manifest.http_routes
        return ReplicaAccess(
            url="" if port is None else f"http://{self._advertise(port)}",
            key=launch.http_key,
            token=launch.token if launch.has_own_token else "",
            adapted=is_adapted,
            routes=None if routes is None or port is None else sorted(routes),
            front_port=launch.front_port or 0,
        )

    def _advertise(self, port: int) -> str:
        """Return the advertised host with the port that the process really listens on."""
        advertised = parse_host_port(self._advertised)
        return str(HostPort(advertised.host if advertised is not None and advertised.host else "127.0.0.1", port))


def _change_reply(change: BackendChange) -> ChangeReply:
    problem = change.problem
    if problem is not None:
        log.warning("%s", problem, extra={"event": "backend.not_changed", "code": problem.code})
    return ChangeReply(
        success=problem is None,
        error="" if problem is None else problem.message,
        stopped_process_keys=[str(key) for key in change.stopped],
        reports_stopped_processes=True,
    )
