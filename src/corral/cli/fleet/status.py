"""`corral status`: the fleet in a few lines, and all that needs a person, the most urgent first."""

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from corral.base.errors import PeerUnavailable
from corral.base.retry import Backoff
from corral.base.words import counted, format_size
from corral.cli.client import ApiClient
from corral.cli.connection import connected, open_client
from corral.cli.options import CorralCommand, warn
from corral.cli.output import Column, console, facts, json_option, plain, print_json, print_json_line, show, table
from corral.cli.units import age
from corral.wire.live import AttentionItem, FleetSummary, FleetSummaryAnswer, MemoryUse
from corral.wire.state_words import Subject, Tone, state_word

if TYPE_CHECKING:
    from rich.console import RenderableType

_SUMMARY: Final = "/api/v1/fleet/summary"
_LIVE: Final = "/api/v1/live?topics=summary,attention"
_RECONNECT: Final = Backoff(first=timedelta(milliseconds=250), cap=timedelta(seconds=5))
_STYLES: Final = {
    Tone.RED: "bold red",
    Tone.YELLOW: "yellow",
    Tone.GREEN: "green",
    Tone.BLUE: "cyan",
    Tone.PURPLE: "magenta",
}
_SEVERITIES: Final = ("alarm", "warning", "notice")


@click.command(cls=CorralCommand)
@click.option(
    "--watch", is_flag=True, help="Keep showing it as it changes, until Ctrl-C; with --json a line each time."
)
@json_option
@connected
def status(watch: bool, as_json: bool) -> None:
    """Show how the fleet is, and what needs somebody.

    Each item says since when, why, and the command to go on with. Ends with 0 whatever there is: `corral doctor` is for
    scripts.
    """
    client = open_client()
    if watch:
        _watch(client, as_json=as_json)
        return
    answer = client.get(_SUMMARY, FleetSummaryAnswer)
    if as_json:
        print_json(answer)
    else:
        show(rendered(answer.summary, answer.attention, datetime.now(UTC)))


def _watch(client: ApiClient, *, as_json: bool) -> None:
    try:
        if as_json:
            for answer in followed(client):
                print_json_line(answer)
        elif console().is_terminal:
            _watch_terminal(client)
        else:
            for answer in followed(client):
                show(rendered(answer.summary, answer.attention, datetime.now(UTC)))
    except KeyboardInterrupt:
        return


def _watch_terminal(client: ApiClient) -> None:
    from rich.live import Live

    with Live(console=console(), auto_refresh=False) as live:
        for answer in followed(client):
            live.update(rendered(answer.summary, answer.attention, datetime.now(UTC)), refresh=True)


# The live stream.


def followed(client: ApiClient) -> Iterator[FleetSummaryAnswer]:
    """The summary as it is, then again after every change. A broken stream is resumed, at any frontend."""
    topics: dict[str, dict[str, Any]] = {"summary": {}, "attention": {}}
    place, failures, is_ready, frontend = "", 0, False, ""
    while True:
        try:
            for id, data in client.stream(_LIVE, last_event=place):
                failures, place = 0, id or place
                if not data:
                    continue
                frame = msgspec.json.decode(data)
                is_ready = is_ready or "topic" not in frame
                frontend = frame.get("frontend", frontend)
                apply(topics, frame)
                if is_ready and id and topics["summary"]:
                    yield _answer(topics, frontend)
        except PeerUnavailable as error:
            if failures == 0:
                warn([f"{error.message}; trying again"])
            failures += 1
        time.sleep(_RECONNECT.delay(max(failures, 1)).total_seconds())


def apply(topics: dict[str, dict[str, Any]], frame: Mapping[str, Any]) -> None:
    """Take in one frame of the live stream; one without a topic changes nothing."""
    items = topics.get(frame.get("topic", ""))
    if items is None:
        return
    if frame.get("first"):
        items.clear()
    items.update(frame["items"])
    for key in frame.get("gone", ()):
        items.pop(key, None)


def _answer(topics: Mapping[str, Mapping[str, Any]], frontend: str) -> FleetSummaryAnswer:
    items = msgspec.convert(list(topics["attention"].values()), list[AttentionItem])
    return FleetSummaryAnswer(
        summary=msgspec.convert(next(iter(topics["summary"].values())), FleetSummary),
        attention=sorted(
            items, key=lambda item: (item.rank, _SEVERITIES.index(item.severity), item.since or "", item.id)
        ),
        at=datetime.now(UTC).isoformat(),
        frontend=frontend,
    )


# For people.


def rendered(summary: FleetSummary, attention: Sequence[AttentionItem], now: datetime) -> "RenderableType":
    from rich.console import Group
    from rich.text import Text

    lines = facts(_lines(summary))
    if not attention:
        return Group(lines, Text(), Text("Nothing needs attention.", style="green"))
    return Group(lines, Text(), attention_table(attention, now))


def _lines(summary: FleetSummary) -> list[tuple[str, str]]:
    lines = [
        ("Nodes", _nodes(summary)),
        ("Models", _models(summary)),
        ("Memory", _memory("VRAM", summary.vram) + "; " + _memory("RAM", summary.ram)),
        ("Operations", _operations(summary)),
        ("Control", _control(summary)),
    ]
    if summary.brake:
        lines.append(("Brake", f"[bold red]✕ holds[/]: {plain(summary.brake)}"))
    return lines


def _nodes(summary: FleetSummary) -> str:
    counts = {status: count for status, count in summary.nodes.items() if count}
    if not counts:
        return "none yet; `corral nodes invite` makes a code with which a machine joins"
    return ", ".join(_stated(Subject.NODE, status, f"{count} {status}") for status, count in counts.items())


def _models(summary: FleetSummary) -> str:
    if not summary.models:
        return "none yet; `corral models pull` adds one"
    flying = "unknown in flight" if summary.in_flight is None else f"{summary.in_flight} in flight"
    words = [counted(summary.models, "model"), f"{summary.loaded_models} loaded", counted(summary.replicas, "replica")]
    return ", ".join([*words, flying, *([f"{summary.waiting} waiting"] if summary.waiting else [])])


def _memory(name: str, use: MemoryUse) -> str:
    if not use.total or use.used is None:
        return f"{name} none" if use.total == 0 else f"{name} unknown"
    reserved = f", {format_size(use.reserved)} reserved" if use.reserved else ""
    return f"{name} {format_size(use.used)} of {format_size(use.total)} used{reserved}"


def _operations(summary: FleetSummary) -> str:
    counts = {state: count for state, count in summary.operations.items() if count}
    if not counts:
        return "none under way"
    return ", ".join(_stated(Subject.OPERATION, state, f"{count} {state}") for state, count in counts.items())


def _control(summary: FleetSummary) -> str:
    frontends = counted(summary.frontends, "frontend")
    if not summary.problems:
        return f"[green]● up[/], {frontends}"
    return f"[bold red]✕ impaired[/]: {plain('; '.join(summary.problems))}; {frontends}; models keep serving"


def _stated(subject: Subject, state: str, text: str) -> str:
    """A count with the glyph of its state: nothing is said by colour alone."""
    word = state_word(subject, state)
    style = _STYLES.get(word.tone, "dim")
    return f"[{style}]{word.glyph}[/] {plain(text)}"


def attention_table(attention: Sequence[AttentionItem], now: datetime, *, width: int | None = None) -> "RenderableType":
    columns: Sequence[Column[AttentionItem]] = (
        Column(title="ATTENTION", cell=_severity),
        Column(title="WHAT", cell=lambda item: plain(item.title), wraps=True),
        Column(title="SINCE", cell=lambda item: age(item.since, now).removesuffix(" ago"), least_width=60),
        Column(title="WHY", cell=lambda item: plain(item.why), least_width=80, wraps=True),
        Column(title="NEXT", cell=lambda item: "–" if item.act is None else plain(item.act.command), wraps=True),
    )
    return table(columns, attention, width=width)


def _severity(item: AttentionItem) -> str:
    word = state_word(Subject.SEVERITY, item.severity)
    return f"[{_STYLES.get(word.tone, 'dim')}]{word.glyph} {word.label}[/]"
