"""The connections of the worker's HTTP server, and limits for those whose callers have shown no token."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from corral.worker.callers import CallerLimits, UnknownCallers


class GuardedServer(web.Server):
    """Closes a connection whose first head does not come in time, and the oldest strangers where there are too many.

    A caller is a stranger until `identify` is called for one of its requests.
    """

    def __init__(
        self,
        answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        limits: CallerLimits,
        **options: Any,
    ) -> None:
        super().__init__(answer, **options)
        self._limits = limits
        self._unknown: UnknownCallers[asyncio.Transport] = UnknownCallers(limits)
        self._transports: dict[web.RequestHandler, asyncio.Transport] = {}
        self._deadlines: dict[web.RequestHandler, asyncio.TimerHandle] = {}

    def note_head(self, request: web.BaseRequest) -> None:
        """The head of a request is complete, whoever sent it."""
        if (deadline := self._deadlines.pop(request.protocol, None)) is not None:
            deadline.cancel()
        if (transport := self._transports.get(request.protocol)) is not None:
            self._unknown.note_words(transport)

    def identify(self, request: web.BaseRequest) -> None:
        """The request shows that its sender may be here: leave its connection alone from now on."""
        if (transport := self._transports.get(request.protocol)) is not None:
            self._unknown.forget(transport)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        peer = transport.get_extra_info("peername")
        superfluous = self._unknown.admit(transport, str(peer[0]) if isinstance(peer, tuple) and peer else "")
        if superfluous is not None:
            superfluous.abort()
        self._transports[handler] = transport
        loop = asyncio.get_running_loop()
        self._deadlines[handler] = loop.call_later(self._limits.opening_seconds, transport.abort)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        if (deadline := self._deadlines.pop(handler, None)) is not None:
            deadline.cancel()
        if (transport := self._transports.pop(handler, None)) is not None:
            self._unknown.forget(transport)
