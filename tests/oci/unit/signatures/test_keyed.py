"""Signatures by keys: a matrix of what is accepted and of what is not, and why."""

import base64
import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.hashes import SHA256

from corral.base.errors import InvalidInput
from corral.imaging.private_keys import SigningKey
from corral.oci.signatures.formats import SignatureCandidate, SigstoreBundle, SimpleSignature, make_payload
from corral.oci.signatures.keyed import KeyChecker, PublicKey
from corral.oci.signatures.policy import Verification
from tests.kit.sigstore import SigstoreInstance, a_statement, key_bundle

DIGEST = "sha256:" + "ab" * 32
OTHER = "sha256:" + "cd" * 32
KEY = ec.generate_private_key(ec.SECP256R1())
STRANGER = ec.generate_private_key(ec.SECP256R1())
OURS, THEIRS = SigningKey(KEY), SigningKey(STRANGER)


def payload(digest: str = DIGEST, **annotations: str) -> bytes:
    return make_payload(reference="registry.example/echo", digest=digest, annotations=annotations)


def simple(content: bytes, key: SigningKey = OURS, *, signature: str | None = None) -> SimpleSignature:
    made = base64.b64encode(key.sign(content)).decode() if signature is None else signature
    return SimpleSignature(place="tag", payload=content, signature=made)


def bundle(document: dict[str, Any]) -> SigstoreBundle:
    return SigstoreBundle(place="referrer", document=json.dumps(document).encode())


def message(digest: str, key: ec.EllipticCurvePrivateKey, *, stated: str = "") -> SigstoreBundle:
    hashed = bytes.fromhex(digest.removeprefix("sha256:"))
    signature = key.sign(hashed, ec.ECDSA(Prehashed(SHA256())))
    shown = bytes.fromhex(stated.removeprefix("sha256:")) if stated else hashed
    document = key_bundle(key, a_statement(digest))
    del document["dsseEnvelope"]
    document["messageSignature"] = {
        "messageDigest": {"algorithm": "SHA2_256", "digest": base64.b64encode(shown).decode()},
        "signature": base64.b64encode(signature).decode(),
    }
    return bundle(document)


def changed(document: dict[str, Any], change: Callable[[dict[str, Any]], object]) -> SigstoreBundle:
    change(document)
    return bundle(document)


def _another_payload(document: dict[str, Any]) -> None:
    forged = json.dumps(a_statement(OTHER)).encode()
    document["dsseEnvelope"]["payload"] = base64.b64encode(forged).decode()


ACCEPTED: dict[str, Callable[[], SignatureCandidate]] = {
    "simple": lambda: simple(payload()),
    "simple with annotations": lambda: simple(payload(release="1.2")),
    "simple of a mirror": lambda: simple(make_payload(reference="mirror/x", digest=DIGEST, annotations={})),
    "statement": lambda: bundle(key_bundle(KEY, a_statement(DIGEST))),
    "message": lambda: message(DIGEST, KEY),
}
ANOTHER_KEY = "another key, or for another content"
REFUSED: dict[str, tuple[Callable[[], SignatureCandidate], str]] = {
    "simple by another key": (lambda: simple(payload(), THEIRS), ANOTHER_KEY),
    "simple of another image": (lambda: simple(payload(OTHER)), f"signs another image, {OTHER}"),
    "simple whose payload was changed": (
        lambda: simple(payload(), signature=base64.b64encode(OURS.sign(payload(OTHER))).decode()),
        ANOTHER_KEY,
    ),
    "simple without a signature": (lambda: simple(payload(), signature=""), ANOTHER_KEY),
    "simple with nonsense for a signature": (lambda: simple(payload(), signature="!!"), "not base64"),
    "simple with half a signature": (
        lambda: simple(payload(), signature=base64.b64encode(OURS.sign(payload())[:40]).decode()),
        ANOTHER_KEY,
    ),
    "simple of no image": (lambda: simple(b'{"critical": {}}'), "its payload cannot be read"),
    "simple of no JSON": (lambda: simple(b"\xff\xfe"), "its payload cannot be read"),
    "simple of another type": (
        lambda: simple(payload().replace(b"cosign container image signature", b"atomic container signature")),
        "its payload is a 'atomic container signature'",
    ),
    "statement by another key": (lambda: bundle(key_bundle(STRANGER, a_statement(DIGEST))), ANOTHER_KEY),
    "statement about another image": (lambda: bundle(key_bundle(KEY, a_statement(OTHER))), "signs another image"),
    "statement that was changed": (
        lambda: changed(key_bundle(KEY, a_statement(DIGEST)), _another_payload),
        ANOTHER_KEY,
    ),
    "statement of a test": (
        lambda: bundle(key_bundle(KEY, {**a_statement(DIGEST), "predicateType": "https://slsa.dev/vsa/v1"})),
        "states something else than a signature, 'https://slsa.dev/vsa/v1'",
    ),
    "statement of an unknown type": (
        lambda: bundle(key_bundle(KEY, {**a_statement(DIGEST), "_type": "https://example.org/x"})),
        "unknown type 'https://example.org/x'",
    ),
    "statement about nothing": (
        lambda: bundle(key_bundle(KEY, {**a_statement(DIGEST), "subject": []})),
        "which it does not name",
    ),
    "envelope without signatures": (
        lambda: changed(key_bundle(KEY, a_statement(DIGEST)), lambda one: one["dsseEnvelope"].update(signatures=[])),
        ANOTHER_KEY,
    ),
    "envelope of another type": (
        lambda: changed(key_bundle(KEY, a_statement(DIGEST)), lambda one: one["dsseEnvelope"].update(payloadType="x")),
        ANOTHER_KEY,
    ),
    "envelope that is not base64": (
        lambda: changed(key_bundle(KEY, a_statement(DIGEST)), lambda one: one["dsseEnvelope"].update(payload="!")),
        "not base64",
    ),
    "message by another key": (lambda: message(DIGEST, STRANGER), ANOTHER_KEY),
    "message of another image": (lambda: message(OTHER, KEY), f"signs another image, {OTHER}"),
    "message that states a wrong digest": (lambda: message(OTHER, KEY, stated=DIGEST), ANOTHER_KEY),
    "keyless": (
        lambda: bundle(SigstoreInstance().statement_bundle(DIGEST)),
        "made with a certificate, and not with a key",
    ),
    "bundle without a signature": (
        lambda: changed(key_bundle(KEY, a_statement(DIGEST)), lambda one: one.pop("dsseEnvelope")),
        "it holds no signature",
    ),
    "no bundle": (lambda: SigstoreBundle(place="x", document=b"{}"), "it is not a Sigstore bundle"),
    "no JSON": (lambda: SigstoreBundle(place="x", document=b"\xff"), "it is not a Sigstore bundle"),
}


def checker(*keys: SigningKey) -> KeyChecker:
    return KeyChecker(Verification(public_key="".join(key.public_key.pem for key in keys)))


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_the_key_signed_is_accepted(name: str) -> None:
    assert checker(OURS).problem(DIGEST, ACCEPTED[name]()) == ""


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_did_not_sign_is_refused(name: str) -> None:
    make, reason = REFUSED[name]

    assert reason in checker(OURS).problem(DIGEST, make())


def test_any_of_several_keys_will_do() -> None:
    assert checker(OURS, THEIRS).problem(DIGEST, simple(payload(), THEIRS)) == ""
    assert checker(OURS, THEIRS).expected.count(" or ") == 1


@pytest.mark.parametrize(
    "key",
    [
        ec.generate_private_key(ec.SECP384R1()),
        ec.generate_private_key(ec.SECP521R1()),
        ed25519.Ed25519PrivateKey.generate(),
        rsa.generate_private_key(65537, 2048),
    ],
    ids=["P-384", "P-521", "Ed25519", "RSA"],
)
def test_keys_of_other_kinds(key: Any) -> None:
    ours = SigningKey(key)

    assert checker(ours).problem(DIGEST, simple(payload(), ours)) == ""
    assert checker(ours).problem(DIGEST, simple(payload(), THEIRS)) != ""
    assert checker(ours).problem(DIGEST, message(DIGEST, STRANGER)) != ""


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        (rsa.generate_private_key(65537, 1024), "an RSA key of 1024 bits; at least 2048"),
        (ec.generate_private_key(ec.SECP256K1()), "must be an ECDSA key"),
    ],
    ids=["small", "odd curve"],
)
def test_keys_that_are_worth_nothing(key: Any, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        KeyChecker(Verification(public_key=PublicKey(key.public_key()).pem))


def test_an_image_that_is_known_by_another_hash() -> None:
    digest = "sha512:" + hashlib.sha512(b"x").hexdigest()

    assert checker(OURS).problem(digest, simple(payload(digest))) == ""
    assert "known by sha512" in checker(OURS).problem(digest, message(DIGEST, KEY))
