"""Checks signatures by keys, in cosign's first format and in Sigstore's bundles.

A key says who signed and nothing about when, so that no log and no clock is asked. Whoever loses a key has to take it
out of the policy.
"""

from collections.abc import Sequence
from typing import Final

from corral.oci.signatures.bundles import (
    SIGN_PREDICATE,
    Envelope,
    MessageSignature,
    decoded,
    message_digest_problem,
    read_bundle,
    signed_bytes,
    statement_problem,
)
from corral.oci.signatures.candidates import SignatureCandidate, SigstoreBundle, SimpleSignature
from corral.oci.signatures.keys import PublicKey, read_public_keys
from corral.oci.signatures.policy import Verification
from corral.oci.signatures.simple_signing import payload_problem

_ANOTHER_KEY: Final = "it was made with another key, or for another content"
_MOST_SIGNATURES: Final = 16
_SHOWN_DIGITS: Final = len("sha256:") + 16


class KeyChecker:
    """Accepts what any of the policy's keys signed."""

    takes_simple = True

    def __init__(self, policy: Verification) -> None:
        """InvalidInput when one of the keys cannot be used."""
        self._keys = read_public_keys(policy.public_key)

    @property
    def expected(self) -> str:
        fingerprints = " or ".join(key.fingerprint[:_SHOWN_DIGITS] for key in self._keys)
        return f"a signature by the key {fingerprints}"

    def problem(self, digest: str, candidate: SignatureCandidate) -> str:
        try:
            match candidate:
                case SimpleSignature(payload=payload, signature=signature):
                    return self._simple(payload, decoded(signature), digest)
                case SigstoreBundle(document=document):
                    return self._bundle(document, digest)
        except ValueError as error:
            return str(error)

    def _simple(self, payload: bytes, signature: bytes, digest: str) -> str:
        if not self._is_ours(payload, [signature]):
            return _ANOTHER_KEY
        return payload_problem(payload, digest)

    def _bundle(self, document: bytes, digest: str) -> str:
        bundle = read_bundle(document)
        if bundle.verification_material.public_key is None:
            return "it was made with a certificate, and not with a key"
        if bundle.dsse_envelope is not None:
            return self._envelope(bundle.dsse_envelope, digest)
        if bundle.message_signature is not None:
            return self._message(bundle.message_signature, digest)
        return "it holds no signature"

    def _envelope(self, envelope: Envelope, digest: str) -> str:
        signatures = [decoded(one.sig) for one in envelope.signatures[:_MOST_SIGNATURES]]
        if not self._is_ours(signed_bytes(envelope), signatures):
            return _ANOTHER_KEY
        # A key may also sign other statements about an image, such as that it was found to be broken.
        payload = decoded(envelope.payload)
        return statement_problem(envelope.payload_type, payload, digest, predicate=SIGN_PREDICATE)

    def _message(self, message: MessageSignature, digest: str) -> str:
        algorithm, _, digits = digest.partition(":")
        if algorithm != "sha256":
            return f"it signs a SHA-256 hash, and the image is known by {algorithm}"
        if problem := message_digest_problem(message, digest):
            return problem
        signature, hashed = decoded(message.signature), bytes.fromhex(digits)
        return "" if any(key.verifies_hash(signature, hashed) for key in self._keys) else _ANOTHER_KEY

    def _is_ours(self, message: bytes, signatures: Sequence[bytes]) -> bool:
        return any(_by(key, message, signatures) for key in self._keys)


def _by(key: PublicKey, message: bytes, signatures: Sequence[bytes]) -> bool:
    return any(key.verifies(signature, message) for signature in signatures)
