"""`corral keys`: who may call the API."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from corral.base.errors import AccessDenied, Conflict, InvalidInput, NotFound
from corral.base.words import counted
from corral.cli.client import ApiClient, FrontendFailed, FrontendTarget, Unreachable, api_path
from corral.cli.connection import connected, open_client
from corral.cli.options import CorralCommand, command_sources, settings_options, warn
from corral.cli.output import Column, answer, json_option, plain, print_json, print_table, state_text
from corral.cli.units import age, duration_text, moment
from corral.processes.configs import control_config
from corral.processes.settings import ClientSettings
from corral.processes.settings_sources import resolve
from corral.wire.keys import CreatedKey, CreateKey, KeyView, RevokedKey, Scope
from corral.wire.state_words import Subject

if TYPE_CHECKING:
    from corral.frontend.config import ControlConfig

_PATH: Final = "/api/v1/keys"
_OF_THE_DATABASE: Final = frozenset({"data", "database", "secrets_key_file", "credentials_file"})
_ACCEPTED_WITHIN: Final = timedelta(seconds=10)
"""How long a running fleet may take to learn of a key that was made in its database."""
_PAUSE_SECONDS: Final = 0.1
_OF_ANOTHER_TOOL: Final = (
    "An account that another tool made is changed with that tool: give the new account to the servers and its seed to"
    " all frontends (CORRAL_NATS_ACCOUNT_SEED), and start both again"
)


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
    help="What the key may do; may be given several times. admin and operator imply inference.",
)
@click.option(
    "--expires",
    default="",
    callback=duration_text,
    metavar="DURATION",
    help="Lifetime, such as 30d; without it there is no end.",
)
@click.option("--model", "models", multiple=True, metavar="NAME", help="The only models that it may ask; repeatable.")
@click.option("--user", default=None, metavar="NAME", help="Whose key it is: it goes with the user.")
@click.option("--service", is_flag=True, help="Nobody's key: it outlives the user who makes it.")
@json_option
@connected
def create_key(
    name: str,
    scopes: Sequence[str],
    expires: str,
    models: Sequence[str],
    user: str | None,
    service: bool,
    as_json: bool,
) -> None:
    """Make a key and print it, this once: only its hash is stored. A key that a user makes is the user's own."""
    if service and user is not None:
        raise InvalidInput("--service", "a key of --user belongs to that user; give one of both")
    owner = "" if service else user
    request = CreateKey(name=name, scopes=list(scopes), expires_in=expires, user=owner, models=list(models))
    created = open_client().post(_PATH, CreatedKey, request)
    warn(_unconfirmed(created.unconfirmed_gateways, "may not know this key yet"))
    if as_json:
        print_json(created)
        return
    click.echo(created.key)
    lasting = f"until {moment(created.expires_at, datetime.now(UTC))}" if created.expires_at else "until it is revoked"
    click.echo(f"Key {created.id} ({', '.join(created.scopes)}) is valid {lasting}. It is not shown again.", err=True)


@keys.command("list", cls=CorralCommand)
@click.option(
    "--all",
    "with_all",
    is_flag=True,
    help="Also keys that were revoked or have expired, and those that the web page has for its chat.",
)
@json_option
@connected
def list_keys(with_all: bool, as_json: bool) -> None:
    """List the keys. The keys themselves are stored nowhere."""
    keys = open_client().get(f"{_PATH}?all=true" if with_all else _PATH, list[KeyView])
    keys = [key for key in keys if with_all or key.state == "active"]
    now = datetime.now(UTC)
    columns: Sequence[Column[KeyView]] = (
        Column(title="ID", cell=lambda key: plain(key.id)),
        Column(title="NAME", cell=lambda key: plain(key.name)),
        Column(title="USER", cell=lambda key: plain(key.user or "-")),
        Column(title="SCOPES", cell=lambda key: plain(_scopes(key))),
        Column(title="STATE", cell=lambda key: state_text(Subject.KEY, key.state)),
        Column(
            title="EXPIRES", cell=lambda key: moment(key.expires_at, now) if key.expires_at else "never", least_width=90
        ),
        Column(title="USED", cell=lambda key: age(key.last_used_at, now), least_width=80),
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


def _scopes(key: KeyView) -> str:
    of = "" if key.models is None else f" of {', '.join(key.models)}"
    return ", ".join(key.scopes) + of


def _unconfirmed(gateways: Sequence[str], consequence: str) -> list[str]:
    return (
        [f"{counted(len(gateways), 'gateway')} did not answer in time and {consequence}: {', '.join(gateways)}"]
        if gateways
        else []
    )


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

    Works on the database itself and needs no key: everybody who can read the data directory can do this.
    """
    import asyncio
    from dataclasses import replace

    from corral.frontend.config import CREDENTIALS_FILE
    from corral.processes.maintenance import reset_admin_key

    config = _database_config()
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


@keys.command("rotate", cls=CorralCommand)
@click.option("--keep-before", is_flag=True, help="Leave the key before in secrets.key.before, for older backups.")
@click.option("--discard-unreadable", is_flag=True, help="Remove secrets that neither key opens; names are printed.")
@json_option
@settings_options(frontend=_OF_THE_DATABASE)
def rotate(keep_before: bool, discard_unreadable: bool, as_json: bool) -> None:
    """Change the secrets key, with which secrets are sealed in the database.

    Works on the database itself, on the machine of a frontend; frontends go on running meanwhile, and keep the new key
    by themselves. Broken off, it goes on where it was when it is run again. Afterwards the key before opens nothing in
    this database any more; backups from before open only with it.
    """
    import asyncio

    from corral.processes.maintenance import KEY_BEFORE_FILE, NEXT_KEY_FILE, rotate_secrets_key

    config = _database_config()
    where = f"this leaves it in {config.data / KEY_BEFORE_FILE}" if keep_before else "--keep-before leaves a copy"
    warn([f"backups made until now open only with the key of now; keep it as long as you keep them ({where})"])
    outcome = asyncio.run(rotate_secrets_key(config, discard=discard_unreadable, keep_before=keep_before))
    if as_json:
        lists = {"behind": list(outcome.behind), "unreadable": list(outcome.unreadable)}
        discarded = {"discarded": discard_unreadable} if outcome.unreadable else {}
        print_json({"finished": not outcome.behind, "sealed": outcome.sealed, **lists, **discarded})
        return
    click.echo(f"{counted(outcome.sealed, 'secret')} encrypted with the new key.")
    if outcome.unreadable:
        became = "discarded" if discard_unreadable else "left as they are; --discard-unreadable removes them"
        click.echo(f"Neither key opens these, which are {became}: {', '.join(outcome.unreadable)}")
    if outcome.behind:
        click.echo(
            f"Not finished: {', '.join(outcome.behind)} would still start with the key before. Where it comes"
            f" from CORRAL_SECRETS_KEY, set that to the key in {config.data / NEXT_KEY_FILE} and start the frontend"
            " again; else see why it does not hear of the change. Then run this again."
        )
        return
    click.echo("The key before opens nothing in this database any more.")
    if not config.secrets_key:
        click.echo(f"Back up {config.secrets_key_file}. Frontends that were not running need a copy of it.")


def _database_config() -> "ControlConfig":
    """The settings of the frontend whose database a command works on. NotFound when there is none."""
    from corral.frontend.config import ControlConfig

    config = control_config(resolve(ControlConfig, command_sources(), without=frozenset({"nats_url"})))
    file = Path(config.database_url.removeprefix("sqlite:///"))
    if config.database_url.startswith("sqlite:") and not file.exists():
        raise NotFound(f"there is no database {file}; name its place with --data or --database")
    return config


@keys.command("nats", cls=CorralCommand)
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
def nats(directory: Path) -> None:
    """Make the keys that sign for users of a NATS server of your own, in DIRECTORY.

    The servers include logins.conf in their configuration, frontends have the settings of frontend.env. Keys that are
    there already are kept. `corral up` needs none of this.
    """
    from corral.bus.authority import write_for_own_server

    logins, settings = write_for_own_server(directory)
    click.echo(f"{logins}  for the NATS servers: include it in their configuration")
    click.echo(f"{settings}  for the frontends: settings that are secret, as is everything beside them")


@keys.command("rotate-nats", cls=CorralCommand)
@click.argument("directory", required=False, type=click.Path(path_type=Path, file_okay=False))
@json_option
@settings_options(client=frozenset({"data"}))
def rotate_nats(directory: Path | None, as_json: bool) -> None:
    """Make a new NATS account, so that every user of the one before is refused.

    That of `corral up`, which must be stopped, or with DIRECTORY that of `corral keys nats`, whose servers and
    frontends you stop before and start with the new files. Workers get new users by themselves; nodes and approvals
    stay. The keys before are deleted.
    """
    if directory is None:
        account, said = _new_account_of_up(resolve(ClientSettings, command_sources()).data)
    else:
        account, said = _new_account_of_own_server(directory)
    answer({"account": account}, said, as_json=as_json)


def _new_account_of_up(data: Path) -> tuple[str, str]:
    """The new account, and what to do next. DataInUse while the fleet runs."""
    from corral.base.private_files import held
    from corral.bus.authority import has_keys, replace_keys
    from corral.processes.up_file import LOCK

    folder = data / "nats"
    if not has_keys(folder):
        raise NotFound(
            f"no `corral up` has made a NATS account in {folder}; name its data directory with --data, or the directory"
            f" of `corral keys nats` as an argument. {_OF_ANOTHER_TOOL}"
        )
    with held(data / LOCK, f"`corral up` runs in {data}; stop it first, with `corral down`, and run this again"):
        account = replace_keys(folder).account
    return account, (
        "The NATS account is a new one; no user of the one before is let in.\n"
        f"Start `corral up` again: nodes get new users by themselves. Back up {folder}, and delete older copies of it."
    )


def _new_account_of_own_server(directory: Path) -> tuple[str, str]:
    """The new account, and what the operator of the servers does next."""
    from corral.bus.authority import RESOLVER_FOLDER, has_keys, replace_keys, write_for_own_server

    if not has_keys(directory):
        raise NotFound(f"`corral keys nats` has made no keys in {directory}. {_OF_ANOTHER_TOOL}")
    account = replace_keys(directory.absolute()).account
    logins, settings = write_for_own_server(directory)
    return account, (
        "The NATS account is a new one. The one before is good until servers and frontends start with these files:\n"
        f"  1. Stop all frontends and NATS servers, and delete the directory {RESOLVER_FOLDER} of each server.\n"
        f"  2. Give {logins} to the servers and {settings} to the frontends.\n"
        "  3. Start the servers, then the frontends. Nodes get new users by themselves."
    )


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
