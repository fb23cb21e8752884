"""What comes out of sound layers."""

import io
import os
import random
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest

from corral.oci.errors import PullCancelled
from corral.oci.limits import UnpackLimits
from corral.oci.tar_stream import Pieces, TarStream
from corral.oci.tree import Tree
from corral.oci.unpack import Unpacker, decompressed
from tests.kit.images import (
    SOME_TIME,
    a_directory,
    a_file,
    a_hard_link,
    a_symlink,
    gzipped,
    tar_of,
    unpack,
    zstandardised,
)

LIMITS = UnpackLimits()
MIB = 1024 * 1024


def unpacked(target: Path, *layers: bytes) -> dict[str, str]:
    """Unpack, and tell what is there: content of files, targets of links."""
    unpack(target, *layers, limits=LIMITS)
    return {str(path.relative_to(target)): shown(path) for path in sorted(target.rglob("*"))}


def shown(path: Path) -> str:
    if path.is_symlink():
        return f"-> {os.readlink(path)}"
    return "/" if path.is_dir() else path.read_text()


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("squeeze", [bytes, gzipped, zstandardised])
def test_every_form_and_compression_gives_the_same(form: int, squeeze: object, tmp_path: Path) -> None:
    assert callable(squeeze)
    long = "/".join(["directory"] * 12)
    layer = tar_of(
        a_directory("./bin"), a_file("./bin/run.sh", b"#!", mode=0o755), a_file(f"{long}/x", b"deep"), format=form
    )

    found = unpacked(tmp_path, squeeze(layer))

    assert found["bin/run.sh"] == "#!"
    assert found[f"{long}/x"] == "deep"


def test_names_that_are_no_text_survive(tmp_path: Path) -> None:
    layer = tar_of(a_file("caf\udce9"), a_file("größe"), a_file("n" * 150), format=tarfile.GNU_FORMAT)

    unpack(tmp_path, layer, limits=LIMITS)

    assert sorted(os.listdir(os.fsencode(tmp_path))) == sorted([b"caf\xe9", "größe".encode(), b"n" * 150])


def test_modes_are_sane_and_times_are_kept(tmp_path: Path) -> None:
    layer = tar_of(
        a_file("run.sh", mode=0o4777), a_file("secret", mode=0o000), a_directory("d", mode=0o2070), a_file("d/x")
    )

    unpacked(tmp_path, layer)

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes == {"run.sh": 0o755, "secret": 0o600, "d": 0o750, "x": 0o644}
    assert (tmp_path / "run.sh").stat().st_mtime == SOME_TIME
    assert (tmp_path / "run.sh").stat().st_uid == os.getuid()


def test_a_whiteout_removes_what_lies_below(tmp_path: Path) -> None:
    lower = tar_of(a_file("a"), a_file("d/x"), a_file("d/y"), a_directory("e/f"), a_file("e/f/z"))
    upper = tar_of(a_file(".wh.a", b""), a_file("d/.wh.x", b""), a_file(".wh.e", b""), a_file(".wh.unknown", b""))

    assert unpacked(tmp_path, lower, upper) == {"d": "/", "d/y": "content"}


def test_an_opaque_directory_keeps_only_what_its_own_layer_brings(tmp_path: Path) -> None:
    lower = tar_of(a_file("d/old"), a_file("d/sub/old"), a_file("d/sub/both", b"old"), a_file("other"))
    upper = tar_of(a_file("d/new"), a_file("d/sub/both", b"new"), a_file("d/.wh..wh..opq", b""), a_file("d/later"))

    assert unpacked(tmp_path, lower, upper) == {
        "d": "/",
        "d/later": "content",
        "d/new": "content",
        "d/sub": "/",
        "d/sub/both": "new",
        "other": "content",
    }


def test_a_whiteout_does_not_hide_what_its_own_layer_brings(tmp_path: Path) -> None:
    lower = tar_of(a_file("d/old"))
    upper = tar_of(a_file("d/new"), a_file(".wh.d", b""))

    assert unpacked(tmp_path, lower, upper) == {"d": "/", "d/new": "content"}


def test_an_archive_that_is_no_layer_has_no_whiteouts(tmp_path: Path) -> None:
    layer = tar_of(a_file("a"), a_file(".wh.a"))

    with Tree(tmp_path) as tree:
        Unpacker(tree, LIMITS).apply(io.BytesIO(layer), len(layer), whiteouts=False)

    assert sorted(path.name for path in tmp_path.iterdir()) == [".wh.a", "a"]


def test_what_comes_later_replaces_what_was_there(tmp_path: Path) -> None:
    lower = tar_of(a_file("file"), a_directory("directory"), a_file("directory/x"), a_symlink("link", "file"))
    upper = tar_of(a_directory("file"), a_file("directory", b"new"), a_file("link", b"own"))

    assert unpacked(tmp_path, lower, upper) == {"directory": "new", "file": "/", "link": "own"}


def test_a_directory_takes_the_place_of_a_link(tmp_path: Path) -> None:
    layer = tar_of(a_directory("real"), a_symlink("d", "real"), a_file("d/one"), a_directory("d"), a_file("d/two"))

    found = unpacked(tmp_path, layer)

    assert found == {"d": "/", "d/two": "content", "real": "/", "real/one": "content"}


def test_hard_links_share_one_file(tmp_path: Path) -> None:
    lower = tar_of(a_file("a", b"one"), a_hard_link("b", "a"), a_hard_link("a", "a"))
    upper = tar_of(a_hard_link("c", "./b"))

    unpacked(tmp_path, lower, upper)

    assert len({(tmp_path / name).stat().st_ino for name in "abc"}) == 1


def test_a_hard_link_to_a_link_means_the_same_place(tmp_path: Path) -> None:
    layer = tar_of(a_file("x", b"meant"), a_symlink("a/b/link", "../../x"), a_hard_link("c/link", "a/b/link"))

    unpacked(tmp_path, layer)

    assert (tmp_path / "c/link").read_text() == "meant"


def test_a_file_system_without_hard_links_gets_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "no")

    monkeypatch.setattr(os, "link", refuse)

    found = unpacked(tmp_path, tar_of(a_file("a", b"one", mode=0o755), a_hard_link("b", "a")))

    assert found == {"a": "one", "b": "one"}
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o755


def test_absolute_links_mean_the_root_of_the_image(tmp_path: Path) -> None:
    layer = tar_of(a_file("usr/lib/x"), a_symlink("usr/bin/x", "/usr/lib/x"), a_symlink("root", "/"))

    unpacked(tmp_path, layer)

    assert os.readlink(tmp_path / "usr/bin/x") == "../../usr/lib/x"
    assert os.readlink(tmp_path / "root") == "."
    assert (tmp_path / "usr/bin/x").read_text() == "content"


@pytest.mark.parametrize("form", ["gnu", "posix --sparse-version=0.0", "posix --sparse-version=0.1", "posix"])
def test_sparse_files_stay_sparse(form: str, tmp_path: Path) -> None:
    """As GNU tar writes them, in each of its four ways, with more parts than fit into one header."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    with (source / "holes").open("wb") as file:
        for number in range(60):
            file.seek(number * MIB)
            file.write(random.Random(number).randbytes(5000))
        file.truncate(100 * MIB)
    command = ["tar", "-C", source, "--sparse", *f"--format={form}".split(), "-cf", tmp_path / "x.tar", "holes"]
    subprocess.run(command, check=True)
    assert (tmp_path / "x.tar").stat().st_size < 2 * MIB

    with (tmp_path / "x.tar").open("rb") as layer, Tree(target) as tree:
        Unpacker(tree, LIMITS).apply(layer, (tmp_path / "x.tar").stat().st_size)

    copy = target / "holes"
    assert copy.stat().st_size == 100 * MIB
    assert copy.stat().st_blocks * 512 < 2 * MIB
    assert copy.read_bytes() == (source / "holes").read_bytes()


def test_several_members_and_padding_are_one_stream() -> None:
    data = gzipped(b"one") + bytes(100) + gzipped(b"two") + bytes(300_000)
    assert b"".join(decompressed(io.BytesIO(data))) == b"onetwo"

    frames = zstandardised(b"one") + b"\x50\x2a\x4d\x18\x04\0\0\0skip" + zstandardised(b"two")
    assert b"".join(decompressed(io.BytesIO(frames))) == b"onetwo"


def test_pieces_are_bounded_whatever_they_come_from() -> None:
    for bomb in (gzipped(bytes(20 * MIB), level=9), zstandardised(bytes(20 * MIB))):
        sizes = [len(piece) for piece in decompressed(io.BytesIO(bomb))]
        assert sum(sizes) == 20 * MIB
        assert max(sizes) <= MIB


def test_the_reader_agrees_with_the_standard_librarys() -> None:
    seeded = random.Random(7)
    members = [
        a_file("/".join(["p" * seeded.randrange(1, 90)] * seeded.randrange(1, 4)), seeded.randbytes(number * 77))
        for number in range(60)
    ]
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        data = tar_of(*members, format=form)
        stream = TarStream(Pieces(data[at : at + 700] for at in range(0, len(data), 700)), LIMITS)

        found = [(member.name, b"".join(stream.content())) for member in stream]

        assert found == [(info.name, content) for info, content in members]


def test_how_far_it_is_never_goes_back(tmp_path: Path) -> None:
    seen: list[int] = []
    layer = gzipped(tar_of(*(a_file(f"f{number}", os.urandom(100_000)) for number in range(40))))

    with Tree(tmp_path) as tree:
        Unpacker(tree, LIMITS, on_position=seen.append).apply(io.BytesIO(layer), len(layer))

    assert seen == sorted(seen)
    assert seen[-1] == len(layer)


def test_unpacking_can_be_cancelled(tmp_path: Path) -> None:
    layer = tar_of(a_file("x"))

    with Tree(tmp_path) as tree, pytest.raises(PullCancelled):
        Unpacker(tree, LIMITS, is_cancelled=lambda: True).apply(io.BytesIO(layer), len(layer))
