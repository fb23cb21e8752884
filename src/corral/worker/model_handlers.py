"""The node's subjects that concern one model: each message becomes one call below, and its outcome the answer."""

from collections.abc import Mapping

from corral.bus.port import Handler, Message
from corral.wire import go_json, subjects
from corral.wire.model_commands import (
    ModelCommandReply,
    ModelDeleteRequest,
    ModelStopReply,
    ModelStopRequest,
    UnloadRequest,
)
from corral.worker.answering import replying, unreadable
from corral.worker.files.model_files import ModelFiles
from corral.worker.membership.subscriptions import Subject
from corral.worker.models import WorkerModels


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
