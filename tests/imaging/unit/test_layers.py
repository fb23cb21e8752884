"""Entries and layers: the same content gives the same bytes, whatever else differs."""

import errno
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest

from corral.base.errors import PathNotUsable
from corral.imaging.entries import Entry, entries_of, in_order
from corral.imaging.errors import BuildFailed
from corral.imaging.layers import FIXED_TIME, BuildStopped, Compression, Packing, write_layer


def never() -> bool:
    return False


def a_tree(root: Path, *, mtime: float, mode: int) -> Path:
    (root / "sub" / "deep").mkdir(parents=True)
    files = {"run.sh": b"#!/bin/sh\n", "sub/a.py": b"a" * 100_000, "sub/deep/ü": b"", "sub-b": b"b"}
    for name, content in files.items():
        (root / name).write_bytes(content)
        (root / name).chmod(mode)
    (root / "run.sh").chmod(mode | 0o111)
    (root / "link").symlink_to("sub/a.py")
    for path in root.rglob("*"):
        os.utime(path, (mtime, mtime), follow_symlinks=False)
    return root


@pytest.mark.parametrize("compression", list(Compression))
def test_times_modes_and_places_do_not_show(tmp_path: Path, compression: Compression) -> None:
    packing = Packing(compression=compression, level=1)
    one = a_tree(tmp_path / "one", mtime=1_000_000_000, mode=0o600)
    other = a_tree(tmp_path / "far" / "away", mtime=1_700_000_000.5, mode=0o664)

    first = write_layer(entries_of(one), tmp_path / "first", packing, is_stopped=never)
    second = write_layer(entries_of(other), tmp_path / "second", packing, is_stopped=never)

    assert first == second
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    assert first.descriptor.size == (tmp_path / "first").stat().st_size


def test_a_layer_holds_nothing_of_this_machine(tmp_path: Path) -> None:
    tree = a_tree(tmp_path / "tree", mtime=1_000_000_000, mode=0o644)
    written = write_layer(
        entries_of(tree, below="below/it"), tmp_path / "layer", Packing(compression=Compression.NONE), is_stopped=never
    )

    with tarfile.open(tmp_path / "layer") as archive:
        members = archive.getmembers()

    assert [member.name for member in members][:4] == ["below", "below/it", "below/it/link", "below/it/run.sh"]
    assert {(one.uid, one.gid, one.uname, one.gname, one.mtime) for one in members} == {(0, 0, "", "", FIXED_TIME)}
    assert {member.name: member.mode for member in members}["below/it/run.sh"] == 0o755
    assert {member.name: member.mode for member in members}["below/it/sub-b"] == 0o644
    assert written.entries == len(members)
    assert written.diff_id == written.descriptor.digest


def test_names_come_in_an_order_that_no_file_system_decides(tmp_path: Path) -> None:
    entries = in_order(Entry(name=name) for name in ("b", "a/z", "a", "a-b", "a/b", "a"))

    assert [entry.name for entry in entries] == ["a", "a-b", "a/b", "a/z", "b"]


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "sub/../../outside", ".."])
def test_links_that_lead_out_are_named(tmp_path: Path, target: str) -> None:
    (tmp_path / "way").symlink_to(target)

    with pytest.raises(BuildFailed, match=r"way is a link to .* which is not inside"):
        entries_of(tmp_path)


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(BuildFailed, match="pipe is neither a file"):
        entries_of(tmp_path)


def test_what_is_skipped_is_not_looked_into(tmp_path: Path) -> None:
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "x.pyc").touch()
    (tmp_path / "y.pyc").touch()
    (tmp_path / "kept").touch()

    assert [entry.name for entry in entries_of(tmp_path)] == ["kept"]
    assert entries_of(tmp_path, skip=lambda path: path != PurePosixPath("none")) == []


def test_a_stop_ends_it_in_the_middle(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(100))

    with pytest.raises(BuildStopped):
        write_layer(entries_of(tmp_path), tmp_path / "layer", Packing(), is_stopped=lambda: True)


def test_a_file_that_goes_away_is_named(tmp_path: Path) -> None:
    gone = Entry(name="gone", file=tmp_path / "gone")

    with pytest.raises(BuildFailed, match="gone cannot be read: No such file"):
        write_layer([gone], tmp_path / "layer", Packing(), is_stopped=never)


def test_a_file_that_becomes_shorter_is_named(tmp_path: Path, shrinking: Callable[[Path], Entry]) -> None:
    with pytest.raises(BuildFailed, match="became shorter while it was read"):
        write_layer([shrinking(tmp_path / "file")], tmp_path / "layer", Packing(), is_stopped=never)


@pytest.fixture
def shrinking(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Entry]:
    """A file that says to be larger than it is."""

    class Lying(io.BytesIO):
        def seek(self, offset: int, whence: int = 0) -> int:
            return super().seek(offset, whence) + (10 if whence == io.SEEK_END else 0)

    def make(path: Path) -> Entry:
        monkeypatch.setattr("corral.imaging.layers._opened", lambda _: Lying(b"short"))
        return Entry(name="file", file=path)

    return make


def test_a_full_disk_is_told_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("corral.imaging.layers._write_archive", full)
    with pytest.raises(PathNotUsable, match=r"layer cannot be written: there is no room left on the disk"):
        write_layer(entries_of(tmp_path), tmp_path / "layer", Packing(), is_stopped=never)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(PathNotUsable, match="Not a directory"):
        write_layer([], tmp_path / "file" / "layer", Packing(), is_stopped=never)
