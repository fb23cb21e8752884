"""Finds the signatures of an image in its registry, and lets nothing through that none of them vouches for.

Runs after the manifest was read and before the first layer is fetched. From the manifest on everything is asked for by
digest, so that what was checked is what will be unpacked.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

import msgspec

from corral.base.unreadable_json import UNREADABLE_JSON
from corral.oci.contents import Image
from corral.oci.digests import is_digest
from corral.oci.errors import ContentMismatch, ImageNotFound, SignatureMissing, SignatureRefused, SourceInvalid
from corral.oci.limits import MAX_SIGNATURES, SIGNATURE_BYTES
from corral.oci.registry import Registry
from corral.oci.signatures.bundles import is_bundle_type
from corral.oci.signatures.candidates import SignatureCandidate, SignatureChecker, SigstoreBundle, SimpleSignature
from corral.oci.signatures.simple_signing import MEDIA_TYPE, SIGNATURE_ANNOTATION, signature_tag

_MOST_TOLD: Final = 3
_EMPTY: Final = "application/vnd.oci.empty.v1+json"


class _ReferrerEntry(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    digest: str
    size: int = 0
    media_type: str = ""
    artifact_type: str = ""
    annotations: Mapping[str, str] | None = None


class _Listing(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A manifest or a list: either has one of these."""

    artifact_type: str = ""
    layers: Sequence[_ReferrerEntry] = ()
    manifests: Sequence[_ReferrerEntry] = ()


class SignedImages:
    """Of one repository."""

    def __init__(self, registry: Registry, checker: SignatureChecker) -> None:
        self._registry = registry
        self._checker = checker

    async def check(self, image: Image, platform: str) -> None:
        """SignatureRefused says what was expected and what was found. The image for the platform itself must be signed,
        as LocalAI has it, and not only a list that it is in."""
        digest, problems = image.platform_digest, list[str]()
        async for candidate in self._candidates(digest):
            problem = candidate if isinstance(candidate, str) else self._checker.problem(digest, candidate)
            if not problem:
                return
            problems.append(problem)
            if len(problems) >= MAX_SIGNATURES:
                break
        raise self._refusal(image, platform, problems)

    def _refusal(self, image: Image, platform: str, problems: Sequence[str]) -> SignatureRefused:
        what = f"{image.name}: its gallery asks for {self._checker.expected}, of {image.platform_digest} ({platform})"
        if not problems:
            listed = image.digest != image.platform_digest
            hint = "; a signature of only the list of its images does not count" if listed else ""
            return SignatureMissing(f"{what}, and there is no signature that it could be{hint}")
        told = "; ".join(dict.fromkeys(problems[:_MOST_TOLD]))
        rest = f"; and {len(problems) - _MOST_TOLD} more" if len(problems) > _MOST_TOLD else ""
        found = "the signature that is there is not it" if len(problems) == 1 else "none of those that are there is it"
        return SignatureRefused(f"{what}, and {found}: {told}{rest}")

    async def _candidates(self, digest: str) -> AsyncIterator[SignatureCandidate | str]:
        """Each one, or why it cannot be looked at. RegistryUnavailable is nobody's fault, and passes."""
        if self._checker.takes_simple:
            async for simple in self._simple_signatures(digest):
                yield simple
        async for bundle in self._bundles(digest):
            yield bundle

    async def _simple_signatures(self, digest: str) -> AsyncIterator[SignatureCandidate | str]:
        tag = signature_tag(digest)
        for layer in (await self._listing(tag)).layers:
            if layer.media_type != MEDIA_TYPE:
                continue
            payload = await self._content(layer.digest)
            if isinstance(payload, str):
                yield payload
            else:
                signature = (layer.annotations or {}).get(SIGNATURE_ANNOTATION, "")
                yield SimpleSignature(place=tag, payload=payload, signature=signature)

    async def _bundles(self, digest: str) -> AsyncIterator[SignatureCandidate | str]:
        entries = [entry for entry in await self._referrers(digest) if _may_be_bundle(entry)]
        for entry in entries[:MAX_SIGNATURES]:
            manifest = await self._listing(entry.digest)
            if not is_bundle_type(manifest.artifact_type or entry.artifact_type) or not manifest.layers:
                continue
            document = await self._content(manifest.layers[0].digest)
            yield document if isinstance(document, str) else SigstoreBundle(place=entry.digest, document=document)

    async def _referrers(self, digest: str) -> Sequence[_ReferrerEntry]:
        """What the registry lists, or what those who pushed have listed under a tag where the registry does not."""
        listed = await self._registry.referrers(digest)
        if listed is None:
            return (await self._listing(digest.replace(":", "-"))).manifests
        return _read(listed).manifests

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


def _may_be_bundle(entry: _ReferrerEntry) -> bool:
    """Lists that cosign writes itself name the type of the configuration instead, which is empty."""
    is_likely = is_bundle_type(entry.artifact_type) or entry.artifact_type in ("", _EMPTY)
    return is_likely and is_digest(entry.digest)


def _read(body: bytes) -> _Listing:
    """What cannot be read lists nothing."""
    try:
        return msgspec.json.decode(body, type=_Listing)
    except UNREADABLE_JSON:
        return _Listing()
