"""Files of the web page: nothing outside of their folder is ever read."""

import gzip
import os
from pathlib import Path

import pytest

from corral.frontend.api.web_page import PageFiles

SCRIPT = b"console.log('hello');\n" * 200


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "ui"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_bytes(b"<!doctype html>")
    (folder / "assets" / "index-abc.js").write_bytes(SCRIPT)
    (folder / "assets" / "small-abc.css").write_bytes(b"body{}")
    (folder / "assets" / "logo-abc.png").write_bytes(os.urandom(4000))
    (folder / ".hidden.js").write_bytes(b"x")
    (tmp_path / "secret.js").write_bytes(b"secret")
    (folder / "assets" / "link.js").symlink_to(tmp_path / "secret.js")
    (folder / "assets" / "folder.js").mkdir()
    return folder


async def test_a_file_is_read_once_and_kept_compressed(folder: Path) -> None:
    files = PageFiles(folder)
    file = await files.find("assets/index-abc.js")
    assert file is not None
    assert (file.content, file.media_type) == (SCRIPT, "text/javascript; charset=utf-8")
    assert file.gzipped is not None
    assert gzip.decompress(file.gzipped) == SCRIPT
    (folder / "assets" / "index-abc.js").unlink()
    assert await files.find("assets/index-abc.js") is file


async def test_what_does_not_shrink_is_not_compressed(folder: Path) -> None:
    files = PageFiles(folder)
    for name in ("assets/small-abc.css", "assets/logo-abc.png"):
        file = await files.find(name)
        assert file is not None
        assert file.gzipped is None


async def test_a_file_without_a_digest_in_its_name_is_looked_at_each_time(folder: Path) -> None:
    files = PageFiles(folder)
    before = await files.find("index.html")
    assert await files.find("index.html") is before
    (folder / "index.html").write_bytes(b"<!doctype html>, new")
    after = await files.find("index.html")
    assert after is not None
    assert after.content == b"<!doctype html>, new"
    (folder / "index.html").unlink()
    assert await files.find("index.html") is None


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../secret.js",
        "assets/../../secret.js",
        "assets/../index.html",
        "/etc/passwd",
        "//etc/passwd",
        "assets//index-abc.js",
        "assets/./index-abc.js",
        ".hidden.js",
        "assets",
        "assets/",
        "assets/link.js",
        "assets/folder.js",
        "assets/index-abc.js/",
        "assets/index-abc.js\n",
        "assets\\index-abc.js",
        "assets/index-abc.js\0",
        "c:/windows",
        "index.html ",
        "é.js",
        "a" * 300,
        "a/" * 5000,
        "a" * 100_000 + "/",
    ],
)
async def test_nothing_else_is_a_file(folder: Path, name: str) -> None:
    assert await PageFiles(folder).find(name) is None


async def test_without_the_folder_there_are_no_files(tmp_path: Path) -> None:
    assert await PageFiles(tmp_path / "nowhere").find("index.html") is None
