"""`.venv`, from the first step that is not done."""

from pathlib import Path

from .checkout import BASE_PYTHON, Checkout, remove
from .running import step
from .uv import Uv


def level_for(checkout: Checkout, *, dev: bool) -> str:
    return "dev" if dev or checkout.done().get("level") == "dev" else "runtime"


def install(checkout: Checkout, uv: Uv, level: str) -> None:
    """Run the three steps, starting from the first one that is not done.

    A step in progress is not in the stamp. So a venv without its packages in the stamp may hold a partial install, and
    is recreated.
    """
    wanted, done = checkout.wanted(level), checkout.done()
    if done.get("venv") != wanted["venv"] or "packages" not in done:
        with step("Creating .venv"):
            create_venv(checkout, uv)
        done = {"venv": wanted["venv"]}
    if done.get("packages") != wanted["packages"]:
        checkout.mark({"venv": wanted["venv"]})
        with step(f"Installing {count_packages(checkout.lock(level))} packages"):
            install_packages(checkout, uv, level)
    checkout.mark({step_name: wanted[step_name] for step_name in ("venv", "level", "packages")})
    with step("Installing corral"):
        install_project(checkout, uv)
    checkout.mark(wanted)


def create_venv(checkout: Checkout, uv: Uv) -> None:
    remove(checkout.venv)
    uv(
        *("venv", "--no-project", "--python", BASE_PYTHON, checkout.venv),
        advice=f"Could not make a virtual environment with {BASE_PYTHON}. Is the disk full or the folder read-only?",
    )


def install_packages(checkout: Checkout, uv: Uv, level: str) -> None:
    uv(
        *("pip", "sync", "--require-hashes", "--python", checkout.python, checkout.lock(level)),
        advice="Could not install the packages. Check the network and the disk, then try again: it goes on from here.",
    )


def install_project(checkout: Checkout, uv: Uv) -> None:
    """Editable, so that `.venv/bin/corral` runs what is in `src`. Its build tool comes from the lock."""
    uv(
        *("pip", "install", "--no-deps", "--no-build-isolation", "--python", checkout.python, "-e", checkout.root),
        advice="Could not install corral itself. Is pyproject.toml sound?",
    )


def count_packages(lock: Path) -> int:
    return sum(line[:1].isalnum() for line in lock.read_text().splitlines())
