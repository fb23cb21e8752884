"""Identifiers: one type for each noun, the only place that makes new ones, and how callers are distinguished."""

import ipaddress
import itertools
import re
import secrets
import uuid
from typing import Final, NewType

NodeId = NewType("NodeId", str)
KeyId = NewType("KeyId", str)
UserId = NewType("UserId", str)
ReplicaId = NewType("ReplicaId", str)
LoadJobId = NewType("LoadJobId", str)
OperationId = NewType("OperationId", str)
FrontendId = NewType("FrontendId", str)
InvitationId = NewType("InvitationId", str)
SessionId = NewType("SessionId", str)
LeaseToken = NewType("LeaseToken", str)
Incarnation = NewType("Incarnation", str)
"""One run of a worker process: new at every start, so that a restart is never mistaken for a pause."""


def new_node_id() -> NodeId:
    return NodeId(str(uuid.uuid4()))


def new_frontend_id() -> FrontendId:
    return FrontendId(str(uuid.uuid4()))


def new_hub_id() -> str:
    """Return an id for the versions that one control process counts; it is not secret."""
    return secrets.token_hex(6)


def new_store_id() -> str:
    return str(uuid.uuid4())


def new_replica_id() -> ReplicaId:
    return ReplicaId(str(uuid.uuid4()))


def new_load_job_id() -> LoadJobId:
    return LoadJobId(str(uuid.uuid4()))


def new_operation_id() -> OperationId:
    return OperationId(str(uuid.uuid4()))


def new_lease_token() -> LeaseToken:
    return LeaseToken(str(uuid.uuid4()))


def new_incarnation() -> Incarnation:
    return Incarnation(str(uuid.uuid4()))


def new_key_id() -> KeyId:
    """Return an id that is short enough to type into `corral keys revoke`, and long enough never to collide."""
    return KeyId(secrets.token_hex(6))


def new_invitation_id() -> InvitationId:
    """Return an id that is short enough to type into `corral nodes uninvite`; it is not secret."""
    return InvitationId(secrets.token_hex(6))


def new_session_id() -> SessionId:
    """Return an id by which people end a session; it is not secret, and is not what the browser holds."""
    return SessionId(secrets.token_hex(6))


def new_user_id() -> UserId:
    return UserId(str(uuid.uuid4()))


def new_secret() -> str:
    """Return 256 random bits as text that is safe in URLs, headers and environment variables."""
    return secrets.token_urlsafe(32)


REQUEST_ID_HEADER: Final = "X-Request-ID"
_REQUEST_ID: Final = re.compile(rb"[!-~]{1,128}")


def id_line(id: bytes) -> bytes:
    return b"%b: %b\r\n" % (REQUEST_ID_HEADER.encode(), id)


class RequestIds:
    """Makes request ids for one process: a random prefix and a counter. Cheap to make, and not secret."""

    def __init__(self) -> None:
        self._form = b"req-%b-%%x" % secrets.token_hex(6).encode()
        self._line = id_line(self._form)
        self._next_number = itertools.count(1).__next__

    def new(self) -> bytes:
        return self._form % self._next_number()

    def new_line(self) -> bytes:
        """Return the complete header line of a new id."""
        return self._line % self._next_number()


def is_request_id(text: bytes) -> bool:
    """Whether a client's own request id can be used: short, and safe in headers and logs."""
    return _REQUEST_ID.fullmatch(text) is not None


def new_answer_id(kind: str) -> str:
    """Return an id in the format of OpenAI's answers, such as `chatcmpl-…`."""
    return f"{kind}-{secrets.token_hex(12)}"


def new_response_id(kind: str) -> str:
    """Return an id in the format of OpenAI's responses and their items, such as `resp_…`."""
    return f"{kind}_{secrets.token_hex(24)}"


IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
_SOURCE_PREFIX: Final = 64
"""Prefix length of IPv6 networks that count as one source: a customer usually has all addresses of a /64."""


def source_of(host: str) -> str:
    """Return the address, or the /64 network of an IPv6 address, under which its calls are counted."""
    if ":" not in host:
        return host
    address = parsed_ip(host)
    if not isinstance(address, ipaddress.IPv6Address):
        return host if address is None else str(address)
    return str(ipaddress.IPv6Network((int(address), _SOURCE_PREFIX), strict=False))


def is_same_source(source: str, other: str) -> bool:
    """Whether two sources, as `source_of` gives them, may be the same machine: a machine calls itself from any of its
    loopback addresses."""
    return source == other or (_is_loopback_source(source) and _is_loopback_source(other))


def _is_loopback_source(source: str) -> bool:
    address = parsed_ip(source.partition("/")[0])
    return source == _LOOPBACK_V6 or (address is not None and address.is_loopback)


def parsed_ip(text: str) -> IpAddress | None:
    """Parse an IP address; None when it is not one. IPv4-mapped IPv6 addresses become IPv4."""
    try:
        address = ipaddress.ip_address(text.strip().strip("[]").partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


_LOOPBACK_V6: Final = source_of("::1")
