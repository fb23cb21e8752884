"""Watches the drain of a node until nothing is left there, or only what cannot move."""

import time
from datetime import timedelta
from typing import Final

import click

from corral.base.errors import PeerUnavailable
from corral.base.words import counted, format_duration, printable
from corral.cli.client import ApiClient, api_path
from corral.cli.operations.watch import PATIENCE
from corral.cli.output import print_json, say
from corral.processes.exit_codes import ExitCode
from corral.wire.nodes import DrainedReplicaView, DrainView, NodeDetail

_LOOK_SECONDS: Final = 0.5


def begin_drain(client: ApiClient, node_id: str, *, is_forced: bool) -> NodeDetail:
    query = "?force=true" if is_forced else ""
    return client.post(api_path("nodes", node_id, "drain") + query, NodeDetail)


def watched_drain(
    client: ApiClient, node_id: str, *, is_forced: bool, within: timedelta | None, as_json: bool
) -> ExitCode:
    """Tell what changes, until the drain is over; the exit code. Ctrl-C only stops watching."""
    try:
        view = _followed(client, node_id, is_forced=is_forced, within=within, as_json=as_json)
    except KeyboardInterrupt:
        click.echo(err=True)  # end the line that shows ^C
        view = client.get(api_path("nodes", node_id, "drain"), DrainView)
    if as_json:
        print_json(view)
    else:
        for line in outcome(view):
            say(line)
    return drain_code(view)


def _followed(
    client: ApiClient, node_id: str, *, is_forced: bool, within: timedelta | None, as_json: bool
) -> DrainView:
    until = None if within is None else time.monotonic() + within.total_seconds()
    path, last_line, forced = api_path("nodes", node_id, "drain"), "", set[str]()
    while True:
        view = _patiently(client, path)
        if not as_json and (now := drain_line(view)) != last_line and view.state == "draining":
            click.echo(printable(now), err=True)
            last_line = now
        stuck = {replica.id for replica in view.replicas if replica.step == "stays"}
        if is_forced and stuck - forced:  # some may have become so only now
            begin_drain(client, node_id, is_forced=True)
            forced |= stuck
        is_stuck = bool(view.replicas) and len(stuck) == len(view.replicas) and not is_forced
        if view.state != "draining" or is_stuck or (until is not None and time.monotonic() >= until):
            return view
        time.sleep(_LOOK_SECONDS)


def _patiently(client: ApiClient, path: str) -> DrainView:
    """Look, also while the frontend is started again."""
    deadline = time.monotonic() + PATIENCE.total_seconds()
    while True:
        try:
            return client.get(path, DrainView)
        except PeerUnavailable:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_LOOK_SECONDS)


def drain_line(view: DrainView) -> str:
    """How far it is, in one line."""
    requests = "an unknown number of requests" if view.requests_left is None else counted(view.requests_left, "request")
    bound = format_duration(timedelta(seconds=view.requests_within_seconds))
    steps = ", ".join(f"{replica.model} {_word(replica)}" for replica in view.replicas)
    replicas = counted(view.replicas_left, "replica")
    return f"{view.node}: {replicas} and {requests} left ({steps}; requests get up to {bound})"


def _word(replica: DrainedReplicaView) -> str:
    busy = f" with {counted(replica.in_flight, 'request')}" if replica.in_flight else ""
    return f"{replica.step}{busy}"


def outcome(view: DrainView) -> list[str]:
    """What became of it, for people."""
    if view.state == "drained":
        return [f"{view.node} is drained: nothing is left there"]
    if view.state == "not draining":
        return [f"{view.node} is not draining: somebody resumed it"]
    lines = [drain_line(view)]
    for replica in view.replicas:
        if replica.step == "stays":
            lines.append(f"{replica.model} stays: {replica.why}")
            lines += [f"  {node} {why}" for node, why in sorted(replica.nodes.items())]
    if view.stays:
        lines.append(f"`corral nodes drain {view.node} --force` ends what stays; `corral nodes resume` ends the drain")
    return lines


def drain_code(view: DrainView) -> ExitCode:
    if view.state == "drained":
        return ExitCode.OK
    is_stuck = view.stays == view.replicas_left
    return ExitCode.FAILED if view.state == "not draining" or is_stuck else ExitCode.STILL_RUNNING
