"""`corral login`, `logout`, `whoami` and `password`: commands that act as a user. Asks for passwords.

A password is typed or read from a descriptor. It is never an argument: others on the machine could read it there.
"""

import os
import sys
from datetime import UTC, datetime
from typing import Final

import click
from msgspec.structs import replace

from corral.base.errors import AccessDenied, InvalidInput
from corral.base.private_files import make_private_directory
from corral.cli.client import ApiClient
from corral.cli.connection import (
    LoginFile,
    connected,
    forget_login,
    open_client,
    open_settings,
    read_login,
    target_of,
    write_login,
)
from corral.cli.options import CorralCommand, need_terminal, warn
from corral.cli.output import answer, facts, json_option, show_view
from corral.cli.units import duration_text, moment
from corral.wire.users import ChangePassword, LoggedIn, LoginAsk, WhoAmI

_FLAG: Final = "--password-descriptor"
_LARGEST: Final = 16 * 1024

password_option = click.option(
    _FLAG,
    type=click.IntRange(0, 1023),
    default=None,
    metavar="NUMBER",
    help="Read the password from this descriptor, such as 0, instead of asking for it.",
)
_WRONG = "the name or the password is wrong, or the user may not log in"


def _name_or_ask(context: click.Context, _: click.Parameter, name: str) -> str:
    if name or context.resilient_parsing:
        return name
    need_terminal("--user")
    return str(click.prompt("User", err=True))


_user_option = click.option(
    "--user", "name", default="", callback=_name_or_ask, metavar="NAME", help="Who logs in; a terminal asks for it."
)


@click.command("login", cls=CorralCommand)
@_user_option
@click.option(
    "--expires", default="", callback=duration_text, metavar="DURATION", help="Lifetime, such as 1h; 12h at most."
)
@password_option
@json_option
@connected
def login(name: str, expires: str, password_descriptor: int | None, as_json: bool) -> None:
    """Log in with name and password.

    Later commands act as this user, until `corral logout` or the end of the login. The key that this gives is kept in a
    private file of the data directory, and sent to this frontend only.
    """
    settings = open_settings()
    client = ApiClient(replace(target_of(settings), key=""))
    password = ask_password(password_descriptor, f"Password of {name}")
    try:
        made = client.post("/api/v1/login", LoggedIn, LoginAsk(name=name, password=password, expires_in=expires))
    except AccessDenied as error:
        raise AccessDenied(f"{client.target.url}: {_WRONG}") from error
    if made.unconfirmed_gateways:
        warn([f"gateways that may not know the login yet: {', '.join(made.unconfirmed_gateways)}"])
    make_private_directory(settings.data)
    write_login(settings.data, LoginFile(url=client.target.url, user=made.user, key=made.key))
    document = {"user": made.user, "scopes": made.scopes, "expires_at": made.expires_at, "url": client.target.url}
    until = moment(made.expires_at, datetime.now(UTC)) if made.expires_at else "it is revoked"
    answer(document, f"{made.user} is logged in ({', '.join(made.scopes)}) until {until}.", as_json=as_json)


@click.command("logout", cls=CorralCommand)
@json_option
@connected
def logout(as_json: bool) -> None:
    """Log out: the key of the login is revoked and forgotten."""
    settings = open_settings()
    login = read_login(settings.data)
    if login is None:
        answer({"logged_out": False}, "Nobody is logged in.", as_json=as_json)
        return
    client = ApiClient(replace(target_of(settings), url=login.url, key=login.key))
    try:
        client.delete("/api/v1/login")
    except AccessDenied:  # it has expired, or was revoked
        pass
    finally:
        forget_login(settings.data)
    answer({"logged_out": True, "user": login.user}, f"{login.user} is logged out.", as_json=as_json)


@click.command("whoami", cls=CorralCommand)
@json_option
@connected
def whoami(as_json: bool) -> None:
    """Show whose key commands use, and what it may do."""
    me = open_client().get("/api/v1/me", WhoAmI)
    pairs = [
        ("user", me.user or "nobody in particular"),
        ("key", f"{me.key} ({me.key_id})" if me.key_id else me.key),
        ("scopes", ", ".join(me.scopes)),
        ("models", "all" if me.models is None else ", ".join(me.models)),
        ("expires", moment(me.expires_at, datetime.now(UTC)) if me.expires_at else "never"),
        ("may", ", ".join(me.permissions)),
    ]
    show_view(me, lambda: facts(pairs), as_json=as_json)


@click.command("password", cls=CorralCommand)
@_user_option
@password_option
@json_option
@connected
def password(name: str, password_descriptor: int | None, as_json: bool) -> None:
    """Change your own password, which ends earlier logins.

    From a descriptor two lines are read: the password, and the new one.
    """
    client = ApiClient(replace(target_of(open_settings()), key=""))
    if password_descriptor is None:
        old = ask_password(None, f"Password of {name}")
        new = ask_password(None, "New password", is_new=True)
    else:
        old, _, new = ask_password(password_descriptor, "", lines=2).partition("\n")
    change = ChangePassword(name=name, password=old, new_password=new)
    try:
        client.send("POST", "/api/v1/login/password", change)
    except AccessDenied as error:
        raise AccessDenied(f"{client.target.url}: {_WRONG}") from error
    answer({"user": name, "changed": True}, f"The password of {name} is changed. Log in again.", as_json=as_json)


def ask_password(descriptor: int | None, prompt: str, *, is_new: bool = False, lines: int = 1) -> str:
    """Return the password from the descriptor, or ask for it on the terminal; a new one must be typed twice.

    A descriptor may hold several `lines`: they are returned as one text, without the last end of line.
    """
    if descriptor is not None:
        return _read(descriptor, lines)
    if not sys.stdin.isatty():
        raise InvalidInput(_FLAG, "there is nobody to ask for the password: give a descriptor, such as 0")
    typed: str = click.prompt(prompt, hide_input=True, confirmation_prompt=is_new, err=True)
    return typed


def _read(descriptor: int, lines: int) -> str:
    try:
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            text = file.read(_LARGEST).decode()
    except OSError as error:
        raise InvalidInput(_FLAG, f"descriptor {descriptor} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise InvalidInput(_FLAG, f"what descriptor {descriptor} gives is not UTF-8") from None
    return "\n".join(line.rstrip("\r") for line in text.split("\n")[:lines])
