"""Identifiers: one type for each noun, and the only place that makes new ones."""

import itertools
import re
import secrets
import uuid
from typing import Final, NewType

NodeId = NewType("NodeId", str)
KeyId = NewType("KeyId", str)
ReplicaId = NewType("ReplicaId", str)
LoadJobId = NewType("LoadJobId", str)
OperationId = NewType("OperationId", str)
FrontendId = NewType("FrontendId", str)
LeaseToken = NewType("LeaseToken", str)
Incarnation = NewType("Incarnation", str)
"""One life of a worker process: new at every start, so that a restart is never mistaken for a pause."""


def new_node_id() -> NodeId:
    return NodeId(str(uuid.uuid4()))


def new_frontend_id() -> FrontendId:
    return FrontendId(str(uuid.uuid4()))


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
    """Short enough to type into `corral keys revoke`, long enough never to collide."""
    return KeyId(secrets.token_hex(6))


def new_secret() -> str:
    """256 bits from the operating system, safe in URLs, headers and environment variables."""
    return secrets.token_urlsafe(32)


REQUEST_ID_HEADER: Final = "X-Request-ID"
_REQUEST_ID: Final = re.compile(rb"[!-~]{1,128}")


class RequestIds:
    """Ids of the requests that one process takes: a word for the process, and a number. Cheap, and no secret."""

    def __init__(self) -> None:
        self._form = b"req-%b-%%x" % secrets.token_hex(6).encode()
        self._next_number = itertools.count(1).__next__

    def new(self) -> bytes:
        return self._form % self._next_number()


def is_request_id(given: bytes) -> bool:
    """Whether an id that a client gave its request can be used: short, and fit for headers and logs."""
    return _REQUEST_ID.fullmatch(given) is not None


def new_answer_id(kind: str) -> str:
    """The id of an answer as OpenAI's clients know them: `chatcmpl-…`."""
    return f"{kind}-{secrets.token_hex(12)}"
