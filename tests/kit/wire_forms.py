"""Which struct stands for which message of LocalAI's protocol, and how a recorded message is held against it.

Every recorded message must find its form here. It is read into the struct; where Corral could be the sender, the struct
is written again and must give the same JSON, up to the order of fields and white space.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import msgspec

from corral.base.errors import InvalidInput
from corral.base.ids import NodeId
from corral.wire import broadcasts, go_json, subjects
from corral.wire.backends import (
    ChangeReply,
    DeleteRequest,
    InstallProgress,
    InstallReply,
    InstallRequest,
    ListReply,
    UpgradeRequest,
)
from corral.wire.files import EnsureRequest, ListedFiles, ListRequest, LocalPathReply, StageReply, StageRequest
from corral.wire.models import ModelCommandReply, ModelDeleteRequest, ModelStopReply, ModelStopRequest, UnloadRequest
from corral.wire.replicas import RunningReply, StopRequest

RecordedMessage = Mapping[str, Any]
Struct = type[msgspec.Struct]


# What LocalAI's frontends also tell each other, and Corral's do not hear yet.


class PrefixObserved(msgspec.Struct, kw_only=True):
    """On `prefixcache.observe`: which replica has seen the beginning of a prompt."""

    model: str = ""
    chain: list[int] = []
    """Hashes of 64 bits without a sign, so many are above what a float can hold."""
    node_id: str = ""
    replica: int = 0


class PrefixForgotten(msgspec.Struct, kw_only=True):
    """On `prefixcache.invalidate`."""

    model: str = ""
    node_id: str = ""
    replica: int = 0
    """Negative: all of that node."""


class NoForm(AssertionError):
    """A recorded message that nothing here stands for."""


class Differs(AssertionError):
    """What we would send is not what LocalAI sent."""


@dataclass(slots=True)
class MessageTally:
    """What was done with messages; each is counted at least once."""

    read: int = 0
    """Requests, replies and events that became structs."""
    written: int = 0
    """Those that were written again, and were the same."""
    refused: int = 0
    """Requests that must not be understood, and were not."""
    unread: int = 0
    """Payloads that are not checked."""
    plain: int = 0
    """Texts and bodies without a structure."""
    unanswered: int = 0
    """Requests without a subscriber."""
    notes: int = 0

    def __str__(self) -> str:
        return ", ".join(f"{getattr(self, field.name)} {field.name}" for field in fields(self))


class SubjectForm(NamedTuple):
    """One subject. Without a request the payload is never looked at; without a reply nothing is answered."""

    subject: Callable[[str, str], str]
    """Builds it from the first and the second variable part."""
    request: Struct | None
    reply: Struct | None = None


def _of_node(build: Callable[[NodeId], str]) -> Callable[[str, str], str]:
    return lambda node, _: build(NodeId(node))


def _fixed(subject: str) -> Callable[[str, str], str]:
    return lambda *_: subject


FORMS: Mapping[str, SubjectForm] = {
    "nodes.*.backend.install": SubjectForm(_of_node(subjects.backend_install), InstallRequest, InstallReply),
    "nodes.*.backend.install.*.progress": SubjectForm(
        lambda node, operation: subjects.install_progress(NodeId(node), operation), InstallProgress
    ),
    "nodes.*.backend.upgrade": SubjectForm(_of_node(subjects.backend_upgrade), UpgradeRequest, ChangeReply),
    "nodes.*.backend.delete": SubjectForm(_of_node(subjects.backend_delete), DeleteRequest, ChangeReply),
    "nodes.*.backend.list": SubjectForm(_of_node(subjects.backend_list), None, ListReply),
    "nodes.*.backend.stop": SubjectForm(_of_node(subjects.backend_stop), StopRequest),
    "nodes.*.models.running": SubjectForm(_of_node(subjects.models_running), None, RunningReply),
    "nodes.*.model.unload": SubjectForm(_of_node(subjects.model_unload), UnloadRequest, ModelCommandReply),
    "nodes.*.model.stop": SubjectForm(_of_node(subjects.model_stop), ModelStopRequest, ModelStopReply),
    "nodes.*.model.delete": SubjectForm(_of_node(subjects.model_delete), ModelDeleteRequest, ModelCommandReply),
    "nodes.*.stop": SubjectForm(_of_node(subjects.node_stop), None),
    "nodes.*.files.ensure": SubjectForm(_of_node(subjects.files_ensure), EnsureRequest, LocalPathReply),
    "nodes.*.files.stage": SubjectForm(_of_node(subjects.files_stage), StageRequest, StageReply),
    "nodes.*.files.temp": SubjectForm(_of_node(subjects.files_temp), None, LocalPathReply),
    "nodes.*.files.listdir": SubjectForm(_of_node(subjects.files_list), ListRequest, ListedFiles),
    "staging.*.progress": SubjectForm(
        lambda model, _: f"staging.{subjects.token(model)}.progress", broadcasts.StagingProgress
    ),
    "gallery.*.progress": SubjectForm(lambda job, _: subjects.operation_progress(job), broadcasts.OperationProgress),
    "gallery.*.cancel": SubjectForm(lambda job, _: subjects.operation_cancel(job), broadcasts.OperationCancel),
    "gallery.opcache.start": SubjectForm(_fixed(subjects.OPERATION_START), broadcasts.OperationMark),
    "gallery.opcache.end": SubjectForm(_fixed(subjects.OPERATION_END), broadcasts.OperationMark),
    "cache.invalidate.models": SubjectForm(_fixed(subjects.INVALIDATE_MODELS), broadcasts.Invalidation),
    "cache.invalidate.backends": SubjectForm(_fixed(subjects.INVALIDATE_BACKENDS), broadcasts.Invalidation),
    "prefixcache.observe": SubjectForm(_fixed("prefixcache.observe"), PrefixObserved),
    "prefixcache.invalidate": SubjectForm(_fixed("prefixcache.invalidate"), PrefixForgotten),
}
"""By their subjects as LocalAI spells them, with stars for the variable parts."""

NOBODY_LISTENS = frozenset({"nodes.*.backend.nothing"})
"""Recorded to show what an unknown subject gives."""


def pattern_of(subject: str) -> tuple[str, list[str]]:
    """The subject with stars, and what the stars stand for."""
    parts = subject.split(".")
    if subject in FORMS:
        return subject, []
    places = [1, 4] if parts[-1] == "progress" and parts[0] == "nodes" else [1]
    values = [parts[place] for place in places]
    return ".".join("*" if number in places else part for number, part in enumerate(parts)), values


def hold_message(message: RecordedMessage, tally: MessageTally) -> str:
    """Hold one message of NATS against its form; which form it was."""
    pattern, values = pattern_of(message["subject"])
    if pattern in NOBODY_LISTENS:
        tally.unanswered += 1
        return pattern
    form = FORMS.get(pattern)
    if form is None:
        raise NoForm(message["subject"])
    if (built := form.subject(*[*values, "", ""][:2])) != message["subject"]:
        raise Differs(f"{built} instead of {message['subject']}")
    _hold_request(pattern, form, message, tally)
    _hold_reply(form, message, tally)
    return pattern


def _hold_request(pattern: str, form: SubjectForm, message: RecordedMessage, tally: MessageTally) -> None:
    data = message["bytes"].encode()
    if form.request is None or (pattern == "nodes.*.backend.stop" and not data):
        tally.unread += 1
    elif _is_unreadable(message):
        must_refuse(data, form.request, tally)
    else:
        hold(data, form.request, tally, ours=message["direction"].startswith("LocalAI"))


def _is_unreadable(message: RecordedMessage) -> bool:
    """By what LocalAI answered; where it answers nothing, by what Python's own reader says."""
    if "reply" in message:
        return str(message["reply"].get("error", "")).startswith("invalid request")
    try:
        return not isinstance(json.loads(message["bytes"]), dict | None)
    except ValueError:
        return True


def _hold_reply(form: SubjectForm, message: RecordedMessage, tally: MessageTally) -> None:
    if "outcome" in message:
        tally.unanswered += 1
    for name, ours in (("reply", True), ("accepted_reply", False)):
        if name in message:
            if form.reply is None:
                raise NoForm(f"a reply to {message['subject']}")
            hold(json.dumps(message[name]).encode(), form.reply, tally, ours=ours)


def hold(data: bytes, struct: Struct, tally: MessageTally, *, ours: bool) -> msgspec.Struct:
    """Read, and where Corral could be the sender write again."""
    message = go_json.decode(data, struct)
    tally.read += 1
    if ours:
        differences = list(differing(json.loads(data) or {}, json.loads(go_json.encode(message))))
        if differences:
            raise Differs("; ".join(differences))
        tally.written += 1
    return message


def must_refuse(data: bytes, struct: Struct, tally: MessageTally) -> None:
    try:
        message = go_json.decode(data, struct)
    except InvalidInput:
        tally.refused += 1
    else:
        raise Differs(f"LocalAI refuses {data!r}, ours reads {message}")


def differing(expected: object, got: object, path: str = "$") -> Iterator[str]:
    """Differences of two documents. Whether a number has a fraction counts; a field `corral` does not."""
    if type(expected) is not type(got):
        yield f"{path}: {got!r} instead of {expected!r}"
    elif isinstance(expected, dict) and isinstance(got, dict):
        for name in [*expected, *(name for name in got if name not in expected and name != "corral")]:
            nothing = object()
            yield from differing(expected.get(name, nothing), got.get(name, nothing), f"{path}.{name}")
    elif isinstance(expected, list) and isinstance(got, list):
        if len(expected) != len(got):
            yield f"{path}: {len(got)} items instead of {len(expected)}"
        for number, (left, right) in enumerate(zip(expected, got, strict=False)):
            yield from differing(left, right, f"{path}[{number}]")
    elif expected != got:
        yield f"{path}: {got!r} instead of {expected!r}"
