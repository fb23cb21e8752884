"""Debian's packages, unpacked into .build and never installed."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from .checkout import Checkout
from .running import Runner, Trouble


def debian_folder(checkout: Checkout) -> Path:
    return checkout.build / "debian"


def fetch_debian_package(name: str, checkout: Checkout, runner: Runner, *, advice: str) -> None:
    """Unpack a Debian package into .build/debian, with apt's own signature checks but without being root."""
    _fetch(name, ["download", name], debian_folder(checkout), checkout, runner, advice=advice)


def fetch_debian_packages(name: str, folder: Path, checkout: Checkout, runner: Runner, *, advice: str) -> None:
    """Unpack a Debian package into a folder, together with everything that it needs and this machine lacks."""
    command = ["install", "--yes", "--download-only", "--no-install-recommends", name]
    _fetch(name, command, folder, checkout, runner, advice=advice)


def _fetch(name: str, words: Sequence[str], folder: Path, checkout: Checkout, runner: Runner, *, advice: str) -> None:
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise Trouble(f"There is no apt-get to fetch {name}. {advice}")
    apt = checkout.build / "apt"
    downloads = apt / "cache" / "archives"
    shutil.rmtree(apt, ignore_errors=True)
    for place in (apt / "lists/partial", downloads / "partial"):
        place.mkdir(parents=True)
    command = ["apt-get", "-q", *apt_options(apt)]
    # A clean-up hook of the system's may fail for want of root after all went well: the download decides.
    updated = runner.attempt([*command, "update"])
    downloaded = runner.attempt([*command, *words], cwd=downloads)
    if downloaded.returncode != 0 or not list(downloads.glob(f"{name}_*.deb")):
        raise Trouble(f"Could not fetch {name} from Debian. {advice}", updated.stderr + downloaded.stderr)
    for package in sorted(downloads.glob("*.deb")):
        runner.succeed(["dpkg-deb", "-x", package, folder], advice=f"Could not unpack {name}. Is the disk full?")
    shutil.rmtree(apt)


def apt_options(folder: Path) -> list[str]:
    """apt with its state in `folder`, and as the user who runs it."""
    settings = {
        "Dir::State::Lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "Debug::NoLocking": "1",
        "APT::Sandbox::User": "root",  # its usual helper user cannot read a checkout in someone's home
        "Acquire::Languages": "none",
    }
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
