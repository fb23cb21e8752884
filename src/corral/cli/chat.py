"""`corral chat`: talk to a model, from a terminal or once from a script."""

import http.client
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from corral.base.errors import PeerRefused, PeerUnavailable
from corral.cli.connection import connected, open_client
from corral.cli.options import CorralCommand

if TYPE_CHECKING:
    from corral.cli.client import Client

_PATH = "/v1/chat/completions"


@click.command(cls=CorralCommand)
@click.argument("model")
@click.option("--once", metavar="TEXT", default=None, help="Ask this, print the answer, and end.")
@click.option("--system", metavar="TEXT", default="", help="What the model is told before everything else.")
@connected
def chat(model: str, once: str | None, system: str) -> None:
    """Talk to a model. Ctrl-C stops an answer, Ctrl-D ends the talk."""
    client = open_client()
    talk: list[dict[str, str]] = [{"role": "system", "content": system}] if system else []
    if once is not None:
        _answer(client, model, [*talk, {"role": "user", "content": once}])
        return
    while (said := _read()) is not None:
        if said:
            talk.append({"role": "user", "content": said})
            talk.append({"role": "assistant", "content": _interruptible(client, model, talk)})


def _read() -> str | None:
    """None at the end of the talk."""
    try:
        return str(click.prompt(click.style("you", bold=True), prompt_suffix="> ", default="", show_default=False))
    except click.Abort:
        click.echo()
        return None


def _interruptible(client: "Client", model: str, talk: list[dict[str, str]]) -> str:
    parts: list[str] = []
    try:
        for part in _parts(client, model, talk):
            parts.append(part)
            click.echo(part, nl=False)
    except KeyboardInterrupt:
        click.echo(click.style(" [stopped]", dim=True), nl=False)
    except (PeerRefused, PeerUnavailable) as error:
        click.echo(click.style(error.message, fg="red"), err=True)
    click.echo()
    return "".join(parts)


def _answer(client: "Client", model: str, talk: list[dict[str, str]]) -> None:
    for part in _parts(client, model, talk):
        click.echo(part, nl=False)
    click.echo()


def _parts(client: "Client", model: str, talk: list[dict[str, str]]) -> Iterator[str]:
    """The answer as it comes."""
    for _, data in client.post_stream(_PATH, {"model": model, "messages": talk, "stream": True}):
        if data == "[DONE]":
            return
        if part := _text(data):
            yield part


def _text(data: str) -> str:
    try:
        event: Any = json.loads(data) if data else {}
        if "error" in event:
            raise PeerRefused(str(event["error"].get("message", event["error"])), status=http.client.OK)
        return str(event["choices"][0]["delta"].get("content") or "")
    except (ValueError, LookupError, TypeError, AttributeError):
        return ""
