"""Signatures as they were found, of which nothing is believed yet, and the port of those who check them."""

from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleSignature:
    """Cosign's first format: a payload that names an image, and a signature of it."""

    place: str
    """Where it was found."""
    payload: bytes
    signature: str
    """In base64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SigstoreBundle:
    """All that is needed to check a signature without asking anybody."""

    place: str
    document: bytes


SignatureCandidate: TypeAlias = SimpleSignature | SigstoreBundle


class SignatureChecker(Protocol):
    """Decides by one policy. Asks nobody."""

    @property
    def expected(self) -> str:
        """What it takes, for people."""

    @property
    def takes_simple(self) -> bool:
        """Whether signatures of cosign's first format can satisfy the policy at all."""

    def problem(self, digest: str, candidate: SignatureCandidate) -> str:
        """Why this does not sign the image with this digest as the policy asks for; empty when it does."""


class NothingAccepted:
    """For pulls without a policy: should one be there after all, nothing satisfies it."""

    expected = "a signature that something here can check"
    takes_simple = False

    def problem(self, digest: str, candidate: SignatureCandidate) -> str:
        return f"nothing here checks {candidate.place} of {digest}"
