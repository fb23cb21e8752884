"""Server-sent events: the one loop behind every stream of the admin API.

A stream ends when its client leaves, when the process stops, when the key that opened it may not read it any more, and
when its source fails. A client that reads slowly holds up nobody: its source is asked again when it has taken all.
"""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import AbstractContextManager, aclosing
from datetime import timedelta
from typing import Final, Protocol

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from corral.base.errors import CorralError
from corral.base.tasks import Poke
from corral.frontend.access.decide import Permission
from corral.frontend.access.principals import Principal, principal_of
from corral.frontend.api.route import AdminContext

log = logging.getLogger(__name__)

STREAM: Final = "text/event-stream"
_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_CHECKED_EVERY: Final = 1.0
"""Seconds between looks at the key of a stream, while things happen that may have ended it."""
_CHECKED_ANYWAY: Final = 10.0
"""Seconds after which it is looked at although nothing was announced: a key may expire."""


_RELAY_RETRY: Final = b"retry: 2000\n\n"
_RELAY_QUIET_SECONDS: Final = 10.0


class StreamSource(Protocol):
    """The source of the events that one reader gets."""

    retry_milliseconds: int
    """How long a browser waits before it comes again."""
    keep_alive: timedelta
    """How long nothing is sent before a comment shows that the stream is alive."""
    comment: bytes

    def listening(self) -> AbstractContextManager[Poke]:
        """A poke that is rung when there may be news."""

    async def news(self) -> Iterable[bytes]:
        """Whole events since the last call."""

    def pause(self) -> timedelta:
        """How long to wait for the poke; none at all when there is more already."""

    def may_go_on(self, principal: Principal) -> bool:
        """Whether this caller may still read all of it."""


def stream_response(context: AdminContext, request: Request, source: StreamSource) -> Response:
    return StreamingResponse(_stream(context, request, source), media_type=STREAM, headers=_HEADERS)


async def _stream(context: AdminContext, request: Request, source: StreamSource) -> AsyncIterator[bytes]:
    clock, standing = context.clock, _Standing(context, request)
    with source.listening() as poke:
        yield b"retry: %d\n\n" % source.retry_milliseconds
        quiet_since = clock.monotonic()
        while not context.stopping.is_set():
            try:
                if not await standing.lasts(source.may_go_on):
                    return
                news = await source.news()
            except CorralError as error:
                about = {"event": "stream.ended", "path": request.url.path, "reason": str(error)}
                log.warning("a stream of events ended", extra=about)
                return
            for event in news:
                yield event
                quiet_since = clock.monotonic()
            if clock.monotonic() - quiet_since >= source.keep_alive.total_seconds():
                quiet_since = clock.monotonic()
                yield source.comment
            if pause := min(source.pause(), source.keep_alive, standing.pause()):
                await poke.wait(clock, pause)


def relay_response(
    context: AdminContext,
    request: Request,
    events: AsyncGenerator[bytes | None, None],
    *,
    permission: Permission,
) -> Response:
    """A stream of what somebody else tells, such as a worker: whole events as they come, and None every second or so
    while none comes. It ends as other streams do, and with `events`, which are closed in any case."""
    return StreamingResponse(_relay(context, request, events, permission), media_type=STREAM, headers=_HEADERS)


async def _relay(
    context: AdminContext, request: Request, events: AsyncGenerator[bytes | None, None], permission: Permission
) -> AsyncIterator[bytes]:
    clock, standing = context.clock, _Standing(context, request)
    async with aclosing(events):
        yield _RELAY_RETRY
        quiet_since = clock.monotonic()
        async for event in events:
            if context.stopping.is_set() or not await standing.lasts(lambda principal: principal.can(permission)):
                return
            if event is not None:
                yield event
                quiet_since = clock.monotonic()
            elif clock.monotonic() - quiet_since >= _RELAY_QUIET_SECONDS:
                yield b": still here\n\n"
                quiet_since = clock.monotonic()


class _Standing:
    """Whether the caller of a stream may go on reading it.

    Its key is looked at when something was announced since the last time, since every end of a key is, at most once a
    second; and after ten seconds in any case.
    """

    def __init__(self, context: AdminContext, request: Request) -> None:
        self._feed = context.record.feed
        self._clock = context.clock
        self._headers = request.headers
        self._authenticator = context.access.authenticator
        self._rings = self._feed.rings
        self._checked_at = self._clock.monotonic() - _CHECKED_EVERY

    async def lasts(self, may_go_on: Callable[[Principal], bool]) -> bool:
        now, rings = self._clock.monotonic(), self._feed.rings
        passed = now - self._checked_at
        if passed < (_CHECKED_ANYWAY if rings == self._rings else _CHECKED_EVERY):
            return True
        try:
            principal = await principal_of(self._headers, self._authenticator)
        except CorralError:
            return True  # a database that is away revokes nothing
        self._checked_at, self._rings = now, rings
        return principal is not None and may_go_on(principal)

    def pause(self) -> timedelta:
        """How long nobody needs to look at the key."""
        return timedelta(seconds=_CHECKED_ANYWAY if self._feed.rings == self._rings else _CHECKED_EVERY)
