"""What was brought to nodes: recorded when it is there, and deleted when a disk has too little room for what comes.

Nothing is deleted that a replica, a load, a staging or a rule needs, and nothing that no frontend has brought: a
directory with other files in it is left alone.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from http import HTTPStatus
from typing import Final
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from corral.base.clock import Clock
from corral.base.errors import CorralError
from corral.base.http_client import HttpFailed, asked, open_session, read_body
from corral.base.ids import NodeId
from corral.frontend.models.catalogue import Models
from corral.frontend.models.decide.model import folder_of
from corral.frontend.models.local_files import LocalFile, LocalFiles
from corral.frontend.nodes.client import NodeClient, NodeRefused
from corral.frontend.nodes.contacts import NodeContacts, NodeDoors, NodeTokens, WorkerUnreachable
from corral.frontend.nodes.store.nodes import Nodes
from corral.frontend.operations.decide.intent import IntentState, Verb
from corral.frontend.operations.store.intents import Intents
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.store import Events
from corral.frontend.serving.decide.load_job import LoadState
from corral.frontend.serving.staging.decide.sources import StagingPolicy
from corral.frontend.serving.staging.decide.staged import (
    MOST_RECORDED,
    StagedFile,
    StagedModel,
    make_room,
    missing_bytes,
    strangers,
    too_full,
)
from corral.frontend.serving.staging.service import StagingWatch
from corral.frontend.serving.staging.store import StagedModels
from corral.frontend.serving.store.load_jobs import LoadJobs
from corral.frontend.serving.store.replicas import ReplicaStore
from corral.wire.files import ListedFiles

log = logging.getLogger(__name__)

_LISTED_WITHIN: Final = timedelta(seconds=30)
_DELETED_WITHIN: Final = timedelta(seconds=60)
_MOST_LISTED: Final = 16 * 1024 * 1024


class NodeDiskFull(CorralError):
    """The node has no room for the files, and none can be made."""

    code = "node_disk_full"
    retryable = True


class NodeListings:
    """Which files a node has in a directory of its models."""

    def __init__(self, contacts: NodeContacts, tokens: NodeTokens, doors: NodeDoors) -> None:
        self._contacts = contacts
        self._tokens = tokens
        self._doors = doors

    async def of(self, node_id: NodeId, folder: str) -> list[str] | None:
        """Paths below the folder; None: there is no such directory. WorkerUnreachable when the node cannot say."""
        contact = await self._contacts.of(node_id)
        headers = {"Authorization": f"Bearer {await self._tokens.of(node_id)}"}
        path = f"/v1/files-list/models/{quote(folder)}"
        try:
            url, tls = self._doors.url(node_id, contact, path)
            async with (
                open_session(timeout=_LISTED_WITHIN, connect_timeout=_LISTED_WITHIN) as session,
                asked(session, "GET", url, headers=headers, tls=tls) as answer,
            ):
                body = await read_body(answer, _MOST_LISTED)
                if answer.status == HTTPStatus.NOT_FOUND:
                    return None
                if answer.status != HTTPStatus.OK:
                    raise WorkerUnreachable(f"{contact.name} does not list its files: it answers {answer.status}")
                return list(msgspec.json.decode(body, type=ListedFiles).files or ())
        except (HttpFailed, ValueError) as error:
            raise WorkerUnreachable(f"{contact.name} does not list its files: {error}") from error


class StagedStores(msgspec.Struct, frozen=True, kw_only=True):
    """What says which files are needed, and where they are."""

    staged: StagedModels
    replicas: ReplicaStore
    jobs: LoadJobs
    intents: Intents
    nodes: Nodes
    events: Events


class Payload(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a model that are brought to a node."""

    node_id: NodeId
    model: str
    revision: str
    files: tuple[StagedFile, ...]

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)


class StagedFiles:
    """Keeps the record, and makes room."""

    def __init__(  # noqa: PLR0913 - each is a collaborator
        self,
        stores: StagedStores,
        models: Models,
        files: LocalFiles,
        client: NodeClient,
        listings: NodeListings,
        clock: Clock,
        *,
        policy: StagingPolicy,
    ) -> None:
        self._models = models
        self._files = files
        self._stores = stores
        self._client = client
        self._listings = listings
        self._clock = clock
        self._policy = policy
        self._turns: defaultdict[NodeId, asyncio.Lock] = defaultdict(asyncio.Lock)
        """One at a time makes room on a node."""
        self._coming: defaultdict[NodeId, list[Callable[[], int]]] = defaultdict(list)
        """How many bytes are still to come to each node, by each transfer of this frontend."""

    @asynccontextmanager
    async def keeping(
        self, model: str, node_id: NodeId, files: Sequence[LocalFile], watch: StagingWatch
    ) -> AsyncIterator[None]:
        """While inside, the files have their place on the node; they are recorded if they are there at the end.

        NodeDiskFull when there is no room, and none can be made.
        """
        payload = Payload(
            node_id=node_id, model=model, revision=self._models.revision_of(model), files=await self._listed(files)
        )
        async with self.room_for(payload, present=lambda: watch.count.present_bytes):
            yield
        try:
            # Some digests are known only now.
            await self.record(replace(payload, files=await self._listed(files)))
        except CorralError as error:  # the files are there all the same; they are never deleted by themselves
            details = {"event": "staging.not_recorded", "model": model, "node": node_id}
            log.warning("files on a node were not recorded: %s", error, extra=details)

    async def _listed(self, files: Sequence[LocalFile]) -> tuple[StagedFile, ...]:
        digests = await asyncio.to_thread(self._files.known_digests, files)
        return tuple(
            StagedFile(path=file.path, size=file.size, digest=f"sha256:{digest}" if digest else "")
            for file in files
            for digest in (digests.get(file.path, ""),)
        )

    @asynccontextmanager
    async def room_for(self, payload: Payload, *, present: Callable[[], int]) -> AsyncIterator[None]:
        """While inside, the files have their place on the node. NodeDiskFull when there is none.

        `present` says how many of their bytes are there.
        """
        needed = 0

        def left() -> int:
            return max(needed - present(), 0)

        async with self._turns[payload.node_id]:
            try:
                before = await self._stores.staged.get(payload.node_id, payload.model)
                if before is not None and not before.is_brought:  # it had the files, and has them no longer
                    await self._stores.staged.forget(payload.node_id, payload.model)
                needed = missing_bytes(payload.files, before)
                if needed:
                    await self._make_room(payload, needed)
            except NodeDiskFull:
                raise
            except CorralError as error:  # the node itself refuses what it has no room for
                details = {"event": "staging.room_unknown", "model": payload.model, "node": payload.node_id}
                log.warning("no room was made on a node: %s", error, extra=details)
            coming = self._coming[payload.node_id]
            coming.append(left)
        try:
            yield
        finally:
            coming.remove(left)

    async def record(self, payload: Payload) -> None:
        """The files are on the node now, whether they were brought or had been there."""
        now = self._clock.now()
        before = await self._stores.staged.get(payload.node_id, payload.model)
        files = payload.files if len(payload.files) <= MOST_RECORDED else ()
        staged = StagedModel(
            node_id=payload.node_id,
            model=payload.model,
            revision=payload.revision,
            bytes=payload.bytes,
            files=files,
            staged_at=now,
            used_at=now,
        )
        if before is None or replace(before, staged_at=now, used_at=now) != staged:
            kept = () if before is None else _outlived(before, files)
            await self._stores.staged.record(
                replace(staged, files=(*files, *kept), bytes=staged.bytes + sum(file.size for file in kept))
            )
        else:
            await self._stores.staged.touch(payload.node_id, payload.model, at=now)

    async def found(self, model: str, node_id: NodeId) -> None:
        """The node has the files of the model by itself. What was brought there for it stays recorded."""
        now, revision = self._clock.now(), self._models.revision_of(model)
        staged_model = StagedModel(node_id=node_id, model=model, revision=revision, bytes=0, staged_at=now, used_at=now)
        try:
            before = await self._stores.staged.get(node_id, model)
            await self._stores.staged.record(
                staged_model if before is None else replace(before, revision=revision, used_at=now)
            )
        except CorralError as error:  # the files are there all the same
            details = {"event": "staging.not_recorded", "model": model, "node": node_id}
            log.warning("files on a node were not recorded: %s", error, extra=details)

    async def of_node(self, node_id: NodeId) -> list[tuple[StagedModel, str]]:
        """What was brought to a node, the longest unused first, each with why it is needed; empty: it may go."""
        needed = await self._needed(node_id, for_model="")
        staged = await self._with_last_use(node_id)
        return [(model, needed.get(model.model, "")) for model in staged if model.is_brought]

    async def _make_room(self, payload: Payload, needed_bytes: int) -> None:
        node_id = payload.node_id
        node = await self._stores.nodes.get(node_id)
        if node is None or not node.capacity.total_disk:
            return
        free = node.capacity.available_disk - sum(left() for left in self._coming[node_id])
        staged = await self._with_last_use(node_id)
        needed = await self._needed(node_id, for_model=payload.model)
        for _ in range(len(staged) + 1):
            plan = make_room(needed_bytes, free, staged, needed, self._policy)
            if plan.lacking_bytes:
                raise NodeDiskFull(too_full(needed_bytes, max(free, 0), plan, needed, self._policy))
            for name in plan.delete:
                model = next(model for model in staged if model.model == name)
                outcome = await self._delete(model)
                if isinstance(outcome, str):
                    needed = {**needed, name: outcome}
                    break  # decide again, without it
                staged = [other for other in staged if other.model != name]
                free += outcome
                if outcome < model.bytes:
                    break  # it was gone already
            else:
                return

    async def _with_last_use(self, node_id: NodeId) -> list[StagedModel]:
        """What was brought to a node; a replica that ended there counts as a use."""
        changed = await self._stores.replicas.last_changes(node_id)
        staged = [
            replace(model, used_at=max(model.used_at, changed.get(model.model, model.used_at)))
            for model in await self._stores.staged.on_node(node_id)
        ]
        return sorted(staged, key=lambda model: model.used_at)

    async def _needed(self, node_id: NodeId, *, for_model: str) -> dict[str, str]:
        """The models whose files stay on the node, and why."""
        stores = self._stores
        needed = {}
        for name in await stores.staged.wanted_models():
            serving = self._models.catalogue.serving(name)  # rules may be on aliases
            needed[name if serving is None else serving.name] = "a rule wants it to be loaded"
        for intent in await stores.intents.of_node(node_id):
            if intent.verb is Verb.STAGE and intent.state is IntentState.OPEN:
                needed[intent.subject] = "it is being staged there"
        for job in await stores.jobs.all():
            if job.state is not LoadState.FAILED:
                needed[job.model] = "it is being loaded"
        for replica in await stores.replicas.on_node(node_id):
            needed[replica.model] = "a replica of it is there"
        if for_model:
            needed[for_model] = "its files are being brought there"
        return needed

    async def _delete(self, staged: StagedModel) -> int | str:
        """Delete what was brought for a model; returns how many bytes that freed, or why it stays."""
        folder = folder_of(staged.model)
        listed = await self._listings.of(staged.node_id, folder)
        if listed is None:
            await self._stores.staged.forget(staged.node_id, staged.model)
            return 0
        if unknown := strangers(listed, staged):
            return f"its directory there has files that no frontend has brought, such as {unknown[0]}"
        if any(replica.model == staged.model for replica in await self._stores.replicas.on_node(staged.node_id)):
            return "a replica of it is there"
        try:
            await self._client.delete_model(staged.node_id, folder, timeout=_DELETED_WITHIN)
        except NodeRefused as error:
            return f"the node does not delete it: {error.message}"
        await self._stores.staged.forget(staged.node_id, staged.model)
        details = {"event": "staging.deleted", "node": staged.node_id, "model": staged.model, "bytes": staged.bytes}
        log.info("files of a model were deleted on a node to make room", extra=details)
        data = {"model": staged.model, "bytes": staged.bytes}
        event = Event(
            kind=EventKind.MODEL_FILES_DELETED,
            at=self._clock.now(),
            actor="control",
            node_id=staged.node_id,
            data=data,
        )
        await self._stores.events.record([event])
        return staged.bytes


def _outlived(before: StagedModel, files: Iterable[StagedFile]) -> Sequence[StagedFile]:
    """Files that were brought for an earlier revision of a model and that this one does not replace: they are there."""
    paths = {file.path for file in files}
    return [file for file in before.files if file.path not in paths]
