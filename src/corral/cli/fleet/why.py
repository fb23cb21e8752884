"""`corral why`: where a model runs, what its loads do, and what every node says to one more replica of it."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click

from corral.base.words import format_size
from corral.cli.client import api_path
from corral.cli.connection import connected, open_client
from corral.cli.names import complete_model
from corral.cli.options import CorralCommand
from corral.cli.output import Column, facts, json_option, plain, show_view, state_text, table
from corral.cli.units import age, moment
from corral.wire.models import LoadJobView
from corral.wire.placement import ModelNeedsView, NodeVerdictView, WhyView
from corral.wire.state_words import Subject, state_word

if TYPE_CHECKING:
    from rich.console import RenderableType

FITS: Final = "fits"


@click.command(cls=CorralCommand)
@click.argument("model", shell_complete=complete_model)
@json_option
@connected
def why(model: str, as_json: bool) -> None:
    """Show where a model runs, and every node's verdict on it.

    Nodes that can take it come first, the one that would be chosen before all others; the points tell why. Each of
    the others has the first reason that speaks against it.
    """
    view = open_client().get(api_path("models", model, "why"), WhyView)
    show_view(view, lambda: why_page(view, datetime.now(UTC)), as_json=as_json)


def why_page(view: WhyView, now: datetime) -> "RenderableType":
    from rich.console import Group

    pairs = [("Needs", plain(needs_text(view.needs)))]
    pairs += [("Replica", plain(_replica_text(view, number, now))) for number in range(len(view.replicas))]
    pairs += [("Load", plain(load_text(job, now))) for job in view.jobs]
    pairs += [("Engine", plain(line)) for job in view.jobs for line in job.engine_lines]
    parts: list[RenderableType] = [f"[bold]{plain(view.summary)}[/]", "", facts(pairs)]
    if view.asked != view.model:
        parts.insert(1, plain(f"{view.asked} is an alias of it."))
    if view.verdicts:
        parts += ["", table(_COLUMNS, view.verdicts)]
    return Group(*parts)


_COLUMNS: Final[Sequence[Column[NodeVerdictView]]] = (
    Column(title="NODE", cell=lambda verdict: plain(verdict.node)),
    Column(title="VERDICT", cell=lambda verdict: state_text(Subject.VERDICT, verdict.code)),
    Column(title="NEEDS", cell=lambda verdict: _needs(verdict), right=True, least_width=60),
    Column(title="FREE", cell=lambda verdict: _free(verdict), right=True, least_width=60),
    Column(title="POINTS", cell=lambda verdict: f"{verdict.points:g}" if verdict.code == FITS else "–", right=True),
    Column(title="WHY", cell=lambda verdict: plain(_reason(verdict)), wraps=True),
)


def _needs(verdict: NodeVerdictView) -> str:
    needed = verdict.numbers.get("needed") or verdict.vram or verdict.ram
    return format_size(needed) if needed else "–"


def _free(verdict: NodeVerdictView) -> str:
    """The free memory that the replica's need was compared with, or all free memory of the node."""
    free = verdict.numbers.get("free", verdict.free)
    return format_size(free) if free or "free" in verdict.numbers else "–"


def _reason(verdict: NodeVerdictView) -> str:
    """Why not; or what the points are for, and which GPUs it would get."""
    if verdict.why:
        return verdict.why
    parts = [f"{name} {points:+g}" for name, points in verdict.score.items()]
    parts += [f"would get {', '.join(verdict.cards)}"] if verdict.cards else []
    return ", ".join(parts)


def needs_text(needs: ModelNeedsView) -> str:
    """What one replica takes, in a line."""
    parts = [
        f"{format_size(needs.ram)} of memory" if needs.ram else "",
        f"{format_size(needs.vram)} of video memory where there are GPUs" if needs.vram else "",
        f"{format_size(needs.ram_beside_gpu)} of memory beside them" if needs.ram_beside_gpu else "",
        f"{format_size(needs.disk)} of files" if needs.disk else "",
    ]
    text = ", ".join(part for part in parts if part)
    return f"{text} (from: {needs.source})" if text else "not known; its engine decides, and the next node is tried"


def _replica_text(view: WhyView, number: int, now: datetime) -> str:
    replica = view.replicas[number]
    memory_text = " and ".join(
        text
        for text in (
            f"{format_size(replica.vram)} of video memory" if replica.vram else "",
            f"{format_size(replica.ram)} of memory" if replica.ram else "",
        )
        if text
    )
    words = [
        f"{replica.node} #{replica.index} {state_word(Subject.REPLICA, replica.state).inline}",
        f"for {age(replica.changed_at, now).removesuffix(' ago')}",
    ]
    return ", ".join([*words, *([f"counts with {memory_text}"] if memory_text else [])])


def load_text(job: LoadJobView, now: datetime) -> str:
    """How far a load is, or why it failed and what comes next."""
    where = f" on {job.node}" if job.node else ""
    state = state_word(Subject.LOAD, job.state).inline
    words = [f"{state}{where}, wanted: {job.why or 'asked'}, {age(job.began_at, now)}"]
    if job.step_seconds:
        words.append(", ".join(f"{name} {seconds:g} s" for name, seconds in job.step_seconds.items()))
    if progress := progress_text(job):
        words.append(progress)
    if job.message:
        words.append(job.message)
    if job.state == "failed":
        again = "not tried again until the model, its files or its engine change"
        words.append(again if job.is_permanent else f"tried again when asked, {moment(job.retry_at, now)}")
    return "; ".join(words)


def progress_text(job: LoadJobView) -> str:
    """Bytes, speed, file and time left, as far as they are known."""
    if job.current_bytes is None or not job.total_bytes:
        return ""
    words = [f"{format_size(job.current_bytes)} of {format_size(job.total_bytes)}"]
    if job.file_index is not None and job.total_files is not None:
        words.append(f"file {job.file_index} of {job.total_files}" + (f" ({job.file})" if job.file else ""))
    if job.bytes_per_second:
        words.append(f"{format_size(int(job.bytes_per_second))}/s")
    if job.eta_seconds is not None:
        words.append(f"{job.eta_seconds:.0f} s left")
    return ", ".join(words)
