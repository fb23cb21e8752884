"""How operations look on a terminal."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from corral.cli.humane import age, moment
from corral.cli.operation_words import SHORT_ID, advice, counts, shown_status, situation, summary
from corral.cli.output import Column, facts, plain, styled, table
from corral.wire.operation_views import OperationView, TargetView

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


def operation_table(operations: Sequence[OperationView], now: datetime, *, width: int) -> "Table":
    columns: list[Column[OperationView]] = [
        Column(title="ID", cell=lambda one: plain(one.id[:SHORT_ID])),
        Column(title="STATE", cell=lambda one: styled(one.state)),
        Column(title="WHAT", cell=lambda one: plain(f"{one.verb} {one.backend}")),
        Column(title="STARTED", cell=lambda one: age(one.accepted_at, now), least_width=60),
        Column(title="TARGETS", cell=lambda one: plain(counts(one)), least_width=80),
        Column(title="BY", cell=lambda one: plain(one.asked_by), least_width=110),
        Column(title="URI", cell=lambda one: plain(one.uri), least_width=140),
    ]
    return table(columns, operations, width=width)


def operation_facts(operation: OperationView, now: datetime, *, width: int) -> "RenderableType":
    """The whole, its targets, and what to do next."""
    from rich.console import Group

    pairs = [
        ("Id", plain(operation.id)),
        ("What", plain(f"{operation.verb} {operation.backend}")),
        ("Uri", plain(operation.uri)),
        ("State", styled(operation.state)),
        ("So far", plain(summary(operation))),
        ("Asked by", f"{plain(operation.asked_by)}, {moment(operation.accepted_at, now)}"),
        ("Changed", moment(operation.changed_at, now)),
    ]
    parts: list[RenderableType] = [facts([(name, value) for name, value in pairs if value]), ""]
    parts.append(target_table(operation, now, width=width))
    if steps := advice(operation):
        parts += ["", "[bold]What to do[/]", facts([(plain(names), plain(sentence)) for names, sentence in steps])]
    return Group(*parts)


def target_table(operation: OperationView, now: datetime, *, width: int) -> "Table":
    columns: list[Column[TargetView]] = [
        Column(title="NODE", cell=lambda one: plain(one.node_name)),
        Column(title="STATUS", cell=lambda one: styled(shown_status(one, operation.verb))),
        Column(title="CHANGED", cell=lambda one: age(one.changed_at, now), least_width=60),
        Column(title="BACKEND", cell=lambda one: plain(one.backend), least_width=130),
        Column(title="DETAIL", cell=lambda one: plain(situation(one, operation.verb)), wraps=True),
    ]
    return table(columns, operation.targets, width=width)
