"""Which checker a puller gets, and what it costs: large libraries are loaded only for orders that need them."""

import subprocess
import sys
from pathlib import Path

import pytest

from corral.imaging.private_keys import new_signing_key
from corral.oci.errors import PolicyInvalid, TrustUnavailable
from corral.oci.manifests import ImagePlatform
from corral.oci.orders import PullOrder
from corral.oci.signatures.formats import NothingAccepted
from corral.oci.signatures.keyed import KeyChecker
from corral.oci.signatures.keyless import KeylessChecker
from corral.oci.signatures.policy import Verification
from corral.processes.puller import checker_for

KEYLESS = Verification(issuer="https://issuer.example", identity="me@example.org")
HEAVY = ("sigstore", "cryptography", "nacl", "pydantic", "tuf")


def order(policy: Verification | None, trusted_root: str = "") -> PullOrder:
    return PullOrder(
        sources=("x",),
        target="/t",
        cache="/c",
        platform=ImagePlatform(architecture="amd64"),
        verification=policy,
        trusted_root=trusted_root,
    )


def test_a_checker_for_each_kind_of_policy() -> None:
    assert isinstance(checker_for(order(None)), NothingAccepted)
    assert isinstance(checker_for(order(Verification(public_key=new_signing_key().public_key.pem))), KeyChecker)
    assert isinstance(checker_for(order(KEYLESS)), KeylessChecker)


def test_what_cannot_be_checked_with(tmp_path: Path) -> None:
    with pytest.raises(PolicyInvalid, match=r"the gallery's verification\.public_key"):
        checker_for(order(Verification(public_key="AAAA")))
    with pytest.raises(TrustUnavailable, match=r"No such file or directory.*images\.trusted_root_file") as caught:
        checker_for(order(KEYLESS, str(tmp_path / "missing.json")))
    assert caught.value.retryable


@pytest.mark.parametrize("module", ["corral.oci.puller", "corral.oci.config", "corral.processes.puller"])
def test_nobody_pays_for_signatures_that_are_not_asked_for(module: str) -> None:
    program = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"

    finished = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)

    assert finished.stdout.strip() == "[]"
