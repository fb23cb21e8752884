"""`corral chat`: talk to a model, from a terminal or once from a script."""

import http.client
import json
import sys
from collections.abc import Generator
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from corral.base.errors import PeerRefused, PeerUnavailable
from corral.cli.connection import connected, open_client
from corral.cli.load_line import load_shown
from corral.cli.model_names import complete_model
from corral.cli.options import CorralCommand

if TYPE_CHECKING:
    from corral.cli.client import ApiClient

_PATH = "/v1/chat/completions"
_HELP = """\
/help  this list
/bye   end the talk, as Ctrl-D does
Ctrl-C stops an answer. Everything else is asked, with the talk so far."""
_PATIENCE = timedelta(minutes=15)
"""Longer than the gateway waits for anything: so it is the gateway that says what took too long."""


@click.command(cls=CorralCommand)
@click.argument("model", shell_complete=complete_model)
@click.option("--once", metavar="TEXT", default=None, help="Ask this, print the answer, and end.")
@click.option("--system", metavar="TEXT", default="", help="What the model is told before everything else.")
@connected
def chat(model: str, once: str | None, system: str) -> None:
    """Talk to a model.

    Ctrl-C stops an answer, Ctrl-D or /bye ends the talk, and /help tells more. While the model is being loaded, a
    terminal shows how far that is. Lines that come through a pipe are asked one after the other, without a prompt.
    """
    if once is not None and not once.strip():
        raise click.UsageError("--once needs a text to ask")
    client = open_client()
    talk: list[dict[str, str]] = [{"role": "system", "content": system}] if system else []
    if once is not None:
        _answer(client, model, [*talk, {"role": "user", "content": once}])
        return
    read = _typed if sys.stdin.isatty() else _piped
    while (said := read()) is not None:
        if said.strip():
            asked = {"role": "user", "content": said}
            answered = _interruptible(client, model, [*talk, asked])
            if answered:  # what got no answer was not said: the next try must not repeat it
                talk += [asked, {"role": "assistant", "content": answered}]


def _typed() -> str | None:
    """What a person asks next on the terminal; None at the end of the talk."""
    while True:
        try:
            said = str(click.prompt(click.style("you", bold=True), prompt_suffix="> ", default="", show_default=False))
        except click.Abort:
            click.echo()
            return None
        match said.strip().lower():
            case "/bye" | "/exit" | "/quit":
                return None
            case "/help" | "/?":
                click.echo(_HELP)
            case word if word.startswith("/") and word.removeprefix("/").isalpha():
                click.echo(f"There is no command {word}; /help lists them.")
            case _:
                return said


def _piped() -> str | None:
    """The next line of what is piped in, which may begin with anything; None at its end."""
    line = sys.stdin.readline()
    return line.rstrip("\n") if line else None


def _interruptible(client: "ApiClient", model: str, talk: list[dict[str, str]]) -> str:
    parts: list[str] = []
    try:
        with closing(_parts(client, model, talk)) as answer:
            for part in answer:
                parts.append(part)
                click.echo(_harmless(part), nl=False)
    except KeyboardInterrupt:
        click.echo(click.style(" [stopped]", dim=True), nl=False)
    except (PeerRefused, PeerUnavailable) as error:
        click.echo(click.style(error.message, fg="red"), err=True)
    click.echo()
    return "".join(parts)


def _answer(client: "ApiClient", model: str, talk: list[dict[str, str]]) -> None:
    with closing(_parts(client, model, talk)) as answer:
        for part in answer:
            click.echo(_harmless(part), nl=False)
    click.echo()


def _harmless(text: str) -> str:
    """A model may write anything, and some of it would take over the terminal."""
    return "".join(one if one.isprintable() or one in "\n\t" else "\ufffd" for one in text)


def _parts(client: "ApiClient", model: str, talk: list[dict[str, str]]) -> Generator[str, None, None]:
    """The answer as it comes. Whoever stops reading closes it: that is how the model is told to stop."""
    body = {"model": model, "messages": talk, "stream": True}
    with (
        load_shown(client, model) as end_of_wait,
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
