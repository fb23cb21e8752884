"""Which backends are on this machine's disk, and which executable a name means. Reads only, and may block: call it in
a thread.

A backend is a directory with a `run.sh`. Beside it may be `metadata.json`, written by whoever installed it, and
`corral.json`, written by its author.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from corral.base.errors import InvalidInput, PathNotUsable
from corral.protocol import go_json
from corral.protocol.inventory import InstalledBackend

log = logging.getLogger(__name__)

RUN: Final = "run.sh"
METADATA: Final = "metadata.json"
MANIFEST: Final = "corral.json"
_VULKAN: Final = "vulkan/icd.d/*.json"
_UNFINISHED: Final = (".install-tmp", ".install-backup")
_MOST_BYTES: Final = 1024 * 1024
_PREFERRED: Final = {
    "nvidia": ("cuda", "vulkan", "cpu"),
    "amd": ("rocm", "hip", "vulkan", "cpu"),
    "intel": ("sycl", "intel", "cpu"),
    "metal": ("metal", "cpu"),
    "darwin-x86": ("darwin-x86", "cpu"),
    "vulkan": ("vulkan", "cpu"),
}
"""By the beginning of a node's capability: what a directory's name should contain, best first."""

StructT = TypeVar("StructT", bound=msgspec.Struct)


class Metadata(msgspec.Struct, kw_only=True):
    """What an installer wrote down."""

    name: str = ""
    alias: str = ""
    meta_backend_for: str = ""
    gallery_url: str = ""
    installed_at: str = ""
    version: str = ""
    uri: str = ""
    digest: str = ""


class HttpOffer(msgspec.Struct, kw_only=True):
    """The backend's engine has an HTTP port of its own, if it is given one."""

    protocol: str = ""
    ready: str = ""
    """The path that answers 200 once a model is loaded."""


class Manifest(msgspec.Struct, kw_only=True):
    """What a backend's author says of it to Corral; LocalAI does not look at it."""

    name: str = ""
    http: HttpOffer | None = None

    @property
    def has_openai_port(self) -> bool:
        return self.http is not None and self.http.protocol == "openai"


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """Where a backend lives, and what it is called."""

    name: str
    executable: Path
    names: frozenset[str] = frozenset()
    """Every name that means this backend and no other; an alias may mean several."""
    has_openai_port: bool = False
    vulkan_drivers: tuple[Path, ...] = ()
    """Descriptions of drivers that the backend brings along."""
    identity: tuple[int, int] = (0, 0)
    """Of the directory when it was found: another one means that the backend was replaced."""

    @property
    def directory(self) -> Path:
        return self.executable.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One directory as it was found."""

    path: Path
    is_system: bool
    metadata: Metadata = field(default_factory=Metadata)
    manifest: Manifest = field(default_factory=Manifest)

    @property
    def name(self) -> str:
        return self.metadata.name or self.manifest.name or self.path.name

    @property
    def names(self) -> frozenset[str]:
        return frozenset({self.path.name, self.name})

    @property
    def is_meta(self) -> bool:
        return bool(self.metadata.meta_backend_for)

    @property
    def is_runnable(self) -> bool:
        return (self.path / RUN).is_file()

    def home(self) -> Home:
        return Home(
            name=self.name,
            executable=(self.path / RUN).absolute(),
            names=self.names,
            has_openai_port=self.manifest.has_openai_port,
            vulkan_drivers=tuple(sorted(self.path.absolute().glob(_VULKAN))),
            identity=identity_of(self.path),
        )

    def described(self) -> InstalledBackend:
        if self.is_system:
            return InstalledBackend(name=self.name, is_system=True, is_meta=self.is_meta)
        told = self.metadata
        return InstalledBackend(
            name=self.name,
            is_system=False,
            is_meta=self.is_meta,
            installed_at=told.installed_at,
            gallery_url=told.gallery_url,
            version=told.version,
            uri=told.uri,
            digest=told.digest,
        )


class BackendDirectory:
    """The installed backends and those of the system. An installed one hides a system's one of the same name."""

    def __init__(self, *, installed: Path, system: Sequence[Path], capability: str) -> None:
        self._installed = installed
        self._system = tuple(system)
        self._capability = capability

    def find(self, name: str) -> Home | None:
        """What the name means now. PathNotUsable when the disk cannot be read."""
        if not _is_plain(name):
            return None
        entries = list(self._entries())
        return self._by_name(name, entries) or self._by_alias(name, entries) or self._by_file(name)

    def listing(self) -> list[InstalledBackend]:
        """Every backend once, aliases not being backends. PathNotUsable when the disk cannot be read."""
        found: dict[str, InstalledBackend] = {}
        for entry in self._entries():
            found.setdefault(entry.name, entry.described())
        return list(found.values())

    def _by_name(self, name: str, entries: Iterable[_Entry]) -> Home | None:
        for entry in entries:
            if name not in entry.names:
                continue
            if entry.is_runnable:
                return entry.home()
            if (target := self._target_of(entry)) is not None:
                return target
        return None

    def _target_of(self, meta: _Entry) -> Home | None:
        """A meta backend is a name for one of several builds, which lies beside it."""
        wanted = meta.metadata.meta_backend_for
        if not _is_plain(wanted):
            return None
        target = _read_entry(meta.path.parent / wanted, is_system=meta.is_system)
        return target.home() if target is not None and target.is_runnable else None

    def _by_alias(self, alias: str, entries: Iterable[_Entry]) -> Home | None:
        """Several builds may share an alias: the one that fits this machine best."""
        candidates = [entry for entry in entries if entry.metadata.alias == alias and entry.is_runnable]
        for token in self._preferred():
            for entry in candidates:
                if token in entry.path.name.lower():
                    return entry.home()
        return candidates[0].home() if candidates else None

    def _preferred(self) -> Sequence[str]:
        for capability, tokens in _PREFERRED.items():
            if self._capability.startswith(capability):
                return tokens
        return ("cpu",)

    def _by_file(self, name: str) -> Home | None:
        """Executables without a `run.sh`, as LocalAI's workers look for them."""
        for folder in (self._installed, *self._system):
            for path in (folder / name, folder / name / name):
                if path.is_file():
                    found = path.absolute()
                    return Home(
                        name=name, executable=found, names=frozenset({name}), identity=identity_of(found.parent)
                    )
        return None

    def _entries(self) -> Iterator[_Entry]:
        yield from _scan(self._installed, is_system=False)
        for folder in self._system:
            yield from _scan(folder, is_system=True)


def identity_of(directory: Path) -> tuple[int, int]:
    """What tells a directory from another one that took its name; all zeros when there is none."""
    try:
        found = directory.stat()
    except OSError:
        return (0, 0)
    return found.st_dev, found.st_ino


def make_executable(path: Path) -> None:
    """Images may come without the bit. PathNotUsable when it cannot be set."""
    try:
        if not path.stat().st_mode & 0o111:
            path.chmod(0o700)
    except OSError as error:
        raise PathNotUsable(f"cannot make {path} executable: {error.strerror}") from error


def _scan(folder: Path, *, is_system: bool) -> Iterator[_Entry]:
    try:
        paths = sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise PathNotUsable(f"cannot read the backends in {folder}: {error.strerror}") from error
    for path in paths:
        if path.name.startswith(".") or path.name.endswith(_UNFINISHED):
            continue
        entry = _read_entry(path, is_system=is_system)
        if entry is not None and (entry.is_runnable or entry.is_meta):
            yield entry


def _read_entry(path: Path, *, is_system: bool) -> _Entry | None:
    if not path.is_dir():
        return None
    return _Entry(
        path=path,
        is_system=is_system,
        metadata=_read_struct(path / METADATA, Metadata),
        manifest=_read_struct(path / MANIFEST, Manifest),
    )


def _read_struct(path: Path, struct: type[StructT]) -> StructT:
    """What cannot be read counts as not said: one damaged backend must not hide the others."""
    try:
        with path.open("rb") as file:
            return go_json.decode(file.read(_MOST_BYTES), struct)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, InvalidInput) as error:
        log.warning("ignoring %s: %s", path, error, extra={"event": "backend.unreadable"})
    return struct()


def _is_plain(name: str) -> bool:
    """A name, and not a path to somewhere else."""
    return bool(name) and "/" not in name and "\0" not in name and name not in {".", ".."} and len(name.encode()) < 256
