"""Lists the backends on this machine's disk, and resolves a name to an executable. Read-only and blocking: call it in
a thread.

A backend is a directory with a `run.sh`. It may have `metadata.json`, written by the installer, and `corral.json`,
written by its author.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from corral.base.errors import PathNotUsable
from corral.galleries.catalogue import preferred_words
from corral.oci.contents import INDEX_FILE, offered_digests
from corral.wire.backends import InstalledBackend, InstalledDetails
from corral.worker.confinement.python_places import brings_python, is_compiled
from corral.worker.installing.backend_metadata import (
    MANIFEST,
    METADATA,
    BackendManifest,
    FileMemory,
    Metadata,
    read_manifest,
    read_metadata,
)

RUN: Final = "run.sh"
STAGING: Final = ".install-tmp"
BACKUP: Final = ".install-backup"
UNFINISHED: Final = (STAGING, BACKUP, ".upgrade-tmp")
"""Suffixes of directories that are not backends; the same as LocalAI's, so that its leftovers are recognised."""


_WITHOUT_GPU: Final = frozenset({"", "default", "darwin-x86"})


class Home(msgspec.Struct, frozen=True, kw_only=True):
    """An installed backend: its executable and names."""

    name: str
    executable: Path
    names: frozenset[str] = frozenset()
    """Every name of this backend alone; an alias may refer to several."""
    shared_names: frozenset[str] = frozenset()
    """Its alias, and meta backends that lead to it."""
    manifest: BackendManifest = msgspec.field(default_factory=BackendManifest)
    """What its author declares: its HTTP ports and their routes."""
    vulkan_drivers: tuple[Path, ...] = ()
    """Driver manifests that the backend includes."""
    identity: tuple[int, int] = (0, 0)
    """Device and inode of the directory when it was read; a change means that the backend was replaced."""
    is_system: bool = False
    """Whether it came with the system or with Corral, and not from an image."""
    is_shipped: bool = False
    """Whether it came with Corral; such a build is for processors."""
    is_placed: bool = False
    """Whether somebody placed it in the directory by hand, so that its links are theirs."""
    brings_python: bool = False
    """Whether it has an interpreter and a virtual environment for it, as LocalAI's Python images do."""
    is_compiled: bool = False
    """Whether the packages of that environment came with bytecode."""

    @property
    def directory(self) -> Path:
        return self.executable.parent


class Located(msgspec.Struct, frozen=True, kw_only=True):
    """Where a name leads on the disk, runnable or not."""

    concrete: Path
    """Directory of the build, existing or not: the same for its name, its alias and its meta backend."""
    meta: Path | None
    """Directory of the named meta backend, which only points to the build."""
    is_system: bool


class _BackendEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One directory as read from disk."""

    path: Path
    is_system: bool
    metadata: Metadata = msgspec.field(default_factory=Metadata)
    manifest: BackendManifest = msgspec.field(default_factory=BackendManifest)

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
    def is_placed(self) -> bool:
        """Whether a person placed it by hand. Damaged metadata does not count: it may be an installer's."""
        is_described = self.metadata != Metadata() or not (self.path / METADATA).exists()
        return is_described and not self.is_system and not self.metadata.has_origin

    @property
    def is_runnable(self) -> bool:
        return (self.path / RUN).is_file()

    def home(self) -> Home:
        return Home(
            name=self.name,
            executable=(self.path / RUN).absolute(),
            names=self.names,
            shared_names=frozenset({self.metadata.alias} - {""}),
            manifest=self.manifest,
            vulkan_drivers=tuple(sorted(self.path.absolute().glob("vulkan/icd.d/*.json"))),
            identity=identity_of(self.path),
            is_system=self.is_system,
            is_shipped=self.is_system and bool(self.manifest.name),
            is_placed=self.is_placed,
            brings_python=brings_python(self.path),
            is_compiled=is_compiled(self.path),
        )

    def described(self, offered: Sequence[str] = ()) -> InstalledBackend:
        """Describe the backend. `offered` are the digests that its source has now."""
        if self.is_system:
            return InstalledBackend(name=self.name, is_system=True, is_meta=self.is_meta)
        metadata = self.metadata
        digests = metadata.digests
        details = InstalledDetails(
            platform_digest=metadata.corral.platform_digest if metadata.corral is not None else "",
            source_digest=next((digest for digest in offered if digest in digests), next(iter(offered), "")),
        )
        return InstalledBackend(
            name=self.name,
            is_system=False,
            is_meta=self.is_meta,
            installed_at=metadata.installed_at,
            gallery_url=metadata.gallery_url,
            version=metadata.version,
            uri=metadata.uri,
            digest=metadata.digest,
            corral=None if details == InstalledDetails() else details,
        )


class BackendDirectory:
    """The installed backends and the system's. An installed one hides a system backend with its name or its alias."""

    def __init__(self, *, installed: Path, system: Sequence[Path], capability: str) -> None:
        self._installed = installed.absolute()
        self._system = tuple(folder.absolute() for folder in system)
        self._capability = capability
        self._descriptions = FileMemory(lambda path: (read_metadata(path), read_manifest(path)), (METADATA, MANIFEST))
        self._offers = FileMemory(offered_digests, (INDEX_FILE,))

    @property
    def prefers_gpu(self) -> bool:
        """Whether galleries' builds for a GPU fit this machine."""
        return self._capability not in _WITHOUT_GPU

    def find(self, name: str) -> Home | None:
        """Resolve a name to a runnable backend. Raise PathNotUsable when the disk cannot be read."""
        if not is_plain(name):
            return None
        entries = list(self._entries())
        home = self._find(name, entries)
        if home is None:
            return None
        place = home.directory
        metas = [
            entry for entry in entries if entry.is_meta and entry.path.parent / entry.metadata.meta_backend_for == place
        ]
        return replace(home, shared_names=home.shared_names.union(*(meta.names for meta in metas)))

    def _find(self, name: str, entries: Sequence[_BackendEntry]) -> Home | None:
        for plain_name, candidates in _readings(name, entries):
            if (home := self._by_name(plain_name, candidates)) is not None:
                return home
            for entry in self._by_preference(plain_name, candidates):
                return entry.home()
        return self._by_file(name)

    def locate(self, name: str) -> Located | None:
        """Resolve a name even if there is nothing to run. Raise PathNotUsable when the disk cannot be read."""
        if not is_plain(name):
            return None
        for plain_name, entries in _readings(name, list(self._entries())):
            named = [entry for entry in entries if plain_name in entry.names]
            for entry in named or self._by_preference(plain_name, entries):
                target = entry.metadata.meta_backend_for
                if not entry.is_meta or entry.is_runnable or not is_plain(target):
                    return Located(concrete=entry.path, meta=None, is_system=entry.is_system)
                return Located(concrete=entry.path.parent / target, meta=entry.path, is_system=entry.is_system)
        return None

    def identity(self, name: str) -> str:
        """Return a key that all names of one backend share; for a missing backend, the key of its future directory."""
        located = self.locate(name)
        return str(self.place(name) if located is None else located.concrete)

    def place(self, name: str) -> Path:
        """Return the directory for an installed backend with this name."""
        return self._installed / name

    def listing(self) -> list[InstalledBackend]:
        """Return every backend once; aliases are not listed. Raise PathNotUsable when the disk cannot be read."""
        by_name: dict[str, InstalledBackend] = {}
        for entry in self._entries():
            uri = entry.metadata.uri  # a path when it was installed from a directory of this machine
            offered = self._offers.of(Path(uri)) if uri.startswith("/") else ()
            by_name.setdefault(entry.name, entry.described(offered))
        return list(by_name.values())

    def _by_name(self, name: str, entries: Iterable[_BackendEntry]) -> Home | None:
        for entry in entries:
            if name not in entry.names:
                continue
            if entry.is_runnable:
                return entry.home()
            # A meta backend points to a build in the same parent directory.
            if is_plain(build := entry.metadata.meta_backend_for):
                target = self._read_entry(entry.path.parent / build, is_system=entry.is_system)
                if target is not None and target.is_runnable:
                    return target.home()
        return None

    def _by_preference(self, alias: str, entries: Iterable[_BackendEntry]) -> Iterator[_BackendEntry]:
        """Yield the builds with this alias, the best for this machine first."""
        candidates = [entry for entry in entries if entry.metadata.alias == alias and entry.is_runnable]
        for token in preferred_words(self._capability):
            yield from (entry for entry in candidates if token in entry.path.name.lower())
        yield from candidates

    def _by_file(self, name: str) -> Home | None:
        """Find an executable without a `run.sh`, as LocalAI's workers do."""
        for folder in (self._installed, *self._system):
            for path in (folder / name, folder / name / name):
                if path.is_file():
                    executable = path.absolute()
                    identity = identity_of(executable.parent)
                    return Home(name=name, executable=executable, names=frozenset({name}), identity=identity)
        return None

    def _entries(self) -> Iterator[_BackendEntry]:
        yield from self._scan(self._installed, is_system=False)
        for folder in self._system:
            yield from self._scan(folder, is_system=True)

    def _scan(self, folder: Path, *, is_system: bool) -> Iterator[_BackendEntry]:
        try:
            paths = sorted(folder.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise PathNotUsable(f"cannot read the backends in {folder}: {error.strerror}") from error
        for path in paths:
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
        status = directory.stat()
    except OSError:
        return (0, 0)
    return status.st_dev, status.st_ino


def make_executable(path: Path) -> None:
    """Set the executable bit, which images may lack. Raise PathNotUsable when that fails."""
    try:
        if not path.stat().st_mode & 0o111:
            path.chmod(0o700)
    except OSError as error:
        raise PathNotUsable(f"cannot make {path} executable: {error.strerror}") from error


def _readings(name: str, entries: Sequence[_BackendEntry]) -> Iterator[tuple[str, Sequence[_BackendEntry]]]:
    """Yield the name with the installed entries, then with the system's, which they hide, also by an alias; then, for
    `gallery@name`, the plain name with the entries of that gallery."""
    yield name, [entry for entry in entries if not entry.is_system]
    yield name, [entry for entry in entries if entry.is_system]
    gallery, at, plain_name = name.rpartition("@")
    if at:
        yield plain_name, [entry for entry in entries if entry.metadata.gallery.lower() == gallery.lower()]


def is_plain(name: str) -> bool:
    """Whether this is a name, and not a path that leads elsewhere."""
    is_word = bool(name) and "/" not in name and "\0" not in name and name not in {".", ".."}
    return is_word and _is_text(name) and len(name.encode()) < 256


def is_hidden(name: str) -> bool:
    """Whether the name cannot be a backend's: hidden, or not valid text and so not reportable."""
    return name.startswith(".") or name.endswith(UNFINISHED) or not _is_text(name)


def _is_text(name: str) -> bool:
    """Whether a file name is valid text; it may be any bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
