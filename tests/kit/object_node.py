"""A node that gets files through an object storage: real directories and handlers of a worker, on any bus."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from corral.base.clock import SystemClock
from corral.base.ids import NodeId
from corral.bus.port import Bus, Handler, Message
from corral.files.storage import ObjectMissing, ObjectStorage, StorageUnavailable
from corral.wire import subjects
from corral.wire.files import EnsureRequest, ListedFiles, LocalPathReply
from corral.worker.config import FilesConfig
from corral.worker.files.object_cache import ObjectPlaces
from corral.worker.files.object_files import ObjectFetches, ObjectFiles, object_handlers
from corral.worker.files.serving import FileServing


@asynccontextmanager
async def object_node(bus: Bus, node_id: NodeId, root: Path, storage: ObjectStorage) -> AsyncIterator[None]:
    """The part of a Corral worker that listens to `files.*`."""
    async with FileServing(FilesConfig(), models=root / "models", clock=SystemClock()) as serving:
        files = ObjectFiles(storage, ObjectPlaces.beside(root / "models"), SystemClock())
        fetches = ObjectFetches(storage, serving.store, serving.threads)
        handlers = object_handlers(files, fetches)
        subscriptions = [await bus.subscribe(subject(node_id), handler) for subject, handler in handlers.items()]
        try:
            yield
        finally:
            await fetches.close()
            await files.close()
            for subscription in subscriptions:
                await subscription.close()


@asynccontextmanager
async def localai_object_node(bus: Bus, node_id: NodeId, root: Path, storage: ObjectStorage) -> AsyncIterator[None]:
    """As LocalAI's worker does it: what is in its cache is never looked at again."""

    async def ensure(message: Message) -> None:
        key = msgspec.json.decode(message.data, type=EnsureRequest).key
        path = root / "cache" / key
        reply = LocalPathReply(local_path=str(path))
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with path.with_name(f"{path.name}.tmp").open("wb") as target:
                    await storage.download(key, target)
                path.with_name(f"{path.name}.tmp").rename(path)
            except (ObjectMissing, StorageUnavailable) as error:
                reply = LocalPathReply(error=f"downloading {key}: {error}")
        await message.respond(msgspec.json.encode(reply))

    async def listing(message: Message) -> None:
        await message.respond(msgspec.json.encode(ListedFiles(error="lstat: no such file or directory")))

    handlers: dict[str, Handler] = {subjects.files_ensure(node_id): ensure, subjects.files_list(node_id): listing}
    subscriptions = [await bus.subscribe(subject, handler) for subject, handler in handlers.items()]
    try:
        yield
    finally:
        for subscription in subscriptions:
            await subscription.close()
