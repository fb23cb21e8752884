"""Passwords of users: typed, or read from a descriptor; never an argument, which others could read."""

import os
import sys
from typing import Final

import click

from corral.base.errors import InvalidInput

_FLAG: Final = "--password-descriptor"
_LARGEST: Final = 16 * 1024

password_option = click.option(
    _FLAG,
    type=click.IntRange(0, 1023),
    default=None,
    metavar="NUMBER",
    help="Read the password from this descriptor, such as 0, instead of asking for it.",
)


def ask_password(descriptor: int | None, prompt: str, *, is_new: bool = False, lines: int = 1) -> str:
    """Return the password, from the descriptor or the terminal; a new one is typed twice. Of a descriptor the first
    lines are returned, without the last end of line."""
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
