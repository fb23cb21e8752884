"""Fetches, checks and unpacks one image inside the puller process.

Layers are downloaded in parallel and unpacked in order, the lowest first, each as soon as it is verified. In the
end the target is complete, or does not exist.
"""

import asyncio
import ctypes
import errno
import os
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

from corral.base.clock import Clock
from corral.base.tasks import first_failure, in_thread, task_group
from corral.oci.blobs import BlobCache
from corral.oci.contents import Image, Layer
from corral.oci.errors import (
    DiskFull,
    ImageError,
    PullCancelled,
    SourceInvalid,
    TargetUnusable,
    UnpackRefused,
    error_with,
)
from corral.oci.http import HttpFetcher, open_fetcher_session
from corral.oci.orders import PullOrder, PullResult, Scale
from corral.oci.signatures.formats import NothingAccepted, SignatureChecker
from corral.oci.sources import SourceOpener
from corral.oci.tree import Tree, empty, prepare_target
from corral.oci.unpack import Unpacked, Unpacker, copy_directory, directory_size
from corral.wire.backends import Phase, size_text

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_NOTHING_ACCEPTED: Final = NothingAccepted()


class Pull:
    """Executes one order. A cancelled `run` leaves no target either."""

    def __init__(
        self, order: PullOrder, *, scale: Scale, clock: Clock, checker: SignatureChecker = _NOTHING_ACCEPTED
    ) -> None:
        """An order with a policy needs its checker; without one every image with a policy is refused."""
        self._order = order
        self._checker = checker
        self._scale = scale
        self._clock = clock
        self._target = Path(order.target)
        self._stopped = threading.Event()

    async def run(self) -> PullResult:
        if not self._order.sources:
            raise SourceInvalid("an order without a source")
        async with self._whole_or_not_at_all(), open_fetcher_session(self._order.network) as session:
            fetcher = HttpFetcher(session, self._order.network)
            cache = BlobCache(Path(self._order.cache), network=self._order.network, clock=self._clock)
            sources = SourceOpener(self._order, fetcher=fetcher, cache=cache, clock=self._clock, checker=self._checker)
            failures: list[ImageError] = []
            for uri in self._order.sources:
                try:
                    return await self._pull(uri, sources)
                except (DiskFull, TargetUnusable, PullCancelled):
                    raise  # another source would fail in the same way
                except ImageError as error:
                    failures.append(error)
                    await in_thread(lambda: empty(self._target))
            if len(failures) == 1:
                raise failures[0]
            chosen = next((failure for failure in failures if failure.retryable), failures[0])
            raise error_with(chosen.code, "; ".join(str(failure) for failure in failures))

    async def _pull(self, uri: str, sources: SourceOpener) -> PullResult:
        self._scale.enter(Phase.RESOLVING)
        image = await sources.open(uri)
        if {image.digest, image.platform_digest} & set(self._order.have):
            return PullResult(source=uri, digest=image.digest, platform_digest=image.platform_digest, is_unchanged=True)
        copied = await in_thread(lambda: directory_size(image.directory))
        await in_thread(lambda: self._check_room(image, copied))
        missing = sum(layer.missing_bytes() for layer in image.layers)
        sizes = {number: layer.size or 0 for number, layer in enumerate(image.layers)} or {0: copied}
        fetched = {number: sizes[number] for number, layer in enumerate(image.layers) if not layer.is_local}
        self._scale.begin(image.name, sizes, fetched=fetched)
        self._scale.enter(Phase.DOWNLOADING if fetched else Phase.EXTRACTING)
        with Tree(self._target) as tree, _useless_when_failed(image.layers):
            if image.directory is not None:
                copy = partial(
                    copy_directory,
                    image.directory,
                    tree,
                    self._order.limits,
                    is_cancelled=self._stopped.is_set,
                    on_position=partial(self._scale.unpacked, 0),
                )
                unpacked = await in_thread(copy, stop=self._stopped.set)
            else:
                unpacked = await self._unpack(image, tree)
            self._scale.enter(Phase.VERIFYING)
            if self._order.is_durable:
                await in_thread(lambda: _sync(self._target))
        if not self._order.keep_layers:
            _forget(image.layers)
        return PullResult(
            source=uri,
            digest=image.digest,
            platform_digest=image.platform_digest,
            downloaded_bytes=missing,
            size_bytes=unpacked.bytes,
            entries=unpacked.entries,
        )

    async def _unpack(self, image: Image, tree: Tree) -> Unpacked:
        """Unpack layers in order while the task group downloads them. Any failure ends all."""
        current = 0

        async def announce_extracting() -> None:
            if fetches:
                await asyncio.wait(fetches)
            self._scale.enter(Phase.EXTRACTING)

        unpacker = Unpacker(
            tree,
            self._order.limits,
            is_cancelled=self._stopped.is_set,
            on_position=lambda position: self._scale.unpacked(current, position),
        )
        places = asyncio.Semaphore(self._order.parallel)
        with ExitStack() as files, first_failure(ImageError, OSError):
            async with task_group() as group:
                fetches = [
                    group.create_task(self._fetch(number, layer, places, files), name=f"layer {number}")
                    for number, layer in enumerate(image.layers)
                ]
                group.create_task(announce_extracting(), name="phases")
                for number, fetch in enumerate(fetches):
                    with await fetch as file:
                        current, size = number, file.seek(0, os.SEEK_END)
                        apply = partial(unpacker.apply, file, size, whiteouts=image.has_whiteouts)
                        await in_thread(apply, stop=self._stopped.set)
        self._scale.enter(Phase.VERIFYING)
        await in_thread(tree.prove_links)
        return unpacker.unpacked

    async def _fetch(self, number: int, layer: Layer, places: asyncio.Semaphore, files: ExitStack) -> BinaryIO:
        async with places:
            file = files.enter_context(await layer.open(lambda position: self._scale.fetched(number, position)))
        if layer.size is None:
            self._scale.size(number, os.fstat(file.fileno()).st_size)
        return file

    def _check_room(self, image: Image, copied: int) -> None:
        """Check the free disk space before the download: missing bytes of layers, and their estimated unpacked size."""
        limits = self._order.limits
        cache, target = Path(self._order.cache), self._target
        to_fetch = sum(layer.missing_bytes() for layer in image.layers)
        if to_fetch:
            cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        to_unpack = copied + round(sum(layer.size or 0 for layer in image.layers) * limits.expected_ratio)
        is_one_disk = not to_fetch or cache.stat().st_dev == target.stat().st_dev
        needed = {target: to_unpack + to_fetch} if is_one_disk else {target: to_unpack, cache: to_fetch}
        for place, size in needed.items():
            status = os.statvfs(place)
            free = status.f_bavail * status.f_frsize
            if size + limits.free_bytes > free:
                requirement = f"{size_text(size)} are needed, {size_text(limits.free_bytes)} shall stay free"
                raise DiskFull(f"{place}: {requirement}, and there are {size_text(free)}")

    @asynccontextmanager
    async def _whole_or_not_at_all(self) -> AsyncIterator[None]:
        undo = prepare_target(self._target)
        try:
            yield
        except OSError as error:
            await in_thread(undo)
            where = f"{error.filename}: " if error.filename else ""
            if error.errno in _NO_ROOM:
                raise DiskFull(f"{where}there is no room left on the disk") from error
            raise TargetUnusable(f"{where}{error.strerror or error}") from error
        except BaseException:
            await in_thread(undo)
            raise


@contextmanager
def _useless_when_failed(layers: Sequence[Layer]) -> Iterator[None]:
    """Remove downloaded layers when the disk is full or the image was refused."""
    try:
        yield
    except UnpackRefused:
        _forget(layers)
        raise
    except OSError as error:
        if error.errno in _NO_ROOM:
            _forget(layers)
        raise


def _forget(layers: Sequence[Layer]) -> None:
    for layer in layers:
        layer.forget()


def _sync(target: Path) -> None:
    """Sync the target's file system: one call instead of one per file."""
    descriptor = os.open(target, os.O_RDONLY)
    try:
        syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
        if syncfs is None:
            os.sync()
        elif syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(target))
    finally:
        os.close(descriptor)
