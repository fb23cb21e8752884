"""The command line, and the order of the steps.

    python3 tools/bootstrap.py setup [--dev] [--ui]         what `corral` needs, or all that its developers need
    python3 tools/bootstrap.py run [--dev] [--ui] COMMAND … the same, then become that command of .venv/bin
    python3 tools/bootstrap.py lock [--upgrade]             write requirements/*.txt and those of backends anew

What is there already costs nothing.
"""

import argparse
import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from .backends import (
    link_provisions,
    missing_backends,
    missing_clients,
    provide_backend,
    provide_clients,
    provide_images,
)
from .browser import missing_browser, provide_browser
from .checkout import FIRST_BACKENDS, OWN_BACKENDS, Checkout
from .locks import lock
from .node import link_page_packages, missing_page_packages, provide_page_packages
from .provisions import missing_libraries, missing_programs, provide_chat_model, provide_library, provide_program
from .running import Trouble, exclusive
from .uv import Uv
from .venv import install, level_for

# What is said of images while they are made.
FIRST_IMAGES = "Making the image of llama.cpp"
ALL_IMAGES = "Making images of Corral's own backends"


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
        command.add_argument("--ui", action="store_true", help="with Node and the packages that build the page")
        if name == "run":
            command.add_argument("command", nargs=argparse.REMAINDER, help="the command and its arguments")
    rest = commands.add_parser("rest", help="make the images that `run` left out; started by it")
    rest.add_argument("--descriptor", type=int, required=True, help="ends when its other end is closed")
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
    if wish.action == "rest":
        make_the_rest(checkout, wish.descriptor)
        return
    is_corral = wish.action == "run" and wish.command[0] == "corral"
    setup(checkout, dev=wish.dev, images=FIRST_BACKENDS if is_corral else tuple(OWN_BACKENDS))
    if wish.ui:
        setup_page(checkout)
    if is_corral:
        begin_the_rest(checkout)
    if wish.action == "run":
        run(checkout, wish.command)


def setup(checkout: Checkout, *, dev: bool, images: Sequence[str]) -> None:
    """Bring `.venv` up to date. A developer's one stays one when only `corral` is asked for."""
    level = level_for(checkout, dev=dev)
    is_missing = bool(missing_libraries(checkout) or missing_programs(checkout, level))
    is_missing = is_missing or bool(missing_backends(checkout, level)) or missing_clients(checkout, level)
    is_missing = is_missing or missing_browser(checkout, level)
    is_provided = checkout.chat_model.exists() and not checkout.missing_images(images)
    if checkout.is_ready(level) and not is_missing and is_provided:
        link_provisions(checkout)
        return
    with exclusive(checkout) as runner:
        level = level_for(checkout, dev=dev)  # the previous holder of the lock may have done it all
        uv = Uv(checkout, runner)
        if not checkout.is_ready(level):
            install(checkout, uv, level)
        for name in missing_libraries(checkout):
            provide_library(name, checkout, runner)
        for name in missing_programs(checkout, level):
            provide_program(name, checkout, runner)
        if not checkout.chat_model.exists():
            provide_chat_model(checkout, uv)
        if checkout.missing_images(images):
            provide_images(checkout, uv, images, FIRST_IMAGES if images == FIRST_BACKENDS else ALL_IMAGES)
        for backend in missing_backends(checkout, level):
            provide_backend(backend, checkout, uv)
        if missing_clients(checkout, level):
            provide_clients(checkout, uv)
        if missing_browser(checkout, level):
            provide_browser(checkout, uv, runner)
        link_provisions(checkout)


def setup_page(checkout: Checkout) -> None:
    """Get Node and the packages of the page, which only the build of the page needs."""
    if missing_page_packages(checkout):
        with exclusive(checkout) as runner:
            provide_page_packages(checkout, Uv(checkout, runner), runner)
    link_page_packages(checkout)


def begin_the_rest(checkout: Checkout) -> None:
    """Have the images made that the first answer does not need, beside the command that this process becomes.

    Whoever makes them leaves when that command ends: it holds the other end of a pipe, without knowing it. It is
    nobody's child by then, so that the command need not reap it, and in this session, where its low priority counts.
    """
    if not checkout.missing_images(OWN_BACKENDS):
        return
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    with (checkout.build / "images.log").open("w") as output:
        script = Path(__file__).parents[1] / "bootstrap.py"
        words = [sys.executable, str(script), "rest", "--descriptor", str(reader)]
        starter = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=[reader], process_group=0
        )
    os.close(reader)
    starter.wait()


def make_the_rest(checkout: Checkout, descriptor: int) -> None:
    """Build all missing images, in a process that ends when the other end of the pipe is closed."""
    if os.fork() > 0:
        return
    os.nice(15)

    def end_with_the_other() -> None:
        os.read(descriptor, 1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=end_with_the_other, daemon=True).start()
    with exclusive(checkout) as runner:
        provide_images(checkout, Uv(checkout, runner), tuple(OWN_BACKENDS), ALL_IMAGES)


def run(checkout: Checkout, command: Sequence[str]) -> None:
    """Become that command, so that signals reach it directly."""
    program = checkout.venv / "bin" / command[0]
    if not program.exists():
        raise Trouble(f"There is no {command[0]} in .venv/bin; does it need --dev?")
    sys.stdout.flush()
    os.execv(program, [str(program), *command[1:]])
