"""Handlers of the subjects `files.*`: each message becomes one call to the object files."""

from collections.abc import Mapping

import msgspec

from corral.bus.port import Handler, Message
from corral.wire import go_json, subjects
from corral.wire.files import EnsureRequest, ListedFiles, ListRequest, LocalPathReply, StageReply, StageRequest
from corral.worker.files.object_files import ObjectFiles
from corral.worker.handlers import replying, unreadable
from corral.worker.membership.lifecycle import Subject


class _Failed(msgspec.Struct):
    """The reply of each of these subjects when it fails."""

    error: str


class ObjectHandlers:
    """Replies to requests about object storage."""

    def __init__(self, files: ObjectFiles) -> None:
        self._files = files

    def table(self) -> Mapping[Subject, Handler]:
        """Map each subject to its handler."""
        return {
            subjects.files_ensure: replying(self._ensure, _Failed, refusal=unreadable),
            subjects.files_stage: replying(self._stage, _Failed, refusal=unreadable),
            subjects.files_temp: replying(self._temporary, _Failed, refusal=unreadable),
            subjects.files_list: replying(self._list, _Failed, refusal=unreadable),
        }

    async def _ensure(self, message: Message) -> msgspec.Struct:
        request = go_json.decode(message.data, EnsureRequest)
        return LocalPathReply(local_path=str(await self._files.ensure(request.key)))

    async def _stage(self, message: Message) -> msgspec.Struct:
        request = go_json.decode(message.data, StageRequest)
        return StageReply(key=await self._files.stage(request.local_path, request.key))

    async def _temporary(self, _: Message) -> msgspec.Struct:
        return LocalPathReply(local_path=str(await self._files.temporary()))

    async def _list(self, message: Message) -> msgspec.Struct:
        request = go_json.decode(message.data, ListRequest)
        return ListedFiles(files=await self._files.listing(request.key_prefix) or None)
