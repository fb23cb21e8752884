"""The bus over NATS. It keeps trying to connect, so an unreachable server is never an error, not even at the start.

What outlives a connection is kept here: subscriptions, open requests, and the known servers. A connection itself is a
`Link`, which is used once. Pauses between attempts are plain sleeps: no decision depends on them.

A user that is about to expire is replaced without a gap: the new link is made beside the old one, and then the old one
is drained. Meanwhile the server must deliver each message to one of the two, so both subscribe as one queue group.
"""

import asyncio
import logging
import secrets
import ssl
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Final, Self

from corral.base.errors import BusPermissionDenied, BusUnavailable, CorralError
from corral.base.retry import Backoff
from corral.base.tasks import end_tasks, first_done, start_task, task_group
from corral.bus.config import BusConfig, Endpoint, Servers
from corral.bus.credentials import CredentialsProvider, credentials_of, tls_context
from corral.bus.link import Arrival, Link, LinkFailed
from corral.bus.port import (
    CLOSE_GRACE,
    DEFAULT_CONCURRENCY,
    Handler,
    Message,
    check_pattern,
    check_queue,
    check_subject,
)
from corral.bus.problems import Problem, ProblemKind, Problems
from corral.bus.replies import FRONTEND_INBOX, Replies
from corral.bus.subscriptions import Handlers, Interest, OpenSubscription

log = logging.getLogger(__name__)

FIRST_ATTEMPT: Final = timedelta(seconds=2)
"""How long entering the context waits for the first attempt to connect."""
REPLY_PATIENCE: Final = timedelta(seconds=30)
"""How long an answer waits for a new connection."""
_HEARTBEAT: Final = timedelta(seconds=15)
_SHORT_LIFE_SECONDS: Final = 1.0
_UNREACHABLE_BACKOFF: Final = Backoff(first=timedelta(milliseconds=50), cap=timedelta(seconds=2))
_UNAUTHORIZED_BACKOFF: Final = Backoff(first=timedelta(milliseconds=250), cap=timedelta(seconds=15))


class NatsBus:
    """Implements `port.Bus`. Used as an asynchronous context manager."""

    def __init__(
        self,
        config: BusConfig,
        *,
        name: str = "corral",
        inbox_prefix: str = FRONTEND_INBOX,
        credentials: CredentialsProvider | None = None,
        overlaps: bool = False,
    ) -> None:
        """Raise InvalidInput for a URL or credentials that can never work.

        Without a URL, `use_servers` must name servers before anything connects. `name` is shown in the server's
        monitoring. A user that sends requests must be allowed to subscribe to `<inbox_prefix>.>`. `credentials` replace
        those of the configuration where they change over time; with `overlaps` they may be renewed without a gap.
        """
        self._servers = Servers(config.url)
        self._config = config
        self._overlaps = overlaps
        self._tls: ssl.SSLContext | None = None
        self._name = name
        self._credentials = credentials or credentials_of(config)
        self._link: Link | None = None
        self._up = asyncio.Event()
        self._attempted = asyncio.Event()
        self._renewal = asyncio.Event()
        """Set while the credentials of the current connection or attempt are known to be outdated."""
        self._exchange = asyncio.Event()
        """Set when the current link should be replaced by one with newer credentials."""
        self._watchers: list[Callable[[bool], None]] = []
        self._subscriptions: set[OpenSubscription] = set()
        self._replies = Replies(inbox_prefix)
        self._inbox = Interest(self._replies.pattern, "", self._on_reply)
        self._asks = False
        self._runner: asyncio.Task[None] | None = None
        self._closed = False
        self.problems = Problems()

    async def __aenter__(self) -> Self:
        """Return connected, or when the first attempt failed; then attempts continue in the background.

        Raise InvalidInput for TLS files that cannot be used. Any of them makes TLS mandatory, also for nats:// URLs.
        """
        self._tls = self._tls_for(self._servers)
        self._runner = start_task(self._run(), name="bus")
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(FIRST_ATTEMPT.total_seconds()):
                    await self._attempted.wait()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def connected(self) -> bool:
        return self._link is not None

    @property
    def unauthorized(self) -> bool:
        """Whether there is no connection because a server refuses our credentials."""
        enduring = self.problems.enduring
        return enduring is not None and enduring.kind is ProblemKind.UNAUTHORIZED

    @property
    def refused(self) -> frozenset[str]:
        interests = (subscription.interest for subscription in self._subscriptions)
        return frozenset(interest.subject for interest in interests if interest.is_refused)

    def on_connection(self, callback: Callable[[bool], None]) -> Callable[[], None]:
        self._watchers.append(callback)
        return lambda: self._watchers.remove(callback)

    async def wait_connected(self) -> None:
        await self._up.wait()

    def use_servers(self, urls: str, *, authorities: str = "", gently: bool = False) -> None:
        """Connect to these servers from now on, and to none of before; gently as in `renew`.

        `authorities` are certificates, in PEM form, that they are checked against where the configuration names none.
        Raise InvalidInput for what can never work; nothing is changed then.
        """
        servers = Servers(urls)
        self._tls = self._tls_for(servers, authorities)
        self._servers = servers
        self.renew(gently=gently)

    def _tls_for(self, servers: Servers, authorities: str = "") -> ssl.SSLContext | None:
        config = self._config
        is_wanted = config.tls_ca or config.tls_cert or config.tls_key or authorities or servers.have_tls
        return tls_context(config, authorities) if is_wanted else None

    def renew(self, *, gently: bool = False) -> None:
        """Reconnect with the current credentials. Subscriptions stay, and nothing more is sent over the old link.

        Gently: the old link serves until the new one does, and is drained then; it needs a bus that overlaps."""
        if gently and self._overlaps and self._link is not None:
            self._exchange.set()
            return
        self._renewal.set()
        if (link := self._link) is not None:
            self._leave(link)
            link.abandon()

    async def publish(self, subject: str, data: bytes) -> None:
        check_subject(subject)
        await self._current_link().publish(subject, data)

    async def request(self, subject: str, data: bytes, *, timeout: timedelta) -> bytes:
        check_subject(subject)
        return await self._replies.ask(subject, lambda reply_to: self._ask(subject, data, reply_to), timeout=timeout)

    async def gather(self, subject: str, data: bytes, *, window: timedelta, at_most: int | None = None) -> list[bytes]:
        check_subject(subject)
        return await self._replies.collect(
            subject, lambda reply_to: self._ask(subject, data, reply_to), window=window, at_most=at_most
        )

    async def subscribe(
        self, subject: str, handler: Handler, *, queue: str = "", concurrency: int = DEFAULT_CONCURRENCY
    ) -> OpenSubscription:
        check_pattern(subject)
        check_queue(queue)
        if self._closed:
            raise BusUnavailable("the bus is closed")
        handlers = Handlers(subject, handler, concurrency)

        async def receive(arrival: Arrival) -> None:
            await handlers.dispatch(
                Message(subject=arrival.subject, data=arrival.data, reply_to=arrival.reply_to, reply=self._reply)
            )

        subscription = OpenSubscription(Interest(subject, queue, receive), handlers, forget=self._subscriptions.discard)
        self._subscriptions.add(subscription)  # from here on every new link will have it
        try:
            if self._link is not None:
                await subscription.interest.establish_confirmed(self._link)
        except BusUnavailable:
            log.debug("subscription waits for a connection", extra={"event": "bus.subscription_waits"})
        except BaseException:
            await subscription.close()
            raise
        return subscription

    async def flush(self) -> None:
        await self._current_link().ping()

    async def close(self) -> None:
        """Handle what has arrived, wait for handlers and until their answers are sent, all within CLOSE_GRACE."""
        self._closed = True
        try:
            await self._drain()
        finally:
            if self._runner is not None:
                await end_tasks(self._runner)
            self._replies.fail(BusUnavailable("the bus was closed"))

    async def _drain(self) -> None:
        deadline = asyncio.get_running_loop().time() + CLOSE_GRACE.total_seconds()

        def left() -> timedelta:
            return timedelta(seconds=max(0.0, deadline - asyncio.get_running_loop().time()))

        caller = asyncio.current_task()
        async with task_group() as group:
            for subscription in self._subscriptions:
                name = f"drain {subscription.interest.subject}"
                group.create_task(subscription.drain(left, apart_from=caller), name=name)
        self._subscriptions.clear()
        with suppress(TimeoutError, BusUnavailable):
            async with asyncio.timeout(left().total_seconds()):
                await self.flush()

    def _current_link(self) -> Link:
        if self._link is None:
            raise BusUnavailable("the bus is closed" if self._runner is None or self._runner.done() else None)
        return self._link

    async def _ask(self, subject: str, data: bytes, reply_to: str) -> None:
        """Subscribe to the inbox with the first request: a user that sends none needs no permission for it."""
        link = self._current_link()
        self._asks = True
        if self._inbox.link is not link:
            await self._inbox.establish(link)
        await link.publish(subject, data, reply_to)

    async def _reply(self, reply_to: str, data: bytes) -> None:
        """Send an answer, on the next link if the current one breaks."""
        try:
            async with asyncio.timeout(REPLY_PATIENCE.total_seconds()):
                while True:
                    if self._closed or self._link is not None:
                        link = self._current_link()
                        try:
                            return await link.publish(reply_to, data)
                        except BusUnavailable:
                            if self._closed:
                                raise
                            await link.lost()
                            await asyncio.sleep(0)  # until `_serve` has noticed it too
                    await self.wait_connected()
        except TimeoutError:
            raise BusUnavailable("an answer could not be sent") from None

    async def _on_reply(self, arrival: Arrival) -> None:
        if arrival.nobody_listens:
            self._replies.nobody_listens(arrival.subject)
        else:
            self._replies.deliver(arrival.subject, arrival.data)

    def on_refused(self, action: str, subject: str) -> None:
        """Called by a link: the server refused something outside of any `subscribe` call."""
        detail = f"the server refuses this user the {action} to {subject}"
        self.problems.report(Problem(kind=ProblemKind.PERMISSION_DENIED, detail=detail, subject=subject))
        if action == "publish":
            denied = BusPermissionDenied(subject=subject)
            self._replies.fail(denied, concerns=lambda request_subject: request_subject.lower() == subject)
        elif subject == self._inbox.subject.lower():
            self._inbox.link = None  # the next request asks again: permissions may have changed by then
            self._replies.fail(BusPermissionDenied(subject=subject))
        else:
            for subscription in self._subscriptions:
                if subscription.interest.subject.lower() == subject:
                    subscription.interest.is_refused = True

    def on_dropped(self, subject: str) -> None:
        """Called by a link: handlers do not keep up."""
        detail = f"messages dropped on {subject}: their handlers do not keep up"
        self.problems.report(Problem(kind=ProblemKind.SLOW_CONSUMER, detail=detail, subject=subject))

    async def _run(self) -> None:
        failures = 0
        while True:
            lived = 0.0
            try:
                lived = await self._connect_once()
            except Exception:  # a fault, for example in a credentials provider, must not end the bus
                log.exception("connecting failed", extra={"event": "bus.connect_failed"})
            self._attempted.set()
            failures = 0 if lived >= _SHORT_LIFE_SECONDS else failures + 1
            if failures:
                backoff = _UNAUTHORIZED_BACKOFF if self.unauthorized else _UNREACHABLE_BACKOFF
                await first_done(asyncio.sleep(backoff.delay(failures).total_seconds()), self._renewal.wait())

    async def _connect_once(self) -> float:
        """Try every server once, and stay with the first that accepts us. Return for how many seconds."""
        servers = self._servers
        if servers.are_unknown:
            self._attempted.set()
            await self._renewal.wait()
            self._renewal.clear()
        for _ in range(len(servers)):
            link = await self._opened(servers.next(), group=secrets.token_hex(8) if self._overlaps else "")
            if link is not None:
                return await self._serve(link)
        return 0.0

    async def _opened(self, endpoint: Endpoint, *, group: str) -> Link | None:
        link, is_open = Link(endpoint, self, group=group), False
        try:
            is_open = await self._open(link)
        finally:
            if not is_open:
                for interest in self._interests():
                    interest.return_from(link)
                await link.close()
        return link if is_open else None

    async def _open(self, link: Link) -> bool:
        self._renewal.clear()
        self._exchange.clear()
        try:
            credentials = await self._credentials()
            await link.open(name=self._name, credentials=credentials, tls=self._tls)
            # Subscribe again, including what is added meanwhile. Only then may the link be used.
            while waiting := [interest for interest in self._interests() if interest.link is not link]:
                for interest in waiting:
                    await interest.establish(link)
                await link.ping()
        except (LinkFailed, CorralError) as error:
            self._report_loss(ProblemKind.UNREACHABLE, link.endpoint, str(error))
            return False
        return not self._renewal.is_set()

    def _interests(self) -> list[Interest]:
        inbox = [self._inbox] if self._asks else []
        return [*inbox, *(subscription.interest for subscription in self._subscriptions)]

    async def _serve(self, link: Link) -> float:
        began, servers = asyncio.get_running_loop().time(), self._servers
        self._take(link)
        self._up.set()
        self._attempted.set()
        self._tell_watchers()
        try:
            while (successor := await self._successor(link)) is not None:
                before, link = link, successor
                self._take(link)
                await self._drain_link(before)
            if not self._renewal.is_set():
                self._report_loss(ProblemKind.DISCONNECTED, link.endpoint, link.reason)
        finally:
            self._leave(link)
            await link.close()
        servers.learn(link.siblings)
        return asyncio.get_running_loop().time() - began

    def _take(self, link: Link) -> None:
        self.problems.overcome()
        self._link = link
        log.info("connected to NATS", extra={"event": "bus.connected", "server": link.endpoint.url})

    async def _successor(self, link: Link) -> Link | None:
        """Return a link that takes over from this one, when its credentials are renewed; None when this one is lost."""
        endpoint, failures = link.endpoint, 0
        while True:
            pause = asyncio.sleep(_UNREACHABLE_BACKOFF.delay(failures).total_seconds()) if failures else None
            if await first_done(link.until_lost(_HEARTBEAT, each=self._ask_again), pause or self._exchange.wait()) == 0:
                return None
            successor = await self._opened(endpoint, group=link.group)
            if successor is not None:
                return successor
            endpoint, failures = self._servers.next(), failures + 1

    async def _drain_link(self, link: Link) -> None:
        """Handle what has arrived over a link that was replaced, and close it."""
        try:
            async with task_group() as group:
                for interest in self._interests():
                    group.create_task(interest.drain_on(link, CLOSE_GRACE), name=f"drain {interest.subject}")
            with suppress(BusUnavailable):
                await link.ping()
        finally:
            await link.close()

    def _leave(self, link: Link) -> None:
        if self._link is link:
            self._link = None
            self._up.clear()
            self._tell_watchers()

    async def _ask_again(self, link: Link) -> None:
        for interest in self._interests():
            if interest.is_refused and interest.link is link:
                await interest.establish_again(link)

    def _report_loss(self, kind: ProblemKind, endpoint: Endpoint, reason: str) -> None:
        refused = any(word in reason.lower() for word in ("authorization", "authentication"))
        detail = f"no connection to NATS at {endpoint.url}: {reason}"
        self.problems.report(Problem(kind=ProblemKind.UNAUTHORIZED if refused else kind, detail=detail))

    def _tell_watchers(self) -> None:
        for watcher in list(self._watchers):
            try:
                watcher(self.connected)
            except Exception:
                log.exception("watcher failed", extra={"event": "bus.watcher_failed"})
