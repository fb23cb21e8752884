"""Keyless signatures: a matrix of what is accepted and of what is not, with an authority and logs of our own."""

import base64
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from corral.oci.signatures.formats import SigstoreBundle, SimpleSignature
from corral.oci.signatures.keyless import KeylessChecker, TrustRootUnusable
from corral.oci.signatures.policy import read_policy
from tests.kit.sigstore import IDENTITY, ISSUER, SIGNED_AT, Signer, SigstoreInstance, a_statement, b64, key_bundle

DIGEST = "sha256:" + "ab" * 32
OTHER = "sha256:" + "cd" * 32
SIGSTORE = SigstoreInstance()
STRANGER = SigstoreInstance()
POLICY = {"issuer": ISSUER, "identity": IDENTITY}
Document = dict[str, Any]


@pytest.fixture(scope="module")
def trusted_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return SIGSTORE.write_trusted_root(tmp_path_factory.mktemp("trust"))


def problem(document: Document, trusted_root: Path, **policy: str) -> str:
    read = read_policy({**POLICY, **policy})
    assert read is not None
    candidate = SigstoreBundle(place="referrer", document=json.dumps(document).encode())
    return KeylessChecker(read, trusted_root=trusted_root).problem(DIGEST, candidate)


def changed(change: Callable[[Document, Document], object], document: Document | None = None) -> Document:
    """With the bundle, and with its entry in the log."""
    made = document or SIGSTORE.message_bundle(DIGEST)
    change(made, made["verificationMaterial"]["tlogEntries"][0])
    return made


def with_logs_of(**keys: ec.EllipticCurvePrivateKey) -> SigstoreInstance:
    """Our authority, with another log."""
    ours = {"root_key": SIGSTORE.root_key, "certificates_key": SIGSTORE.certificates_key}
    return SigstoreInstance(**{**ours, "signatures_key": SIGSTORE.signatures_key, **keys})  # type: ignore[arg-type]


ACCEPTED: dict[str, Callable[[], Document]] = {
    "message": lambda: SIGSTORE.message_bundle(DIGEST),
    "statement": lambda: SIGSTORE.statement_bundle(DIGEST),
    "statement that is logged as a message": lambda: SIGSTORE.statement_bundle(DIGEST, is_logged_as_message=True),
    "statement of another kind, as in LocalAI": lambda: SIGSTORE.statement_bundle(
        DIGEST, statement={**a_statement(DIGEST), "predicateType": "https://slsa.dev/provenance/v1"}
    ),
    "issuer in the older form": lambda: SIGSTORE.message_bundle(DIGEST, Signer(issuer="", old_issuer=ISSUER)),
    "at the last moment": lambda: SIGSTORE.message_bundle(DIGEST, at=SIGNED_AT + timedelta(minutes=9)),
}
UNREADABLE = "cannot be read"
REFUSED: dict[str, tuple[Callable[[], Document], str]] = {
    # Who.
    "another identity": (
        lambda: SIGSTORE.message_bundle(DIGEST, Signer(identity="https://github.com/evil/backends")),
        "made by 'https://github.com/evil/backends'",
    ),
    "an identity that begins alike": (
        lambda: SIGSTORE.message_bundle(DIGEST, Signer(identity=f"{IDENTITY}-evil")),
        "it was made by",
    ),
    "another issuer": (
        lambda: SIGSTORE.message_bundle(DIGEST, Signer(issuer="https://issuer.evil")),
        "issued by way of 'https://issuer.evil'",
    ),
    "another issuer, behind the right one in the older form": (
        lambda: SIGSTORE.message_bundle(DIGEST, Signer(issuer="https://issuer.evil", old_issuer=ISSUER)),
        "issued by way of 'https://issuer.evil'",
    ),
    "no issuer": (lambda: SIGSTORE.message_bundle(DIGEST, Signer(issuer="")), "issued by way of no issuer"),
    # The certificate.
    "another authority": (lambda: STRANGER.message_bundle(DIGEST), "certificate chain"),
    "expired when it was used": (
        lambda: SIGSTORE.message_bundle(DIGEST, at=SIGNED_AT + timedelta(minutes=10)),
        "certificate chain",
    ),
    "used before it was valid": (
        lambda: SIGSTORE.message_bundle(DIGEST, at=SIGNED_AT - timedelta(minutes=2)),
        "certificate chain",
    ),
    "not for signing": (
        lambda: SIGSTORE.message_bundle(DIGEST, Signer(usage=ExtendedKeyUsageOID.CLIENT_AUTH)),
        "code signing",
    ),
    "never published": (lambda: SIGSTORE.message_bundle(DIGEST, Signer(is_published=False)), "SCT"),
    "published by another log": (
        lambda: with_logs_of(certificates_key=STRANGER.certificates_key).message_bundle(DIGEST),
        "SCT",
    ),
    # The log.
    "no entry in a log": (
        lambda: changed(lambda one, _: one["verificationMaterial"].update(tlogEntries=[])),
        UNREADABLE,
    ),
    "no proof of the entry": (lambda: changed(lambda _, entry: entry.pop("inclusionProof")), UNREADABLE),
    "proof without a checkpoint": (
        lambda: changed(lambda _, entry: entry["inclusionProof"].pop("checkpoint")),
        UNREADABLE,
    ),
    "an entry in another log": (
        lambda: with_logs_of(signatures_key=STRANGER.signatures_key).message_bundle(DIGEST),
        "invalid log entry",
    ),
    "a proof of another tree": (
        lambda: changed(lambda _, entry: entry["inclusionProof"].update(hashes=[b64(bytes(32))])),
        "inclusion proof",
    ),
    "a proof of the wrong length": (
        lambda: changed(lambda _, entry: entry["inclusionProof"].update(hashes=[])),
        "inclusion proof has wrong size",
    ),
    "a time that the log did not tell": (
        lambda: changed(lambda _, entry: entry.update(integratedTime=str(int(SIGNED_AT.timestamp()) + 1))),
        "inclusion promise",
    ),
    "no proven time": (lambda: changed(lambda _, entry: entry.pop("inclusionPromise")), UNREADABLE),
    "the entry of another signature": (
        lambda: changed(
            lambda one, _: one["verificationMaterial"].update(
                tlogEntries=SIGSTORE.message_bundle(DIGEST)["verificationMaterial"]["tlogEntries"]
            )
        ),
        "inconsistent with other materials",
    ),
    "the entry of another statement": (
        lambda: changed(
            lambda one, _: one["verificationMaterial"].update(
                tlogEntries=SIGSTORE.statement_bundle(DIGEST)["verificationMaterial"]["tlogEntries"]
            ),
            SIGSTORE.statement_bundle(DIGEST),
        ),
        "do not match bundle",
    ),
    # The signature.
    "a message of another image": (lambda: SIGSTORE.message_bundle(OTHER), "digest mismatch"),
    "a message of another image that hides it": (
        lambda: changed(lambda one, _: one["messageSignature"].pop("messageDigest"), SIGSTORE.message_bundle(OTHER)),
        "ignature",
    ),
    "a message of another image that states ours": (
        lambda: changed(
            lambda one, _: one["messageSignature"]["messageDigest"].update(digest=b64(b"\xab" * 32)),
            SIGSTORE.message_bundle(OTHER),
        ),
        "Signature is invalid",
    ),
    "a changed signature": (
        lambda: changed(
            lambda one, _: one["messageSignature"].update(signature=b64(b"\x30\x06\x02\x01\x01\x02\x01\x01"))
        ),
        "Signature is invalid",
    ),
    "a statement about another image": (
        lambda: SIGSTORE.statement_bundle(OTHER),
        f"it signs another image, {OTHER}",
    ),
    "a statement about another image, logged as a message": (
        lambda: SIGSTORE.statement_bundle(OTHER, is_logged_as_message=True),
        f"it signs another image, {OTHER}",
    ),
    "a changed statement": (
        lambda: changed(
            lambda one, _: one["dsseEnvelope"].update(payload=b64(json.dumps(a_statement(DIGEST)).encode())),
            SIGSTORE.statement_bundle(OTHER),
        ),
        "ignature",
    ),
    "a changed statement, logged as a message": (
        lambda: changed(
            lambda one, _: one["dsseEnvelope"].update(payload=b64(json.dumps(a_statement(DIGEST)).encode())),
            SIGSTORE.statement_bundle(OTHER, is_logged_as_message=True),
        ),
        "Signature is invalid",
    ),
    "a statement of an unknown type": (
        lambda: SIGSTORE.statement_bundle(DIGEST, statement={**a_statement(DIGEST), "_type": "x"}),
        "unknown type 'x'",
    ),
    "two signatures of one statement": (
        lambda: changed(
            lambda one, _: one["dsseEnvelope"].update(signatures=one["dsseEnvelope"]["signatures"] * 2),
            SIGSTORE.statement_bundle(DIGEST, is_logged_as_message=True),
        ),
        "exactly one signature",
    ),
    # The form.
    "a bundle by a key": (
        lambda: key_bundle(ec.generate_private_key(ec.SECP256R1()), a_statement(DIGEST)),
        "made with a key, and not with a certificate",
    ),
    "a bundle of an unknown version": (
        lambda: changed(lambda one, _: one.update(mediaType="application/vnd.dev.sigstore.bundle.v9+json")),
        UNREADABLE,
    ),
    "no certificate": (lambda: changed(lambda one, _: one["verificationMaterial"].pop("certificate")), UNREADABLE),
    "nonsense for a certificate": (
        lambda: changed(lambda one, _: one["verificationMaterial"].update(certificate={"rawBytes": b64(b"x")})),
        UNREADABLE,
    ),
    "a time that no calendar has": (lambda: changed(lambda _, entry: entry.update(integratedTime=str(10**18))), ""),
    "neither message nor statement": (lambda: changed(lambda one, _: one.pop("messageSignature")), ""),
    "nothing": (dict, "it is not a Sigstore bundle"),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_the_identity_signed_is_accepted(name: str, trusted_root: Path) -> None:
    assert problem(ACCEPTED[name](), trusted_root) == ""


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_did_not_sign_is_refused(name: str, trusted_root: Path) -> None:
    make, reason = REFUSED[name]

    told = problem(make(), trusted_root)

    assert told
    assert reason in told
    assert "\n" not in told


def test_a_time_from_which_on_signatures_count(trusted_root: Path) -> None:
    document = SIGSTORE.statement_bundle(DIGEST)

    assert problem(document, trusted_root, not_before=SIGNED_AT.isoformat()) == ""
    late = (SIGNED_AT + timedelta(seconds=1)).isoformat()
    assert problem(document, trusted_root, not_before=late) == f"it was made at {SIGNED_AT.isoformat()}"


def test_a_mail_address_is_an_identity(trusted_root: Path) -> None:
    document = SIGSTORE.message_bundle(DIGEST, Signer(identity="me@example.org"))

    assert problem(document, trusted_root, identity="me@example.org") == ""


def test_garbage_and_other_forms_are_refused(trusted_root: Path) -> None:
    policy = read_policy(POLICY)
    assert policy is not None
    checker = KeylessChecker(policy, trusted_root=trusted_root)
    good = json.dumps(SIGSTORE.message_bundle(DIGEST)).encode()

    assert not checker.takes_simple
    assert checker.problem(DIGEST, SimpleSignature(place="tag", payload=b"", signature=""))
    deep = b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"," + good[1:]
    assert checker.problem(DIGEST, SigstoreBundle(place="x", document=deep))
    for cut in range(0, len(good), 97):
        assert checker.problem(DIGEST, SigstoreBundle(place="x", document=good[:cut]))
    for place in range(0, len(good), 53):
        broken = good[:place] + b"\x00" + good[place + 1 :]
        assert checker.problem(DIGEST, SigstoreBundle(place="x", document=broken))


def test_an_image_that_is_known_by_another_hash(trusted_root: Path) -> None:
    policy = read_policy(POLICY)
    assert policy is not None
    document = json.dumps(SIGSTORE.message_bundle(DIGEST)).encode()

    told = KeylessChecker(policy, trusted_root=trusted_root).problem(
        "sha512:" + "ab" * 64, SigstoreBundle(place="x", document=document)
    )

    assert "known by sha512" in told


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "No such file or directory"),
        ("{}", "is not a trust root"),
        ("\x00", "is not a trust root"),
        (json.dumps({**SIGSTORE.trusted_root(), "tlogs": []}), "is not a trust root"),
        (json.dumps({**SIGSTORE.trusted_root(), "certificateAuthorities": []}), "is not a trust root"),
    ],
    ids=["missing", "empty", "garbage", "no log", "no authority"],
)
def test_a_trust_root_that_cannot_be_used(content: str | None, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "root.json"
    if content is not None:
        file.write_text(content)
    policy = read_policy(POLICY)
    assert policy is not None

    with pytest.raises(TrustRootUnusable, match=rf"root\.json.*{sentence}.*images\.trusted_root_file"):
        KeylessChecker(policy, trusted_root=file)


def test_base64_with_line_breaks_is_no_way_around(trusted_root: Path) -> None:
    """What one reader skips and another does not must not make two statements of one bundle."""
    document = SIGSTORE.statement_bundle(OTHER, is_logged_as_message=True)
    honest = document["dsseEnvelope"]["payload"]
    document["dsseEnvelope"]["payload"] = honest[:8] + "\n" + honest[8:]

    assert problem(document, trusted_root)
    assert base64.b64decode(honest)
