"""Sentences about operations: how each target stands, what to do about it, and how the operation ended."""

from collections.abc import Callable, Iterable, Sequence
from shlex import quote
from typing import Final

from corral.base.words import format_size, listed
from corral.cli.units import SHORT_ID
from corral.frontend.operations.decide.intent import Verb
from corral.frontend.operations.decide.operation import FINAL, OperationState, TargetStatus
from corral.frontend.operations.decide.reasons import ReasonCode
from corral.frontend.serving.staging.decide.staged import ON_NODE_BEFORE
from corral.processes.exit_codes import ExitCode
from corral.wire.operation_views import OperationView, TargetView
from corral.wire.state_words import PROOFS, target_word

_NAMED: Final = 5
_BAD: Final = (TargetStatus.ERROR, TargetStatus.BLOCKED)
_OF_FILES: Final = (Verb.PULL, Verb.STAGE)
"""What a frontend does itself, and ends when somebody cancels it."""
_DONE: Final = {
    "install": "installed",
    "upgrade": "upgraded",
    "delete": "deleted",
    "remove": "removed",
    "pull": "downloaded",
    "stage": "brought",
}
_UNCHANGED: Final = {
    "install": "was there already on",
    "upgrade": "is the newest already on",
    "delete": "was not on",
    "stage": "was there already on",
}
"""Phrases about nodes that already were as requested."""
_NOTHING_CHANGED: Final = {
    "install": "was there already on {nodes}; nothing was fetched",
    "upgrade": "is the newest already on {nodes}; nothing was changed",
    "delete": "no node that was meant has it; nothing was deleted",
    "pull": "was there already, whole; nothing was downloaded",
    "stage": "was there already on {nodes}; nothing was sent",
}
_CODES: Final = {
    OperationState.RUNNING: ExitCode.STILL_RUNNING,
    OperationState.WAITING: ExitCode.OK,
    OperationState.DONE: ExitCode.OK,
    OperationState.FAILED: ExitCode.FAILED,
    OperationState.CANCELLED: ExitCode.FAILED,
}
_PULL_ADVICE: Final = {
    TargetStatus.DOWNLOADING: "Nothing to do. How far it is shows: corral ops watch {id}; to stop it: corral ops "
    "cancel {id}",
    TargetStatus.ERROR: "It is tried again by itself, after 30 s to 15 min, and what is there already is not fetched "
    "again; this does not wait: corral ops retry {id}",
}
"""What to do about a pull or a staging, for the states where it is not what `_ADVICE` says."""
_ADVICE: Final = {
    TargetStatus.QUEUED: "Nothing to do: it is sent within a moment.",
    TargetStatus.DOWNLOADING: "Nothing to do. How far it is shows: corral ops watch {id}",
    TargetStatus.RUNNING_ON_WORKER: "Nothing to do: the node's own report will settle it. If this is normal for your "
    "fleet, give the frontend a longer --install-timeout or --upgrade-timeout.",
    TargetStatus.ERROR: "Mend what the node complains about. It is tried again by itself, after 30 s to 15 min; this "
    "does not wait: corral ops retry {id}; if it is not wanted after all: corral ops cancel {id}",
    TargetStatus.BLOCKED: "It is not tried again by itself. Mend the cause, then: corral ops retry {id}; if it is not "
    "wanted after all: corral ops cancel {id}",
    TargetStatus.SUPERSEDED: "Nothing to do: a newer operation decides what is there; see: corral ops list",
    TargetStatus.CANCELLED: "If you still want it, start it again: {command}",
}
_CONTRADICTED_ADVICE: Final = (
    "The node's own report counts, and shows something else than its answer. Look into the log of its worker for the "
    "reason. It is tried again by itself, after 30 s to 15 min; this does not wait: corral ops retry {id}"
)
_UNPROVABLE_ADVICE: Final = (
    "It may well have been replaced, but this worker reports too little to know. To be sure, delete it there and "
    "install it again, of which both can be seen: corral backends delete {backend} --node …, then corral backends "
    "install {backend} --node …"
)
_KEPT_ADVICE: Final = "What the node has of the model stays there. Delete it on the machine if it is in the way."
_WAITS_ADVICE: Final = (
    "Nothing to do: the node gets it with its first heartbeat. If it never comes back, remove it (corral nodes "
    "remove), or take it back: corral ops cancel {id}"
)


def is_over(operation: OperationView) -> bool:
    """Whether there is nothing left to watch. Waiting for an absent node may take days and does not count."""
    return operation.state != OperationState.RUNNING


def exit_code(operation: OperationView) -> ExitCode:
    """The exit code of a command that watched it. An unknown state, of a newer frontend, counts as running."""
    is_known = operation.state in list(OperationState)
    return _CODES[OperationState(operation.state)] if is_known else ExitCode.STILL_RUNNING


def waits(target: TargetView) -> bool:
    """Whether the target waits for its node to come back."""
    return target.waits_for_node and target.status not in FINAL


def situation(target: TargetView, verb: str) -> str:
    """How a target stands, as a phrase."""
    if waits(target):
        return "waits for the node to come back" + (f"; last: {target.message}" if target.message else "")
    match target.status:
        case TargetStatus.QUEUED:
            return target.message or "about to be sent"
        case TargetStatus.DOWNLOADING:
            return _moving(target) or ("being looked at" if verb in _OF_FILES else f"the node was asked to {verb} it")
        case TargetStatus.RUNNING_ON_WORKER:
            return target.message or "no answer in time; the node may still be working"
        case TargetStatus.SUCCESS if (proof := PROOFS.get(target.reason_fields.get("rung", ""))) is not None:
            if not is_unchanged(target):
                return proof
            return f"nothing was asked: {'it was not there' if verb == Verb.DELETE else proof}"
        case TargetStatus.ERROR:
            return f"{target.message or 'failed'} ({_times(target.attempts)})"
        case TargetStatus.SUPERSEDED:
            return target.message or "a newer operation wants something else there"
    return target.message


def is_unchanged(target: TargetView) -> bool:
    """Whether the node already was as requested, so that nothing was sent to it."""
    is_there = target.reason_code == ReasonCode.ALREADY or target.reason_fields.get("rung") == ON_NODE_BEFORE
    return target.status == TargetStatus.SUCCESS and is_there


def _times(attempts: int) -> str:
    return "tried once" if attempts == 1 else f"tried {attempts} times"


def _moving(target: TargetView) -> str:
    return " ".join(filter(None, (step(target), amount(target))))


def amount(target: TargetView) -> str:
    """Progress as `3.0 MiB of 9.0 MiB`; empty when the node does not report it."""
    if not target.total_bytes:
        return ""
    return f"{format_size(target.current_bytes)} of {format_size(target.total_bytes)}"


def step(target: TargetView) -> str:
    """The phase and the file that the node reports."""
    # Corral's workers begin the name with the phase, for LocalAI's frontends, which show nothing else.
    begun = target.file_name.lower().startswith(target.phase.lower())
    return " ".join(filter(None, ("" if begun else target.phase, target.file_name)))


def advice(operation: OperationView) -> list[tuple[str, str]]:
    """What to do next: names of nodes, and one sentence for them."""
    groups: dict[str, list[str]] = {}
    for target in operation.targets:
        if sentence := _advice(target, operation):
            groups.setdefault(sentence, []).append(target.node_name)
    return [(listed(names), sentence) for sentence, names in groups.items()]


def _advice(target: TargetView, operation: OperationView) -> str:
    status = TargetStatus(target.status) if target.status in list(TargetStatus) else None
    if status is TargetStatus.CANCELLED and operation.verb == Verb.REMOVE:
        return _KEPT_ADVICE
    if waits(target):
        sentence = _WAITS_ADVICE
    elif status is TargetStatus.ERROR and target.reason_code == ReasonCode.CONTRADICTED:
        sentence = _CONTRADICTED_ADVICE
    elif status is TargetStatus.BLOCKED and target.reason_code == ReasonCode.UNPROVABLE:
        sentence = _UNPROVABLE_ADVICE
    elif status is not None and operation.verb in _OF_FILES and status in _PULL_ADVICE:
        sentence = _PULL_ADVICE[status]
    else:
        sentence = _ADVICE.get(status, "") if status else ""
    return sentence.format(
        id=operation.id[:SHORT_ID], backend=quote(operation.backend), command=_command_again(operation)
    )


def _command_again(operation: OperationView) -> str:
    """The command that starts the operation again."""
    name = quote(operation.backend)
    if operation.verb == Verb.PULL:
        return (
            f"corral models pull {quote(operation.uri)} --name {name}"
            if operation.uri
            else f"corral models pull {name}"
        )
    if operation.verb == Verb.STAGE:
        return f"corral models stage {name} --node …"
    if operation.verb == Verb.INSTALL and operation.uri:
        return f"corral backends install --uri {quote(operation.uri)} --name {name}"
    return f"corral backends {operation.verb} {name}"


def summary(operation: OperationView) -> str:
    """How the operation stands, in one or two sentences."""
    targets = operation.targets
    done = _names(targets, lambda target: target.status == TargetStatus.SUCCESS and not is_unchanged(target))
    unchanged = _names(targets, is_unchanged)
    away = _names(targets, waits)
    failed = _names(targets, lambda target: target.status == TargetStatus.ERROR and not waits(target))
    blocked = _names(targets, lambda target: target.status == TargetStatus.BLOCKED)
    busy = _names(targets, lambda target: target.status not in (*FINAL, *_BAD) and not waits(target))
    withdrawn = _names(targets, lambda target: target.status in ("cancelled", "superseded"))
    verb = operation.verb
    if not targets:
        return f"{operation.backend}: {_DONE.get(verb, verb)}; no node had to do anything."
    if len(unchanged) == len(targets) and verb in _NOTHING_CHANGED:
        return f"{operation.backend}: {_NOTHING_CHANGED[verb].format(nodes=_count(unchanged))}."
    parts = [
        f"{_DONE.get(verb, verb)} {_to(verb)} {_count(done)}" if done else "",
        f"{_UNCHANGED.get(verb, 'done already on')} {_count(unchanged)}" if unchanged else "",
        f"failed on {listed(failed)}" if failed else "",
        f"blocked on {listed(blocked)}" if blocked else "",
        f"under way on {listed(busy)}" if busy else "",
        f"waiting for {listed(away)} to come back, which is no failure" if away else "",
        f"no longer wanted on {listed(withdrawn)}" if withdrawn else "",
    ]
    return f"{operation.backend}: {'; '.join(filter(None, parts)) or 'nothing to do'}."


def problems(operation: OperationView) -> list[str]:
    """The full errors of some targets, because a bar has no room for them."""
    bad = [target for target in operation.targets if target.status in _BAD and not waits(target)]
    lines = [f"{target.node_name}: {situation(target, operation.verb)}" for target in bad[:_NAMED]]
    return [*lines, f"{len(bad) - _NAMED} more nodes failed"] if len(bad) > _NAMED else lines


def what_next(operation: OperationView) -> str:
    """A hint for a person who stops watching; empty when nothing is left to do."""
    id = operation.id[:SHORT_ID]
    if not is_over(operation):
        stop = f"; stop it with: corral ops cancel {id}" if operation.verb in _OF_FILES else ""
        return f"It goes on without this command. Watch it again with: corral ops watch {id}{stop}"
    return f"See what to do about it: corral ops show {id}" if operation.state == OperationState.FAILED else ""


def accepted(operation: OperationView) -> str:
    """The sentence that an operation was accepted."""
    places = listed([target.node_name for target in operation.targets]) or "no node"
    verb = operation.verb
    return f"Operation {operation.id[:SHORT_ID]}: {verb} {operation.backend} {_to(verb)} {places}."


def _to(verb: str) -> str:
    return {Verb.PULL: "into", Verb.STAGE: "to"}.get(Verb(verb), "on") if verb in list(Verb) else "on"


def _names(targets: Iterable[TargetView], fits: Callable[[TargetView], bool]) -> list[str]:
    return [target.node_name for target in targets if fits(target)]


def _count(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} nodes"


def counts(operation: OperationView) -> str:
    """Targets by status, as `3 done, 1 failed`."""
    away = sum(map(waits, operation.targets))
    text = ", ".join(
        f"{number} {target_word(status, operation.verb).inline}" for status, number in sorted(operation.counts.items())
    )
    return f"{text} ({away} for absent nodes)" if away else text
