"""Pulls of images that have to be signed, from a registry that does what it is told."""

import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from corral.imaging.private_keys import SigningKey, new_signing_key
from corral.oci.errors import (
    ContentMismatch,
    ImageError,
    RegistryUnavailable,
    SignatureMissing,
    SignatureRefused,
    error_with,
)
from corral.oci.limits import Network
from corral.oci.manifests import OCI_INDEX, OCI_MANIFEST, Descriptor, ImagePlatform, this_platform
from corral.oci.orders import PullOrder, PullResult, Scale
from corral.oci.pull import Pull
from corral.oci.signatures.formats import SignatureChecker, signature_tag
from corral.oci.signatures.keyed import KeyChecker
from corral.oci.signatures.keyless import KeylessChecker
from corral.oci.signatures.policy import Verification
from tests.kit.clock import HurriedClock
from tests.kit.images import a_layer
from tests.kit.registry import FakeRegistry, a_signature, add_signatures, answering, lying
from tests.kit.sigstore import BUNDLE_TYPE, IDENTITY, ISSUER, SigstoreInstance, a_statement, key_bundle

NAME = "backends/echo"
OURS, THEIRS = new_signing_key(), new_signing_key()
SIGSTORE = SigstoreInstance()
POLICY = Verification(public_key=OURS.public_key.pem)
WITH_SUMS = Verification(public_key=OURS.public_key.pem, unsigned="sha256")
KEYLESS = Verification(issuer=ISSUER, identity=IDENTITY)
QUICK = Network(answer_seconds=5, first_pause_seconds=0.01, attempts=2)


@pytest.fixture
async def registry() -> AsyncIterator[FakeRegistry]:
    async with FakeRegistry() as registry:
        yield registry


class Place:
    """A target and a cache, and pulls into them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.target = folder / "target"
        self.trusted_root = SIGSTORE.write_trusted_root(folder)

    def checker(self, policy: Verification) -> SignatureChecker:
        return KeylessChecker(policy, trusted_root=self.trusted_root) if policy.is_keyless else KeyChecker(policy)

    async def pull(
        self, *sources: str, policy: Verification = POLICY, expected_digest: str = "", sha256: str = ""
    ) -> PullResult:
        order = PullOrder(
            sources=sources,
            target=str(self.target),
            cache=str(self.folder / "cache"),
            platform=this_platform(),
            verification=policy,
            expected_digest=expected_digest,
            sha256=sha256,
            network=QUICK,
            is_durable=False,
        )
        return await Pull(order, scale=Scale(), clock=HurriedClock(), checker=self.checker(policy)).run()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def add_image(registry: FakeRegistry, content: bytes = b"#!/bin/sh\n", **options: Any) -> Descriptor:
    return registry.add_image(NAME, [a_layer({"run.sh": content})], **options)


def add_archive(folder: Path) -> tuple[Path, str]:
    """An archive on this machine, and its sum."""
    archive = folder / "echo.tar"
    archive.write_bytes(a_layer({"run.sh": b"#!/bin/sh\n"}))
    return archive, hashlib.sha256(archive.read_bytes()).hexdigest()


def sign(registry: FakeRegistry, digest: str, *keys: SigningKey, of: str = "") -> None:
    add_signatures(registry, NAME, digest, *keys or (OURS,), of=of)


def add_bundle(registry: FakeRegistry, document: dict[str, Any], **changes: object) -> dict[str, object]:
    """A bundle and the manifest that refers to an image; what a list of those says about it."""
    blob = registry.add_blob(json.dumps(document).encode(), BUNDLE_TYPE)
    manifest = {"artifactType": BUNDLE_TYPE, "layers": [blob], **changes}
    made = registry.add_manifest(NAME, manifest, OCI_MANIFEST, tag="bundle")
    return {"mediaType": OCI_MANIFEST, "digest": made.digest, "size": made.size, "artifactType": BUNDLE_TYPE}


def refer(registry: FakeRegistry, digest: str, *entries: dict[str, object]) -> None:
    """Where the registry keeps no lists itself."""
    registry.add_manifest(NAME, {"manifests": entries}, OCI_INDEX, tag=digest.replace(":", "-"))


def fetched_layers(registry: FakeRegistry, image: Descriptor) -> int:
    body = json.loads(registry.manifests[NAME, image.digest][1])
    return sum(len(registry.asked_for(layer["digest"])) for layer in body["layers"])


async def test_a_signed_image_is_installed(registry: FakeRegistry, place: Place) -> None:
    image = add_image(registry)
    sign(registry, image.digest)

    result = await place.pull(registry.reference(NAME))

    assert result.platform_digest == image.digest
    assert (place.target / "run.sh").exists()


async def test_nothing_of_an_unsigned_image_is_fetched(registry: FakeRegistry, place: Place) -> None:
    image = add_image(registry)

    with pytest.raises(SignatureMissing) as caught:
        await place.pull(registry.reference(NAME))

    assert fetched_layers(registry, image) == 0
    assert not place.target.exists()
    fingerprint = OURS.public_key.fingerprint[:23]
    assert str(caught.value) == (
        f"{registry.reference(NAME)}: its gallery asks for a signature by the key {fingerprint}, of {image.digest} "
        f"({this_platform()}), and there is no signature that it could be"
    )
    assert not caught.value.retryable


async def test_an_image_that_another_key_signed(registry: FakeRegistry, place: Place) -> None:
    image = add_image(registry)
    sign(registry, image.digest, THEIRS)

    with pytest.raises(SignatureRefused, match="the signature that is there is not it: it was made with another key"):
        await place.pull(registry.reference(NAME))

    assert fetched_layers(registry, image) == 0


async def test_one_good_signature_among_others_is_enough(registry: FakeRegistry, place: Place) -> None:
    image = add_image(registry)
    sign(registry, image.digest, THEIRS, THEIRS, OURS)

    assert (await place.pull(registry.reference(NAME))).platform_digest == image.digest


async def test_the_signature_of_another_image(registry: FakeRegistry, place: Place) -> None:
    good, evil = add_image(registry, tag="good"), add_image(registry, b"#!/bin/evil\n")
    sign(registry, good.digest, of=evil.digest)

    with pytest.raises(SignatureRefused, match=f"it signs another image, {good.digest}"):
        await place.pull(registry.reference(NAME))


async def test_a_manifest_that_is_not_what_its_digest_says(registry: FakeRegistry, place: Place) -> None:
    good, evil = add_image(registry, tag="good"), add_image(registry, b"#!/bin/evil\n", tag="evil")
    sign(registry, good.digest)
    registry.faults[f"/manifests/{good.digest}"] = [lying(registry.manifests[NAME, evil.digest][1])]

    with pytest.raises(ContentMismatch):
        await place.pull(f"{registry.address}/{NAME}@{good.digest}")


async def test_a_payload_that_is_not_what_its_digest_says(registry: FakeRegistry, place: Place) -> None:
    image = add_image(registry)
    layer = a_signature(registry, NAME, image.digest, OURS)
    registry.add_manifest(NAME, {"layers": [layer]}, OCI_MANIFEST, tag=signature_tag(image.digest))
    registry.faults[layer.digest] = [lying(b"{}")]

    with pytest.raises(SignatureRefused, match="what is signed cannot be had"):
        await place.pull(registry.reference(NAME))


async def test_a_tag_that_is_moved_after_the_check(registry: FakeRegistry, place: Place) -> None:
    """The first question shows the signed image; from then on the tag names another one."""
    good = add_image(registry)
    sign(registry, good.digest)
    body = registry.manifests[NAME, good.digest][1]
    evil = add_image(registry, b"#!/bin/evil\n")
    registry.faults["/manifests/latest"] = [lying(body)]

    result = await place.pull(registry.reference(NAME))

    assert (result.platform_digest, fetched_layers(registry, evil)) == (good.digest, 0)
    assert (place.target / "run.sh").read_bytes() == b"#!/bin/sh\n"


async def test_what_a_moved_tag_was_is_checked_too(registry: FakeRegistry, place: Place) -> None:
    good = add_image(registry)
    evil = add_image(registry, b"#!/bin/evil\n")
    sign(registry, evil.digest)

    with pytest.raises(SignatureMissing, match=good.digest):
        await place.pull(registry.reference(NAME), expected_digest=good.digest)
    sign(registry, good.digest)
    result = await place.pull(registry.reference(NAME), expected_digest=good.digest)

    assert result.digest == good.digest


async def test_the_image_for_this_machine_must_be_signed(registry: FakeRegistry, place: Place) -> None:
    ours, other = (
        add_image(registry, tag="ours"),
        add_image(registry, b"x", tag="o", platform=ImagePlatform(architecture="x")),
    )
    index = registry.add_index(NAME, [other, ours])
    sign(registry, index.digest)
    sign(registry, other.digest)

    with pytest.raises(SignatureMissing, match="a signature of only the list of its images does not count"):
        await place.pull(registry.reference(NAME))
    sign(registry, ours.digest)

    assert (await place.pull(registry.reference(NAME))).digest == index.digest


async def test_a_registry_that_fails_is_asked_again_later(registry: FakeRegistry, place: Place) -> None:
    image = add_image(registry)
    sign(registry, image.digest)
    registry.faults[".sig"] = [answering(500)] * QUICK.attempts

    with pytest.raises(RegistryUnavailable) as caught:
        await place.pull(registry.reference(NAME))
    assert caught.value.retryable

    await place.pull(registry.reference(NAME))


async def test_a_mirror_is_checked_too(registry: FakeRegistry, place: Place) -> None:
    evil, good = add_image(registry, b"#!/bin/evil\n", tag="evil"), add_image(registry, tag="good")
    sign(registry, evil.digest, THEIRS)

    with pytest.raises(SignatureRefused, match=r"another key.*there is no signature"):
        await place.pull(registry.reference(NAME, "evil"), registry.reference(NAME, "good"))
    sign(registry, good.digest)

    result = await place.pull(registry.reference(NAME, "evil"), registry.reference(NAME, "good"))
    assert result.platform_digest == good.digest


# Bundles.


@pytest.mark.parametrize("has_lists", [True, False], ids=["list of the registry", "list under a tag"])
@pytest.mark.parametrize("kind", ["message", "statement", "key"])
async def test_bundles_are_found(kind: str, has_lists: bool, registry: FakeRegistry, place: Place) -> None:
    image = add_image(registry)
    made = {
        "message": SIGSTORE.message_bundle,
        "statement": SIGSTORE.statement_bundle,
        "key": lambda digest: key_bundle(OURS.key, a_statement(digest)),  # type: ignore[arg-type]
    }[kind](image.digest)
    entry = add_bundle(registry, made)
    refer(registry, image.digest, entry)
    if has_lists:
        listed = registry.manifests.pop((NAME, image.digest.replace(":", "-")))
        registry.faults["/referrers/"] = [lying(listed[1])]

    result = await place.pull(registry.reference(NAME), policy=POLICY if kind == "key" else KEYLESS)

    assert result.platform_digest == image.digest
    assert len(registry.asked_for(f"/referrers/{image.digest}")) == 1


async def test_a_keyless_policy_does_not_look_at_the_first_format(registry: FakeRegistry, place: Place) -> None:
    image = add_image(registry)
    sign(registry, image.digest)

    with pytest.raises(SignatureMissing, match=f"a signature by the identity {IDENTITY} of the issuer {ISSUER}, of"):
        await place.pull(registry.reference(NAME), policy=KEYLESS)

    assert registry.asked_for(".sig") == []


async def test_other_things_that_refer_to_an_image_are_passed_over(registry: FakeRegistry, place: Place) -> None:
    image = add_image(registry)
    good = add_bundle(registry, SIGSTORE.message_bundle(image.digest))
    others = [
        {"digest": "sha256:" + "0" * 64, "size": 1, "artifactType": "application/spdx+json"},
        {"digest": "sha256:" + "0" * 64, "size": 1, "artifactType": BUNDLE_TYPE},
        {"digest": "sha256:" + "0" * 64, "size": 1},
        {"digest": "md5:../../../x", "size": 1, "artifactType": BUNDLE_TYPE},
        {**add_bundle(registry, {}, artifactType="application/spdx+json"), "artifactType": ""},
        add_bundle(registry, SIGSTORE.message_bundle("sha256:" + "0" * 64)),
        add_bundle(registry, {}, layers=[]),
        add_bundle(registry, {}, layers=[{"digest": "nonsense", "size": 1}]),
    ]
    refer(registry, image.digest, *others, good)

    assert (await place.pull(registry.reference(NAME), policy=KEYLESS)).platform_digest == image.digest


async def test_a_list_as_cosign_writes_it_where_the_registry_keeps_none(registry: FakeRegistry, place: Place) -> None:
    image = add_image(registry)
    entry = add_bundle(registry, SIGSTORE.statement_bundle(image.digest))
    refer(registry, image.digest, {**entry, "artifactType": "application/vnd.oci.empty.v1+json"})

    assert (await place.pull(registry.reference(NAME), policy=KEYLESS)).platform_digest == image.digest


async def test_what_was_found_is_told_in_short(registry: FakeRegistry, place: Place) -> None:
    image = add_image(registry)
    forged = [add_bundle(registry, SIGSTORE.message_bundle("sha256:" + f"{n:064x}")) for n in range(40)]
    refer(registry, image.digest, *forged)

    with pytest.raises(SignatureRefused, match=r"none of those that are there is it: .* and 29 more$") as caught:
        await place.pull(registry.reference(NAME), policy=KEYLESS)

    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"\xff", b'{"manifests": [7]}', b'{"manifests": [{"digest": ""}]}', b"[" * 100_000]
)
async def test_a_list_that_cannot_be_read_lists_nothing(body: bytes, registry: FakeRegistry, place: Place) -> None:
    add_image(registry)
    registry.faults["/referrers/"] = [lying(body)]

    with pytest.raises(SignatureMissing):
        await place.pull(registry.reference(NAME), policy=KEYLESS)


async def test_a_signature_without_an_end(registry: FakeRegistry, place: Place) -> None:
    image = add_image(registry)
    layer = a_signature(registry, NAME, image.digest, OURS)
    registry.add_manifest(NAME, {"layers": [layer]}, OCI_MANIFEST, tag=signature_tag(image.digest))
    registry.faults[layer.digest] = [lying(bytes(2 * 1024 * 1024))]

    with pytest.raises(SignatureRefused, match="has more than 1048576 bytes"):
        await place.pull(registry.reference(NAME))


# What no policy reaches.


async def test_an_image_in_a_file_has_no_signature(place: Place, tmp_path: Path) -> None:
    with pytest.raises(SignatureMissing, match="an image in a file has none: install it from a registry"):
        await place.pull(f"ocifile://{tmp_path}/image.tar")


async def test_a_directory_that_a_gallery_with_a_policy_names_is_refused(place: Place, tmp_path: Path) -> None:
    """Whoever can change the gallery's file must not get past its policy with a path."""
    (tmp_path / "backend").mkdir()
    (tmp_path / "backend" / "run.sh").write_text("")

    with pytest.raises(SignatureMissing, match="only images in a registry have one"):
        await place.pull(str(tmp_path / "backend"), sha256="0" * 64)
    with pytest.raises(SignatureMissing, match="this has none, nor a `sha256`"):
        await place.pull(str(tmp_path / "backend"), policy=WITH_SUMS, sha256="0" * 64)

    assert not (place.target / "run.sh").exists()


async def test_an_archive_is_refused_by_a_policy_that_does_not_accept_sums(place: Place, tmp_path: Path) -> None:
    archive, sha256 = add_archive(tmp_path)

    with pytest.raises(SignatureMissing, match=r"archives with a `sha256` need verification\.unsigned: sha256"):
        await place.pull(str(archive), sha256=sha256)
    with pytest.raises(SignatureMissing, match="its gallery asks for a signature"):
        await place.pull("https://example.org/echo.tar.gz", sha256=sha256)


async def test_an_archive_with_its_sum_is_taken_where_the_policy_accepts_sums(place: Place, tmp_path: Path) -> None:
    archive, sha256 = add_archive(tmp_path)

    with pytest.raises(SignatureMissing, match="this has none, nor a `sha256`"):
        await place.pull(str(archive), policy=WITH_SUMS)
    await place.pull(str(archive), policy=WITH_SUMS, sha256=sha256)

    assert (place.target / "run.sh").exists()


async def test_without_a_checker_nothing_passes(registry: FakeRegistry, tmp_path: Path) -> None:
    image = add_image(registry)
    sign(registry, image.digest)
    refer(registry, image.digest, add_bundle(registry, SIGSTORE.message_bundle(image.digest)))
    order = PullOrder(
        sources=(registry.reference(NAME),),
        target=str(tmp_path / "target"),
        cache=str(tmp_path / "cache"),
        platform=this_platform(),
        verification=POLICY,
    )

    with pytest.raises(SignatureRefused, match="nothing here checks"):
        await Pull(order, scale=Scale(), clock=HurriedClock()).run()


def test_refusals_cross_the_border_between_processes() -> None:
    told = error_with("signature_refused", "why")

    assert isinstance(told, SignatureRefused)
    assert isinstance(told, ImageError)
    assert not told.retryable
    assert error_with("trust_unavailable", "why").retryable
