"""Signed images in a real registry: signed by our command, checked by the puller's process."""

import asyncio
import json
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from corral.base.clock import SystemClock
from corral.imaging.private_keys import SigningKey, new_signing_key, read_signing_key
from corral.imaging.signing import SignedDigest, sign_image
from corral.oci.auth import Credential
from corral.oci.config import ImagesConfig
from corral.oci.errors import PolicyInvalid, SignatureRefused
from corral.oci.manifests import OCI_CONFIG, OCI_INDEX, OCI_MANIFEST, Descriptor, ImagePlatform, this_platform
from corral.oci.orders import PullOrder, PullResult
from corral.oci.puller import Puller
from corral.oci.references import parse_reference
from corral.oci.signatures.policy import Verification
from tests.kit.docker_registry import PASSWORD, USERNAME, DockerRegistry
from tests.kit.images import a_layer
from tests.kit.sigstore import BUNDLE_TYPE, IDENTITY, ISSUER, SigstoreInstance

NAME = "backends/echo"
OURS = this_platform()
OTHER = ImagePlatform(architecture="s390x")
LAYER = a_layer({"run.sh": b"#!/bin/sh\n"})
SECRET = "open sesame"
KEYLESS = Verification(issuer=ISSUER, identity=IDENTITY)


@pytest.fixture(scope="module")
def registry() -> Iterator[DockerRegistry]:
    with DockerRegistry(needs_login=True) as registry:
        yield registry


class Place:
    """A directory with a key, a login and room for pulls."""

    def __init__(self, folder: Path, registry: DockerRegistry) -> None:
        self.folder = folder
        self._registry = registry
        self.login = Credential(place=registry.address, username=USERNAME, password=PASSWORD)
        config = {"auths": {registry.address: {"username": USERNAME, "password": PASSWORD}}}
        (folder / "config.json").write_text(json.dumps(config))

    async def corral(self, *words: str) -> tuple[int, str]:
        """Exit code, and all that was said."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "corral", "backend", *words),
            cwd=self.folder,
            env={
                "PATH": os.defpath,
                "HOME": str(self.folder),
                "DOCKER_CONFIG": str(self.folder),
                "CORRAL_SIGNING_PASSWORD": SECRET,
            },
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        return process.returncode or 0, said.decode()

    async def sign(self, tag: str, key: SigningKey, **annotations: str) -> list[SignedDigest]:
        """The same, in our own process."""
        reference = parse_reference(self._registry.reference(NAME, tag))
        config = ImagesConfig(credentials=(self.login,))
        return await sign_image(reference, key, config=config, clock=SystemClock(), annotations=annotations)

    async def pull(self, tag: str, policy: Verification, *, trusted_root: str = "") -> PullResult:
        order = PullOrder(
            sources=(self._registry.reference(NAME, tag),),
            target=str(self.folder / f"target-{secrets.token_hex(4)}"),
            cache=str(self.folder / "cache"),
            platform=OURS,
            verification=policy,
            trusted_root=trusted_root,
            credentials=(self.login,),
            is_durable=False,
        )
        async with Puller(order, environment={"PATH": os.defpath}) as puller:
            return await puller.result()


@pytest.fixture
def place(registry: DockerRegistry, tmp_path: Path) -> Place:
    return Place(tmp_path, registry)


def push_record(registry: DockerRegistry) -> Descriptor:
    """Of how an image was built, as `docker buildx` adds it to lists: a manifest that is no image."""
    config = registry.push_blob(NAME, b"{}", OCI_CONFIG)
    statement = registry.push_blob(NAME, b'{"_type": "x"}', "application/vnd.in-toto+json")
    manifest = {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config, "layers": [statement]}
    made = registry.push_manifest(NAME, manifest, OCI_MANIFEST, "record")
    return msgspec.structs.replace(made, platform=ImagePlatform(os="unknown", architecture="unknown"))


def policy_of(key: SigningKey) -> Verification:
    return Verification(public_key=key.public_key.pem)


async def test_an_image_for_several_platforms_is_signed_and_checked(registry: DockerRegistry, place: Place) -> None:
    ours = registry.push_image(NAME, [LAYER], platform=OURS, tag="ours")
    other = registry.push_image(NAME, [LAYER], platform=OTHER, tag="other")
    record = push_record(registry)
    index = registry.push_index(NAME, [other, ours, record], tag="signed")
    mine, theirs = new_signing_key(), new_signing_key()
    (place.folder / "mine.key").write_bytes(mine.sealed(SECRET.encode()))

    code, said = await place.corral("sign", registry.reference(NAME, "signed"), "--key", "mine.key", "-a", "a=b")
    again = await place.sign("signed", mine, a="b")

    assert code == 0, said
    assert mine.public_key.fingerprint in said
    assert SECRET not in said
    assert [one.digest for one in again] == [index.digest, other.digest, ours.digest, record.digest]
    assert all(one.was_signed for one in again)
    assert (await place.pull("signed", policy_of(mine))).digest == index.digest
    with pytest.raises(SignatureRefused, match="the signature that is there is not it: it was made with another key"):
        await place.pull("signed", policy_of(theirs))

    more = await place.sign("ours", theirs)

    assert [(one.digest, one.was_signed) for one in more] == [(ours.digest, False)]
    assert [one.was_signed for one in await place.sign("ours", mine, a="b")] == [True]
    assert (await place.pull("signed", policy_of(theirs))).platform_digest == ours.digest


def attach(registry: DockerRegistry, image: Descriptor, document: object) -> None:
    """As cosign does where a registry keeps no lists of what refers to an image."""
    blob = registry.push_blob(NAME, json.dumps(document).encode(), BUNDLE_TYPE)
    config = registry.push_blob(NAME, b"{}", "application/vnd.oci.empty.v1+json")
    manifest = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "artifactType": BUNDLE_TYPE,
        "config": config,
        "layers": [blob],
        "subject": image,
    }
    made = registry.push_manifest(NAME, manifest, OCI_MANIFEST, "bundle")
    entry = {"mediaType": OCI_MANIFEST, "digest": made.digest, "size": made.size, "artifactType": BUNDLE_TYPE}
    listed = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [entry]}
    registry.push_manifest(NAME, listed, OCI_INDEX, image.digest.replace(":", "-"))


async def test_keyless_signatures(registry: DockerRegistry, place: Place) -> None:
    sigstore = SigstoreInstance()
    root = str(sigstore.write_trusted_root(place.folder))
    image = registry.push_image(NAME, [LAYER, a_layer({"keyless": b""})], platform=OURS, tag="keyless")

    attach(registry, image, sigstore.statement_bundle(image.digest))
    result = await place.pull("keyless", KEYLESS, trusted_root=root)
    with pytest.raises(SignatureRefused, match="it was made by") as caught:
        await place.pull("keyless", Verification(issuer=ISSUER, identity="me@example.org"), trusted_root=root)

    assert result.digest == image.digest
    assert IDENTITY in str(caught.value)


async def cosign(place: Place, *words: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *("cosign", *words),
        cwd=place.folder,
        env={**os.environ, "HOME": str(place.folder), "DOCKER_CONFIG": str(place.folder), "COSIGN_PASSWORD": SECRET},
    )
    assert await process.wait() == 0, words


async def check_with_cosign(registry: DockerRegistry, place: Place) -> None:
    """It takes our keys and our signatures, and we take its signatures."""
    ours = registry.push_image(NAME, [LAYER, a_layer({"cosign": b""})], platform=OURS, tag="for-cosign")
    reference = f"{registry.address}/{NAME}@{ours.digest}"
    key = new_signing_key()
    (place.folder / "ours.key").write_bytes(key.sealed(SECRET.encode()))
    (place.folder / "ours.pub").write_text(key.public_key.pem)
    await cosign(place, "generate-key-pair")
    theirs = read_signing_key((place.folder / "cosign.key").read_bytes(), SECRET.encode())

    await place.sign("for-cosign", theirs, release="1.2")
    await cosign(place, "verify", *COSIGN_PLAIN, "-a", "release=1.2", "--key", "cosign.pub", reference)
    await cosign(place, "sign", "--tlog-upload=false", "--yes", "--key", "ours.key", "--allow-http-registry", reference)

    for one in (key, theirs):
        assert (await place.pull("for-cosign", policy_of(one))).digest == ours.digest


COSIGN_PLAIN = ("--insecure-ignore-tlog=true", "--allow-http-registry=true")
if shutil.which("cosign"):
    test_cosign_takes_what_we_sign_and_we_what_it_signs = check_with_cosign


async def test_a_policy_that_cannot_be_used_is_told_by_the_process(registry: DockerRegistry, place: Place) -> None:
    with pytest.raises(PolicyInvalid, match=r"the gallery's verification\.public_key: holds something that is no"):
        await place.pull("nothing", Verification(public_key="AAAA"))
