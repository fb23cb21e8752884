"""Copying a backend's directory: what arrives, and what is refused before the first byte."""

import os
import socket
import stat
from pathlib import Path

import pytest

from corral.worker.installing.directory_source import SourceRefused, copy_tree, read_tree


def never() -> None:
    """Nobody wants to stop."""


def copied(source: Path, into: Path) -> list[int]:
    into.mkdir()
    pieces: list[int] = []
    copy_tree(read_tree(source, never), into, check=never, copied=pieces.append)
    return pieces


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    (root / "lib" / "deep").mkdir(parents=True)
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "lib" / "deep" / "data").write_bytes(os.urandom(3_000_000))
    return root


def test_a_tree_arrives_with_its_bits_times_and_links(source: Path, tmp_path: Path) -> None:
    os.utime(source / "run.sh", ns=(1, 1_700_000_000_123_456_789))
    (source / "lib" / "link").symlink_to("deep/data")
    (source / "lib" / "up").symlink_to("../run.sh")
    (source / "dangling").symlink_to("nowhere")

    pieces = copied(source, tmp_path / "copy")

    there = tmp_path / "copy"
    assert (there / "lib" / "link").read_bytes() == (source / "lib" / "deep" / "data").read_bytes()
    assert (there / "lib" / "up").readlink() == Path("../run.sh")
    assert (there / "dangling").is_symlink()
    assert (there / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (there / "run.sh").stat().st_mtime_ns == 1_700_000_000_123_456_789
    assert sum(pieces) == read_tree(source, never).size == 3_000_010


def test_bits_that_change_the_user_are_left_behind(source: Path, tmp_path: Path) -> None:
    (source / "run.sh").chmod(0o6755)
    (source / "lib").chmod(0o1777)
    copied(source, tmp_path / "copy")
    assert stat.S_IMODE((tmp_path / "copy" / "run.sh").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "copy" / "lib").stat().st_mode) == 0o777


@pytest.mark.parametrize("target", ["/etc/passwd", "../../outside", "../source-too", "lib/../../x"])
def test_a_link_that_leads_out_is_refused(source: Path, target: str) -> None:
    (source.parent / "source-too").mkdir()
    (source / "bad").symlink_to(target)
    with pytest.raises(SourceRefused, match="leads out of the backend's directory"):
        read_tree(source, never)


def test_a_link_that_leads_out_only_through_another_one_is_refused(source: Path) -> None:
    """By its text alone it stays inside: `lib/top/../../x`, where `top` is a link upwards."""
    (source / "lib" / "top").symlink_to("..")
    (source / "lib" / "bad").symlink_to("top/../../x")
    with pytest.raises(SourceRefused, match="bad leads out"):
        read_tree(source, never)


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_what_is_neither_file_nor_directory_is_refused(
    source: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(source)
    if kind == "pipe":
        os.mkfifo("odd")
    else:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("odd")
    with pytest.raises(SourceRefused, match=r"odd is a (named pipe|socket)"):
        read_tree(source, never)


def test_a_file_that_becomes_a_link_after_the_look_is_not_followed(source: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    tree = read_tree(source, never)
    (source / "run.sh").unlink()
    (source / "run.sh").symlink_to(secret)
    (tmp_path / "copy").mkdir()
    with pytest.raises(OSError, match="symbolic links"):
        copy_tree(tree, tmp_path / "copy", check=never, copied=lambda _: None)


def test_whoever_stops_it_stops_it(source: Path, tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    def enough() -> None:
        raise Enough

    tree = read_tree(source, never)
    (tmp_path / "copy").mkdir()
    with pytest.raises(Enough):
        copy_tree(tree, tmp_path / "copy", check=enough, copied=lambda _: None)
    with pytest.raises(Enough):
        read_tree(source, enough)
