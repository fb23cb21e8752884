"""`corral events`: what happened in the fleet, and what happens now."""

import json
import time
from collections.abc import Iterator
from datetime import timedelta

import click
import msgspec

from corral.base.errors import PeerUnavailable
from corral.base.retry import Backoff
from corral.cli.client import ApiClient
from corral.cli.connection import connected, open_client
from corral.cli.options import CorralCommand, warn
from corral.cli.output import json_option, plain, print_json_line, print_json_list, show
from corral.cli.units import SHORT_ID, parse_moment
from corral.wire.nodes import EventView

_PATH = "/api/v1/events"
_RECONNECT = Backoff(first=timedelta(milliseconds=250), cap=timedelta(seconds=5))


@click.command(cls=CorralCommand)
@click.option("--follow", "-f", is_flag=True, help="Go on with what happens from now on, until Ctrl-C.")
@click.option(
    "--last", default=20, show_default=True, type=click.IntRange(0, 1000), help="How many past events to begin with."
)
@click.option("--node", default="", metavar="TEXT", help="Only events of nodes whose id begins with this.")
@json_option
@connected
def events(follow: bool, last: int, node: str, as_json: bool) -> None:
    """Show what happened, and who did it.

    Registrations, approvals, changes of status, keys: the record that the frontend keeps.
    """
    client = open_client()
    past = client.get(_PATH, list[EventView], [("limit", str(last))]) if last else []
    matching = [event for event in past if _is_of(event, node)]
    if as_json and not follow:
        print_json_list(matching)
        return
    for event in matching:
        _show(event, as_json=as_json)
    if follow:
        try:
            for event in follow_events(client, after=past[-1].sequence if past else None):
                if _is_of(event, node):
                    _show(event, as_json=as_json)
        except KeyboardInterrupt:
            return


def _is_of(event: EventView, node: str) -> bool:
    return not node or (event.node_id or "").startswith(node)


def follow_events(client: ApiClient, *, after: int | None) -> Iterator[EventView]:
    """Events as they arrive. After a broken connection the stream continues where it ended, without a gap."""
    failures = 0
    while True:
        try:
            for _, data in client.stream(_PATH, last_event="" if after is None else str(after)):
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
    texts = {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        for name, value in event.data.items()
    }
    details = "  ".join(f"{plain(name)}={plain(text)}" for name, text in texts.items())
    node = f" [cyan]{plain(event.node_id[:SHORT_ID])}[/]" if event.node_id else ""
    line = f"[dim]{time_text}[/] [bold]{plain(event.kind)}[/]{node} by {plain(event.actor)}"
    return f"{line}  {details}" if details else line
