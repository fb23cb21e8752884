"""`corral keys`: who may call the API."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import click
import msgspec

from corral.base.errors import AccessDenied, Conflict, NotFound
from corral.cli.client import ApiClient, FrontendFailed, FrontendTarget, Unreachable, api_path
from corral.cli.connection import connected, open_client
from corral.cli.options import CorralCommand, command_sources, settings_options, warn
from corral.cli.output import (
    Column,
    answer,
    json_option,
    plain,
    print_json,
    print_table,
    styled,
)
from corral.cli.units import age, duration_text, moment
from corral.processes.configs import control_config
from corral.processes.settings_sources import resolve
from corral.wire.keys import CreatedKey, CreateKey, KeyView, RevokedKey, Scope

_PATH: Final = "/api/v1/keys"
_OF_THE_DATABASE: Final = frozenset({"data", "database", "secrets_key_file", "credentials_file"})
_ACCEPTED_WITHIN: Final = timedelta(seconds=10)
"""How long a running fleet may take to learn of a key that was made in its database."""
_PAUSE_SECONDS: Final = 0.1


@click.group()
def keys() -> None:
    """Make, list and revoke API keys."""


@keys.command("create", cls=CorralCommand)
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice([scope.value for scope in Scope]),
    default=[Scope.INFERENCE.value],
    show_default=True,
    help="What the key may do; may be given several times. admin implies inference.",
)
@click.option(
    "--expires",
    default="",
    callback=duration_text,
    metavar="DURATION",
    help="Lifetime, such as 30d; without it there is no end.",
)
@json_option
@connected
def create_key(name: str, scopes: Sequence[str], expires: str, as_json: bool) -> None:
    """Make a key and print it, this once: only its hash is stored."""
    request = CreateKey(name=name, scopes=list(scopes), expires_in=expires)
    created = open_client().post(_PATH, CreatedKey, request)
    warn(_unconfirmed(created.unconfirmed_gateways, "may not know this key yet"))
    if as_json:
        print_json(created)
        return
    click.echo(created.key)
    lasting = f"until {moment(created.expires_at, datetime.now(UTC))}" if created.expires_at else "until it is revoked"
    click.echo(f"Key {created.id} ({', '.join(created.scopes)}) is valid {lasting}. It is not shown again.", err=True)


@keys.command("list", cls=CorralCommand)
@click.option("--all", "with_ended", is_flag=True, help="Also keys that were revoked or have expired.")
@json_option
@connected
def list_keys(with_ended: bool, as_json: bool) -> None:
    """List the keys. The keys themselves are stored nowhere."""
    keys = [key for key in open_client().get(_PATH, list[KeyView]) if with_ended or key.state == "active"]
    now = datetime.now(UTC)
    columns: Sequence[Column[KeyView]] = (
        Column(title="ID", cell=lambda key: plain(key.id)),
        Column(title="NAME", cell=lambda key: plain(key.name)),
        Column(title="SCOPES", cell=lambda key: plain(", ".join(key.scopes))),
        Column(title="STATE", cell=lambda key: styled(key.state)),
        Column(
            title="EXPIRES", cell=lambda key: moment(key.expires_at, now) if key.expires_at else "never", least_width=90
        ),
        Column(title="MADE", cell=lambda key: f"{age(key.created_at, now)} by {plain(key.created_by)}", least_width=70),
    )
    print_table(keys, columns, nothing="There is no key.", as_json=as_json)


@keys.command("revoke", cls=CorralCommand)
@click.argument("key")
@json_option
@connected
def revoke_key(key: str, as_json: bool) -> None:
    """Revoke a key, named by its id or by its name. It stops working at once, for good."""
    client = open_client()
    revoked = choose_key(client.get(_PATH, list[KeyView]), key)
    body = client.delete(api_path("keys", revoked.id))
    unconfirmed = msgspec.json.decode(body, type=RevokedKey).unconfirmed_gateways if body else []
    warn(_unconfirmed(unconfirmed, "may still take this key"))
    document = {"revoked": revoked.id, **({"unconfirmed_gateways": unconfirmed} if unconfirmed else {})}
    answer(document, f"Key {revoked.id} ({revoked.name}) is revoked.", as_json=as_json)


def _unconfirmed(gateways: Sequence[str], what: str) -> list[str]:
    return [f"{len(gateways)} gateways did not answer in time and {what}: {', '.join(gateways)}"] if gateways else []


def choose_key(keys: Sequence[KeyView], reference: str) -> KeyView:
    """The key with this id, or else the only active key with this name."""
    by_id = [key for key in keys if key.id == reference]
    by_name = [key for key in keys if key.name == reference and key.state == "active"]
    for candidates in (by_id, by_name):
        if len(candidates) == 1:
            return candidates[0]
        if candidates:
            raise Conflict(f"{reference} may mean {', '.join(key.id for key in candidates)}; name one by its id")
    raise NotFound(f"there is no key {reference}; `corral keys list` shows all")


@keys.command("reset-admin", cls=CorralCommand)
@json_option
@settings_options(frontend=_OF_THE_DATABASE)
def reset_admin(as_json: bool) -> None:
    """Make a new administrator key on this machine, and revoke the lost one.

    Works on the database itself and needs no key: whoever may read the data directory may do this.
    """
    import asyncio
    from dataclasses import replace

    from corral.frontend.config import CREDENTIALS_FILE, ControlConfig
    from corral.processes.control import reset_admin_key

    config = control_config(resolve(ControlConfig, command_sources(), without=frozenset({"nats_url"})))
    file = Path(config.database_url.removeprefix("sqlite:///"))
    if config.database_url.startswith("sqlite:") and not file.exists():
        raise NotFound(f"there is no database {file}; name its place with --data or --database")
    stored = config.data / CREDENTIALS_FILE
    if config.credentials_file is None and stored.exists():
        config = replace(config, credentials_file=stored)
    key = asyncio.run(reset_admin_key(config))
    _tell_up(config.data, key)
    if as_json:
        print_json({"key": key})
        return
    click.echo(key)
    click.echo("This is the administrator key now; the one before is revoked. It is not shown again.", err=True)


def _tell_up(data: Path, key: str) -> None:
    """Write the new key into the file of a running `corral up`, and wait until the fleet accepts it."""
    import time

    from corral.processes.up_file import NAME, read_up_file, write_up_file

    running = read_up_file(data)
    if running is None:
        return
    running.keys.admin = key
    write_up_file(data, running)
    client = ApiClient(FrontendTarget(url=running.url, key=key, origin=str(data / NAME), timeout=_ACCEPTED_WITHIN))
    until = time.monotonic() + _ACCEPTED_WITHIN.total_seconds()
    while time.monotonic() < until:
        try:
            client.get(_PATH, object)
            return
        except Unreachable:  # nothing listens there any more
            return
        except (AccessDenied, FrontendFailed):
            time.sleep(_PAUSE_SECONDS)
    warn([f"{running.url} does not accept the new key yet; try it in a few seconds"])
