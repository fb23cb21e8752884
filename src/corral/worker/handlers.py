"""The node's subjects: each message becomes one call below, and its outcome the answer.

A caller without a reply waits for minutes, so every path ends with one.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

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
from corral.worker.files.model_files import ModelFiles
from corral.worker.installing.progress import InstallReports, ReportedOperation
from corral.worker.membership.addresses import HostPort, parse_host_port
from corral.worker.membership.lifecycle import Subject
from corral.worker.models import WorkerModels
from corral.worker.processes.process import Launch

log = logging.getLogger(__name__)

NOT_ENCODED: Final = b'{"error":"internal marshal error"}'
"""What LocalAI's workers say then."""
_UNEXPECTED: Final = "internal error; see the worker's log"
_TOO_LARGE: Final = "the answer is too large for NATS"

MessageHandler = Callable[[Message], Awaitable[msgspec.Struct]]
Failed = Callable[[str], msgspec.Struct]
"""The answer that says what went wrong."""


def unreadable_with_reason(error: InvalidInput) -> str:
    return f"invalid request: {error}"


def unreadable(_: InvalidInput) -> str:
    """Some of LocalAI's handlers say no more."""
    return "invalid request"


def replying(
    answer: MessageHandler, failed: Failed, *, refusal: Callable[[InvalidInput], str] = unreadable_with_reason
) -> Handler:
    """A handler that answers with what `answer` gives, or with the reason why it gives nothing."""

    async def handle(message: Message) -> None:
        try:
            await message.respond(_encoded(await _outcome(answer, failed, refusal, message)))
        except MessageTooLarge as error:
            log.warning("%s: %s", message.subject, error, extra={"event": "command.answer_too_large"})
            await message.respond(_encoded(failed(_TOO_LARGE)))

    return handle


async def _outcome(
    answer: MessageHandler, failed: Failed, refusal: Callable[[InvalidInput], str], message: Message
) -> msgspec.Struct:
    try:
        return await answer(message)
    except InvalidInput as error:
        return failed(refusal(error))
    except CorralError as error:
        log.warning("%s: %s", message.subject, error, extra={"event": "command.failed"})
        return failed(error.message)
    except OSError as error:
        log.warning("%s: %s", message.subject, error, extra={"event": "command.failed"})
        return failed(f"{error.filename or 'disk'}: {error.strerror or error}")
    except Exception:
        log.exception("command failed", extra={"event": "command.failed", "subject": message.subject})
        return failed(_UNEXPECTED)


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
            subjects.model_unload: replying(self._unload, _failed),
            subjects.model_stop: replying(self._stop, _stop_failed),
            subjects.model_delete: replying(self._delete, _failed, refusal=unreadable),
        }

    async def _unload(self, message: Message) -> ModelCommandReply:
        await self._models.unload(go_json.decode(message.data, UnloadRequest))
        return ModelCommandReply(success=True)

    async def _stop(self, message: Message) -> ModelStopReply:
        return await self._models.stop(go_json.decode(message.data, ModelStopRequest))

    async def _delete(self, message: Message) -> ModelCommandReply:
        await self._files.delete(go_json.decode(message.data, ModelDeleteRequest).model_name)
        return ModelCommandReply(success=True)


def _failed(error: str) -> ModelCommandReply:
    return ModelCommandReply(success=False, error=error)


def _stop_failed(error: str) -> ModelStopReply:
    return ModelStopReply(error=error)


T = TypeVar("T", bound=msgspec.Struct)


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
            subjects.backend_install: replying(self._changing(self._install), _install_failed),
            subjects.backend_upgrade: replying(self._changing(self._upgrade), _change_failed),
            subjects.backend_stop: self._stop,
            subjects.backend_delete: replying(self._changing(self._delete), _change_failed),
            subjects.backend_rollback: replying(self._changing(self._roll_back), _change_failed),
            subjects.backend_list: replying(self._list, _list_failed),
            subjects.models_running: replying(self._running, _running_failed),
        }

    def _changing(self, answer: Callable[[Message], Awaitable[T]]) -> Callable[[Message], Awaitable[T]]:
        """What is on the disk is looked at afterwards, however it ended."""

        async def act(message: Message) -> T:
            try:
                return await answer(message)
            finally:
                self._changed()

        return act

    async def _install(self, message: Message) -> InstallReply:
        request = go_json.decode(message.data, InstallRequest)
        async with self._reports.of(_operation(message, request)) as report:
            launch = await self._backends.install(request, report)
        return InstallReply(success=True, address=self._advertise(launch.port), corral=self._access(launch))

    async def _upgrade(self, message: Message) -> ChangeReply:
        request = go_json.decode(message.data, UpgradeRequest)
        async with self._reports.of(_operation(message, request)) as report:
            return _change_reply(await self._backends.upgrade(request, report))

    async def _delete(self, message: Message) -> ChangeReply:
        return _change_reply(await self._backends.delete(go_json.decode(message.data, DeleteRequest)))

    async def _roll_back(self, message: Message) -> ChangeReply:
        return _change_reply(await self._backends.roll_back(go_json.decode(message.data, RollbackRequest)))

    async def _list(self, _: Message) -> ListReply:
        return ListReply(backends=await self._backends.listing() or None)

    async def _running(self, _: Message) -> RunningReply:
        return RunningReply(models=[self._running_model(launch) for launch in self._backends.running()])

    async def _stop(self, message: Message) -> None:
        """Nothing at all means everything; what cannot be understood must not be taken for that."""
        try:
            request = go_json.decode(message.data, StopRequest) if message.data else StopRequest()
        except InvalidInput as error:
            log.warning("ignoring a stop: %s", error, extra={"event": "backend.stop_ignored"})
            return
        if request.backend:
            await self._backends.stop(request.backend, force=request.force)
        else:
            await self._backends.stop_all(force=request.force)

    def _running_model(self, launch: Launch) -> RunningModel:
        model_id, replica_index = launch.key
        access = self._access(launch)
        return RunningModel(model_id=model_id, replica_index=replica_index, address=launch.address, corral=access)

    def _access(self, launch: Launch) -> ReplicaAccess | msgspec.UnsetType:
        port = self._backends.http_port(launch)
        if port is None:
            return msgspec.UNSET
        is_adapted = launch.http_port is None
        routes = ADAPTED_ROUTES if is_adapted else launch.home.http_routes
        return ReplicaAccess(
            url=f"http://{self._advertise(port)}",
            key=launch.http_key,
            adapted=is_adapted,
            routes=None if routes is None else sorted(routes),
            front_port=launch.front_port or 0,
        )

    def _advertise(self, port: int) -> str:
        """Return the advertised host with the port that the process really listens on."""
        told = parse_host_port(self._advertised)
        return str(HostPort(told.host if told is not None and told.host else "127.0.0.1", port))


def _operation(message: Message, request: InstallRequest | UpgradeRequest) -> ReportedOperation:
    return ReportedOperation(node_id=subjects.node_of(message.subject), op_id=request.op_id, backend=request.backend)


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


def _install_failed(error: str) -> InstallReply:
    return InstallReply(success=False, error=error)


def _change_failed(error: str) -> ChangeReply:
    return ChangeReply(success=False, error=error)


def _list_failed(error: str) -> ListReply:
    return ListReply(error=error)


def _running_failed(error: str) -> RunningReply:
    return RunningReply(error=error)
