"""From a uri to an image whose layers can be opened."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from corral.base.clock import Clock
from corral.oci.archives import archive_behind, local_archive
from corral.oci.auth import credential_for
from corral.oci.blobs import BlobCache, WantedBlob
from corral.oci.contents import FetchedLayer, Image
from corral.oci.errors import ContentMismatch, ImageNotFound, LimitExceeded, ManifestUnusable, SignatureMissing
from corral.oci.http import HttpFetcher
from corral.oci.layout import is_layout, read_image
from corral.oci.limits import BYTES_KNOB
from corral.oci.manifests import Descriptor, Index, choose_image, read_manifest
from corral.oci.orders import PullOrder
from corral.oci.patience import in_thread
from corral.oci.references import ArchiveUrl, ImageFile, LocalSource, Reference, RegistryImage, parse_source
from corral.oci.registry import Document, Registry
from corral.oci.signatures.candidates import SignatureChecker
from corral.oci.signed import SignedImages

_MAX_NESTING = 4


class SourceOpener:
    """Opens the sources of one order."""

    def __init__(
        self, order: PullOrder, *, fetcher: HttpFetcher, cache: BlobCache, clock: Clock, checker: SignatureChecker
    ) -> None:
        self._order = order
        self._checker = checker
        self._fetcher = fetcher
        self._cache = cache
        self._clock = clock

    async def open(self, uri: str) -> Image:
        """What is there. Nothing is fetched yet but what describes it."""
        order = self._order
        match parse_source(uri):
            case RegistryImage(reference=reference):
                image = await self._open_remote(reference)
            case ImageFile(path=path):
                self._refuse_unsigned(path)
                image = await in_thread(lambda: read_image(path, order.platform, order.limits))
            case ArchiveUrl(url=url):
                image = archive_behind(
                    url,
                    sha256=order.sha256,
                    fetcher=self._fetcher,
                    cache=self._cache,
                    network=order.network,
                    limits=order.limits,
                )
            case LocalSource(path=path):
                image = await in_thread(lambda: self._open_path(LocalSource(path=path)))
        self._check_expected(image)
        return image

    def _open_path(self, source: LocalSource) -> Image:
        path = source.path
        if not path.exists():
            raise ImageNotFound(f"there is no {path}")
        if path.is_dir() and is_layout(path):
            return read_image(path, self._order.platform, self._order.limits)
        if path.is_dir():
            return Image(name=str(path), layers=(), directory=path.resolve())
        return local_archive(path, sha256=self._order.sha256)

    def _refuse_unsigned(self, path: Path) -> None:
        if self._order.verification is not None:
            what = f"{path}: its gallery asks for {self._checker.expected}"
            raise SignatureMissing(f"{what}, and an image in a file has none: install it from a registry")

    def _check_expected(self, image: Image) -> None:
        expected = self._order.expected_digest
        if expected and expected not in (image.digest, image.platform_digest):
            found = image.digest or "something without a digest"
            raise ContentMismatch(f"{image.name} is {found} where {expected} was expected")

    async def _open_remote(self, reference: Reference) -> Image:
        registry = Registry(
            self._fetcher,
            reference,
            credential=credential_for(self._order.credentials, reference),
            network=self._order.network,
            clock=self._clock,
        )
        image = await self._resolve(registry, reference, reference.selector)
        expected = self._order.expected_digest
        if expected and expected not in (image.digest, image.platform_digest):
            image = await self._resolve(registry, reference, expected)  # the tag was moved; what it was is still there
        if self._order.verification is not None:
            await SignedImages(registry, self._checker).check(image, str(self._order.platform))
        return image

    async def _resolve(self, registry: Registry, reference: Reference, selector: str) -> Image:
        """From here on everything is asked for by digest: a tag that is moved meanwhile changes nothing."""
        name = str(reference)
        top = document = await registry.manifest(selector)
        for _ in range(_MAX_NESTING):
            read = read_manifest(document.body, name=name)
            if not isinstance(read, Index):
                layers = self._layers(registry, read.layers, name)
                return Image(name=name, layers=layers, digest=top.digest, platform_digest=document.digest)
            document = await self._next(registry, read, name)
        raise ManifestUnusable(f"{name}: lists in lists, more than {_MAX_NESTING} deep")

    async def _next(self, registry: Registry, index: Index, name: str) -> Document:
        chosen = choose_image(index, self._order.platform, name=name)
        return await registry.manifest(chosen.digest)

    def _layers(self, registry: Registry, layers: Sequence[Descriptor], name: str) -> list[FetchedLayer]:
        most = self._order.limits.total_bytes
        if sum(layer.size for layer in layers) > most:
            raise LimitExceeded(f"{name}: layers of more than {most} bytes ({BYTES_KNOB})")
        return [
            FetchedLayer(
                wanted=WantedBlob(
                    key=layer.digest.partition(":")[2], digest=layer.digest, size=layer.size, most=layer.size
                ),
                cache=self._cache,
                opener=partial(registry.blob, layer.digest),
            )
            for layer in layers
        ]
