"""Hashes beside files: when they count, and when a file is read again."""

import errno
import hashlib
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.worker.files import hashes as module
from corral.worker.files.hashes import Hashes, Settling

DATA = b"some bytes"
DIGEST = hashlib.sha256(DATA).hexdigest()
SECOND = 10**9


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "f").write_bytes(DATA)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def date(path: Path, *, seconds_later: int) -> None:
    moment = (path.parent / "f").stat().st_mtime_ns + seconds_later * SECOND
    os.utime(path, ns=(moment, moment))


@pytest.mark.parametrize("later", [0, 1])
def test_a_hash_that_is_not_older_than_its_file_counts(folder: int, tmp_path: Path, later: int) -> None:
    (tmp_path / "f.sha256").write_text("AB" * 32 + "\n")
    date(tmp_path / "f.sha256", seconds_later=later)

    assert Hashes().of(folder, "f") == "ab" * 32


def test_a_hash_that_is_older_than_its_file_does_not_count(folder: int, tmp_path: Path) -> None:
    (tmp_path / "f.sha256").write_text("ab" * 32)
    date(tmp_path / "f.sha256", seconds_later=-1)

    assert Hashes().known(folder, "f") == ""
    assert Hashes().of(folder, "f") == DIGEST
    assert (tmp_path / "f.sha256").read_text() == DIGEST
    assert Hashes().known(folder, "f") == DIGEST


@pytest.mark.parametrize("text", ["", "x" * 64, "ab" * 31, "ab" * 33, "ab" * 5000])
def test_what_is_no_hash_does_not_count(folder: int, tmp_path: Path, text: str) -> None:
    (tmp_path / "f.sha256").write_text(text)

    assert Hashes().of(folder, "f") == DIGEST


def test_a_link_is_no_hash(folder: int, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("ab" * 32)
    (tmp_path / "f.sha256").symlink_to(tmp_path / "elsewhere")

    assert Hashes().of(folder, "f") == DIGEST
    assert (tmp_path / "elsewhere").read_text() == "ab" * 32


def test_a_file_that_changed_is_read_again(folder: int, tmp_path: Path) -> None:
    hashes = Hashes()
    hashes.of(folder, "f")
    before = (tmp_path / "f").stat()
    (tmp_path / "f").write_bytes(b"SOME BYTES")
    os.utime(tmp_path / "f", ns=(before.st_mtime_ns, before.st_mtime_ns + 5 * SECOND))

    assert hashes.of(folder, "f") == hashlib.sha256(b"SOME BYTES").hexdigest()


def test_a_directory_that_cannot_be_written_has_hashes_all_the_same(
    folder: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(module.disk, "write_text", refuse)

    assert Hashes().of(folder, "f") == DIGEST


def test_a_received_file_counts_only_once_it_is_safe_on_disk(folder: int, tmp_path: Path) -> None:
    """Power may fail in between. Then the file may be empty, and must not be taken for what it was going to be."""
    ours = Hashes()
    ours.announce(folder, "f", DIGEST, (tmp_path / "f").stat())

    assert ours.known(folder, "f") == DIGEST
    assert Hashes().known(folder, "f") == "", "after a power cut nobody remembers"

    settling = Settling()
    file = os.open(tmp_path / "f", os.O_RDONLY)
    settling.add(folder, "f", file)
    os.close(file)
    settling.finish()
    settling.close()

    assert Hashes().known(folder, "f") == DIGEST


def settle(settling: Settling, directory: int, path: Path) -> None:
    """Announce a file and queue it, as an upload does."""
    Hashes().announce(directory, path.name, DIGEST, path.stat())
    with path.open("rb") as file:
        settling.add(directory, path.name, file.fileno())


class Flushes:
    """Flushes to disk. The first waits until all files are queued, and that of one file fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, failing: Path | None = None) -> None:
        self.queued = threading.Event()
        self.directories = 0
        self._failing = failing
        self._fsync = os.fsync
        monkeypatch.setattr(module.os, "fsync", self._flush)

    def _flush(self, descriptor: int) -> None:
        self.queued.wait()
        status = os.fstat(descriptor)
        self.directories += stat.S_ISDIR(status.st_mode)
        if self._failing is not None and os.path.samestat(status, self._failing.stat()):
            raise OSError(errno.EIO, "broken")
        self._fsync(descriptor)


def test_a_directory_is_flushed_once_for_all_files_that_wait(
    folder: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"f{number}" for number in range(20)]
    flushes, settling = Flushes(monkeypatch), Settling()
    for name in names:
        (tmp_path / name).write_bytes(DATA)
        settle(settling, folder, tmp_path / name)
    flushes.queued.set()
    settling.finish()
    settling.close()

    assert {Hashes().known(folder, name) for name in names} == {DIGEST}
    assert flushes.directories <= 2, "the first file may have been flushed before the others came"


def test_a_file_that_cannot_be_flushed_holds_up_no_other(
    folder: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken").write_bytes(DATA)
    flushes, settling = Flushes(monkeypatch, failing=tmp_path / "broken"), Settling()
    settle(settling, folder, tmp_path / "broken")
    settle(settling, folder, tmp_path / "f")
    flushes.queued.set()
    settling.finish()
    settling.close()

    assert (Hashes().known(folder, "broken"), Hashes().known(folder, "f")) == ("", DIGEST)


def test_hashing_ends_when_the_worker_does(folder: int) -> None:
    hashes = Hashes()
    hashes.stopping.set()

    with pytest.raises(OSError):  # noqa: PT011 - all that matters is that it ends
        hashes.of(folder, "f")
