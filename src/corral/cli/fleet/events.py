"""`corral events`: what happened in the fleet, and what happens now."""

import json
import re
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from urllib.parse import urlencode

import click
import msgspec

from corral.base.errors import InvalidInput, PeerUnavailable
from corral.base.retry import Backoff
from corral.cli.client import ApiClient
from corral.cli.connection import connected, open_client
from corral.cli.names import complete_node, node_filter
from corral.cli.options import CorralCommand, warn
from corral.cli.output import json_option, plain, print_json_line, print_json_list, show
from corral.cli.units import SHORT_ID, parse_moment
from corral.wire.nodes import EventView

_PATH = "/api/v1/events"
_RECONNECT = Backoff(first=timedelta(milliseconds=250), cap=timedelta(seconds=5))
_DIGEST = re.compile(r"((?:sha256:)?[0-9a-f]{12})[0-9a-f]{52}")
"""A digest, and what people are shown of it; `--json` has all of it."""


@click.command(cls=CorralCommand)
@click.option("--follow", "-f", is_flag=True, help="Go on with what happens from now on, until Ctrl-C.")
@click.option(
    "--last", default=20, show_default=True, type=click.IntRange(0, 1000), help="How many past events to begin with."
)
@click.option("--node", default="", metavar="NODE", shell_complete=complete_node, help="Only events of this node.")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    metavar="KIND",
    help="Only events of this kind, such as node.status, or of a group, such as node; may be given several times.",
)
@click.option("--actor", default="", metavar="NAME", help="Only what this user, key or part of Corral did.")
@click.option("--subject", default="", metavar="NAME", help="Only events about this model, backend or operation.")
@click.option("--text", default="", metavar="TEXT", help="Only events with this text in kind, actor or details.")
@click.option("--before", type=click.IntRange(1), metavar="NUMBER", help="Only events before this sequence number.")
@json_option
@connected
def events(
    follow: bool,
    last: int,
    node: str,
    kinds: Sequence[str],
    actor: str,
    subject: str,
    text: str,
    before: int | None,
    as_json: bool,
) -> None:
    """Show what happened, and who did it.

    Registrations, approvals, changes of status, keys: the record that the frontend keeps. All that is said about which
    events must hold together.
    """
    if follow and before is not None:
        raise InvalidInput("--before", "is about the past, and cannot be combined with --follow")
    client = open_client()
    query = [("kind", kind) for kind in kinds]
    query += [("node", node_filter(client, node))] if node else []
    texts = {"actor": actor, "subject": subject, "text": text}
    query += [(name, value) for name, value in texts.items() if value]
    place = [("limit", str(last)), *([("before", str(before))] if before is not None else [])]
    past = client.get(_PATH, list[EventView], [*query, *place]) if last else []
    if as_json and not follow:
        print_json_list(past)
        return
    for event in past:
        _show(event, as_json=as_json)
    if follow:
        try:
            for event in follow_events(client, query, after=past[-1].sequence if past else None):
                _show(event, as_json=as_json)
        except KeyboardInterrupt:
            return


def follow_events(
    client: ApiClient, query: Sequence[tuple[str, str]] = (), *, after: int | None
) -> Iterator[EventView]:
    """Events as they arrive. After a broken connection the stream continues where it ended, without a gap."""
    failures, path = 0, f"{_PATH}?{urlencode(query)}" if query else _PATH
    while True:
        try:
            for _, data in client.stream(path, last_event="" if after is None else str(after)):
                failures = 0
                if data:
                    event = msgspec.json.decode(data, type=EventView)
                    after = event.sequence
                    yield event
        except PeerUnavailable as error:
            if failures == 0:
                warn([f"{error.message}; trying again"])
            failures += 1
        time.sleep(_RECONNECT.delay(max(failures, 1)).total_seconds())


def _show(event: EventView, *, as_json: bool) -> None:
    if as_json:
        print_json_line(event)
    else:
        show(event_line(event))


def event_line(event: EventView) -> str:
    """One event as a line of rich markup: time, kind, node, actor and details."""
    at = parse_moment(event.at)
    time_text = f"{at.astimezone():%Y-%m-%d %H:%M:%S}" if at else event.at
    texts = {name: _detail(value) for name, value in event.data.items()}
    details = "  ".join(f"{plain(name)}={plain(text)}" for name, text in texts.items() if text)
    node = f" [cyan]{plain(event.node_id[:SHORT_ID])}[/]" if event.node_id else ""
    line = f"[dim]{time_text}[/] [bold]{plain(event.kind)}[/]{node} by {plain(event.actor)}"
    return f"{line}  {details}" if details else line


def _detail(value: object) -> str:
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False, default=str)
    digest = _DIGEST.fullmatch(value)
    return digest[1] if digest else value
