"""`corral users`: people, their roles and their passwords."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import click
import msgspec

from corral.cli.access.login import ask_password, password_option
from corral.cli.client import ApiClient, api_path
from corral.cli.connection import connected, open_client
from corral.cli.options import CorralCommand, confirm, warn
from corral.cli.output import Column, answer, json_option, plain, print_table, state_text
from corral.cli.units import age
from corral.wire.keys import ROLES
from corral.wire.state_words import Subject
from corral.wire.users import ChangeUser, CreateUser, UserChanged, UserView

_PATH: Final = "/api/v1/users"
_roles: Final = click.Choice([role.value for role in ROLES])


@click.group()
def users() -> None:
    """List, add and change users."""


@users.command("list", cls=CorralCommand)
@json_option
@connected
def list_users(as_json: bool) -> None:
    """List all users."""
    people = open_client().get(_PATH, list[UserView])
    now = datetime.now(UTC)
    columns: Sequence[Column[UserView]] = (
        Column(title="NAME", cell=lambda user: plain(user.name)),
        Column(title="ROLE", cell=lambda user: plain(user.role)),
        Column(title="STATE", cell=lambda user: state_text(Subject.USER, "disabled" if user.is_disabled else "active")),
        Column(title="PASSWORD", cell=lambda user: "yes" if user.has_password else "no"),
        Column(title="KEYS", cell=lambda user: str(user.active_keys), right=True),
        Column(
            title="ADDED", cell=lambda user: f"{age(user.created_at, now)} by {plain(user.created_by)}", least_width=70
        ),
    )
    print_table(people, columns, nothing="There is no user; `corral users create` adds one.", as_json=as_json)


@users.command("create", cls=CorralCommand)
@click.argument("name")
@click.option("--role", required=True, type=_roles, help="What the user may do.")
@click.option("--no-password", is_flag=True, help="The user has keys only, and cannot log in.")
@password_option
@json_option
@connected
def create_user(name: str, role: str, no_password: bool, password_descriptor: int | None, as_json: bool) -> None:
    """Add a user. The password is asked for."""
    client = open_client()
    password = "" if no_password else ask_password(password_descriptor, f"Password of {name}", is_new=True)
    user = client.post(_PATH, UserView, CreateUser(name=name, role=role, password=password))
    next_step = f"`corral keys create NAME --user {user.name}` makes a key" if no_password else "`corral login` logs in"
    answer(user, f"{user.name} is added as {user.role}; {next_step}.", as_json=as_json)


@users.command("role", cls=CorralCommand)
@click.argument("name")
@click.argument("role", type=_roles)
@json_option
@connected
def change_role(name: str, role: str, as_json: bool) -> None:
    """Give a user another role. Keys that it does not cover are revoked."""
    user = _change(open_client(), name, ChangeUser(role=role))
    answer(user, f"{user.name} is {user.role}{_ended(user)}.", as_json=as_json)


@users.command("password", cls=CorralCommand)
@click.argument("name")
@click.option("--no-password", is_flag=True, help="Take the password away: the user cannot log in any more.")
@password_option
@json_option
@connected
def set_password(name: str, no_password: bool, password_descriptor: int | None, as_json: bool) -> None:
    """Set a user's password, which ends earlier logins. `corral password` changes your own."""
    client = open_client()
    password = "" if no_password else ask_password(password_descriptor, f"New password of {name}", is_new=True)
    user = _change(client, name, ChangeUser(password=password))
    outcome = "has no password any more" if no_password else "has a new password"
    answer(user, f"{user.name} {outcome}{_ended(user)}.", as_json=as_json)


@users.command("disable", cls=CorralCommand)
@click.argument("name")
@json_option
@connected
def disable_user(name: str, as_json: bool) -> None:
    """Keep a user out. All its keys are revoked, for good."""
    user = _change(open_client(), name, ChangeUser(disabled=True))
    answer(user, f"{user.name} is disabled{_ended(user)}.", as_json=as_json)


@users.command("enable", cls=CorralCommand)
@click.argument("name")
@json_option
@connected
def enable_user(name: str, as_json: bool) -> None:
    """Let a disabled user log in again. Keys that were revoked stay so."""
    user = _change(open_client(), name, ChangeUser(disabled=False))
    answer(user, f"{user.name} is enabled.", as_json=as_json)


@users.command("delete", cls=CorralCommand)
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@connected
def delete_user(name: str, yes: bool, as_json: bool) -> None:
    """Delete a user, and revoke all its keys."""
    client = open_client()
    if not yes:
        confirm(f"Delete the user {name} and revoke all its keys?")
    user = msgspec.json.decode(client.delete(api_path("users", name)), type=UserChanged)
    _warn(user)
    answer(user, f"{user.name} is deleted{_ended(user)}.", as_json=as_json)


def _change(client: ApiClient, name: str, change: ChangeUser) -> UserChanged:
    user = client.patch(api_path("users", name), UserChanged, change)
    _warn(user)
    return user


def _warn(user: UserChanged) -> None:
    if gateways := user.unconfirmed_gateways:
        warn([f"{len(gateways)} gateways did not answer in time and may still take its keys: {', '.join(gateways)}"])


def _ended(user: UserChanged) -> str:
    count = len(user.revoked_keys)
    return "" if not count else "; 1 key is revoked" if count == 1 else f"; {count} keys are revoked"
