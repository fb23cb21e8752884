"""Corral's own backends: images of them in a gallery, and for tests their packages, where `.venv` lacks them.

Likewise the client packages that tests talk to Corral with.
"""

import os
from collections.abc import Collection
from pathlib import Path

from .checkout import BASE_PYTHON, OWN_BACKENDS, Checkout, packages_of, remove
from .running import Trouble, step
from .uv import Uv

# Says that the packages of a backend are all there.
BACKEND_STAMP = "corral-complete"


def provide_images(checkout: Checkout, uv: Uv, names: Collection[str], title: str) -> None:
    """Images of these backends, and a gallery of all that there are. Corral works without them: a note will do."""
    draft = checkout.build / "backends.part"
    gallery = checkout.backend_gallery
    corral = checkout.venv / "bin" / "corral"
    libraries = [word for path in sorted(checkout.libraries.glob("*.so*")) for word in ("--library", path)]
    options = ("--compression", "zstd", "--level", "1", *libraries)
    try:
        with step(title):
            remove(draft)
            gallery.parent.mkdir(parents=True, exist_ok=True)
            for name in checkout.missing_images(names):
                image = gallery.parent / name  # one that no index lists may be of an attempt that was cut off
                uv.build_image(checkout.root / "backends" / name, "--output", draft / name, *options, corral=corral)
                remove(image)
                (draft / name).rename(image)
            index_images(checkout, uv, draft)
            for earlier in checkout.build.glob("backends-*"):
                if earlier != gallery.parent:
                    remove(earlier)
            remove(draft)
    except (Trouble, OSError) as trouble:
        print(trouble, flush=True)


def index_images(checkout: Checkout, uv: Uv, draft: Path) -> None:
    """List what is there, in one rename: a fleet that runs reads the index whenever somebody asks for a backend."""
    gallery = checkout.backend_gallery
    there = {name: fits for name, fits in OWN_BACKENDS.items() if (gallery.parent / name).exists()}
    images = [f"{fits}={gallery.parent / name}" if fits else gallery.parent / name for name, fits in there.items()]
    index = gallery.with_name("index.part.yaml")  # beside the images: its paths lead from where it lies
    uv.index_images(*images, "--output", index, corral=checkout.venv / "bin" / "corral")
    index.replace(gallery)


def link_provisions(checkout: Checkout) -> None:
    """Put what `corral up` gives a new fleet where it looks for it, so that it need not be told."""
    provided = {"backends": checkout.backend_gallery.parent, "first-model.gguf": checkout.chat_model}
    checkout.provisions.mkdir(parents=True, exist_ok=True)
    for name, place in provided.items():
        link = checkout.provisions / name
        target = os.path.relpath(place, link.parent)
        if not link.is_symlink() or os.readlink(link) != target:
            draft = link.with_name(f"{name}.part")
            draft.unlink(missing_ok=True)
            draft.symlink_to(target)
            draft.replace(link)


def missing_backends(checkout: Checkout, level: str) -> list[Path]:
    """Return backends whose packages are neither in `.venv` nor in an environment of their own. Tests run all
    backends."""
    if level != "dev":
        return []
    ours = packages_of(checkout.lock("dev"))
    locks = sorted(checkout.backends.glob("*/requirements.txt"))
    wanting = [lock.parent for lock in locks if packages_of(lock) - ours]
    return [backend for backend in wanting if not is_at_home(backend, checkout.backend_home(backend))]


def is_at_home(backend: Path, home: Path) -> bool:
    link = backend / "venv"
    return link.is_symlink() and link.resolve() == home.resolve() and (home / BACKEND_STAMP).exists()


def provide_clients(checkout: Checkout, uv: Uv) -> None:
    """The client packages for tests. Everything else works without: a note will do."""
    home = checkout.clients_home
    try:
        with step("Getting client packages for tests"):
            create_home(home, checkout.lock("clients"), uv, whose="clients")
            for earlier in checkout.build.glob("clients-*"):
                if earlier != home:
                    remove(earlier)
    except (Trouble, OSError) as trouble:
        print(trouble, flush=True)


def missing_clients(checkout: Checkout, level: str) -> bool:
    return level == "dev" and not (checkout.clients_home / BACKEND_STAMP).exists()


def create_home(home: Path, lock: Path, uv: Uv, *, whose: str) -> None:
    """Create a virtual environment from a lock. The stamp is written last: an environment without one is recreated."""
    remove(home)
    advice = f"The packages of {whose} could not be had, and are tried again next time: its tests will fail."
    uv("venv", "--no-project", "--python", BASE_PYTHON, home, advice=advice)
    uv(
        *("pip", "sync", "--require-hashes", "--only-binary", ":all:", "--python", home / "bin" / "python"),
        lock,
        advice=advice,
    )
    (home / BACKEND_STAMP).touch()


def provide_backend(backend: Path, checkout: Checkout, uv: Uv) -> None:
    """A virtual environment of its own, where `run.sh` looks for one. Everything else works without: a note will do."""
    home = checkout.backend_home(backend)
    try:
        with step(f"Getting what the backend {backend.name} needs"):
            if not (home / BACKEND_STAMP).exists():
                create_backend_home(backend, home, uv)
            remove(backend / "venv")
            (backend / "venv").symlink_to(os.path.relpath(home, backend))
    except (Trouble, OSError) as trouble:
        print(trouble, flush=True)


def create_backend_home(backend: Path, home: Path, uv: Uv) -> None:
    create_home(home, backend / "requirements.txt", uv, whose=backend.name)
    for earlier in home.parent.glob(f"{backend.name}-*"):
        if earlier != home:
            remove(earlier)
