"""Signatures that others made: by cosign with a key, and by Sigstore's public instance."""

import base64
import hashlib
import socket
from pathlib import Path

import pytest

from corral.imaging.private_keys import read_signing_key
from corral.oci.signatures.formats import SigstoreBundle, SimpleSignature, make_payload
from corral.oci.signatures.keyed import KeyChecker
from corral.oci.signatures.keyless import KeylessChecker
from corral.oci.signatures.policy import Verification

RECORDED = Path(__file__).parent / "recorded"
IDENTITY = (
    "https://github.com/sigstore-conformance/extremely-dangerous-public-oidc-beacon/"
    ".github/workflows/extremely-dangerous-oidc-beacon.yml@refs/heads/main"
)
PUBLIC_INSTANCE = "https://token.actions.githubusercontent.com"
STATEMENT_OF = "sha256:70ed0277251d0cf2eb5eda8b574ce012de485e39a3de1fb4b1e0717e14b02d6a"

# Of StackRox's tests: signed with `cosign sign --key`.
COSIGN_KEY = """-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE04soAoNygRhaytCtygPcwsP+6Ein
YoDv/BJx1T9WmtsANh2HplRR66Fbm+3OjFuah2IhFufPhDl6a85I3ymVYw==
-----END PUBLIC KEY-----
"""
COSIGN_SIGNATURE = "MEUCIDGMmJyxVKGPxvPk/QlRzMSGzcI8pYCy+MB7RTTpegzTAiEArssqWntVN8oJOMV0Aey0zhsNqRmEVQAYZNkn8hkAnXI="
COSIGN_REFERENCE = "ttl.sh/d8d3892d-48bd-4671-a546-2e70a900b702"
COSIGN_DIGEST = "sha256:ee89b00528ff4f02f2405e4ee221743ebc3f8e8dd0bfd5c4c20a2fa2aaa7ede3"
COSIGN_PAYLOAD = (
    '{"critical":{"identity":{"docker-reference":"ttl.sh/d8d3892d-48bd-4671-a546-2e70a900b702"},'
    '"image":{"docker-manifest-digest":"sha256:ee89b00528ff4f02f2405e4ee221743ebc3f8e8dd0bfd5c4c20a2fa2aaa7ede3"},'
    '"type":"cosign container image signature"},"optional":null}'
)


BUNDLE_KEY = "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE2LvBK6TEHv2y31jLyADCVLwbAWUdbFM4RK7GbQsv91PwdSQjopaymz/wdphFXqRJPudsd1gjlknxOtEsvKhR1A=="  # noqa: E501 - one line
BUNDLE_DIGEST = "sha256:e094e7463211ea58a026d8cdc9bab9a1f02a155ebd68f4a8dcd8e3762890d880"


def test_a_signature_by_cosign() -> None:
    checker = KeyChecker(Verification(public_key=COSIGN_KEY))
    signature = SimpleSignature(place="", payload=COSIGN_PAYLOAD.encode(), signature=COSIGN_SIGNATURE)

    assert checker.problem(COSIGN_DIGEST, signature) == ""
    assert checker.problem(STATEMENT_OF, signature) == f"it signs another image, {COSIGN_DIGEST}"


def test_a_bundle_by_cosign() -> None:
    """Of cosign 2.5.0: `cosign attest --key … --new-bundle-format --type https://sigstore.dev/cosign/sign/v1`."""
    document = (RECORDED / "cosign-key.sigstore.json").read_bytes()
    bundle = SigstoreBundle(place="", document=document)
    checker = KeyChecker(Verification(public_key=BUNDLE_KEY))

    assert checker.problem(BUNDLE_DIGEST, bundle) == ""
    assert checker.problem(COSIGN_DIGEST, bundle) == f"it signs another image, {BUNDLE_DIGEST}"
    assert KeyChecker(Verification(public_key=COSIGN_KEY)).problem(BUNDLE_DIGEST, bundle) != ""


def test_our_payloads_are_cosigns_byte_for_byte() -> None:
    ours = make_payload(reference=COSIGN_REFERENCE, digest=COSIGN_DIGEST, annotations={})

    assert ours == COSIGN_PAYLOAD.encode()


def keyless(**policy: str) -> str:
    document = (RECORDED / "statement.sigstore.json").read_bytes()
    checker = KeylessChecker(Verification(**{"issuer": PUBLIC_INSTANCE, "identity": IDENTITY, **policy}))  # type: ignore[arg-type]
    return checker.problem(STATEMENT_OF, SigstoreBundle(place="", document=document))


def test_a_signature_of_the_public_instance_is_checked_with_the_trust_root_that_we_ship(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has what the policy of LocalAI's own images asks for: certificate, log, and two proofs of time."""

    def refuse(*_: object) -> None:
        raise AssertionError("nobody may be asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)

    assert keyless() == ""


def test_a_signature_of_the_public_instance_by_somebody_else() -> None:
    assert keyless(identity="https://github.com/mudler/LocalAI") == f"it was made by {IDENTITY!r}"


# Of Conforma's and of harp's tests: made with `cosign generate-key-pair`, by a newer and an older version of it.
NEWER_KEY = """-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----
eyJrZGYiOnsibmFtZSI6InNjcnlwdCIsInBhcmFtcyI6eyJOIjo2NTUzNiwiciI6
OCwicCI6MX0sInNhbHQiOiJLYU9OQzduQVJLOVgxM1FoaWFucjAwTTBGYys2Sitr
dnAxN1FuanpiVk9nPSJ9LCJjaXBoZXIiOnsibmFtZSI6Im5hY2wvc2VjcmV0Ym94
Iiwibm9uY2UiOiJVOHZqWWtqMlZOUFZGdlZFZWZ3bXZ5VGloUERrelBoaCJ9LCJj
aXBoZXJ0ZXh0IjoidWNWMnQ4TTZVNFJvb29FOXc0d3dkc3E1RDYrS2RKY245dERT
KzFwRDRGN040SVJOWEgzSTBua3h1a3NackFOUHR1emIvTkVYQ201dUp3Zjh3Qzl1
VlprbXdwNU5jRUZ6b3ZNS3JCZmNvdXdjaEkrMzkrQ0NhbVZPbzBucmRnZjhvcmpK
dXdrWDBYL1phY0RUTERGaUxyc1laMWVMMmlqMGU1MVRpZmVQNTl4WXNPK1FnM1Jv
OURRVjNQMk9ndDFDaVFHeGg1VXhUZytGc3c9PSJ9
-----END ENCRYPTED SIGSTORE PRIVATE KEY-----"""
OLDER_KEY = """-----BEGIN ENCRYPTED COSIGN PRIVATE KEY-----
eyJrZGYiOnsibmFtZSI6InNjcnlwdCIsInBhcmFtcyI6eyJOIjozMjc2OCwiciI6
OCwicCI6MX0sInNhbHQiOiJORWY0SzZ3VWZRWW1Ya3FySXB0WStLd3VHcnBJSkZ4
UUNJQzA3cGVndkZrPSJ9LCJjaXBoZXIiOnsibmFtZSI6Im5hY2wvc2VjcmV0Ym94
Iiwibm9uY2UiOiJxOXlEbUNUa2t1bi9jWjV4Mzc5Vlh4WDBSTmgrc2djeSJ9LCJj
aXBoZXJ0ZXh0IjoiN1NIWjZMbkdpS0NiUUhuWG1ZamFxV0YrUzI5NXhhc3ZWOVJ4
dzVFNXJmM0FRa2lCZVNOSVE2RlpMSExsaDNkdGhFdi82NzJ3V2VBM3dHNHBRZEx4
UU54aWQ4b0MzRURZNkNtM3laaDRyZGhqUUNsTlVxVmhCWTlCSUxud1JsOE5nVm9s
a2RiazVHZVFyQUF1SG5uSks1RDQ1dUlUS0k0YWIzRzN3amF3WUx3azVjNXYydDhJ
ajFMWjVyRlNZamNkMXBYc3Bveml0eU56RkE9PSJ9
-----END ENCRYPTED COSIGN PRIVATE KEY-----
"""
OLDER_PASSWORD = "7cqF]\\FP0ss9uO![olGf32L+UobBCn:BqVWRZbV6=FEhv3jt>I240Ew)SYwe`ncD"
OLDER_PUBLIC = (
    "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAESUVHp/bUkwMfoM3swWUbBgMt80o2"
    "x93ZquFX+D/8DBhcR+DWQSebyqsl/YEenL1GeLWmdCKSNROmvjnBV6N7uA=="
)


@pytest.mark.parametrize(
    ("document", "password", "public"),
    [(NEWER_KEY, "", ""), (OLDER_KEY, OLDER_PASSWORD, OLDER_PUBLIC)],
    ids=["newer", "older"],
)
def test_private_keys_of_cosign(document: str, password: str, public: str) -> None:
    key = read_signing_key(document.encode(), password.encode())

    assert key.public_key.verifies(key.sign(b"x"), b"x")
    if public:
        expected = hashlib.sha256(base64.b64decode(public)).hexdigest()
        assert key.public_key.fingerprint == f"sha256:{expected}"
