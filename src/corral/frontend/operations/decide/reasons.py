"""Reasons: why a target or an intent stands as it does, as a code with fields. Words are made of it where people read.

The kinds of intents (backends, models) and those who hold requests back (serving) have their codes here too, so that
each stored code has exactly one sentence.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec


class ReasonCode(StrEnum):
    """Codes are stored and sent to clients: they are never renamed."""

    OTHER = "other"
    """Only a text is known: rows from before schema 0011, and codes of a newer frontend."""
    # Proofs. `rung` says how strong it is.
    PROVEN = "proven"
    ALREADY = "already"
    """The node was as requested before it was asked."""
    # Any kind.
    EARLIER_REQUEST = "earlier_request"
    CONTRADICTED = "contradicted"
    NOT_REPORTED = "not_reported"
    NO_ANSWER = "no_answer"
    NODE_SAID = "node_said"
    CALL_FAILED = "call_failed"
    CANCELLED = "cancelled"
    CANCELLED_TOO_LATE = "cancelled_too_late"
    NODE_GONE = "node_gone"
    # Backends.
    BACKEND_MISSING = "backend_missing"
    BACKEND_LEFT = "backend_left"
    CANNOT_DELETE = "cannot_delete"
    CANNOT_REPLACE = "cannot_replace"
    UNPROVABLE = "unprovable"
    NOT_REPLACED = "not_replaced"
    INSTALLED_FROM_ELSEWHERE = "installed_from_elsewhere"
    OTHER_SOURCE = "other_source"
    OTHER_DIGEST = "other_digest"
    OTHER_VERSION = "other_version"
    DOES_NOT_FIT = "does_not_fit"
    # Models.
    NOT_ASKED = "not_asked"
    MODEL_ADDED_AGAIN = "model_added_again"
    SHARED_DIRECTORY = "shared_directory"
    # Files of models in a store.
    STORE_AWAY = "store_away"
    FILES_MISSING = "files_missing"
    MODEL_NOT_ADDED = "model_not_added"
    # Replicas that hold a request back.
    RELOADED_ELSEWHERE_FIRST = "reloaded_elsewhere_first"
    DRAINED_FIRST = "drained_first"
    REQUESTS_END_FIRST = "requests_end_first"
    REPLICA_ENDS_FIRST = "replica_ends_first"
    BEING_LOADED = "being_loaded"

    @classmethod
    def _missing_(cls, value: object) -> "ReasonCode":
        return cls.OTHER


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    code: ReasonCode
    fields: "Mapping[str, str | Reason]" = msgspec.field(default_factory=dict)
    """What the sentence of the code names; a field may be a reason itself."""


def because(code: ReasonCode, **fields: str | Reason) -> Reason:
    return Reason(code=code, fields=fields)


_SENTENCES: Final[Mapping[ReasonCode, str]] = {
    ReasonCode.PROVEN: "{rung}",
    ReasonCode.ALREADY: "already {rung}",
    ReasonCode.EARLIER_REQUEST: "an earlier request may still be running on the node",
    ReasonCode.CONTRADICTED: "the node says that it is done, but {proof}",
    ReasonCode.NOT_REPORTED: "the node says that it is done, and does not tell what it has",
    ReasonCode.NO_ANSWER: "no answer within {seconds} s; the node may still be working",
    ReasonCode.NODE_SAID: "{text}",
    ReasonCode.CALL_FAILED: "{text}",
    ReasonCode.CANCELLED: "cancelled by {by}",
    ReasonCode.CANCELLED_TOO_LATE: "{why}; it had been sent, and the node may still finish it",
    ReasonCode.NODE_GONE: "{why}",
    ReasonCode.BACKEND_MISSING: "the node does not have {backend}",
    ReasonCode.BACKEND_LEFT: "the node still has {backends}",
    ReasonCode.CANNOT_DELETE: "{backends} came with the machine and cannot be deleted",
    ReasonCode.CANNOT_REPLACE: "{backend} came with the machine and cannot be replaced",
    ReasonCode.UNPROVABLE: "the node tells neither a digest nor a date of {backend}: "
    "nothing can prove that it was replaced",
    ReasonCode.NOT_REPLACED: "{backend} is still the one of {installed_at}",
    ReasonCode.INSTALLED_FROM_ELSEWHERE: "the node has {backend} from {uri}, not from {wanted}",
    ReasonCode.OTHER_SOURCE: "{backend} comes from {uri}, not from {wanted}",
    ReasonCode.OTHER_DIGEST: "{backend} has the digest {digest}, not {wanted}",
    ReasonCode.OTHER_VERSION: "{backend} has the version {version}, not {wanted}",
    ReasonCode.DOES_NOT_FIT: "{text}",
    ReasonCode.NOT_ASKED: "the node was not asked yet",
    ReasonCode.MODEL_ADDED_AGAIN: "the model was added again",
    ReasonCode.SHARED_DIRECTORY: "a node that shares the models directory would also delete {danger}; "
    "a retry sends it all the same",
    ReasonCode.STORE_AWAY: "waits for a frontend that has this models directory; none is running",
    ReasonCode.FILES_MISSING: "{count} of {total} files are not there yet: {path}",
    ReasonCode.MODEL_NOT_ADDED: "all files are there, and the model {model} is not added yet",
    ReasonCode.RELOADED_ELSEWHERE_FIRST: "waits until {model} is loaded again on another node",
    ReasonCode.DRAINED_FIRST: "replicas are taken out of service first",
    ReasonCode.REQUESTS_END_FIRST: "requests for {model} end first",
    ReasonCode.REPLICA_ENDS_FIRST: "the replica of {model} there ends first",
    ReasonCode.BEING_LOADED: "{model} is being loaded",
}


def sentence(reason: Reason | None) -> str:
    """The reason in the words that the API, LocalAI's clients and logs carry; empty when there is none."""
    if reason is None:
        return ""
    fields = {name: sentence(value) if isinstance(value, Reason) else value for name, value in reason.fields.items()}
    if reason.code is ReasonCode.OTHER:  # the sentence of a newer frontend's code is not known here
        return ", ".join(fields.values())
    return _SENTENCES[reason.code].format(**fields)
