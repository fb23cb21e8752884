"""Names of files on the disk, on file systems that cannot be told to write them."""

import errno
import os
from pathlib import Path

import pytest

from corral.base.errors import PathNotUsable
from corral.base.private_files import sync_directory


def failing_with(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_that_syncs_no_directories_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """As CIFS, FUSE and 9p answer. A key on one of them could otherwise never be changed."""
    failing_with(code, monkeypatch)

    sync_directory(tmp_path)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_directory_that_does_not_get_onto_the_disk_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    failing_with(code, monkeypatch)

    with pytest.raises(PathNotUsable, match=str(tmp_path)):
        sync_directory(tmp_path)


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PathNotUsable, match="absent"):
        sync_directory(tmp_path / "absent")
