"""Who this node is: its secret and its id in private files, and its user of NATS."""

import asyncio
import logging
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from corral.base.clock import Clock
from corral.base.errors import InvalidInput, PathNotUsable
from corral.base.ids import NodeId, new_secret
from corral.base.private_files import make_private_directory, read_private, write_private
from corral.base.retry import Backoff
from corral.base.tasks import first_done
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.bus.config import BusConfig, names_login
from corral.bus.credentials import CredentialsProvider, UserJwt, lifetime_of
from corral.bus.problems import Problem, ProblemKind, Problems
from corral.wire.registration import PENDING, NatsLogin
from corral.worker.membership.registration import AcceptedRegistration

log = logging.getLogger(__name__)

SECRET_FILE: Final = "node-secret"  # noqa: S105 - a name of a file
MEMORY_FILE: Final = "node.json"
JOINED_FILE: Final = "joined.json"
MAX_NAME: Final = 255
RENEWED_AFTER: Final = 0.75
"""The share of its life after which a user is replaced: LocalAI's."""
_SOON_SECONDS: Final = 300.0
"""A new request within this time means that the last credentials did not help."""

NO_LOGIN: Final = (
    "commands do not reach this worker: its frontend gave it no NATS user, and without a login it must not connect "
    "(nats_require_auth); it asks again. CORRAL_NATS_JWT and CORRAL_NATS_SEED set one, or CORRAL_NATS_URL with a login"
)
NO_SERVER: Final = (
    "commands do not reach this worker: its frontend names no NATS server, and nats_url (CORRAL_NATS_URL) is not set"
)

_SECRET = re.compile(rb"[A-Za-z0-9_-]{32,256}")


class Memory(msgspec.Struct, kw_only=True, frozen=True):
    """What is remembered of the last registration."""

    id: str
    name: str = ""


class JoinedFleet(msgspec.Struct, kw_only=True, frozen=True):
    """The fleet that this machine joined, and how it is known."""

    urls: tuple[str, ...]
    pin: str


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

    def remember_fleet(self, fleet: JoinedFleet) -> None:
        """Keep the fleet, so that the next start needs nothing. A full disk must not end a worker that serves."""
        path = self._directory / JOINED_FILE
        try:
            data = msgspec.json.encode(fleet) + b"\n"
            if read_private(path) != data:
                write_private(path, data)
        except PathNotUsable as error:
            log.warning("cannot remember the fleet: %s", error, extra={"event": "identity.not_remembered"})

    def joined_fleet(self) -> JoinedFleet | None:
        """The fleet that an earlier start joined. PathNotUsable when that cannot be known: another one may answer."""
        path = self._directory / JOINED_FILE
        data = read_private(path)
        try:
            return None if data is None else msgspec.json.decode(data, type=JoinedFleet)
        except UNREADABLE_JSON as error:
            raise PathNotUsable(f"{path} is damaged; delete it, and join again with `corral worker --join`") from error

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

    def renew(self, *, gently: bool = False) -> None: ...

    def use_servers(self, urls: str, *, authorities: str = "", gently: bool = False) -> None: ...


class NatsUser:
    """The user of this moment, where it logs in, and when another one is needed.

    A JWT of the settings is used in any case. A login in the URL of the settings is used until a frontend makes a user
    for this node; without one nothing connects before the frontend has answered, and with `needs_login` before
    it has made a user.
    """

    def __init__(self, clock: Clock, *, backoff: Backoff, settings: BusConfig, needs_login: bool = False) -> None:
        self._clock = clock
        self._backoff = backoff
        self._configured = settings.url
        self._is_wanted = not settings.jwt
        self._has_login = not self._is_wanted or names_login(settings.url)
        self._needs_user = needs_login and not self._has_login
        self._user: UserJwt | None = None
        self._member: AcceptedRegistration | None = None
        self._servers, self._authorities = self.first_url, ""
        self._taken_at = 0.0
        self._asked_at = -math.inf
        self._repeated = 0
        self._link: BusStatus | None = None
        self._refused = asyncio.Event()
        self._approved = asyncio.Event()
        self._problem = ""

    @property
    def first_url(self) -> str:
        """Where to connect before the first registration; empty for nowhere."""
        return self._configured if self._has_login else ""

    @property
    def login(self) -> NatsLogin:
        """The login that is sent to a frontend, before it makes a user."""
        return NatsLogin.OWN if self._is_wanted else NatsLogin.SHARED

    @property
    def provider(self) -> CredentialsProvider | None:
        """Return the credentials for a new connection to NATS; None when those of the settings are to be used."""

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

    def problems(self) -> Sequence[str]:
        """Why this node cannot use NATS, as sentences for its administrator; empty while it waits for approval."""
        return (self._problem,) if self._problem else ()

    def take(self, member: AcceptedRegistration) -> None:
        """Be who this registration says. The next user of the same node takes over without a gap."""
        before, self._member = self._member, member
        self._approved.clear()
        if self._link is None:
            return
        is_same_node = before is not None and before.node_id == member.node_id
        had = self._user
        if self._is_wanted and (member.nats_user or member.waits_for_nats_user or not is_same_node):
            self._user, self._taken_at = member.nats_user, self._clock.monotonic()
        was_good = is_same_node and had is not None and self._user is not None and self._link.connected
        if not self._moved(self._link, member, gently=was_good) and had != self._user:
            if not was_good:
                self._refused.clear()
            self._link.renew(gently=was_good)

    def _moved(self, link: BusStatus, member: AcceptedRegistration, *, gently: bool) -> bool:
        """Move the link to the servers that this registration names, if they or their authorities differ. An unusable
        offer becomes a problem of the node and leaves the link where it is: the next one may be better."""
        servers = self._servers_for(member)
        # A login of the settings came with its own way to check the server.
        authorities = member.nats_authorities if servers and not self._has_login else ""
        self._note_problem(self._why_nowhere(member) if not servers else "")
        if (servers, authorities) == (self._servers, self._authorities):
            return False
        try:
            link.use_servers(servers, authorities=authorities, gently=gently and servers == self._servers)
        except InvalidInput as error:
            self._note_problem(f"what the frontend says about NATS cannot be used: {error.message}")
            return False
        if servers != self._servers:
            self._refused.clear()
        self._servers, self._authorities = servers, authorities
        return True

    def _why_nowhere(self, member: AcceptedRegistration) -> str:
        if member.waits_for_nats_user:
            return ""
        return NO_LOGIN if self._lacks_user else NO_SERVER

    @property
    def _lacks_user(self) -> bool:
        return self._needs_user and self._user is None

    def _note_problem(self, problem: str) -> None:
        if problem and problem != self._problem:
            log.warning("%s", problem, extra={"event": "nats.unusable"})
        self._problem = problem

    def _servers_for(self, member: AcceptedRegistration) -> str:
        if member.waits_for_nats_user and self._is_wanted and not self._has_login:
            return ""  # nobody there knows us yet
        if self._lacks_user:
            return ""
        return self._configured or member.nats_urls

    def note_status(self, status: str) -> None:
        """What a heartbeat was answered: a node that was approved since it registered can have a user now."""
        if status not in ("", PENDING) and self._member is not None and self._member.waits_for_nats_user:
            self._approved.set()

    async def until_due(self) -> None:
        """Wait until the frontend should be asked for a new user. The wait grows while asking does not help; that a
        user which it gave becomes old, however soon, is no such thing."""
        link, member = self._link, self._member
        if link is None or member is None or not self._is_wanted:
            await asyncio.Event().wait()
            return
        if member.waits_for_nats_user:
            await self._approved.wait()
            self._approved.clear()
            return
        has_helped = False
        if self._lacks_user:
            await self._clock.sleep(self._backoff.delay(1).total_seconds())
        elif await first_done(self._until_refused(link), self._until_old()) == 1:
            has_helped = self._taken_at >= self._asked_at
        since = self._clock.monotonic() - self._asked_at
        self._repeated = 0 if has_helped or since >= _SOON_SECONDS else self._repeated + 1
        wait = self._backoff.delay(max(self._repeated, 1)).total_seconds() - since
        if wait > 0:
            await self._clock.sleep(wait)
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
