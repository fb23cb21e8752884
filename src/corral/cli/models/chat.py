"""`corral chat`: talk to a model, on a terminal or in a script."""

import http.client
import json
import shutil
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any, Final

import click
import msgspec

from corral.base.errors import CorralError, PeerRefused, PeerUnavailable
from corral.base.words import printable, printable_lines
from corral.cli.client import ApiClient, api_path
from corral.cli.connection import connected, open_client
from corral.cli.names import complete_model
from corral.cli.options import CorralCommand
from corral.cli.units import size
from corral.wire.models import ModelView

_PATH = "/v1/chat/completions"
_HELP = """\
/help  this list
/bye   end the talk, as Ctrl-D does
Ctrl-C stops an answer. Everything else is asked, with the talk so far."""
_PATIENCE = timedelta(minutes=15)
"""Longer than any timeout of the gateway, so that the gateway's error says what took too long."""


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """How a model is to answer; what is None is left to the model's own configuration."""

    system: str
    temperature: float | None
    seed: int | None

    def beginning(self) -> list[dict[str, str]]:
        return [{"role": "system", "content": self.system}] if self.system else []

    def sampling(self) -> dict[str, float]:
        wished = {"temperature": self.temperature, "seed": self.seed}
        return {name: value for name, value in wished.items() if value is not None}


def wishes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that become a `Wishes`: temperature, seed and the like."""
    for option in (
        click.option("--seed", type=int, metavar="N", help="Draws words in the same way each time, where it can."),
        click.option(
            "--temperature",
            type=click.FloatRange(0, 2),
            metavar="T",
            help="How freely words are chosen, 0 to 2; 0 gives the same answer each time.",
        ),
        click.option("--system", metavar="TEXT", default="", help="What the model is told before everything else."),
    ):
        command = option(command)
    return command


@click.command(cls=CorralCommand)
@click.argument("model", shell_complete=complete_model)
@click.argument("prompt", required=False)
@click.option("--once", metavar="TEXT", default=None, help="Ask this, print the answer, and end; the same as PROMPT.")
@wishes_options
@connected
def chat(
    model: str, prompt: str | None, once: str | None, system: str, temperature: float | None, seed: int | None
) -> None:
    """Talk to a model, or ask it one PROMPT.

    Ctrl-C stops an answer, Ctrl-D or /bye ends the talk, and /help tells more. While the model is being loaded, a
    terminal shows how far that is. Lines that come through a pipe are asked one after the other, without a prompt.
    """
    if once is not None and prompt is not None:
        raise click.UsageError("--once and PROMPT are the same; give one of them")
    question, name = (prompt, "PROMPT") if once is None else (once, "--once")
    if question is not None and not question.strip():
        raise click.UsageError(f"{name} needs a text to ask")
    client = open_client()
    wishes = Wishes(system=system, temperature=temperature, seed=seed)
    if question is not None:
        ask_once(client, model, question, wishes)
    else:
        converse(client, model, wishes)


def ask_once(client: ApiClient, model: str, question: str, wishes: Wishes) -> None:
    """Print the answer to one question as it arrives."""
    _print_answer(client, _body(model, [*wishes.beginning(), {"role": "user", "content": question}], wishes), parts=[])
    click.echo()


def converse(client: ApiClient, model: str, wishes: Wishes) -> None:
    """Answer what is typed, or each line of a pipe, until the input ends."""
    talk = wishes.beginning()
    # A pipe has one question in each line, whatever it begins with.
    questions = iter(_typed, None) if sys.stdin.isatty() else (line.rstrip("\n") for line in sys.stdin)
    for question in questions:
        if question.strip():
            message = {"role": "user", "content": question}
            text = _interruptible(client, _body(model, [*talk, message], wishes))
            if text:  # a question without an answer is left out, so that the next try does not repeat it
                talk += [message, {"role": "assistant", "content": text}]


def _body(model: str, talk: list[dict[str, str]], wishes: Wishes) -> dict[str, Any]:
    return {"model": model, "messages": talk, "stream": True, **wishes.sampling()}


def _typed() -> str | None:
    """The next question from the terminal; None when the conversation ends."""
    while True:
        try:
            text = str(click.prompt(click.style("you", bold=True), prompt_suffix="> ", default="", show_default=False))
        except click.Abort:
            click.echo()
            return None
        match text.strip().lower():
            case "/bye" | "/exit" | "/quit":
                return None
            case "/help" | "/?":
                click.echo(_HELP)
            case word if word.startswith("/") and word.removeprefix("/").isalpha():
                click.echo(f"There is no command {word}; /help lists them.")
            case _:
                return text


def _interruptible(client: ApiClient, body: dict[str, Any]) -> str:
    """Print the answer; return as much of it as came before an interrupt or an error."""
    parts: list[str] = []
    try:
        _print_answer(client, body, parts)
    except KeyboardInterrupt:
        click.echo(click.style(" [stopped]", dim=True), nl=False)
    except (PeerRefused, PeerUnavailable) as error:
        click.echo(click.style(printable_lines(error.message), fg="red"), err=True)
    click.echo()
    return "".join(parts)


def _print_answer(client: ApiClient, body: dict[str, Any], parts: list[str]) -> None:
    """Print the parts of the answer as they arrive, and collect them in `parts`."""
    with closing(_parts(client, body)) as answer:
        for part in answer:
            parts.append(part)
            # Control characters could take over the terminal.
            harmless = (sign if sign.isprintable() or sign in "\n\t" else "\ufffd" for sign in part)
            click.echo("".join(harmless), nl=False)


def _parts(client: ApiClient, body: dict[str, Any]) -> Generator[str, None, None]:
    """The parts of the answer as they arrive. Closing the generator early makes the model stop."""
    with (
        load_shown(client, body["model"]) as end_of_wait,
        closing(client.post_stream(_PATH, body, patience=_PATIENCE)) as events,
    ):
        for _, data in events:
            end_of_wait()
            if data == "[DONE]":
                return
            if part := _text(data):
                yield part
    raise PeerUnavailable("the answer broke off before its end")


def _text(data: str) -> str:
    try:
        event: Any = json.loads(data) if data else {}
        if "error" in event:
            raise PeerRefused(str(event["error"].get("message", event["error"])), status=http.client.OK)
        return str(event["choices"][0]["delta"].get("content") or "")
    except (ValueError, LookupError, TypeError, AttributeError):
        return ""


_FIRST_LOOK_SECONDS: Final = 0.7
"""A loaded model answers sooner, and then its state is never fetched."""
_PERIOD_SECONDS: Final = 0.5
_CLEAR: Final = "\r\x1b[2K"


class StatusLine:
    """A line on standard error that can be overwritten until it is ended, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.ended = threading.Event()
        self._has_text = False

    def write(self, text: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        with self._lock:
            if not self.ended.is_set():
                click.echo(f"{_CLEAR}{click.style(printable(text)[:width], dim=True)}", nl=False, err=True)
                self._has_text = True

    def end(self) -> None:
        """Remove the line. Later writes have no effect."""
        with self._lock:
            if self._has_text and not self.ended.is_set():
                click.echo(_CLEAR, nl=False, err=True)
            self.ended.set()


@contextmanager
def load_shown(client: ApiClient, model: str) -> Iterator[Callable[[], None]]:
    """Show the progress of a load on standard error until the yielded function is called, or the block ends.

    Nothing is shown where standard error is no terminal, or where the key may not see models. Nobody waits for a
    frontend that does not say how far the load is.
    """
    if not sys.stderr.isatty():
        yield lambda: None
        return
    line = StatusLine()
    threading.Thread(target=_watch_load, args=(client, model, line), daemon=True).start()
    try:
        yield line.end
    finally:
        line.end()


def _watch_load(client: ApiClient, model: str, line: StatusLine) -> None:
    pause = _FIRST_LOOK_SECONDS
    try:
        while not line.ended.wait(pause):
            pause = _PERIOD_SECONDS
            if text := load_text(client.get(api_path("models", model), ModelView)):
                line.write(text)
    except CorralError:
        pass  # the request for the answer reports the same error
    finally:
        line.end()


def load_text(model: ModelView) -> str:
    """How far the load is, in a few words; empty when there is nothing to wait for."""
    job = model.load_job
    if job is None or model.state == "loaded":
        return ""
    if job.state == "pending":
        return f"{model.name} waits" + (f": {job.message}" if job.message else "")
    where = next(
        (f" on {replica.node}" for replica in model.replicas if replica.state in ("reserved", "staging", "loading")), ""
    )
    amounts = ""
    if job.total_bytes and job.current_bytes is None:
        amounts = f", {size(job.total_bytes)}"
    elif job.total_bytes:
        time_left = f", {job.eta_seconds:.0f} s left" if job.eta_seconds is not None else ""
        amounts = f", {size(job.current_bytes or 0)} of {size(job.total_bytes)}{time_left}"
    return f"{model.name} is {job.phase or job.state}{where}{amounts}"
