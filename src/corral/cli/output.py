"""What commands print: tables and sentences for people, JSON for machines, colours only on a terminal."""

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import click
import msgspec

from corral.base.words import printable
from corral.wire.state_words import StateWord, Subject, Tone, state_word

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

T = TypeVar("T")

WIDTH_OF_A_PIPE: Final = 400
"""Wide enough that programs which read a table never see a wrapped line."""
_WATCH_SECONDS: Final = 1.0
"""Between two looks at what is shown again and again."""
_LEVEL_STYLES: Final = {"ok": "green", "warning": "yellow", "problem": "bold red"}


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines, and nothing else.")


def console() -> "Console":
    """Standard output as rich's console. Colours are decided on each call, so that tests can redirect it."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    return Console(
        file=sys.stdout, highlight=False, soft_wrap=not terminal, width=None if terminal else WIDTH_OF_A_PIPE
    )


def show(content: "RenderableType") -> None:
    """Print a table or markup, without trailing blanks where a program reads it."""
    output = console()
    if output.is_terminal:
        output.print(content)
        return
    with output.capture() as captured:
        output.print(content)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def keep_showing(look: "Callable[[], RenderableType]") -> None:
    """Show what `look` returns, and again every second, until Ctrl-C."""
    from rich.live import Live

    try:
        with Live(look(), console=console(), auto_refresh=False) as live:
            while True:
                time.sleep(_WATCH_SECONDS)
                live.update(look(), refresh=True)
    except KeyboardInterrupt:
        return


def print_json(value: object) -> None:
    """Print one JSON document, indented because people read it too."""
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def answer(value: object, sentence: str, *, as_json: bool) -> None:
    """Print the value as JSON for machines, or the sentence for people."""
    print_json(value) if as_json else say(sentence)


def show_view(view: object, render: "Callable[[], RenderableType]", *, as_json: bool) -> None:
    """Print the view as JSON for machines, or as `render` makes it for people."""
    print_json(view) if as_json else show(render())


def print_table(rows: Sequence[T], columns: "Sequence[Column[T]]", *, nothing: str, as_json: bool) -> None:
    """Print the rows as JSON for machines or as a table for people; `nothing` is the sentence when there are none."""
    if as_json:
        print_json_list(rows)
    elif rows:
        show(table(columns, rows))
    else:
        say(nothing)


def print_json_list(items: Sequence[object]) -> None:
    """Print a list as an object with `items`, so that other fields can be added."""
    print_json({"items": items})


def print_json_line(value: object) -> None:
    """Print one JSON document on one line, for streams."""
    import msgspec

    click.echo(msgspec.json.encode(value))


def say(sentence: str) -> None:
    """Print a sentence. Rich markup in it has no effect, because it may contain names that others chose."""
    click.echo(printable(sentence))


def level_text(word: str) -> str:
    """How bad a finding is, in its colour, as rich markup."""
    style = _LEVEL_STYLES.get(word)
    return f"[{style}]{word}[/]" if style else plain(word)


_TONE_STYLES: Final = {
    Tone.GREY: "",
    Tone.BLUE: "cyan",
    Tone.YELLOW: "yellow",
    Tone.GREEN: "green",
    Tone.RED: "bold red",
    Tone.PURPLE: "magenta",
    Tone.MUTED: "dim",
}


def state_text(subject: Subject, state: str) -> str:
    """The label of a state in its colour, as rich markup."""
    return word_text(state_word(subject, state))


def word_text(word: StateWord) -> str:
    """A label in its colour, as rich markup."""
    style = _TONE_STYLES[word.tone]
    return f"[{style}]{plain(word.label)}[/]" if style else plain(word.label)


def plain(text: str) -> str:
    """Text from others, made safe for rich markup and for the terminal."""
    from rich.markup import escape

    return escape(printable(text))


class Column(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One column of a table; with a `least_width` it is left out on terminals narrower than that.

    Only a column that `wraps` is shown whole where there is little room.
    """

    title: str
    cell: Callable[[T], str]
    least_width: int = 0
    right: bool = False
    wraps: bool = False


def table(columns: Sequence[Column[T]], rows: Sequence[T], *, width: int | None = None) -> "Table":
    """A table without lines that drops its less important columns to fit the width, or else standard output."""
    from rich.table import Table

    room = console().width if width is None else width
    visible = [column for column in columns if column.least_width <= room]
    result = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for position, column in enumerate(visible):
        result.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=not column.wraps,
            overflow="ellipsis" if position and not column.wraps else "fold",
        )
    for row in rows:
        result.add_row(*(column.cell(row) for column in visible))
    return result


def facts(pairs: Sequence[tuple[str, str]]) -> "Table":
    """A table of two columns: names, and values that may wrap."""
    from rich.table import Table

    result = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    result.add_column(style="bold", no_wrap=True)
    result.add_column(overflow="fold")
    for name, value in pairs:
        result.add_row(name, value)
    return result


@contextmanager
def quiet() -> Iterator[None]:
    """Switch logging off: these commands use parts of processes, and print the results themselves."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
