"""Receipts: what they prove, and what they survive."""

import os
from pathlib import Path

import pytest

from corral.hubs.downloads.receipts import FOLDER, FileReceipt, Receipts

SHA256 = "ab" * 32
GIT = "git-sha1:" + "cd" * 20


def a_receipt(path: Path, *, destination: str = "m/a.gguf", purpose: str = "op") -> FileReceipt:
    status = path.stat()
    return FileReceipt(
        destination=destination,
        size=status.st_size,
        modified=status.st_mtime_ns,
        inode=status.st_ino,
        sha256=SHA256,
        digest=GIT,
        purpose=purpose,
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "m" / "a.gguf"
    path.parent.mkdir()
    path.write_bytes(b"weights")
    return path


def test_a_receipt_written_before_a_rename_is_of_the_file_after_it(tmp_path: Path, file: Path) -> None:
    receipts, part = Receipts(tmp_path), tmp_path / "part"
    part.write_bytes(b"others")
    receipt = a_receipt(part)
    receipts.write(receipt)
    assert receipts.find("m/a.gguf") is None
    part.replace(file)
    assert receipts.find("m/a.gguf") == receipt


@pytest.mark.parametrize(
    ("digest", "size", "purpose", "proves"),
    [
        (f"sha256:{SHA256}", 7, "", True),
        (f"sha256:{SHA256}", None, "other", True),
        (GIT, 7, "", True),
        (f"sha256:{SHA256}", 8, "op", False),
        ("sha256:" + "00" * 32, 7, "op", False),
        ("", 7, "op", True),
        ("", 7, "other", False),
        ("", None, "", False),
    ],
)
def test_what_a_receipt_proves(file: Path, digest: str, size: int | None, purpose: str, proves: bool) -> None:
    assert a_receipt(file).proves(digest, size, purpose) is proves


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 9999, b"null", b"\xff", b"{}"])
def test_a_receipt_that_cannot_be_read_is_none(tmp_path: Path, file: Path, content: bytes) -> None:
    receipts = Receipts(tmp_path)
    receipts.write(a_receipt(file))
    (stored,) = tmp_path.joinpath(*FOLDER).iterdir()
    stored.write_bytes(content)
    assert receipts.find("m/a.gguf") is None


def test_no_link_leads_to_another_file(tmp_path: Path, file: Path) -> None:
    receipts = Receipts(tmp_path)
    receipts.write(a_receipt(file))
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    file.rename(outside / "a.gguf")
    file.parent.rmdir()
    file.parent.symlink_to(outside)
    assert receipts.find("m/a.gguf") is None
    assert receipts.find("../x") is None


def test_receipts_of_files_that_are_gone_are_swept(tmp_path: Path, file: Path) -> None:
    receipts = Receipts(tmp_path)
    assert receipts.sweep(1e12) == 0
    other = tmp_path / "b"
    other.write_bytes(b"b")
    receipts.write(a_receipt(file))
    receipts.write(a_receipt(other, destination="b"))
    other.unlink()
    assert receipts.sweep(0) == 0
    assert receipts.sweep(1e12) == 1
    assert receipts.find("m/a.gguf") is not None


def test_a_directory_that_cannot_be_written_to_only_costs_the_receipt(tmp_path: Path, file: Path) -> None:
    (tmp_path / FOLDER[0]).write_text("in the way")
    receipts = Receipts(tmp_path)
    receipts.write(a_receipt(file))
    assert receipts.find("m/a.gguf") is None
    assert os.path.exists(file)
