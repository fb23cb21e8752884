"""Opens a uri as an image with layers. Where the gallery has a policy, a signature in the registry must satisfy it.

Signatures are checked after the manifest was read and before the first layer is downloaded. From the manifest on
everything is fetched by digest, so what was checked is what will be unpacked.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from corral.base.clock import Clock
from corral.base.tasks import in_thread
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.oci.auth import credential_for
from corral.oci.blobs import BlobCache, WantedBlob
from corral.oci.contents import FetchedLayer, Image, archive_behind, is_layout, local_archive, read_image
from corral.oci.errors import (
    ContentMismatch,
    ImageNotFound,
    LimitExceeded,
    ManifestUnusable,
    SignatureMissing,
    SignatureRefused,
    SourceInvalid,
)
from corral.oci.http import HttpFetcher
from corral.oci.limits import BYTES_KNOB, MAX_SIGNATURES, SIGNATURE_BYTES
from corral.oci.manifests import Index, choose_image, read_manifest
from corral.oci.orders import PullOrder
from corral.oci.references import ArchiveUrl, ImageFile, LocalSource, Reference, RegistryImage, is_digest, parse_source
from corral.oci.registry import Registry
from corral.oci.signatures.formats import (
    MEDIA_TYPE,
    SIGNATURE_ANNOTATION,
    SignatureCandidate,
    SignatureChecker,
    SigstoreBundle,
    SimpleSignature,
    is_bundle_type,
    signature_tag,
)
from corral.oci.signatures.policy import SECTION, SUMS, UNSIGNED

_MOST_REASONS: Final = 3
_EMPTY: Final = ("", "application/vnd.oci.empty.v1+json")


class _ReferrerEntry(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    digest: str
    media_type: str = ""
    artifact_type: str = ""
    annotations: Mapping[str, str] | None = None


class _Listing(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A manifest or an index; each has one of these fields."""

    artifact_type: str = ""
    layers: Sequence[_ReferrerEntry] = ()
    manifests: Sequence[_ReferrerEntry] = ()


class SignedImages:
    """Checks signatures of images in one repository."""

    def __init__(self, registry: Registry, checker: SignatureChecker) -> None:
        self._registry = registry
        self._checker = checker

    async def check(self, image: Image, platform: str) -> None:
        """Raise SignatureRefused, which says what was expected and what was found. As in LocalAI the image for the
        platform itself must be signed; a signed index is not enough."""
        digest, problems = image.platform_digest, list[str]()
        async for candidate in self._candidates(digest):
            problem = candidate if isinstance(candidate, str) else self._checker.problem(digest, candidate)
            if not problem:
                return
            problems.append(problem)
            if len(problems) >= MAX_SIGNATURES:
                break
        requirement = (
            f"{image.name}: its gallery asks for {self._checker.expected}, of {image.platform_digest} ({platform})"
        )
        if not problems:
            listed = image.digest != image.platform_digest
            hint = "; a signature of only the list of its images does not count" if listed else ""
            raise SignatureMissing(f"{requirement}, and there is no signature that it could be{hint}")
        reasons = "; ".join(dict.fromkeys(problems[:_MOST_REASONS]))
        omitted = f"; and {len(problems) - _MOST_REASONS} more" if len(problems) > _MOST_REASONS else ""
        verdict = (
            "the signature that is there is not it" if len(problems) == 1 else "none of those that are there is it"
        )
        raise SignatureRefused(f"{requirement}, and {verdict}: {reasons}{omitted}")

    async def _candidates(self, digest: str) -> AsyncIterator[SignatureCandidate | str]:
        """Yield each signature, or why it cannot be read. RegistryUnavailable propagates, since it proves nothing."""
        if self._checker.takes_simple:
            tag = signature_tag(digest)
            for layer in (await self._listing(tag)).layers:
                if layer.media_type == MEDIA_TYPE:
                    payload = await self._content(layer.digest)
                    signature = (layer.annotations or {}).get(SIGNATURE_ANNOTATION, "")
                    if isinstance(payload, str):
                        yield payload
                    else:
                        yield SimpleSignature(place=tag, payload=payload, signature=signature)
        listed = await self._registry.referrers(digest)
        if listed is None:  # the registry does not support such lists: there is one under a tag instead
            referrers = (await self._listing(digest.replace(":", "-"))).manifests
        else:
            referrers = _read(listed).manifests
        # Cosign's own lists have the type of the configuration there, which is empty.
        likely = [entry for entry in referrers if is_bundle_type(entry.artifact_type) or entry.artifact_type in _EMPTY]
        for entry in [entry for entry in likely if is_digest(entry.digest)][:MAX_SIGNATURES]:
            manifest = await self._listing(entry.digest)
            if is_bundle_type(manifest.artifact_type or entry.artifact_type) and manifest.layers:
                document = await self._content(manifest.layers[0].digest)
                yield document if isinstance(document, str) else SigstoreBundle(place=entry.digest, document=document)

    async def _listing(self, selector: str) -> _Listing:
        try:
            return _read((await self._registry.manifest(selector)).body)
        except (ImageNotFound, ContentMismatch):
            return _Listing()

    async def _content(self, digest: str) -> bytes | str:
        try:
            return await self._registry.small_blob(digest, SIGNATURE_BYTES)
        except (ImageNotFound, ContentMismatch, SourceInvalid) as error:
            return f"what is signed cannot be had: {error}"


def _read(body: bytes) -> _Listing:
    """Parse a listing; return an empty one when it is invalid."""
    try:
        return msgspec.json.decode(body, type=_Listing)
    except UNREADABLE_JSON:
        return _Listing()


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
        """Open a source. Only its manifests are fetched yet."""
        order = self._order
        match parse_source(uri):
            case RegistryImage(reference=reference):
                image = await self._open_remote(reference)
            case ImageFile(path=path):
                if order.verification is not None:
                    requirement = f"{path}: its gallery asks for {self._checker.expected}"
                    raise SignatureMissing(
                        f"{requirement}, and an image in a file has none: install it from a registry"
                    )
                image = await in_thread(lambda: read_image(path, order.platform, order.limits))
            case ArchiveUrl(url=url):
                self._check_unsigned(url, has_sum=bool(order.sha256))
                image = archive_behind(
                    url,
                    sha256=order.sha256,
                    fetcher=self._fetcher,
                    cache=self._cache,
                    network=order.network,
                    limits=order.limits,
                )
            case LocalSource(path=path):
                is_file = await in_thread(path.is_file)
                self._check_unsigned(str(path), has_sum=is_file and bool(order.sha256))
                image = await in_thread(lambda: self._open_path(path))
        expected = order.expected_digest
        if expected and expected not in (image.digest, image.platform_digest):
            actual = image.digest or "something without a digest"
            raise ContentMismatch(f"{image.name} is {actual} where {expected} was expected")
        return image

    def _check_unsigned(self, name: str, *, has_sum: bool) -> None:
        """Raise SignatureMissing for an archive or a directory, which has no signature, if the gallery has a policy
        that does not accept its sum instead."""
        policy = self._order.verification
        if policy is None or (has_sum and policy.accepts_sums):
            return
        if policy.accepts_sums:
            problem = f"this has none, nor a `sha256`, which {SECTION}.{UNSIGNED} accepts for archives"
        else:
            problem = f"only images in a registry have one; archives with a `sha256` need {SECTION}.{UNSIGNED}: {SUMS}"
        raise SignatureMissing(f"{name}: its gallery asks for {self._checker.expected}, and {problem}")

    def _open_path(self, path: Path) -> Image:
        if not path.exists():
            raise ImageNotFound(f"there is no {path}")
        if path.is_dir() and is_layout(path):
            return read_image(path, self._order.platform, self._order.limits)
        if path.is_dir():
            return Image(name=str(path), layers=(), directory=path.resolve())
        return local_archive(path, sha256=self._order.sha256)

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
            image = await self._resolve(registry, reference, expected)  # the tag was moved
        if self._order.verification is not None:
            await SignedImages(registry, self._checker).check(image, str(self._order.platform))
        return image

    async def _resolve(self, registry: Registry, reference: Reference, selector: str) -> Image:
        """Resolve a selector. From here on everything is fetched by digest, so moving the tag has no effect."""
        name = str(reference)
        top = document = await registry.manifest(selector)
        for _ in range(_MAX_NESTING):
            read = read_manifest(document.body, name=name)
            if not isinstance(read, Index):
                break
            document = await registry.manifest(choose_image(read, self._order.platform, name=name).digest)
        else:
            raise ManifestUnusable(f"{name}: lists in lists, more than {_MAX_NESTING} deep")
        most = self._order.limits.total_bytes
        if sum(layer.size for layer in read.layers) > most:
            raise LimitExceeded(f"{name}: layers of more than {most} bytes ({BYTES_KNOB})")
        layers = [
            FetchedLayer(
                blob=WantedBlob(
                    key=layer.digest.partition(":")[2], digest=layer.digest, size=layer.size, most=layer.size
                ),
                cache=self._cache,
                opener=partial(registry.blob, layer.digest),
            )
            for layer in read.layers
        ]
        return Image(name=name, layers=layers, digest=top.digest, platform_digest=document.digest)
