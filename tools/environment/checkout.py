"""Where things are in a checkout, and which versions of them are wanted.

Every finished step is stamped with a digest of what went into it: a second run costs nothing, an interrupted one is
repeated, and a changed lock is noticed.
"""

import contextlib
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

BASE_PYTHON = os.path.realpath(sys.executable)  # not the one of an activated .venv, which may be about to go
CHAT_MODEL_NAME = "SmolLM2-135M-Instruct.gguf"

# Backends whose images are made here, with the machines that they are for; all, where nothing is said.
OWN_BACKENDS = {
    "echo": "",
    "llama_cpp": "default",
    "espeak_tts": "",
    "minilm_embeddings": "",
    "pocketsphinx_stt": "",
    "silero_vad": "",
}
# What the first question of a new fleet needs. The others are made beside it.
FIRST_BACKENDS = ("llama_cpp",)
# What npm needs to fetch the browser of the tests.
BROWSER_FILES = ("package.json", "package-lock.json", ".npmrc")
NOT_OF_A_BACKEND = {"__pycache__", "venv"}


class Checkout:
    """Where things are, and which versions of them are wanted."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.build = root / ".build"
        self.venv = root / ".venv"
        self.python = self.venv / "bin" / "python"
        self.stamp = self.venv / "corral-stamp.json"
        self.libraries = self.venv / "lib" / "native"
        self.provisions = self.venv / "share" / "corral"  # where `corral up` looks, however it is started
        self.programs = self.build / "programs"
        self.backends = root / "backends"
        self.requirements = root / "requirements"
        self.page = root / "ui"
        self.browser_packages = self.requirements / "browser"

    def lock(self, level: str) -> Path:
        return self.requirements / f"{level}.txt"

    def uv_folder(self) -> Path:
        return self.build / f"uv-{digest(self.lock('bootstrap').read_bytes())}"

    @property
    def chat_model(self) -> Path:
        return self.build / f"models-{digest(self.lock('chat-model').read_bytes())}" / CHAT_MODEL_NAME

    @property
    def backend_gallery(self) -> Path:
        """The index of the images of Corral's own backends. Another input means another place."""
        sources = [self.root / "backends" / name for name in (*OWN_BACKENDS, "sdk")]
        files = [path for source in sources for path in source.rglob("*") if self._is_of_a_backend(path)]
        files += [*self.root.glob("src/corral/imaging/*.py"), self.root / "src/corral/oci/contents.py"]
        parts = [repr((sys.version_info[:2], sys.platform, os.uname().machine)).encode()]
        for path in sorted({*files, *self.libraries.glob("*.so*")}):
            if path.is_file():
                parts += [str(path.relative_to(self.root)).encode(), path.read_bytes()]
        return self.build / f"backends-{digest(*parts)}" / "index.yaml"

    def missing_images(self, names: Iterable[str]) -> list[str]:
        """Backends whose image the gallery does not list."""
        gallery = self.backend_gallery
        listed = gallery.read_text() if gallery.exists() else ""
        return [name for name in names if f"uri: ./{name}\n" not in listed]

    def _is_of_a_backend(self, path: Path) -> bool:
        return not NOT_OF_A_BACKEND & set(path.relative_to(self.root).parts)

    def backend_home(self, backend: Path) -> Path:
        """Where the packages of a backend are kept; for other packages, or another Python, it is another place."""
        lock = (backend / "requirements.txt").read_bytes()
        return self.build / "backends" / f"{backend.name}-{digest(lock, BASE_PYTHON.encode())}"

    @property
    def clients_home(self) -> Path:
        """Where the client packages are kept that tests talk to Corral with."""
        return self.build / f"clients-{digest(self.lock('clients').read_bytes(), BASE_PYTHON.encode())}"

    @property
    def node_folder(self) -> Path:
        """Where Node is kept, which builds the page."""
        return self.build / f"node-{digest(self.lock('node').read_bytes())}"

    @property
    def page_packages(self) -> Path:
        """Where the packages of the page are kept; for another lock, or another Node, it is another place."""
        inputs = (self.page / "package.json", self.page / "package-lock.json", self.lock("node"))
        return self.build / f"ui-{digest(*(file.read_bytes() for file in inputs))}"

    @property
    def browser(self) -> Path:
        """Where the browser is kept that tests open the page with. Its description names files by their whole paths,
        so that another place of the checkout is another browser, as another lock is."""
        inputs = [self.browser_packages / name for name in BROWSER_FILES] + [self.lock("node")]
        return self.build / f"browser-{digest(str(self.root).encode(), *(file.read_bytes() for file in inputs))}"

    def wanted(self, level: str) -> dict[str, str]:
        """What the stamp says when everything is in place, in the order of the steps."""
        project = [self.root / "pyproject.toml", self.root / "src/corral/__init__.py"]
        return {
            "venv": digest(str(self.root).encode(), BASE_PYTHON.encode(), repr(sys.version_info[:2]).encode()),
            "level": level,
            "packages": digest(self.lock(level).read_bytes()),
            "project": digest(*(file.read_bytes() for file in project)),
        }

    def done(self) -> dict[str, str]:
        """What the stamp says now. Without a working Python or a readable stamp, nothing is done."""
        if not self.python.exists():
            return {}
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stamp = json.loads(self.stamp.read_text())
            return {str(step): str(value) for step, value in stamp.items()}
        return {}

    def mark(self, done: Mapping[str, str]) -> None:
        draft = self.stamp.with_suffix(".part")
        draft.write_text(json.dumps(done))
        draft.replace(self.stamp)

    def is_ready(self, level: str) -> bool:
        return self.done() == self.wanted(level) and (self.venv / "bin" / "corral").exists()


def digest(*parts: bytes) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "big") + part)
    return whole.hexdigest()[:16]


def packages_of(lock: Path) -> set[str]:
    return {line.partition("==")[0] for line in lock.read_text().splitlines() if line[:1].isalnum()}


def remove(place: Path) -> None:
    if place.is_symlink():
        place.unlink()
    elif place.exists():
        shutil.rmtree(place)
