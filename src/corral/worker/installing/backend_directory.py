"""Which backends are on this machine's disk, and which executable a name means. Reads only, and may block: call it in
a thread.

A backend is a directory with a `run.sh`. Beside it may be `metadata.json`, written by whoever installed it, and
`corral.json`, written by its author.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from corral.base.errors import PathNotUsable
from corral.galleries.capability import preferred_words
from corral.oci.layout import INDEX_FILE, offered_digests
from corral.wire.backends import InstalledBackend, InstalledDetails
from corral.worker.installing.backend_metadata import (
    MANIFEST,
    METADATA,
    BackendManifest,
    Metadata,
    read_manifest,
    read_metadata,
)
from corral.worker.installing.file_memory import FileMemory

RUN: Final = "run.sh"
STAGING: Final = ".install-tmp"
BACKUP: Final = ".install-backup"
UNFINISHED: Final = (STAGING, BACKUP, ".upgrade-tmp")
"""How the names of directories end that are no backends: LocalAI's, so that its leftovers are known as well."""
_VULKAN: Final = "vulkan/icd.d/*.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """Where a backend lives, and what it is called."""

    name: str
    executable: Path
    names: frozenset[str] = frozenset()
    """Every name that means this backend and no other; an alias may mean several."""
    has_openai_port: bool = False
    has_front: bool = False
    """Whether it wants a second HTTP port, for requests that need care."""
    http_routes: tuple[str, ...] | None = None
    """The inference routes of that port, where the backend says them."""
    vulkan_drivers: tuple[Path, ...] = ()
    """Descriptions of drivers that the backend brings along."""
    identity: tuple[int, int] = (0, 0)
    """Device and inode of the directory when it was read; a change means that the backend was replaced."""

    @property
    def directory(self) -> Path:
        return self.executable.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """What a name means on the disk, whether it can be run or not."""

    concrete: Path
    """Where the backend itself is, or would be: the same for its name, its alias and the name of its meta backend."""
    meta: Path | None
    """The directory of the meta backend that was named, which only points to the other."""
    is_system: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _BackendEntry:
    """One directory as it was found."""

    path: Path
    is_system: bool
    metadata: Metadata = field(default_factory=Metadata)
    manifest: BackendManifest = field(default_factory=BackendManifest)

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
            has_front=self.manifest.has_front,
            http_routes=self.manifest.http_routes,
            vulkan_drivers=tuple(sorted(self.path.absolute().glob(_VULKAN))),
            identity=identity_of(self.path),
        )

    @property
    def source(self) -> Path | None:
        """The directory that it was installed from; None when that was none of this machine."""
        return Path(self.metadata.uri) if self.metadata.uri.startswith("/") else None

    def described(self, offered: Sequence[str] = ()) -> InstalledBackend:
        """`offered` are the digests of what its source has now."""
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
            corral=self._details(offered),
        )

    def _details(self, offered: Sequence[str]) -> InstalledDetails | None:
        told, own = self.metadata.corral, self.metadata.digests
        details = InstalledDetails(
            platform_digest=told.platform_digest if told is not None else "",
            source_digest=next((one for one in offered if one in own), next(iter(offered), "")),
        )
        return None if details == InstalledDetails() else details


class BackendDirectory:
    """The installed backends and those of the system. An installed one hides a system's one of the same name."""

    def __init__(self, *, installed: Path, system: Sequence[Path], capability: str) -> None:
        self._installed = installed.absolute()
        self._system = tuple(folder.absolute() for folder in system)
        self._capability = capability
        self._descriptions = FileMemory(_read_description, (METADATA, MANIFEST))
        self._offers = FileMemory(offered_digests, (INDEX_FILE,))

    def find(self, name: str) -> Home | None:
        """What the name means now. PathNotUsable when the disk cannot be read."""
        if not is_plain(name):
            return None
        found = list(self._entries())
        for wanted, entries in _readings(name, found):
            if (home := self._by_name(wanted, entries) or self._by_alias(wanted, entries)) is not None:
                return home
        return self._by_file(name)

    def locate(self, name: str) -> Located | None:
        """Where the name leads, also when there is nothing to run. PathNotUsable when the disk cannot be read."""
        if not is_plain(name):
            return None
        found = list(self._entries())
        for wanted, entries in _readings(name, found):
            named = [entry for entry in entries if wanted in entry.names]
            for entry in named or self._by_preference(wanted, entries):
                return _located(entry)
        return None

    def identity(self, name: str) -> str:
        """One text for all names of one backend; what does not exist would be in a directory of its name."""
        located = self.locate(name)
        return str(self.place(name) if located is None else located.concrete)

    def place(self, name: str) -> Path:
        """The directory of an installed backend of this name."""
        return self._installed / name

    def listing(self) -> list[InstalledBackend]:
        """Every backend once, aliases not being backends. PathNotUsable when the disk cannot be read."""
        found: dict[str, InstalledBackend] = {}
        for entry in self._entries():
            offered = () if entry.source is None else self._offers.of(entry.source)
            found.setdefault(entry.name, entry.described(offered))
        return list(found.values())

    def _by_name(self, name: str, entries: Iterable[_BackendEntry]) -> Home | None:
        for entry in entries:
            if name not in entry.names:
                continue
            if entry.is_runnable:
                return entry.home()
            if (target := self._target_of(entry)) is not None:
                return target
        return None

    def _target_of(self, meta: _BackendEntry) -> Home | None:
        """Return the build that a meta backend points to, which is in the same parent directory."""
        wanted = meta.metadata.meta_backend_for
        if not is_plain(wanted):
            return None
        target = self._read_entry(meta.path.parent / wanted, is_system=meta.is_system)
        return target.home() if target is not None and target.is_runnable else None

    def _by_alias(self, alias: str, entries: Iterable[_BackendEntry]) -> Home | None:
        for entry in self._by_preference(alias, entries):
            return entry.home()
        return None

    def _by_preference(self, alias: str, entries: Iterable[_BackendEntry]) -> Iterator[_BackendEntry]:
        """Several builds may share an alias: the one that fits this machine best comes first."""
        candidates = [entry for entry in entries if entry.metadata.alias == alias and entry.is_runnable]
        for token in preferred_words(self._capability):
            yield from (entry for entry in candidates if token in entry.path.name.lower())
        yield from candidates

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

    def _entries(self) -> Iterator[_BackendEntry]:
        yield from self._scan(self._installed, is_system=False)
        for folder in self._system:
            yield from self._scan(folder, is_system=True)

    def _scan(self, folder: Path, *, is_system: bool) -> Iterator[_BackendEntry]:
        for path in _paths_in(folder):
            entry = None if is_hidden(path.name) else self._read_entry(path, is_system=is_system)
            if entry is not None and (entry.is_runnable or entry.is_meta):
                yield entry

    def _read_entry(self, path: Path, *, is_system: bool) -> _BackendEntry | None:
        if not path.is_dir():
            return None
        metadata, manifest = self._descriptions.of(path)
        return _BackendEntry(path=path, is_system=is_system, metadata=metadata, manifest=manifest)


def identity_of(directory: Path) -> tuple[int, int]:
    """Return device and inode, which identify a directory even if its name is reused; zeros when it does not exist."""
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


def _paths_in(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise PathNotUsable(f"cannot read the backends in {folder}: {error.strerror}") from error


def _read_description(directory: Path) -> tuple[Metadata, BackendManifest]:
    return read_metadata(directory), read_manifest(directory)


def _readings(name: str, entries: Sequence[_BackendEntry]) -> Iterator[tuple[str, Sequence[_BackendEntry]]]:
    """A name as it stands, and as one of a gallery's backends, among what came from that gallery."""
    yield name, entries
    gallery, at, wanted = name.rpartition("@")
    if at:
        yield wanted, [entry for entry in entries if entry.metadata.gallery.lower() == gallery.lower()]


def is_plain(name: str) -> bool:
    """A name, and not a path to somewhere else."""
    is_word = bool(name) and "/" not in name and "\0" not in name and name not in {".", ".."}
    return is_word and _is_text(name) and len(name.encode()) < 256


def is_hidden(name: str) -> bool:
    """Whether the name cannot be a backend's: hidden, or not valid text and so not reportable."""
    return name.startswith(".") or name.endswith(UNFINISHED) or not _is_text(name)


def _is_text(name: str) -> bool:
    """File names may be any bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _located(entry: _BackendEntry) -> Located:
    target = entry.metadata.meta_backend_for
    if not entry.is_meta or entry.is_runnable or not is_plain(target):
        return Located(concrete=entry.path, meta=None, is_system=entry.is_system)
    return Located(concrete=entry.path.parent / target, meta=entry.path, is_system=entry.is_system)
