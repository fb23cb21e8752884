"""Builds an image from a backend's directory: what goes into which layer, for which platforms, with which annotations.

What changes least is lowest: the interpreter, the packages, native libraries, the backend's own files. So an
upgrade of the backend fetches only the top layer, and layers that do not depend on the platform are shared by all.
"""

import re
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from corral.base.errors import InvalidInput, PathNotUsable
from corral.base.tasks import in_thread
from corral.base.values import PartlyPrinted
from corral.imaging.description import CREATED, BackendDescription
from corral.imaging.entries import PLAIN, RUNNABLE, Entry, entries_of, in_order
from corral.imaging.layers import FIXED_TIME, Packing, WrittenLayer, write_layer
from corral.imaging.layouts import LayoutWriter
from corral.imaging.packages import PackageInstaller, PackageRequest, entries_in, install
from corral.imaging.source import LIBRARIES, PYTHON, RUN, BackendSource, read_source
from corral.imaging.targets import USUAL_GLIBC, read_python_version, this_python
from corral.oci.contents import is_layout
from corral.oci.manifests import Descriptor, ImagePlatform, this_platform

_PROGRAM: Final = "bin/python3"
_LIBRARY: Final = re.compile(r"python(3\.\d+)")


class BuildOrder(PartlyPrinted, frozen=True, kw_only=True):
    """Everything that a build of an image needs to know."""

    unprinted = ("environment",)

    directory: Path
    platforms: tuple[ImagePlatform, ...] = msgspec.field(default_factory=lambda: (this_platform(),))
    interpreters: Mapping[ImagePlatform, Path] = msgspec.field(default_factory=dict)
    """Interpreter trees to include. A platform without one needs a Python on the machine."""
    python_versions: tuple[str, ...] = ()
    """Python versions to install packages for if there is no interpreter; empty: the running one."""
    libraries: Mapping[ImagePlatform, tuple[Path, ...]] = msgspec.field(default_factory=dict)
    """Native libraries, copied to `lib`."""
    packing: Packing = msgspec.field(default_factory=Packing)
    sdk: Path | None = None
    glibc: str = USUAL_GLIBC
    wheels: Path | None = None
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Additional annotations; they take precedence over those from the backend's description."""
    created: datetime | None = None
    """None: a fixed time, so that the build is reproducible."""
    environment: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Environment of the package installer."""


class BuiltLayer(msgspec.Struct, frozen=True, kw_only=True):
    """One layer of an image, and its title."""

    title: str
    written: WrittenLayer


class BuiltImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image for one platform."""

    platform: ImagePlatform
    digest: str
    layers: tuple[BuiltLayer, ...]


class BuiltBackend(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a build: the images, and their digest and size."""

    description: BackendDescription
    digest: str
    """Digest of the image, or of the index if there are several."""
    images: tuple[BuiltImage, ...]

    @property
    def size(self) -> int:
        """Compressed size of all distinct layers."""
        layers = {layer.written.descriptor.digest: layer for image in self.images for layer in image.layers}
        return sum(layer.written.descriptor.size for layer in layers.values())


async def build(order: BuildOrder, output: Path, installer: Callable[[], PackageInstaller]) -> BuiltBackend:
    """Build an OCI layout at `output`, atomically; replace an existing layout.

    The installer is looked up only if there are packages.
    """
    source = await in_thread(lambda: read_source(order.directory, sdk=order.sdk))
    async with _workshop(output) as workshop:
        made = await _Builder(order, source, installer, workshop).run()
        await in_thread(lambda: _put_in_place(workshop / "layout", output, workshop))
    return made


class _Builder:
    """Makes the layers of one build in a temporary folder."""

    def __init__(
        self, order: BuildOrder, source: BackendSource, installer: Callable[[], PackageInstaller], workshop: Path
    ) -> None:
        self._order = order
        self._source = source
        self._installer = installer
        self._workshop = workshop
        self._layout = LayoutWriter(workshop / "layout")
        self._shared: dict[str, BuiltLayer] = {}
        self._stopped = threading.Event()
        self._number = 0

    async def run(self) -> BuiltBackend:
        images: list[BuiltImage] = []
        entries: list[Descriptor] = []
        for platform in self._order.platforms:
            image, entry = await self._image(platform)
            images.append(image)
            entries.append(entry)
        top = entries[0]
        if len(entries) > 1:
            top = self._layout.add_index(entries, annotations=self._annotations())
        self._layout.finish([top])
        return BuiltBackend(description=self._source.description, digest=top.digest, images=tuple(images))

    async def _image(self, platform: ImagePlatform) -> tuple[BuiltImage, Descriptor]:
        layers = [layer async for layer in self._layers(platform)]
        entry = self._layout.add_image(
            [layer.written.descriptor for layer in layers],
            platform=platform,
            diff_ids=[layer.written.diff_id for layer in layers],
            annotations=self._annotations(),
            details=self._details(layers),
        )
        return BuiltImage(platform=platform, digest=entry.digest, layers=tuple(layers)), entry

    async def _layers(self, platform: ImagePlatform) -> AsyncIterator[BuiltLayer]:
        tree = self._order.interpreters.get(platform)
        if tree is not None:
            version = await in_thread(lambda: _interpreter_version(tree))
            entries = await in_thread(lambda: entries_of(tree, below=PYTHON))
            yield await self._layer(f"Python {version}", entries)
            versions: Sequence[str] = [version]
        else:
            versions = self._order.python_versions or (this_python(),)
        if self._source.packages:
            for version in versions:
                yield await self._packages(platform, version)
        if libraries := self._order.libraries.get(platform):
            yield await self._layer("native libraries", _library_entries(libraries))
        if "own" not in self._shared:
            self._shared["own"] = await self._layer("the backend", self._source.own)
        yield self._shared["own"]

    async def _packages(self, platform: ImagePlatform, version: str) -> BuiltLayer:
        target = self._workshop / f"packages-{platform.os}-{platform.architecture}-{version}"
        wish = PackageRequest(
            lock=self._source.lock.absolute(),
            target=target,
            platform=platform,
            python_version=version,
            glibc=self._order.glibc,
            wheels=self._order.wheels,
        )
        await install(self._installer(), wish, self._order.environment)
        entries = await in_thread(lambda: entries_in(target, version))
        layer = await self._layer(f"packages for Python {version}", entries)
        await in_thread(lambda: shutil.rmtree(target))
        return layer

    async def _layer(self, title: str, entries: Iterable[Entry]) -> BuiltLayer:
        self._number += 1
        file = self._workshop / f"layer-{self._number}"
        ordered = in_order(entries)
        written = await in_thread(
            lambda: write_layer(ordered, file, self._order.packing, is_stopped=self._stopped.is_set),
            stop=self._stopped.set,
        )
        self._layout.adopt_blob(file, written.descriptor)
        return BuiltLayer(title=title, written=written)

    def _annotations(self) -> dict[str, str]:
        created = {CREATED: self._created()} if self._order.created is not None else {}
        return {**self._source.description.annotations(), **created, **self._order.annotations}

    def _created(self) -> str:
        moment = self._order.created or datetime.fromtimestamp(FIXED_TIME, UTC)
        return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")

    def _details(self, layers: Sequence[BuiltLayer]) -> dict[str, object]:
        created = self._created()
        return {
            "created": created,
            "config": {"Entrypoint": [f"/{RUN}"], "WorkingDir": "/", "Labels": self._annotations()},
            "history": [{"created": created, "created_by": f"corral backend build: {layer.title}"} for layer in layers],
        }


def _library_entries(libraries: Sequence[Path]) -> list[Entry]:
    """Return entries with the given names, and the content of the files that links lead to."""
    missing = [path for path in libraries if not path.is_file()]
    if missing:
        raise InvalidInput("--library", f"there is no file {missing[0]}")
    files = [Entry(name=f"{LIBRARIES}/{path.name}", file=path, mode=PLAIN) for path in libraries]
    return [Entry(name=LIBRARIES, mode=RUNNABLE), *files]


@asynccontextmanager
async def _workshop(output: Path) -> AsyncIterator[Path]:
    """Create a temporary directory beside the output, so that the result can be renamed into place; remove it at the
    end."""
    try:
        await in_thread(lambda: output.parent.mkdir(parents=True, exist_ok=True))
        folder = Path(await in_thread(lambda: tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent)))
    except OSError as error:
        raise PathNotUsable(f"{output} cannot be written: {error.strerror}; --output names another place") from error
    try:
        yield folder
    finally:
        await in_thread(lambda: shutil.rmtree(folder, ignore_errors=True))


def _put_in_place(layout: Path, output: Path, workshop: Path) -> None:
    try:
        if output.is_symlink() or (output.exists() and not _may_replace(output)):
            raise PathNotUsable(f"{output} is there already and is no OCI layout; --output names another place")
        previous = workshop / "previous"
        if output.exists():
            output.rename(previous)
        try:
            layout.rename(output)
        except OSError:
            if previous.exists():
                previous.rename(output)
            raise
    except OSError as error:
        raise PathNotUsable(f"{output} cannot be written: {error.strerror}") from error


def _may_replace(output: Path) -> bool:
    return output.is_dir() and (is_layout(output) or not any(output.iterdir()))


def _interpreter_version(tree: Path) -> str:
    """Return the version of a relocatable Python from the name of its library; InvalidInput when the tree is no such
    Python.

    The interpreter is never executed: it may be for another platform.
    """
    if not (tree / _PROGRAM).exists():
        raise InvalidInput("--python", f"{tree} has no {_PROGRAM}: wanted is the folder of a relocatable Python")
    places = [tree / "lib", tree / "lib64"]
    names = sorted(child.name for place in places if place.is_dir() for child in place.iterdir() if child.is_dir())
    versions = {match[1] for name in names if (match := _LIBRARY.fullmatch(name))}
    if len(versions) != 1:
        known_versions = ", ".join(sorted(versions)) or "none"
        raise InvalidInput("--python", f"{tree} has libraries of {known_versions}; expected is one, in lib/python3.x")
    return read_python_version(versions.pop())
