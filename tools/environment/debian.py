"""Debian's packages, unpacked into .build and never installed."""

import shutil
from pathlib import Path

from .checkout import Checkout
from .running import Runner, Trouble


def debian_folder(checkout: Checkout) -> Path:
    return checkout.build / "debian"


def fetch_debian_package(name: str, checkout: Checkout, runner: Runner, *, advice: str) -> None:
    """Unpack a Debian package into .build/debian, with apt's own signature checks but without being root."""
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise Trouble(f"There is no apt-get to fetch {name}. {advice}")
    apt = checkout.build / "apt"
    downloads = apt / "downloads"
    shutil.rmtree(apt, ignore_errors=True)
    for folder in (apt / "lists/partial", apt / "cache/archives/partial", downloads):
        folder.mkdir(parents=True)
    command = ["apt-get", "-q", *apt_options(apt)]
    # A clean-up hook of the system's may fail for want of root after all went well: the download decides.
    updated = runner.attempt([*command, "update"])
    downloaded = runner.attempt([*command, "download", name], cwd=downloads)
    packages = list(downloads.glob(f"{name}_*.deb"))
    if downloaded.returncode != 0 or not packages:
        words = f"Could not fetch {name} from Debian. {advice}"
        raise Trouble(words, updated.stderr + downloaded.stderr)
    runner.succeed(
        ["dpkg-deb", "-x", packages[0], debian_folder(checkout)],
        advice=f"Could not unpack {name}. Is the disk full?",
    )
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
