"""A browser for the tests of the page: a headless Chromium in `.build`, with its fonts and the rules of accessibility.

On x86-64 it is the one of an npm package, which needs no root and hardly a library of the system, so that all run the
same. Elsewhere, or should that one not start, it is the machine's own, and otherwise Debian's, unpacked with all that
it needs. What tests need to know to start it is in `browser.json`, which is written last.
"""

import json
import os
import platform
import shutil
import sys
from pathlib import Path

from .checkout import BROWSER_FILES, Checkout, remove
from .debian import fetch_debian_packages
from .node import node_environment, node_program, npm_command, provide_node
from .running import Runner, Trouble, Words, step
from .uv import Uv

DESCRIPTION = "browser.json"
# Names under which people have it.
ON_THE_MACHINE = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
MACHINES_OF_THE_PACKAGE = ("x86_64", "AMD64")
# Python cannot unpack Brotli, Node can. Arguments are pairs of packed and unpacked files.
UNPACK = """
const { createReadStream, createWriteStream } = require('node:fs')
const { createBrotliDecompress } = require('node:zlib')
const { pipeline } = require('node:stream/promises')
const [packed, unpacked] = process.argv.slice(1)
pipeline(createReadStream(packed), createBrotliDecompress(), createWriteStream(unpacked))
"""
FONTS = ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf", "DejaVuSansMono.ttf", "DejaVuSansMono-Bold.ttf")
# Without a font that it finds, Chromium draws no text at all and says nothing about it.
FONTS_CONFIGURATION = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>{folder}</dir>
  <cachedir>{folder}/cache</cachedir>
  <alias><family>system-ui</family><prefer><family>Open Sans</family><family>DejaVu Sans</family></prefer></alias>
  <alias><family>sans-serif</family><prefer><family>Open Sans</family><family>DejaVu Sans</family></prefer></alias>
  <alias><family>ui-monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
  <alias><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
</fontconfig>
"""
FAILED = "Tests of the page will fail until there is a browser; `make setup` tries again."


def missing_browser(checkout: Checkout, level: str) -> bool:
    """Looked at each time: tests fail without a browser."""
    if level != "dev" or not sys.platform.startswith("linux"):
        return False
    return not (checkout.browser / DESCRIPTION).exists() or not node_program(checkout).exists()


def provide_browser(checkout: Checkout, uv: Uv, runner: Runner) -> None:
    """Put it where the tests look for it. Everything else works without it: a note will do."""
    try:
        with step("Getting a browser for tests, 70 MB"):
            if not node_program(checkout).exists():
                provide_node(checkout, uv)
            for earlier in checkout.build.glob("browser-*"):
                remove(earlier)
            home = checkout.browser
            home.mkdir()
            install_browser(home, checkout, runner)
    except (Trouble, OSError) as trouble:
        print(f"{trouble}\n{FAILED}", flush=True)


def install_browser(home: Path, checkout: Checkout, runner: Runner) -> None:
    """Fetch the packages, choose a browser that starts, and describe it."""
    has_package = platform.machine() in MACHINES_OF_THE_PACKAGE
    fetch_packages(home, checkout, runner, with_chromium=has_package)
    write_fonts(home)
    environment = {"FONTCONFIG_FILE": str(home / "fonts" / "fonts.conf")}
    candidates = [unpack_chromium] if has_package else []
    for find in (*candidates, find_on_the_machine, fetch_from_debian):
        program, libraries = find(home, checkout, runner)
        started = {**environment, "LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries))}
        if program is not None and starts(program, started, runner):
            break
    else:
        raise Trouble(
            "No Chromium could be had that starts on this machine. Install one, as with: apt install chromium"
        )
    description = {
        "program": str(program),
        "environment": started,
        "node": str(node_program(checkout)),
        "axe": str(home / "node_modules" / "axe-core" / "axe.min.js"),
    }
    draft = home / f"{DESCRIPTION}.part"
    draft.write_text(json.dumps(description, indent=2))
    draft.replace(home / DESCRIPTION)


def fetch_packages(home: Path, checkout: Checkout, runner: Runner, *, with_chromium: bool) -> None:
    for name in BROWSER_FILES:
        shutil.copyfile(checkout.browser_packages / name, home / name)
    options = () if with_chromium else ("--omit=optional",)
    result = runner.attempt(
        [*npm_command(checkout), "ci", "--no-progress", *options], env=node_environment(checkout), cwd=home
    )
    if result.returncode != 0:
        raise Trouble("npm could not fetch the browser. Does it reach its registry?", result.stderr)


def write_fonts(home: Path) -> None:
    """Only the fonts that the page shall be drawn with: glyphs that none of them has are taken from any other."""
    folder = home / "fonts"
    folder.mkdir()
    for name in FONTS:
        shutil.copyfile(home / "node_modules" / "dejavu-fonts-ttf" / "ttf" / name, folder / name)
    (folder / "fonts.conf").write_text(FONTS_CONFIGURATION.format(folder=folder))


def unpack_chromium(home: Path, checkout: Checkout, runner: Runner) -> tuple[Path | None, list[Path]]:
    """The one of the npm package, with the libraries that it brings along and Open Sans."""
    packed = home / "node_modules" / "@sparticuz" / "chromium" / "bin"
    program = home / "chromium"
    for source, target in (("chromium", program), ("al2023.tar", home / "lib.tar"), ("fonts.tar", home / "fonts.tar")):
        runner.succeed(
            [node_program(checkout), "-e", UNPACK, packed / f"{source}.br", target],
            env=node_environment(checkout),
            advice="Chromium could not be unpacked. Is there space on the disk?",
        )
    program.chmod(0o755)
    for archive in (home / "lib.tar", home / "fonts.tar"):
        command: Words = ["tar", "-x", "--no-same-owner", "--exclude=fonts.conf", "-C", home, "-f", archive]
        runner.succeed(command, advice="The libraries of Chromium could not be unpacked. Is there a tar?")
        archive.unlink()
    remove(packed)
    return program, [home / "lib"]


def find_on_the_machine(home: Path, checkout: Checkout, runner: Runner) -> tuple[Path | None, list[Path]]:
    program = next(filter(None, map(shutil.which, ON_THE_MACHINE)), None)
    return (None if program is None else Path(program)), []


def fetch_from_debian(home: Path, checkout: Checkout, runner: Runner) -> tuple[Path | None, list[Path]]:
    folder = home / "debian"
    fetch_debian_packages("chromium", folder, checkout, runner, advice="Install chromium, for the tests of the page.")
    libraries = {library.parent for library in folder.glob("usr/lib/*-linux-gnu*/**/*.so*")}
    return folder / "usr/lib/chromium/chromium", sorted(libraries)


def starts(program: Path, environment: dict[str, str], runner: Runner) -> bool:
    """Whether its libraries are all there: it prints its version only then."""
    try:
        result = runner.attempt([program, "--no-sandbox", "--version"], env={**os.environ, **environment})
    except OSError:
        return False
    return result.returncode == 0
