"""Tickets: with one, a node fetches one file of one other node, for some minutes.

Control makes a ticket with a key that is derived from the secret of the node that serves the file. That node can check
it by itself, and no node ever learns the secret of another one.
"""

import base64
import binascii
import hashlib
import hmac
from typing import Final, Literal

import msgspec

SCHEME: Final = "Corral-Ticket"
"""In the header `Authorization`, in place of `Bearer`."""
NODE_HEADER: Final = "X-Corral-Node"
"""Which node fetches: the one that the ticket names."""
LASTS_SECONDS: Final = 600
"""Long enough to connect after waiting for a free thread; a transfer that has begun may take longer."""
_PURPOSE: Final = b"corral file ticket, version 1"
_LONGEST: Final = 8192


class FileTicket(msgspec.Struct, frozen=True, kw_only=True):
    """The file, node and time that a ticket is valid for."""

    key: str
    """The one file, as its server knows it."""
    digest: str
    """Its SHA-256; it is served only while it has this one."""
    size: int
    server: str
    """The id of the node that serves it."""
    fetcher: str
    """The id of the node that fetches it."""
    expires: int
    """End of validity, in seconds since 1970."""


TicketProblem = Literal["", "malformed", "forged", "expired", "for another file", "for another node"]
"""Why a ticket is refused; empty for a valid one."""


def issue(ticket: FileTicket, secret: str) -> str:
    """The ticket as it goes into a header, for the node with this secret to check."""
    content = base64.urlsafe_b64encode(msgspec.json.encode(ticket)).rstrip(b"=")
    return f"{content.decode()}.{_mac(content, secret)}"


def check(text: str, secret: str, *, key: str, fetcher: str, now: float) -> tuple[FileTicket | None, TicketProblem]:
    """What a ticket allows, if it is good for this file and this node now; else why it is not.

    Nothing is read of a ticket before its code is compared, in constant time.
    """
    content, _, mac = text.partition(".")
    if len(text) > _LONGEST or not text.isascii() or not secret:
        return None, "malformed"
    if not hmac.compare_digest(mac.encode(), _mac(content.encode(), secret).encode()):
        return None, "forged"
    try:
        padded = content + "=" * (-len(content) % 4)
        ticket = msgspec.json.decode(base64.urlsafe_b64decode(padded), type=FileTicket)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        return None, "malformed"
    if now >= ticket.expires:
        return None, "expired"
    if ticket.key != key:
        return None, "for another file"
    return (ticket, "") if ticket.fetcher == fetcher else (None, "for another node")


def _mac(content: bytes, secret: str) -> str:
    key = hmac.new(secret.encode(), _PURPOSE, hashlib.sha256).digest()
    return hmac.new(key, content, hashlib.sha256).hexdigest()
