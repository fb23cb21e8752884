"""How a node is asked for files that go through the object storage: the subjects `files.*`, of workers of Corral and of
LocalAI. Fails as `client.py` says."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, TypeVar

import msgspec

from corral.base.errors import BusTimeout, InvalidInput, NoResponders
from corral.base.ids import NodeId
from corral.bus.port import Bus
from corral.frontend.nodes.client import NodeBusy, NodeRefused, too_much
from corral.frontend.nodes.contacts import NodeUnreachable
from corral.wire import go_json, subjects
from corral.wire.files import EnsureRequest, ListedFiles, ListRequest, LocalPathReply, StageReply, StageRequest

PROBE_WITHIN: Final = timedelta(seconds=5)
FILE_WITHIN: Final = timedelta(seconds=60)
"""For a file of one request."""
_NOWHERE: Final = "ephemeral/nothing-is-kept-here"
"""What is asked for to see whether somebody answers."""

T = TypeVar("T", bound=msgspec.Struct)


class NodeStorage:
    """Asks workers about the object storage in their settings."""

    def __init__(self, bus: Bus, admitted: Callable[[NodeId], Awaitable[object]]) -> None:
        """`admitted` fails for nodes that must not be contacted."""
        self._bus = bus
        self._admitted = admitted

    async def is_known(self, node_id: NodeId) -> bool:
        """Whether the worker has an object storage in its settings: otherwise it listens to none of the subjects."""
        try:
            request = ListRequest(key_prefix=_NOWHERE)
            await self._ask(node_id, subjects.files_list(node_id), request, ListedFiles, PROBE_WITHIN)
        except (NodeUnreachable, NodeBusy):
            return False
        except NodeRefused:
            pass  # an answer, though not a nice one
        return True

    async def ensure(self, node_id: NodeId, request: EnsureRequest, *, timeout: timedelta) -> LocalPathReply:
        """Have an object on the node. Asking again while the node still fetches it joins that."""
        return await self._ask(node_id, subjects.files_ensure(node_id), request, LocalPathReply, timeout)

    async def temporary(self, node_id: NodeId) -> str:
        """The path of a new file that a backend can write to."""
        reply = await self._ask(node_id, subjects.files_temp(node_id), EnsureRequest(), LocalPathReply, FILE_WITHIN)
        return _needed(node_id, reply.local_path, reply.error)

    async def stage(self, node_id: NodeId, request: StageRequest) -> None:
        """Have a file of the node in the storage."""
        reply = await self._ask(node_id, subjects.files_stage(node_id), request, StageReply, FILE_WITHIN)
        _needed(node_id, reply.key, reply.error)

    async def _ask(
        self, node_id: NodeId, subject: str, request: msgspec.Struct, answer: type[T], timeout: timedelta
    ) -> T:
        await self._admitted(node_id)
        try:
            content = await self._bus.request(subject, msgspec.json.encode(request), timeout=timeout)
            if why := too_much(content):
                raise NodeRefused(f"the node's answer is not read: {why}", node_id=node_id)
            return go_json.decode(content, answer)
        except NoResponders as error:
            raise NodeUnreachable("the node does not respond on NATS", node_id=node_id) from error
        except BusTimeout as error:
            raise NodeBusy(f"no answer within {timeout.total_seconds():.0f} s", node_id=node_id) from error
        except InvalidInput as error:
            raise NodeRefused(f"the node answers what nobody understands: {error}", node_id=node_id) from error


def _needed(node_id: NodeId, value: str, error: str) -> str:
    if not value:
        raise NodeRefused(error or "the node did not say why", node_id=node_id)
    return value
