"""Accepts connections, many in one turn of the event loop.

uvloop's own servers accept one in each turn. A turn of a busy process takes milliseconds, so that the last of a hundred
clients that come together would wait for seconds before anybody reads what it asks.
"""

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Final

_AT_ONCE: Final = 64
"""Connections accepted in one turn of the loop. Connections evicted to make room are closed in the next turn."""
_PAUSE_SECONDS: Final = 0.1
"""Pause after an accept failed for lack of descriptors: the listener stays readable, so the loop would spin."""
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Acceptor:
    """Watches a listening socket until it is closed, and owns that socket.

    `take` gets each connection and the address of its peer. `failed` is called when the process, or the machine, has no
    descriptors or memory for more; accepting goes on after a pause.
    """

    def __init__(
        self,
        listener: socket.socket,
        take: Callable[[socket.socket, object], None],
        *,
        failed: Callable[[OSError], None],
    ) -> None:
        self._listener = listener
        self._take = take
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._resuming: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self._watch()

    def close(self) -> None:
        if self._resuming is not None:
            self._resuming.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()

    def _watch(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, peer = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._failed(error)
                    self._loop.remove_reader(self._listener)
                    self._resuming = self._loop.call_later(_PAUSE_SECONDS, self._watch)
                    return
                continue  # the client left before it was accepted
            accepted.setblocking(False)
            self._take(accepted, peer)
