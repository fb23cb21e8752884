"""Who this node is: its secret and its id in private files, and its user of NATS."""

import asyncio
import logging
import math
import os
import re
from pathlib import Path
from typing import Final, Protocol

import msgspec

from corral.base.clock import Clock
from corral.base.errors import PathNotUsable
from corral.base.ids import NodeId, new_secret
from corral.base.private_files import make_private_directory, read_private, write_private
from corral.base.retry import Backoff
from corral.base.tasks import first_done
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.bus.credentials import CredentialsProvider, UserJwt, lifetime_of
from corral.bus.problems import Problem, ProblemKind, Problems
from corral.worker.membership.registration import AcceptedRegistration

log = logging.getLogger(__name__)

SECRET_FILE: Final = "node-secret"  # noqa: S105 - a name of a file
MEMORY_FILE: Final = "node.json"
MAX_NAME: Final = 255
RENEWED_AFTER: Final = 0.75
"""The share of its life after which a user is replaced: LocalAI's."""
_SOON_SECONDS: Final = 300.0
"""A new request within this time means that the last credentials did not help."""

_SECRET = re.compile(rb"[A-Za-z0-9_-]{32,256}")


class Memory(msgspec.Struct, kw_only=True, frozen=True):
    """What is remembered of the last registration."""

    id: str
    name: str = ""


class NodeIdentity:
    """The files of one node in its data directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def secret(self) -> str:
        """The node's secret, made and stored at the first call. One worker at a time may use the directory."""
        path = self._directory / SECRET_FILE
        data = read_private(path)
        if data is None:
            secret = new_secret()
            make_private_directory(self._directory)
            write_private(path, secret.encode("ascii") + b"\n")
            # The new name must survive a power cut: the secret must not be lost once it was sent.
            descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            return secret
        if not _SECRET.fullmatch(data.strip()):
            raise PathNotUsable(
                f"{path} is damaged; restore it, or delete it: then this machine joins as a new node, to be approved"
            )
        return data.strip().decode("ascii")

    def remember(self, node_id: NodeId, name: str) -> None:
        """Keep the id for tools and for the logs of the next start. A full disk must not end a worker that serves."""
        try:
            write_private(self._directory / MEMORY_FILE, msgspec.json.encode(Memory(id=node_id, name=name)) + b"\n")
        except PathNotUsable as error:
            log.warning("cannot remember the node id: %s", error, extra={"event": "identity.not_remembered"})

    def remembered(self) -> Memory | None:
        """The last registration, as far as it is known."""
        try:
            data = read_private(self._directory / MEMORY_FILE)
            return None if data is None else msgspec.json.decode(data, type=Memory)
        except (PathNotUsable, *UNREADABLE_JSON) as error:
            log.warning("forgetting the last node id: %s", error, extra={"event": "identity.forgotten"})
            return None


def node_name(configured: str, *, hostname: str, pid: int) -> str:
    """What people call this node: what they said, else the host name, else something that is never empty."""
    return (configured.strip() or hostname.strip() or f"node-{pid}")[:MAX_NAME]


class BusStatus(Protocol):
    @property
    def connected(self) -> bool: ...

    @property
    def unauthorized(self) -> bool: ...

    @property
    def problems(self) -> Problems: ...

    def renew(self) -> None: ...


class NatsUser:
    """The user of this moment, and when another one is needed."""

    def __init__(self, clock: Clock, *, backoff: Backoff, is_wanted: bool = True) -> None:
        """It is not wanted where the settings name a user."""
        self._clock = clock
        self._backoff = backoff
        self._is_wanted = is_wanted
        self._user: UserJwt | None = None
        self._member: AcceptedRegistration | None = None
        self._taken_at = 0.0
        self._asked_at = -math.inf
        self._repeated = 0
        self._link: BusStatus | None = None
        self._refused = asyncio.Event()

    @property
    def provider(self) -> CredentialsProvider | None:
        """For every new connection to NATS; None: as the settings say."""

        async def provide() -> UserJwt | None:
            return self._user

        return provide if self._is_wanted else None

    def follow(self, link: BusStatus) -> None:
        """Once, before anything else: this is the connection."""

        def note(problem: Problem) -> None:
            if problem.kind is ProblemKind.UNAUTHORIZED:
                self._refused.set()

        self._link = link
        link.problems.listen(note)

    def take(self, member: AcceptedRegistration) -> None:
        """Be who this registration says. A user of the same node is used from the next connection on."""
        before, self._member = self._member, member
        is_same_node = before is not None and before.node_id == member.node_id
        if self._link is None or not self._is_wanted or (member.nats_user is None and is_same_node):
            return
        was_good = is_same_node and self._user is not None and self._link.connected
        had, self._user, self._taken_at = self._user, member.nats_user, self._clock.monotonic()
        if not was_good and had != self._user:
            self._refused.clear()
            self._link.renew()

    async def until_due(self) -> None:
        """Until the frontend should be asked for another one: less and less often while that does not help."""
        link, member = self._link, self._member
        if link is None or member is None or not self._is_wanted or (member.is_corral and self._user is None):
            await asyncio.Event().wait()
            return
        await first_done(self._until_refused(link), self._until_old())
        since = self._clock.monotonic() - self._asked_at
        self._repeated = self._repeated + 1 if since < _SOON_SECONDS else 0
        if self._repeated:
            await self._clock.sleep(self._backoff.delay(self._repeated).total_seconds() - since)
        self._asked_at = self._clock.monotonic()

    async def _until_refused(self, link: BusStatus) -> None:
        """A moment later: perhaps the next connection works, with a user that is known already."""
        while True:
            await self._refused.wait()
            await self._clock.sleep(self._backoff.delay(1).total_seconds())
            if link.unauthorized:
                return
            self._refused.clear()

    async def _until_old(self) -> None:
        life = lifetime_of(self._user.jwt) if self._user is not None else None
        if life is None:
            await asyncio.Event().wait()
            return
        due = self._taken_at + life.total_seconds() * RENEWED_AFTER
        await self._clock.sleep(max(due - self._clock.monotonic(), 0))
