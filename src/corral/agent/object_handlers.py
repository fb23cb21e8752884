"""The subjects `files.*`: each message becomes one call to the object files, and its outcome the answer."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from corral.agent.object_files import ObjectFiles
from corral.agent.subscriptions import Subject
from corral.base.errors import CorralError, InvalidInput
from corral.bus.port import Handler, Message
from corral.protocol import go_json, subjects
from corral.protocol.object_files import (
    EnsureRequest,
    ListedFiles,
    ListRequest,
    LocalPathReply,
    StageReply,
    StageRequest,
)

log = logging.getLogger(__name__)

_UNREADABLE: Final = "invalid request"
_UNEXPECTED: Final = "internal error; see the worker's log"


class _Failed(msgspec.Struct):
    """What any of these subjects answers when it cannot."""

    error: str


class ObjectHandlers:
    """Answers what concerns object storage."""

    def __init__(self, files: ObjectFiles) -> None:
        self._files = files

    def table(self) -> Mapping[Subject, Handler]:
        """Which subject goes to which handler."""
        return {
            subjects.files_ensure: _replying(self._ensure),
            subjects.files_stage: _replying(self._stage),
            subjects.files_temp: _replying(self._temporary),
            subjects.files_list: _replying(self._list),
        }

    async def _ensure(self, data: bytes) -> msgspec.Struct:
        request = go_json.decode(data, EnsureRequest)
        return LocalPathReply(local_path=str(await self._files.ensure(request.key)))

    async def _stage(self, data: bytes) -> msgspec.Struct:
        request = go_json.decode(data, StageRequest)
        return StageReply(key=await self._files.stage(request.local_path, request.key))

    async def _temporary(self, _: bytes) -> msgspec.Struct:
        return LocalPathReply(local_path=str(await self._files.temporary()))

    async def _list(self, data: bytes) -> msgspec.Struct:
        request = go_json.decode(data, ListRequest)
        return ListedFiles(files=await self._files.listing(request.key_prefix) or None)


def _replying(answer: Callable[[bytes], Awaitable[msgspec.Struct]]) -> Handler:
    async def handle(message: Message) -> None:
        await message.respond(go_json.encode(await _outcome(answer, message)))

    return handle


async def _outcome(answer: Callable[[bytes], Awaitable[msgspec.Struct]], message: Message) -> msgspec.Struct:
    """Whoever asks waits for minutes when no answer comes, so every path ends with one."""
    try:
        return await answer(message.data)
    except InvalidInput:
        return _Failed(_UNREADABLE)
    except CorralError as error:
        log.info("%s: %s", message.subject, error, extra={"event": "objects.refused"})
        return _Failed(error.message)
    except OSError as error:
        log.warning("%s: %s", message.subject, error, extra={"event": "objects.failed"})
        return _Failed(f"{error.filename or 'disk'}: {error.strerror or error}")
    except Exception:
        log.exception("command failed", extra={"event": "command.failed", "subject": message.subject})
        return _Failed(_UNEXPECTED)
