"""`corral nodes invite`, `invitations` and `uninvite`: codes that let machines join."""

import ipaddress
import shlex
import socket
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import click

from corral.base.errors import InvalidInput
from corral.base.ids import parsed_ip
from corral.base.setting_kinds import HTTP_URLS
from corral.bus.config import parse_endpoints, reached_from
from corral.cli.client import api_path
from corral.cli.connection import connected, open_client
from corral.cli.names import read_labels
from corral.cli.options import CorralCommand, warn
from corral.cli.output import Column, answer, json_option, plain, print_json, print_table, state_text
from corral.cli.units import age, duration_text, moment
from corral.wire.joining import CreatedInvitation, CreateInvitation, InvitationView
from corral.wire.state_words import Subject

_NEEDED: Final = "Corral must be there: clone its repository, and run in it: python3 tools/bootstrap.py setup"
_PATH: Final = "/api/v1/invitations"
_ANYWHERE: Final = ("192.0.2.1", 9)
"""An address that is nobody's: asking which way leads there sends nothing."""
_NATS_SECONDS: Final = 1.0


@click.command("invite", cls=CorralCommand)
@click.option(
    "--expires",
    default="1h",
    show_default=True,
    callback=duration_text,
    metavar="DURATION",
    help="How long the code can be used, at most 30d.",
)
@click.option(
    "--uses", default=1, show_default=True, type=click.IntRange(1, 10_000), help="How many machines may join."
)
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Label that they get; may be repeated.")
@click.option(
    "--approve", is_flag=True, help="They take part at once: a machine with the code needs nobody's approval."
)
@click.option(
    "--at",
    default="",
    metavar="URL",
    help="Where the new machine reaches the frontend; by default the URL that this command uses, or for one on"
    " loopback an address of this machine.",
)
@json_option
@connected
def invite(expires: str, uses: int, labels: Sequence[str], approve: bool, at: str, as_json: bool) -> None:
    """Make a code with which a new machine joins.

    Prints what to do there. The code is shown this once: only its hash is stored.
    """
    client = open_client()
    wish = CreateInvitation(expires_in=expires, uses=uses, labels=read_labels(labels), approve=approve)
    url = "" if not at else _checked_url(at)
    made = client.post(_PATH, CreatedInvitation, wish)
    url, problem = (url, "") if url else url_from_elsewhere(client.target.url, made.url)
    command = f"corral worker --join {shlex.quote(f'{url}#{made.pin}')}"
    warn([each for each in (problem, nats_problem(url, made.nats_urls)) if each])
    if as_json:
        print_json({**_document(made), "command": command})
        return
    machines = "one machine" if uses == 1 else f"{uses} machines"
    after = "takes part at once" if approve else "then waits for: corral nodes approve NAME"
    click.echo(f"Run this on the new machine:\n\n  {click.style(command, bold=True)}\n")
    click.echo(f"It asks for this join code, and {after}.\n\n  {click.style(made.code, bold=True)}\n")
    click.echo(_NEEDED, err=True)
    click.echo(f"The code is for {machines}, until {moment(made.expires_at, datetime.now(UTC))}.", err=True)


def _document(made: CreatedInvitation) -> dict[str, object]:
    return {name: getattr(made, name) for name in made.__struct_fields__}


def _checked_url(text: str) -> str:
    try:
        [url] = HTTP_URLS.read(text)
    except ValueError:
        raise InvalidInput("--at", f"{text[:100]!r} is not one URL such as https://10.0.0.1:8080") from None
    return str(url)


def url_from_elsewhere(url: str, public: str) -> tuple[str, str]:
    """Return the URL by which other machines reach the frontend, and what is wrong with it, if anything.

    `url` is the one that this command uses, usually on loopback; `public` is what the frontend says.
    """
    known_url, advertised = urlsplit(url), urlsplit(public)
    listening = parsed_ip(advertised.hostname or "")
    if not _is_loopback(advertised.hostname) and (listening is None or not listening.is_unspecified):
        return public, ""
    if not _is_loopback(known_url.hostname):
        return url, ""
    if _is_loopback(advertised.hostname):
        problem = (
            f"the frontend listens on {advertised.netloc} only, where no other machine reaches it; start it with --host"
        )
        return url, f"{problem} 0.0.0.0, or name the URL of your proxy with --at"
    address = _own_address()
    port = advertised.port or known_url.port
    if address is None:
        return (
            public,
            f"no address of this machine is known: replace {advertised.hostname} in the URL, or name it with --at",
        )
    host = f"[{address}]" if address.version == 6 else str(address)
    return urlunsplit(advertised._replace(netloc=host if port is None else f"{host}:{port}")), ""


def nats_problem(url: str, nats_urls: Sequence[str]) -> str:
    """Return why a machine that reaches the frontend at this URL will not reach NATS, as far as it shows from here."""
    if not nats_urls:
        return "this fleet does not tell machines where NATS is: set nats_url (CORRAL_NATS_URL) on the new machine"
    host = urlsplit(url).hostname or ""
    if _is_loopback(host):
        return ""
    endpoints = [endpoint for nats_url in nats_urls for endpoint in parse_endpoints(reached_from(nats_url, host))]
    if any(_answers(endpoint.host, endpoint.port) for endpoint in endpoints):
        return ""
    places = ", ".join(f"{endpoint.host}:{endpoint.port}" for endpoint in endpoints)
    problem = f"the new machine will look for NATS at {places}, where nothing answers"
    return f"{problem}; start it with --nats-host 0.0.0.0, or set nats_advertise_url"


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=_NATS_SECONDS):
            return True
    except (OSError, ValueError):
        return False


def _is_loopback(host: str | None) -> bool:
    address = parsed_ip(host or "")
    return host == "localhost" or (address is not None and address.is_loopback)


def _own_address() -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address by which this machine calls others."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ANYWHERE)
        except OSError:
            return None
        address = parsed_ip(probe.getsockname()[0])
    return None if address is None or address.is_unspecified or address.is_loopback else address


@click.command("invitations", cls=CorralCommand)
@click.option("--all", "with_ended", is_flag=True, help="Also those that were used up, revoked or have expired.")
@json_option
@connected
def list_invitations(with_ended: bool, as_json: bool) -> None:
    """List the invitations. Their codes are stored nowhere."""
    views = [view for view in open_client().get(_PATH, list[InvitationView]) if with_ended or view.state == "open"]
    now = datetime.now(UTC)
    columns: Sequence[Column[InvitationView]] = (
        Column(title="ID", cell=lambda view: plain(view.id)),
        Column(title="STATE", cell=lambda view: state_text(Subject.INVITATION, view.state)),
        Column(title="USED", cell=lambda view: f"{view.uses} of {view.max_uses}", right=True),
        Column(title="APPROVES", cell=lambda view: "yes" if view.approve else "no"),
        Column(title="EXPIRES", cell=lambda view: moment(view.expires_at, now)),
        Column(
            title="MADE", cell=lambda view: f"{age(view.created_at, now)} by {plain(view.created_by)}", least_width=70
        ),
        Column(
            title="LABELS",
            cell=lambda view: plain(" ".join(f"{key}={value}" for key, value in view.labels.items())),
            least_width=100,
        ),
    )
    nothing = "There is no invitation." if with_ended else "No invitation is open; `corral nodes invite` makes one."
    print_table(views, columns, nothing=nothing, as_json=as_json)


@click.command("uninvite", cls=CorralCommand)
@click.argument("id")
@json_option
@connected
def uninvite(id: str, as_json: bool) -> None:
    """Revoke an invitation. Machines that joined with it stay."""
    open_client().delete(api_path("invitations", id))
    answer({"revoked": id}, f"Invitation {id} is revoked.", as_json=as_json)
