"""Fetches uv with pip, pinned by hash, and passes pip's settings on to it."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from .checkout import Checkout
from .pip import find_pip, pip_environment, pip_settings
from .running import Runner, step

# pip's settings on the left, what uv calls them on the right.
HANDED_ON = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "timeout": "UV_HTTP_TIMEOUT",
}
SEPARATORS = {"UV_FIND_LINKS": ","}  # uv splits every other list at blanks, as pip does

NO_IMAGES = "The images of Corral's own backends could not be made; that is tried again next time. All else works."


def get_uv(checkout: Checkout, runner: Runner, pip: Sequence[str]) -> Path:
    """The pinned uv. The folder appears under its name only when it is complete."""
    folder = checkout.uv_folder()
    if folder.exists():
        return folder / "bin/uv"
    draft = checkout.build / "uv.part"
    shutil.rmtree(draft, ignore_errors=True)
    options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes", "--target", str(draft)]
    with step("Getting uv"):
        runner.succeed(
            [*pip, "install", *options, "-r", str(checkout.lock("bootstrap"))],
            env=pip_environment(),
            advice="Could not install uv with pip. Check that pip reaches its package index, then try again.",
        )
    for earlier in checkout.build.glob("uv-*"):
        shutil.rmtree(earlier, ignore_errors=True)
    draft.rename(folder)
    return folder / "bin/uv"


def uv_environment(settings: Mapping[str, str], environ: Mapping[str, str], cache: Path) -> dict[str, str]:
    """The environment that makes uv use the places pip would use. What the user has set for uv stays."""
    handed_on: dict[str, str] = {}
    for name, variable in HANDED_ON.items():
        values = [value for value in settings.get(name, "").split() if is_there(name, value)]
        if values:
            handed_on[variable] = SEPARATORS.get(variable, " ").join(values)
    if "SSL_CERT_FILE" not in handed_on:
        handed_on["UV_SYSTEM_CERTS"] = "1"
    if "UV_INDEX" in handed_on:
        # As pip does: look through all indexes. What is not in the lock is refused by its hash.
        handed_on["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    if not has_home(environ):
        handed_on["UV_CACHE_DIR"] = str(cache)
    return {**handed_on, **environ, "UV_PYTHON_DOWNLOADS": "never"}


def is_there(setting: str, value: str) -> bool:
    """uv stumbles over a folder of wheels that is not there, where pip shrugs."""
    return setting != "find-links" or "://" in value or Path(value).expanduser().exists()


def has_home(environ: Mapping[str, str]) -> bool:
    """Whether uv can keep its cache where it usually does."""
    place = Path(environ.get("XDG_CACHE_HOME") or environ.get("HOME") or "/nonexistent")
    return place.is_dir() and os.access(place, os.W_OK)


class Uv:
    """The pinned uv, ready to be called."""

    def __init__(self, checkout: Checkout, runner: Runner) -> None:
        pip = find_pip(checkout, runner)
        self._runner = runner
        self._program = get_uv(checkout, runner, pip)
        listing = runner.attempt([*pip, "config", "list"], env=pip_environment()).stdout
        self._env = uv_environment(pip_settings(listing), os.environ, checkout.build / "cache")

    def __call__(self, *words: str | Path, advice: str) -> None:
        self._runner.succeed([self._program, "--quiet", "--no-progress", *words], env=self._env, advice=advice)

    def build_image(self, *words: str | Path, corral: Path) -> None:
        """Have Corral make an image with this uv: first of what uv has in its cache, which takes no network."""
        command = [corral, "backend", "build", *words, "--installer", self._program]
        if self._runner.attempt(command, env={**self._env, "UV_OFFLINE": "1"}).returncode != 0:
            self._runner.succeed(command, env=self._env, advice=NO_IMAGES)

    def index_images(self, *words: str | Path, corral: Path) -> None:
        self._runner.succeed([corral, "backend", "index", *words], env=self._env, advice=NO_IMAGES)
