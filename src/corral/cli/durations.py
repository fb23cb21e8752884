"""Durations as values of flags."""

from datetime import timedelta
from typing import Any

import click

from corral.base.durations import parse_duration


class DurationParameter(click.ParamType[timedelta]):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        try:
            return value if isinstance(value, timedelta) else parse_duration(value)
        except (ValueError, OverflowError) as error:
            self.fail(str(error), param, ctx)


def duration_text(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """For a flag whose text is passed on: what is no duration is refused by the name of the flag."""
    if value:
        DurationParameter().convert(value, parameter, context)
    return value
