"""One connection to one NATS server, from login to loss. The only module that imports the NATS client.

The client library is kept on a short leash, because as of 2.16 it

- gives up for good after an expired JWT and most other errors that a server reports, and sends no login to servers
  that it discovered: so its reconnecting is off, and a link is thrown away when it is lost;
- stops reading when a pong comes for a ping whose waiter was cancelled: so pings run in tasks of the link's own, and
  one that is not answered in time costs the link;
- sends pings ahead of messages that wait to be sent: so here they stand in line;
- swallows cancellations that hit while it writes or waits: so every call checks for that;
- talks in the clear to a server that offers no TLS, whatever the URL says: so that is refused here;
- fails or hangs over bytes that cannot be sent any more when it closes, before it has called its callbacks and ended
  its tasks: so the callbacks are called first, and tasks that it leaves are ended here.
"""

import asyncio
import re
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, Protocol

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as _NatsSubscription
from nats.aio.transport import TcpTransport

from corral.base.errors import BusPermissionDenied, BusUnavailable, MessageTooLarge
from corral.base.tasks import end_tasks, start_task
from corral.bus.config import Endpoint
from corral.bus.credentials import UserJwt, payload_of

CONNECT_SECONDS: Final = 2
PING_SECONDS: Final = 5
"""How long a server may take to answer a ping; a subscription counts as confirmed when it did."""
CLOSE_SECONDS: Final = 1.0
"""The client waits for ever for a connection whose TLS handshake failed."""
PENDING_MESSAGES: Final = 65536
PENDING_BYTES: Final = 64 * 1024 * 1024

_NO_RESPONDERS: Final = "503"
_VIOLATION: Final = re.compile(r'permissions violation for (subscription|publish) to "((?:[^"\\]|\\.)*)"')


class Arrival(msgspec.Struct, frozen=True):
    """A message as it was received."""

    subject: str
    data: bytes
    reply_to: str
    nobody_listens: bool
    """Not a message, but the server's reply that a request has no subscriber."""


LinkSubscription = _NatsSubscription
"""A subscription on one link; only the link looks inside."""

Receive = Callable[[Arrival], Awaitable[None]]


class LinkFailed(Exception):
    """No connection could be made."""


class Owner(Protocol):
    """Gets the events of a link."""

    def on_refused(self, action: str, subject: str) -> None:
        """The server refused a `publish` or a `subscription`. The client lower-cases the subject."""

    def on_dropped(self, subject: str) -> None:
        """A message was dropped because too many wait for their handlers."""


class _Client(Client):
    """The library's client, changed in three places. Tests fail when the library no longer calls these methods."""

    tls_is_a_must = False

    def __init__(self, on_closed: Callable[[], None]) -> None:
        super().__init__()
        self._on_closed = on_closed

    async def _send_ping(self, future: "asyncio.Future[bool] | None" = None) -> None:
        """Send the ping after everything before it: the library's overtakes messages, and its pong confirms nothing."""
        self._pongs.append(future or asyncio.get_running_loop().create_future())
        await self._send_command(b"PING\r\n")
        await self._flush_pending()

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """Refuse a server without TLS, where TLS was requested, before any credential is sent."""
        if initial_connection and self.tls_is_a_must:
            if not (info.get("tls_required") or info.get("tls_available")):
                raise nats.errors.SecureConnWantedError
            info["tls_required"] = True
        await super()._process_info(info, initial_connection)

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        if status == Client.CLOSED:
            self._on_closed()
        with suppress(OSError):  # what was still to be sent is lost with the connection
            await super()._close(status, do_cbs)

    async def end_what_is_left(self) -> None:
        """End all tasks and the socket, after a close that may have failed."""
        tasks = [self._reading_task, self._flusher_task, self._ping_interval_task]
        tasks += [subscription._wait_for_msgs_task for subscription in self._subs.values()]
        self._subs.clear()
        await end_tasks(*(task for task in tasks if task is not None))
        writer = self._transport._io_writer if isinstance(self._transport, TcpTransport) else None
        if writer is not None:
            # Before Python 3.11.4, TLS transports fail to abort once their connection is lost.
            with suppress(AttributeError):
                writer.transport.abort()


class Link:
    """Opened once, never reused. `close` it in any case."""

    def __init__(self, endpoint: Endpoint, owner: Owner, *, group: str = "") -> None:
        self.endpoint = endpoint
        self.group = group
        """The queue group of subscriptions that name none; empty for no group."""
        self._most_bytes: int | None = None
        self._owner = owner
        self._client = _Client(on_closed=self.abandon)
        self._begun = False
        self._error: Exception | None = None
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._losses: set[asyncio.Future[None]] = set()
        """One for each task that is waited for, done when the link is lost."""
        self._tasks: set[asyncio.Task[bool]] = set()
        self._confirming: dict[str, list[asyncio.Event]] = {}

    async def open(self, *, name: str, credentials: UserJwt | None, tls: ssl.SSLContext | None) -> None:
        """Log in. Raise LinkFailed when that fails."""
        self._client.tls_is_a_must = tls is not None
        self._begun = True
        login: dict[str, Any] = {"user": self.endpoint.user, "password": self.endpoint.password}
        if credentials is not None:
            jwt, self._most_bytes = credentials.jwt.encode(), payload_of(credentials.jwt)
            login = {"user_jwt_cb": lambda: jwt, "nkeys_seed_str": credentials.seed}
        elif self.endpoint.token is not None:
            login = {"token": self.endpoint.token}
        try:
            with _Cancellable():
                await self._client.connect(
                    servers=[self.endpoint.url],
                    name=name,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    connect_timeout=CONNECT_SECONDS,
                    flush_timeout=PING_SECONDS,
                    error_cb=self._on_error,
                    tls=tls,
                    tls_hostname=self.endpoint.tls_name,
                    **login,
                )
        except nats.errors.NoServersError as error:
            raise LinkFailed(_text(self._error or error)) from error
        except (nats.errors.Error, OSError, TimeoutError, ValueError) as error:
            raise LinkFailed(_text(error)) from error
        if not self._client.is_connected:
            raise LinkFailed("the server did not complete the login")

    @property
    def reason(self) -> str:
        """Why the connection was lost."""
        return _text(self._client.last_error or self._error or "connection closed")

    @property
    def siblings(self) -> list[Endpoint]:
        """The other servers of the cluster, as the server reported them."""
        urls = self._client.discovered_servers
        return [self.endpoint.sibling(url.hostname, url.port) for url in urls if url.hostname and url.port]

    async def publish(self, subject: str, data: bytes, reply_to: str = "") -> None:
        """Hand over to the client, which sends in order. Refuse what the server would: it ends the connection then."""
        if self._most_bytes is not None and len(data) > self._most_bytes:
            raise MessageTooLarge(subject=subject, bytes=len(data), most=self._most_bytes)
        try:
            with _Cancellable():
                await self._client.publish(subject, data, reply=reply_to)
        except nats.errors.MaxPayloadError as error:
            raise MessageTooLarge(subject=subject, bytes=len(data), most=self._client.max_payload) from error
        except (nats.errors.Error, OSError) as error:
            raise BusUnavailable(_text(error)) from error

    async def subscribe(self, subject: str, queue: str, receive: Receive) -> LinkSubscription:
        """Subscribe. A refusal is passed to the owner when it arrives."""

        async def on_message(message: Msg) -> None:
            status = (message.headers or {}).get("Status")
            nobody_listens = status == _NO_RESPONDERS and not message.data
            await receive(Arrival(message.subject, message.data, message.reply, nobody_listens))

        remote: LinkSubscription | None = None
        try:
            with _Cancellable():
                remote = await self._client.subscribe(
                    subject,
                    queue=queue,
                    cb=on_message,
                    pending_msgs_limit=PENDING_MESSAGES,
                    pending_bytes_limit=PENDING_BYTES,
                )
                return remote  # noqa: RET504 - named for the handler below
        except (nats.errors.Error, OSError) as error:
            raise BusUnavailable(_text(error)) from error
        except asyncio.CancelledError:
            if remote is not None:
                await self.unsubscribe(remote)
            raise

    async def subscribe_confirmed(self, subject: str, queue: str, receive: Receive) -> LinkSubscription:
        """Subscribe, and wait for the server's confirmation. Raise BusPermissionDenied when it refuses."""
        refused = asyncio.Event()
        waiting = self._confirming.setdefault(subject.lower(), [])
        waiting.append(refused)
        try:
            remote = await self.subscribe(subject, queue, receive)
            try:
                await self.ping()
                if refused.is_set():
                    raise BusPermissionDenied(subject=subject)
            except BaseException:
                await self.unsubscribe(remote)
                raise
            return remote
        finally:
            waiting.remove(refused)
            if not waiting:
                self._confirming.pop(subject.lower(), None)

    async def unsubscribe(self, remote: LinkSubscription) -> None:
        """End a subscription. Messages that wait for their handlers are dropped."""
        with suppress(nats.errors.Error, OSError), _Cancellable():
            await remote.unsubscribe()

    async def drain(self, remote: LinkSubscription, within: timedelta) -> None:
        """End a subscription, but handle the messages that are already on their way, within the bound."""
        if self._lost.done():
            return
        task = self._spawn(_succeeds(remote.drain))
        await self._until_done(task, within.total_seconds())
        if not task.done():
            await self.unsubscribe(remote)

    async def ping(self) -> None:
        """Return when the server has processed all that was sent. Else the link is lost: raise BusUnavailable."""
        if self._lost.done():  # nothing may begin on a link that is about to be closed
            raise BusUnavailable(self.reason)
        task = self._spawn(_succeeds(lambda: self._client.rtt(PING_SECONDS)))
        await self._until_done(task, None)
        if self._lost.done():
            raise BusUnavailable(self.reason)
        if not task.result():
            self._error = self._error or TimeoutError("the server does not answer pings")
            self.abandon()
            raise BusUnavailable(self.reason)

    async def lost(self) -> None:
        """Return when the connection is gone."""
        await asyncio.wait({self._lost})

    async def until_lost(self, heartbeat: timedelta, *, each: "Callable[[Link], Awaitable[None]]") -> None:
        """Return when the connection is gone, or silent for longer than a heartbeat and a ping. `each` is called at
        every heartbeat."""
        while not self._lost.done():
            await asyncio.wait({self._lost}, timeout=heartbeat.total_seconds())
            if not self._lost.done():
                with suppress(BusUnavailable):
                    await self.ping()
                    await each(self)

    def abandon(self) -> None:
        """Count the connection as lost from now on."""
        for loss in (self._lost, *self._losses):
            if not loss.done():
                loss.set_result(None)

    async def close(self) -> None:
        """Close within a bound. No task and no socket is left."""
        self.abandon()
        try:
            if self._begun:  # the client cannot be closed before it began to connect
                try:
                    with suppress(nats.errors.Error, OSError, TimeoutError), _Cancellable():
                        async with asyncio.timeout(CLOSE_SECONDS):
                            await self._client.close()
                finally:
                    await self._client.end_what_is_left()
        finally:
            await end_tasks(*self._tasks)  # only now: see pings at the top of this file

    async def _on_error(self, error: Exception) -> None:
        if isinstance(error, nats.errors.SlowConsumerError):
            self._owner.on_dropped(error.subject)
        elif violation := _VIOLATION.search(str(error)):
            action, subject = violation.groups()
            waiting = self._confirming.get(subject, []) if action == "subscription" else []
            for refused in waiting:
                refused.set()
            if not waiting:
                self._owner.on_refused(action, subject)
        else:
            self._error = error

    def _spawn(self, work: Coroutine[None, None, bool]) -> asyncio.Task[bool]:
        task = start_task(work, name=f"bus link {self.endpoint.url}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _until_done(self, task: asyncio.Task[bool], seconds: float | None) -> None:
        """Wait for the task, the loss of the link, or the timeout. Never cancel the task: see the top of this file.

        Each wait has a future of its own: one that all share is searched for each of them, and a link may have tens of
        thousands of subscriptions to drain.
        """
        loss: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._losses.add(loss)
        either: set[asyncio.Future[Any]] = {task, loss}
        try:
            await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._losses.discard(loss)


async def _succeeds(work: Callable[[], Awaitable[object]]) -> bool:
    try:
        await work()
    except (nats.errors.Error, OSError, TimeoutError):
        return False
    return True


class _Cancellable:
    """Raise the cancellation that the client may have swallowed, whether it then went on or failed.

    A class and not a generator: every message goes through one.
    """

    __slots__ = ("_before", "_task")

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        self._before = self._task.cancelling() if self._task is not None else 0

    def __exit__(self, *_: object) -> None:
        if self._task is not None and self._task.cancelling() > self._before:
            raise asyncio.CancelledError


def _text(error: object) -> str:
    """Return the error's text without the library's prefix, or its type when it has none."""
    return str(error).removeprefix("nats: ").strip("'") or type(error).__name__
