"""What is refused, and what is told, when nothing shows what a source must hold; and policies of orders."""

from pathlib import Path

import pytest

from corral.oci.config import ImagesConfig, Pin, make_order
from corral.oci.errors import IntegrityRequired, PolicyInvalid
from corral.oci.orders import PullOrder
from corral.oci.signatures.policy import Verification

POLICY = {"issuer": "https://issuer.example", "identity_regex": "^me@"}
SUM = "0" * 64
IMAGE = "quay.io/backends/echo:latest"
PINNED = f"quay.io/backends/echo@sha256:{SUM}"
ARCHIVE = "https://example.org/echo.tar.gz"
NO_POLICY = "its gallery has no `verification`, and the uri no digest"
NO_SUM = "its entry has no `sha256`"


def order_of(
    *sources: str, folder: Path, strict: bool = False, sha256: str = "", policy: dict[str, str] | None = None
) -> tuple[PullOrder, list[str]]:
    config = ImagesConfig(require_integrity=strict, trusted_root=folder / "root.json")
    order, notes = make_order(
        config,
        sources,
        target=folder / "target",
        cache=folder / "cache",
        pin=Pin(sha256=sha256, digest=f"sha256:{SUM}"),
        verification=policy,
    )
    return order, list(notes)


GAPS = {
    "an image without a policy": (IMAGE, "", {}, NO_POLICY),
    "an image without a policy, with a sum of archives": (IMAGE, SUM, {}, NO_POLICY),
    "an oci:// image without a policy": (f"oci://{IMAGE}", "", {}, NO_POLICY),
    "an image in a file": ("ocifile:///tmp/echo.tar", SUM, {}, "an image in a file has no signature"),
    "an archive without a sum": (ARCHIVE, "", {}, NO_SUM),
    "an archive without a sum, with a policy of images": (ARCHIVE, "", POLICY, NO_SUM),
    "an archive on this machine": ("file:///tmp/no-such-echo.tar", "", {}, NO_SUM),
}
COVERED = {
    "an image with a policy": (IMAGE, "", POLICY),
    "an image that is named by digest": (PINNED, "", {}),
    "an archive with a sum": (ARCHIVE, SUM, {}),
    "a directory": ("/tmp", "", {}),
    "a directory as a URL": ("file:///tmp", "", {}),
    "what cannot be understood, as the puller will say": ("no uri!", "", {}),
}


@pytest.mark.parametrize("name", GAPS)
def test_a_gap_is_told_or_refused(name: str, tmp_path: Path) -> None:
    uri, sha256, policy, sentence = GAPS[name]

    order, notes = order_of(uri, folder=tmp_path, sha256=sha256, policy=policy)
    with pytest.raises(IntegrityRequired, match=r"images\.require_backend_integrity") as caught:
        order_of(uri, folder=tmp_path, sha256=sha256, policy=policy, strict=True)

    assert order.sources == (uri,)
    assert sentence in notes[0]
    assert sentence in str(caught.value)
    assert uri in str(caught.value)
    assert not caught.value.retryable


@pytest.mark.parametrize("name", COVERED)
def test_what_is_covered_is_not_told_of(name: str, tmp_path: Path) -> None:
    uri, sha256, policy = COVERED[name]

    _, notes = order_of(uri, folder=tmp_path, sha256=sha256, policy=policy, strict=True)

    assert notes == []


def test_a_mirror_that_is_not_covered_counts_too(tmp_path: Path) -> None:
    with pytest.raises(IntegrityRequired, match="mirror/echo"):
        order_of(PINNED, "mirror/echo:latest", folder=tmp_path, strict=True)


def test_a_policy_reaches_the_order(tmp_path: Path) -> None:
    order, _ = order_of(IMAGE, folder=tmp_path, policy=POLICY)

    assert order.verification == Verification(issuer="https://issuer.example", identity_regex="^me@")
    assert order.trusted_root == str(tmp_path / "root.json")
    assert order_of(IMAGE, folder=tmp_path)[0].verification is None


def test_a_policy_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(PolicyInvalid, match=r"the gallery's verification\.identity: is missing"):
        order_of(IMAGE, folder=tmp_path, policy={"issuer": "x"})
