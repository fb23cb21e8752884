"""Where this very program lies: how to start another process of it, and what lies beside it in a checkout."""

import sys
from pathlib import Path

from corral.galleries.config import GalleriesConfig


def own_command(*arguments: str) -> list[str]:
    """How to start another process of this very program, wherever it is installed."""
    return [sys.executable, "-P", "-m", "corral", *arguments]


def shipped_backends(galleries: GalleriesConfig | None) -> tuple[Path, ...]:
    """Where Corral's own backends lie in a checkout, unless there are images of them to install."""
    if galleries is not None and galleries.builtin is not None:
        return ()
    folder = Path(__file__).absolute().parents[3] / "backends"
    return (folder,) if (folder / "sdk").is_dir() else ()


def shipped_installers() -> tuple[Path, ...]:
    """Where uv may lie that is not on the PATH: beside this Python, and where a checkout's set-up puts it."""
    checkout = Path(__file__).absolute().parents[3]
    return (Path(sys.prefix) / "bin" / "uv", *sorted(checkout.glob(".build/uv-*/bin/uv")))
