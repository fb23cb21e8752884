"""The command line, and the order of the steps.

    python3 tools/bootstrap.py setup [--dev]                what `corral` needs, or all that its developers need
    python3 tools/bootstrap.py run [--dev] COMMAND …        the same, then become that command of .venv/bin
    python3 tools/bootstrap.py lock [--upgrade]             write requirements/*.txt and those of backends anew

What is there already costs nothing.
"""

import argparse
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from .backends import missing_backends, missing_clients, provide_backend, provide_backends, provide_clients
from .checkout import Checkout
from .locks import lock
from .provisions import missing_libraries, missing_programs, provide_chat_model, provide_library, provide_program
from .running import Trouble, exclusive
from .uv import Uv
from .venv import install, level_for

# How `corral up` is told where the chat model is kept.
CHAT_MODEL_VARIABLE = "CORRAL_FIRST_MODEL"

# How every command is told where the gallery of Corral's own backends is.
BACKEND_GALLERY_VARIABLE = "CORRAL_BUILTIN_GALLERY"


def main(words: Sequence[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without our dots is no reason to fail
    try:
        perform(Checkout(Path(__file__).resolve().parents[2]), arguments(words))
    except Trouble as trouble:
        print(trouble, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{error}. Does this checkout belong to you, and is there space on the disk?", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted; the next run goes on from here.", file=sys.stderr)
        return 130
    return 0


def arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bootstrap.py", description="Sets up a checkout, from nothing but a Python.")
    commands = parser.add_subparsers(dest="action", required=True)
    for name, purpose in (("setup", "bring .venv up to date"), ("run", "the same, then become a command of .venv/bin")):
        command = commands.add_parser(name, help=purpose)
        command.add_argument("--dev", action="store_true", help="with the tools that tests and checks need")
        if name == "run":
            command.add_argument("command", nargs=argparse.REMAINDER, help="the command and its arguments")
    locking = commands.add_parser("lock", help="write requirements/*.txt anew")
    locking.add_argument("--upgrade", action="store_true", help="take the newest versions")
    parsed = parser.parse_args(words)
    if parsed.action == "run" and not parsed.command:
        parser.error("run needs a command")
    return parsed


def perform(checkout: Checkout, wish: argparse.Namespace) -> None:
    if wish.action == "lock":
        lock(checkout, ["--upgrade"] if wish.upgrade else [])
        return
    setup(checkout, dev=wish.dev)
    if wish.action == "run":
        run(checkout, wish.command)


def setup(checkout: Checkout, *, dev: bool) -> None:
    """Bring `.venv` up to date. A developer's one stays one when only `corral` is asked for."""
    level = level_for(checkout, dev=dev)
    is_missing = bool(missing_libraries(checkout) or missing_programs(checkout, level))
    is_missing = is_missing or bool(missing_backends(checkout, level)) or missing_clients(checkout, level)
    is_provided = checkout.chat_model.exists() and checkout.backend_gallery.exists()
    if checkout.is_ready(level) and not is_missing and is_provided:
        return
    with exclusive(checkout) as runner:
        level = level_for(checkout, dev=dev)  # whoever held the lock may have done it all
        uv = Uv(checkout, runner)
        if not checkout.is_ready(level):
            install(checkout, uv, level)
        for name in missing_libraries(checkout):
            provide_library(name, checkout, runner)
        for name in missing_programs(checkout, level):
            provide_program(name, checkout, runner)
        if not checkout.chat_model.exists():
            provide_chat_model(checkout, uv)
        if not checkout.backend_gallery.exists():
            provide_backends(checkout, uv)
        for backend in missing_backends(checkout, level):
            provide_backend(backend, checkout, uv)
        if missing_clients(checkout, level):
            provide_clients(checkout, uv)


def run(checkout: Checkout, command: Sequence[str]) -> None:
    """Become that command, so that signals reach it directly."""
    program = checkout.venv / "bin" / command[0]
    if not program.exists():
        raise Trouble(f"There is no {command[0]} in .venv/bin; does it need --dev?")
    sys.stdout.flush()
    if command[0] == "corral":
        os.environ.setdefault(CHAT_MODEL_VARIABLE, str(checkout.chat_model))
        if checkout.backend_gallery.exists():
            os.environ.setdefault(BACKEND_GALLERY_VARIABLE, str(checkout.backend_gallery))
    os.execv(program, [str(program), *command[1:]])
