"""Locks: what is pinned and hashed passes, and everything else is named with its line."""

from pathlib import Path

import pytest

from corral.imaging.errors import BuildFailed
from corral.imaging.source import read_lock

HASH = "--hash=sha256:" + "a" * 64
ROOT = Path(__file__).parents[3]


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "requirements.txt"


def test_no_file_means_no_packages(lock: Path) -> None:
    assert read_lock(lock) == ()


def test_names_are_read_over_joined_lines_and_comments(lock: Path) -> None:
    lock.write_text(
        f"# made by uv\ngrpcio==1.85.1 \\\n    {HASH} \\\n    {HASH}\n    # via sdk\n\n"
        f"Typing_Extensions==4.1 ; python_version < '3.13' \\\n    {HASH}\nuvicorn[standard]==1.0.post1 {HASH}  # x\n"
    )

    assert read_lock(lock) == ("grpcio", "typing_extensions", "uvicorn")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("grpcio==1.85.1\n", r"line 1: 'grpcio==1\.85\.1' has no hash; make the file with"),
        (f"a==1 {HASH}\n\nb==2 \\\n  # a comment\n", r"line 3: 'b==2' has no hash"),
        (f"grpcio>=1.85 {HASH}", "line 1: 'grpcio>=1.85' is not pinned with =="),
        (f"grpcio==1.* {HASH}", "is not pinned"),
        (f"x @ https://example.org/x.whl {HASH}", "is not pinned"),
        ("-r other.txt", "line 1: '-r other.txt' is an option"),
        ("--index-url https://example.org", "is an option"),
        ("-e .", "is an option"),
        (f"a==1 --hash=md5:{'a' * 32}", "has no hash"),
        ("a==1 --hash=sha256:abc", "has no hash"),
    ],
)
def test_what_is_not_locked_is_named(lock: Path, text: str, words: str) -> None:
    lock.write_text(text)

    with pytest.raises(BuildFailed, match=words) as caught:
        read_lock(lock)

    assert str(lock) in str(caught.value)


def test_what_is_no_text_is_told(lock: Path) -> None:
    lock.write_bytes(b"\xff\xfe")
    with pytest.raises(BuildFailed, match="not text in UTF-8"):
        read_lock(lock)
    lock.unlink()
    lock.mkdir()
    with pytest.raises(BuildFailed, match="cannot be read"):
        read_lock(lock)


@pytest.mark.parametrize("name", ["echo", "llama_cpp"])
def test_our_own_backends_lock_the_sdk_with_them(name: str) -> None:
    packages = read_lock(ROOT / "backends" / name / "requirements.txt")

    assert {"grpcio", "protobuf"} <= set(packages)
