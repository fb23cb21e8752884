"""Finds pip, the machine's own or Debian's (fetched into .build), and reads its settings."""

import ast
import contextlib
import importlib.util
import os
from pathlib import Path

from .checkout import BASE_PYTHON, Checkout
from .debian import debian_folder, fetch_debian_package
from .running import Runner, step

# Settings of the user's that would make `pip install --target` refuse, or chatter.
PIP_QUIETED = {
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_INPUT": "1",
    "PIP_REQUIRE_VIRTUALENV": "0",
    "PIP_ROOT_USER_ACTION": "ignore",
    "PIP_USER": "0",
}


def find_pip(checkout: Checkout, runner: Runner) -> list[str]:
    """The words that start a working pip."""
    candidates = [[BASE_PYTHON, "-m", "pip"], *(pip_in(wheel) for wheel in pip_wheels(checkout))]
    for command in candidates:
        if runner.attempt([*command, "--version"], env=pip_environment()).returncode == 0:
            return command
    with step("Getting pip from Debian, as this machine has none"):
        advice = "This Python has no pip. Install pip and try again, or ask an administrator for python3-pip."
        fetch_debian_package("python3-pip-whl", checkout, runner, advice=advice)
    return pip_in(pip_wheels(checkout)[-1])


def pip_in(wheel: Path) -> list[str]:
    return [BASE_PYTHON, str(wheel / "pip")]


def pip_wheels(checkout: Checkout) -> list[Path]:
    """Wheels of pip that came with Python, with the system, or from an earlier run."""
    ensurepip = importlib.util.find_spec("ensurepip")
    folders = [Path(place) / "_bundled" for place in (ensurepip.submodule_search_locations or [])] if ensurepip else []
    folders += [Path("/usr/share/python-wheels"), debian_folder(checkout) / "usr/share/python-wheels"]
    return [wheel for folder in folders for wheel in sorted(folder.glob("pip-*.whl"))]


def pip_environment() -> dict[str, str]:
    return {**os.environ, **PIP_QUIETED}


def pip_settings(listing: str) -> dict[str, str]:
    """What `pip config list` says about `pip install`: the environment wins, then [install], then [global]."""
    found: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listing.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if section in found:
            with contextlib.suppress(ValueError, SyntaxError):
                found[section][key] = str(ast.literal_eval(value))
    return {**found["global"], **found["install"], **found[":env:"]}
