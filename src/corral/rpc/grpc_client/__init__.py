"""A gRPC client on asyncio's event loop, with HTTP/2 of its own: see README.md beside this file.

It is a package that could stand alone: it imports the standard library and `hpack`, and nothing else.
"""

from .call import MAX_MESSAGE_BYTES, Call, CallFailed, Code, Status
from .channel import CONNECT_SECONDS, Channel, Tls
from .keepalive import NO_KEEPALIVE, Keepalive

__all__ = [
    "CONNECT_SECONDS",
    "MAX_MESSAGE_BYTES",
    "NO_KEEPALIVE",
    "Call",
    "CallFailed",
    "Channel",
    "Code",
    "Keepalive",
    "Status",
    "Tls",
]
