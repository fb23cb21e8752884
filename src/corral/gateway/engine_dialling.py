"""Opens connections to engines that somebody else runs.

Their names are looked up here, and the connection is made to an address that was checked: a name that led elsewhere
when an administrator wrote it down leads nowhere it must not.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Final

from corral.base.own_network import ForbiddenAddress, allowed_addresses
from corral.gateway.upstream import Origin, UpstreamConnection

_MOST_CONTEXTS: Final = 256
_LONGEST_TRY: Final = 1.0
_LONGEST_TRIES: Final = 3.0
"""Seconds for one address that is not the last, and for all of those. Less than a connection may take, so that one that
never answers, such as that of a broken IPv6 network, leaves time for the next."""


class EngineDialler:
    def __init__(self, loop: asyncio.AbstractEventLoop, *, is_ours: Callable[[str, int], bool]) -> None:
        """`is_ours` says whether a process of Corral's listens at an address and port."""
        self._loop = loop
        self._is_ours = is_ours
        self._contexts: dict[str, ssl.SSLContext] = {}

    async def dial(self, make: Callable[[], UpstreamConnection], origin: Origin) -> UpstreamConnection:
        """Return a connection to the first address that takes one. Raise OSError when none does, or none may."""
        addresses = await allowed_addresses(origin.host, origin.port)
        for address in addresses:
            if self._is_ours(address, origin.port):
                raise ForbiddenAddress(f"Corral itself listens at {address}, port {origin.port}")
        tls = self._context(origin.engine_ca or "") if origin.tls else None
        server = origin.host if origin.tls else None
        failure: OSError = OSError(f"{origin.host} has no address")
        share = min(_LONGEST_TRY, _LONGEST_TRIES / len(addresses)) if addresses else None
        for address in addresses:
            try:
                async with asyncio.timeout(None if address == addresses[-1] else share):
                    _, connection = await self._loop.create_connection(
                        make, address, origin.port, ssl=tls, server_hostname=server
                    )
            except OSError as error:
                failure = error
            else:
                return connection
        raise failure

    def _context(self, ca: str) -> ssl.SSLContext:
        context = self._contexts.get(ca)
        if context is None:
            context = ssl.create_default_context(cadata=ca or None)
            context.set_alpn_protocols(["http/1.1"])
            if len(self._contexts) >= _MOST_CONTEXTS:
                self._contexts.clear()
            self._contexts[ca] = context
        return context
