"""Watches an operation until it ends: as bars on a terminal, as lines in a log, or silently."""

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import wraps
from typing import Any, Final

import click
import msgspec

from corral.base.errors import PeerUnavailable
from corral.base.retry import Backoff
from corral.base.words import printable
from corral.cli.client import ApiClient, api_path
from corral.cli.operations.bars import FileSpeeds, bars, file_amount, percentage
from corral.cli.operations.words import (
    accepted,
    exit_code,
    is_over,
    problems,
    situation,
    summary,
    what_next,
)
from corral.cli.options import warn
from corral.cli.output import console, json_option, print_json, print_json_list, say
from corral.cli.units import DurationParameter
from corral.frontend.operations.decide.operation import TargetStatus
from corral.processes.exit_codes import ExitCode
from corral.wire.operation_views import OperationUpdate, OperationView, TargetView
from corral.wire.state_words import Subject, state_word, target_word

PAUSES: Final = Backoff(first=timedelta(milliseconds=500), cap=timedelta(seconds=2), factor=1.5)
"""Pauses before a broken stream is opened again."""
PATIENCE: Final = timedelta(minutes=1)
"""How long a frontend may not answer: it may be restarting."""
_LEAST_SECONDS: Final = 0.1


class Watching(msgspec.Struct, frozen=True, kw_only=True):
    """How the caller of a command wants to watch an operation."""

    wait: bool
    within: timedelta | None
    as_json: bool


within_option = click.option(
    "--within",
    type=DurationParameter(),
    metavar="DURATION",
    help="Watch no longer than this, then end with code 2; the operation goes on.",
)


def wait_options(function: Callable[..., int | None]) -> Callable[..., object]:
    """Adds --no-wait, --within and --json, and passes them on as one `watching`."""

    @wraps(function)
    def command(no_wait: bool, within: timedelta | None, as_json: bool, **arguments: Any) -> object:
        return function(watching=Watching(wait=not no_wait, within=within, as_json=as_json), **arguments)

    no_wait = click.option("--no-wait", is_flag=True, help="Do not watch; end as soon as it is accepted.")
    return no_wait(within_option(json_option(command)))


def watched(client: ApiClient, operation: OperationView, watching: Watching) -> int:
    """Show the operation until it ends, print its outcome, and return the exit code. Ctrl-C only stops watching."""
    return watched_all(client, [operation], watching, document=lambda last: last[0])


def watched_all(
    client: ApiClient,
    operations: Sequence[OperationView],
    watching: Watching,
    document: Callable[[list[OperationView]], object] | None = None,
) -> int:
    """Follow operations until each has ended, and return the exit code. With --json print them as a list, or as what
    `document` makes of them."""
    last = list(operations)
    until = None if watching.within is None else time.monotonic() + watching.within.total_seconds()
    try:
        for place, operation in enumerate(operations):
            if not watching.as_json:
                say(accepted(operation))
                for note in operation.notes:
                    say(f"Note: {note}")
            if watching.wait:
                for last[place] in _displayed(views_of(client, operation, until=until), as_json=watching.as_json):
                    pass
    except KeyboardInterrupt:
        click.echo(err=True)  # end the line that shows ^C
    if watching.as_json:
        print_json_list(last) if document is None else print_json(document(last))
    for operation in last:
        _print_outcome(operation, watching)
    return overall_code(map(exit_code, last), wait=watching.wait)


def _print_outcome(operation: OperationView, watching: Watching) -> None:
    if not watching.as_json and (watching.wait or is_over(operation)):
        if console().is_terminal:
            for problem in problems(operation):
                say(problem)
        say(summary(operation))
    if hint := what_next(operation):
        click.echo(printable(hint), err=True)


def overall_code(codes: Iterable[ExitCode], *, wait: bool) -> ExitCode:
    """The worst of the exit codes. STILL_RUNNING counts only for a command that waits."""
    distinct = set(codes)
    if ExitCode.FAILED in distinct:
        return ExitCode.FAILED
    return ExitCode.STILL_RUNNING if wait and ExitCode.STILL_RUNNING in distinct else ExitCode.OK


def views_of(client: ApiClient, operation: OperationView, *, until: float | None) -> Iterator[OperationView]:
    """Views of the operation: the given one, then one after each change, until it ends or the time is over.

    After a broken connection the stream continues with the next event. PeerUnavailable when a frontend takes too long
    to start again.
    """
    yield operation
    path, last_event, failures = api_path("operations", operation.id, "stream"), "", 0
    gone_since: float | None = None
    while not is_over(operation) and not _is_past(until):
        time_left = None if until is None else timedelta(seconds=max(until - time.monotonic(), _LEAST_SECONDS))
        try:
            for id, data in client.stream(path, last_event=last_event, at_most=time_left):
                last_event, failures, gone_since = id or last_event, 0, None
                if data:
                    operation = _after(operation, msgspec.json.decode(data, type=OperationUpdate))
                    yield operation
                if is_over(operation) or _is_past(until):
                    return
        except PeerUnavailable as error:
            if _is_past(until):
                return
            gone_since = time.monotonic() if gone_since is None else gone_since
            if time.monotonic() - gone_since >= PATIENCE.total_seconds():
                raise
            if failures == 0:
                warn([f"{error.message}; trying again"])
            failures += 1
        time.sleep(PAUSES.delay(max(failures, 1)).total_seconds())


def _is_past(until: float | None) -> bool:
    return until is not None and time.monotonic() >= until


def _after(before: OperationView, update: OperationUpdate) -> OperationView:
    """The view after one more event, with the targets in their old order."""
    if update.is_whole:
        return update.operation
    changed = {target.node_id: target for target in update.operation.targets}
    targets = [changed.get(target.node_id, target) for target in before.targets]
    return msgspec.structs.replace(update.operation, targets=targets)


def _displayed(views: Iterator[OperationView], *, as_json: bool) -> Iterator[OperationView]:
    """Pass the views on, printed as they pass: bars on a terminal, lines elsewhere, nothing with --json."""
    if as_json:
        yield from views
    elif console().is_terminal:
        from rich.live import Live

        speeds = FileSpeeds()
        with Live(console=console(), auto_refresh=False) as live:
            for operation in views:
                speeds.look(operation, time.monotonic())
                live.update(bars(operation, speeds, height=live.console.height), refresh=True)
                yield operation
    else:
        printed: dict[str, tuple[object, ...]] = {}
        for operation in views:
            for name, standing, line in _lines(operation):
                if printed.get(name) != standing:
                    printed[name] = standing
                    say(line)
            yield operation


def _lines(operation: OperationView) -> Iterator[tuple[str, tuple[object, ...], str]]:
    """For each target and file its name, the values whose change is worth a line, and that line."""
    for target in operation.targets:
        detail = situation(target, operation.verb)
        word = target_word(target.status, operation.verb).inline
        if not target.files or target.status != TargetStatus.DOWNLOADING:  # else its files say more
            yield target.node_id, _standing(target), f"{target.node_name}: {word}{f', {detail}' if detail else ''}"
        for file in target.files:
            tenth = percentage(file) // 10
            yield (
                f"{target.node_id} {file.name}",
                (file.state, tenth),
                f"{file.name}: {state_word(Subject.FILE, file.state).inline}, {file_amount(file, 0)}",
            )


def _standing(target: TargetView) -> tuple[object, ...]:
    """The fields whose change is worth a line; progress in bytes is not."""
    return (target.status, target.waits_for_node, target.attempts, target.message, target.phase)


_PAUSE_SECONDS: Final = 0.5


def accepted_once(send: Callable[[Mapping[str, str]], OperationView]) -> OperationView:
    """Call `send`, and once more when no answer comes. Its headers make the frontend accept it only once."""
    headers = {"Idempotency-Key": str(uuid.uuid4())}
    try:
        return send(headers)
    except PeerUnavailable:
        time.sleep(_PAUSE_SECONDS)  # it may have been accepted, and the answer lost
        return send(headers)
