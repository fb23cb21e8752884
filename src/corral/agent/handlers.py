"""The node's subjects: each message becomes one call below, and its outcome the answer. No logic is here.

Whoever asks waits for minutes when no answer comes, so every path ends with one.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from corral.agent.addresses import HostPort, parse_host_port
from corral.agent.backends import Backends
from corral.agent.process import Launch
from corral.agent.subscriptions import Subject
from corral.base.errors import CorralError, InvalidInput
from corral.bus.port import Handler, Message
from corral.protocol import go_json, subjects
from corral.protocol.install import InstallReply, InstallRequest
from corral.protocol.inventory import ListReply
from corral.protocol.replica import ReplicaAccess, RunningModel, RunningReply, StopRequest

log = logging.getLogger(__name__)

_NOT_ENCODED: Final = b'{"error":"internal marshal error"}'
"""What LocalAI's workers say then."""
_UNEXPECTED: Final = "internal error; see the worker's log"


class BackendHandlers:
    """Answers what concerns backends."""

    def __init__(self, backends: Backends, *, advertised: str) -> None:
        self._backends = backends
        self._advertised = advertised

    def table(self) -> Mapping[Subject, Handler]:
        """Which subject goes to which handler."""
        return {
            subjects.backend_install: _replying(self._install, _install_failed),
            subjects.backend_list: _replying(self._list, _list_failed),
            subjects.models_running: _replying(self._running, _running_failed),
            subjects.backend_stop: self._stop,
        }

    async def _install(self, data: bytes) -> InstallReply:
        launch = await self._backends.install(go_json.decode(data, InstallRequest))
        return InstallReply(success=True, address=self._advertise(launch.port), corral=self._access(launch))

    async def _list(self, _: bytes) -> ListReply:
        return ListReply(backends=await self._backends.listing() or None)

    async def _running(self, _: bytes) -> RunningReply:
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
        url, is_adapted = f"http://{self._advertise(port)}", launch.http_port is None
        return ReplicaAccess(url=url, key=launch.http_key, adapted=is_adapted)

    def _advertise(self, port: int) -> str:
        """The host that others know, with the port that is really listened on."""
        told = parse_host_port(self._advertised)
        return str(HostPort(told.host if told is not None and told.host else "127.0.0.1", port))


def _install_failed(error: str) -> InstallReply:
    return InstallReply(success=False, error=error)


def _list_failed(error: str) -> ListReply:
    return ListReply(error=error)


def _running_failed(error: str) -> RunningReply:
    return RunningReply(error=error)


def _replying(answer: Callable[[bytes], Awaitable[msgspec.Struct]], failed: Callable[[str], msgspec.Struct]) -> Handler:
    """A handler that answers with what `answer` gives, or with the reason why it gives nothing."""

    async def reply_to(message: Message) -> msgspec.Struct:
        try:
            return await answer(message.data)
        except InvalidInput as error:
            return failed(f"invalid request: {error}")
        except CorralError as error:
            log.warning("%s: %s", message.subject, error, extra={"event": "command.failed"})
            return failed(error.message)
        except Exception:
            log.exception("command failed", extra={"event": "command.failed", "subject": message.subject})
            return failed(_UNEXPECTED)

    async def handle(message: Message) -> None:
        await message.respond(_encoded(await reply_to(message)))

    return handle


def _encoded(reply: msgspec.Struct) -> bytes:
    try:
        return msgspec.json.encode(reply)
    except (TypeError, ValueError, UnicodeError):
        log.exception("a reply cannot be encoded", extra={"event": "command.not_encoded"})
        return _NOT_ENCODED
