"""Archives that are made to do harm. Each is refused, or does what it does inside the target, and nothing outside."""

import io
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from corral.oci.errors import ContentMismatch, LimitExceeded, UnpackRefused
from corral.oci.limits import UnpackLimits
from corral.oci.tree import Tree
from corral.oci.unpack import Unpacker
from tests.kit.images import (
    a_device,
    a_directory,
    a_file,
    a_hard_link,
    a_symlink,
    archive,
    gzipped,
    pax_header,
    raw_member,
    tar_of,
    unpack,
    zstandardised,
)

REFUSED = (UnpackRefused, ContentMismatch)
LIMITS = UnpackLimits(entries=1000, total_bytes=80 * 1024 * 1024, extents=100, header_bytes=4096)
MIB = 1024 * 1024

LONG_NAME = b"L"
MANY_LINKS = [a_symlink(f"s{number}", f"s{number + 1}") for number in range(60)]


def sparse_pax(*numbers: int, realsize: int, content: bytes = b"x" * 512) -> bytes:
    """A sparse file of the newest form, with the map before its content."""
    lines = "".join(f"{number}\n" for number in (len(numbers) // 2, *numbers)).encode()
    table = lines + bytes(-len(lines) % 512)
    records = [
        (b"GNU.sparse.major", b"1"),
        (b"GNU.sparse.minor", b"0"),
        (b"GNU.sparse.name", b"holes"),
        (b"GNU.sparse.realsize", str(realsize).encode()),
    ]
    return archive(pax_header(*records), raw_member(b"GNUSparseFile.0/holes", content=table + content))


ATTACKS: dict[str, list[bytes]] = {
    # Names.
    "absolute name": [tar_of(a_file("/OUTSIDE/evil"))],
    "absolute name with two slashes": [tar_of(a_file("//OUTSIDE/evil"))],
    "absolute directory": [tar_of(a_directory("/OUTSIDE/evil"))],
    "dots first": [tar_of(a_file("../evil"))],
    "dots in the middle": [tar_of(a_file("a/../../evil"))],
    "dots that stay inside": [tar_of(a_file("a/../evil"))],
    "dots last": [tar_of(a_directory("a/.."))],
    "dots after a dot": [tar_of(a_file("./.././evil"))],
    "dots in a long name": [archive(raw_member(b"@", LONG_NAME, b"../evil\0"), raw_member(b"good", content=b"x"))],
    "dots in a pax path": [archive(pax_header((b"path", b"../evil")), raw_member(b"good", content=b"x"))],
    "dots in a prefix": [archive(raw_member(b"evil", rest=b"..".ljust(167, b"\0")))],
    "dots in a sparse name": [
        archive(
            pax_header((b"GNU.sparse.major", b"1"), (b"GNU.sparse.name", b"../evil"), (b"GNU.sparse.realsize", b"0")),
            raw_member(b"good", content=b"0\n".ljust(512, b"\0")),
        )
    ],
    "empty name": [archive(raw_member(b"", content=b"x"))],
    "zero in a pax path": [archive(pax_header((b"path", b"good\0/../evil")), raw_member(b"good"))],
    "name that is too long": [tar_of(a_file("a" * 256))],
    "path that is too long": [tar_of(a_file("/".join(["a" * 100] * 41)))],
    "too deep": [tar_of(a_file("a/" * 200 + "evil"))],
    "path for all in a global header": [archive(raw_member(b"g", b"g", b"18 path=../evil  \n"), raw_member(b"good"))],
    # Links.
    "link to dots": [tar_of(a_symlink("out", ".."), a_file("out/evil"))],
    "link to dots alone": [tar_of(a_symlink("out", ".."))],
    "link to dots from a directory": [tar_of(a_symlink("a/out", "../.."))],
    "absolute link, then through it": [tar_of(a_symlink("out", "/OUTSIDE"), a_file("out/evil"))],
    "absolute link to the victim, then over it": [tar_of(a_symlink("out", "/OUTSIDE/victim"), a_file("out"))],
    "absolute link with dots": [tar_of(a_symlink("out", "/../../OUTSIDE"))],
    "link up and down again": [tar_of(a_symlink("out", "../target/../evil"))],
    "link through a link to here": [
        tar_of(a_symlink("here", "."), a_symlink("out", "here/here/here/../../.."), a_file("out/evil"))
    ],
    "link through a link to here alone": [tar_of(a_symlink("here", "."), a_symlink("out", "here/here/../.."))],
    "link through a link that comes later": [tar_of(a_symlink("out", "here/here/../.."), a_symlink("here", "."))],
    "link through a link of a later layer": [
        tar_of(a_directory("d/e"), a_symlink("out", "d/e/../../x")),
        tar_of(a_file("d/.wh.e"), a_symlink("d/e", "..")),
    ],
    "link that is deep by its name only": [
        tar_of(a_symlink("d", "."), a_symlink("d/d/d/d/out", "../../../.."), a_file("out/evil"))
    ],
    "link in a link that is shallow": [tar_of(a_directory("a/b"), a_symlink("l", "a/b"), a_symlink("l/x", "../../.."))],
    "chain of links that climbs": [
        tar_of(a_directory("a/b"), a_symlink("a/b/u", ".."), a_symlink("v", "a/b/u/../.."), a_file("v/evil"))
    ],
    "link of an earlier layer": [tar_of(a_symlink("out", "/OUTSIDE")), tar_of(a_file("out/evil"))],
    "link of an earlier layer with dots": [tar_of(a_symlink("out", "../OUTSIDE")), tar_of(a_file("out/evil"))],
    "directory, then a link in its place": [
        tar_of(a_directory("d"), a_symlink("d", "/OUTSIDE"), a_file("d/evil")),
    ],
    "whiteout of a directory, then a link": [
        tar_of(a_file("d/x")),
        tar_of(a_file(".wh.d"), a_symlink("d", "/OUTSIDE"), a_file("d/evil")),
    ],
    "link to itself": [tar_of(a_symlink("a", "a"), a_file("a/evil"))],
    "two links in a circle": [tar_of(a_symlink("a", "b"), a_symlink("b", "a"), a_file("a/evil"))],
    "too many links in a row": [tar_of(*MANY_LINKS, a_file("s0/evil"))],
    "link to nothing": [archive(raw_member(b"out", b"2"))],
    "link of thousands of characters": [archive(pax_header((b"linkpath", b"a/" * 2040)), raw_member(b"out", b"2"))],
    "link with a zero": [archive(pax_header((b"linkpath", b"a\0b")), raw_member(b"out", b"2"))],
    # Hard links.
    "hard link to a file outside": [tar_of(a_hard_link("evil", "../OUTSIDE/victim"))],
    "hard link to an absolute name": [tar_of(a_hard_link("evil", "/OUTSIDE/victim"))],
    "hard link through a link": [tar_of(a_symlink("out", "/OUTSIDE"), a_hard_link("evil", "out/victim"))],
    "hard link to the victim, then into it": [
        tar_of(a_hard_link("evil", "/OUTSIDE/victim"), a_file("evil", b"overwritten"))
    ],
    "hard link to a link that means something else there": [
        tar_of(a_directory("a/b"), a_symlink("a/b/l", "../../x"), a_hard_link("l", "a/b/l"), a_file("l/evil"))
    ],
    "hard link to a directory": [tar_of(a_directory("d"), a_hard_link("e", "d"))],
    "hard link to nothing": [archive(raw_member(b"evil", b"1"))],
    "hard link to what is not there": [tar_of(a_hard_link("evil", "missing"))],
    "hard link to the root": [tar_of(a_hard_link("evil", "./"))],
    "file over a hard link": [tar_of(a_file("a", b"one"), a_hard_link("b", "a"), a_file("b", b"two"))],
    # Kinds.
    "character device": [tar_of(a_device("null", tarfile.CHRTYPE))],
    "block device": [tar_of(a_device("disk", tarfile.BLKTYPE))],
    "fifo": [tar_of(a_device("pipe", tarfile.FIFOTYPE))],
    "unknown type": [archive(raw_member(b"what", b"Z"))],
    "volume header": [archive(raw_member(b"what", b"V"))],
    "continued file": [archive(raw_member(b"what", b"M"))],
    "set-uid, set-gid and sticky": [tar_of(a_file("su", mode=0o7777), a_directory("d", mode=0o7777))],
    "directory that nobody may enter": [tar_of(a_directory("d", mode=0), a_file("d/x", mode=0))],
    "file below a file": [tar_of(a_file("a"), a_file("a/evil"))],
    # Whiteouts.
    "whiteout of the parent": [tar_of(a_file("x")), tar_of(a_file(".wh..."))],
    "whiteout of the directory itself": [tar_of(a_file("x")), tar_of(a_file(".wh.."))],
    "whiteout of nothing": [tar_of(a_file("x")), tar_of(a_file(".wh."))],
    "whiteout outside": [tar_of(a_file("../.wh.victim"))],
    "whiteout through a link": [tar_of(a_symlink("out", "/OUTSIDE")), tar_of(a_file("out/.wh.victim"))],
    "opaque through a link": [tar_of(a_symlink("out", "/OUTSIDE")), tar_of(a_file("out/.wh..wh..opq"))],
    "whiteout of a link": [tar_of(a_symlink("out", "/OUTSIDE")), tar_of(a_file(".wh.out"))],
    # Sizes and broken headers.
    "more entries than allowed": [tar_of(*(a_file(f"f{number}", b"") for number in range(1001)))],
    "more directories than allowed": [tar_of(*(a_file(f"{number}/" + "d/" * 50 + "x", b"") for number in range(30)))],
    "larger than allowed": [archive(raw_member(b"big", size=b"%011o\0" % (200 * MIB)))],
    "negative size": [archive(raw_member(b"x", size=b"\xff" * 12))],
    "size beyond all bounds": [archive(raw_member(b"x", size=b"\x80" + b"\xff" * 11))],
    "size that is no number": [archive(raw_member(b"x", size=b"0000000zz99\0"))],
    "size of pax that is negative": [archive(pax_header((b"size", b"-1")), raw_member(b"x"))],
    "extended header of a gigabyte": [archive(raw_member(b"x", b"x", size=b"%011o\0" % (1024 * MIB)))],
    "long name of a gigabyte": [archive(raw_member(b"x", LONG_NAME, size=b"%011o\0" % (1024 * MIB)))],
    "thousands of extended headers": [archive(pax_header((b"comment", b"x")) * 5000, raw_member(b"../evil"))],
    "pax record that lies about its length": [archive(raw_member(b"x", b"x", b"99 path=a\n"), raw_member(b"x"))],
    "pax record without length": [archive(raw_member(b"x", b"x", b"path=a\n"), raw_member(b"x"))],
    "pax record of length nothing": [archive(raw_member(b"x", b"x", b"0 path=a\n"), raw_member(b"x"))],
    "extended header and nothing after it": [archive(pax_header((b"path", b"x")))],
    "time that is none": [archive(pax_header((b"mtime", b"soon")), raw_member(b"x"))],
    "end inside a header": [tar_of(a_file("x"))[:300]],
    "end inside a file": [tar_of(a_file("x", b"y" * 5000))[:1024]],
    "end inside gzip": [gzipped(tar_of(a_file("x", os.urandom(5000))))[:2000]],
    "broken gzip": [gzipped(tar_of(a_file("x", b"y" * 5000)))[:20] + b"\xff" * 200],
    "end inside zstd": [zstandardised(tar_of(a_file("x", os.urandom(5000))))[:2000]],
    "broken zstd": [zstandardised(tar_of(a_file("x", b"y" * 5000)))[:12] + b"\xff" * 300],
    "no archive at all": [os.urandom(2048)],
    "wrong checksum": [b"y" + tar_of(a_file("x"))[1:]],
    # Sparse files.
    "sparse map that overlaps": [sparse_pax(0, 512, 100, 0, realsize=2048)],
    "sparse map beyond the file": [sparse_pax(4096, 512, realsize=1024)],
    "sparse map that states too much": [sparse_pax(0, 100_000, realsize=200_000)],
    "sparse map of millions": [
        archive(
            pax_header((b"GNU.sparse.major", b"1"), (b"GNU.sparse.realsize", b"1")),
            raw_member(b"x", content=b"99999999\n".ljust(512, b"0")),
        )
    ],
    "sparse map without an end": [
        archive(
            pax_header((b"GNU.sparse.major", b"1"), (b"GNU.sparse.realsize", b"1")),
            raw_member(b"x", content=b"1" * 2048),
        )
    ],
    "sparse map with half a pair": [
        archive(pax_header((b"GNU.sparse.map", b"0,512,1"), (b"GNU.sparse.size", b"9999")), raw_member(b"x"))
    ],
    "sparse file of an exabyte": [sparse_pax(0, 512, realsize=1 << 60)],
    "old sparse map that goes on": [
        archive(raw_member(b"x", b"S", rest=b"\1" + b"00000001000\0" + b"\0" * 17), b"\1" * 512 * 9)
    ],
}

BOMBS: dict[str, Callable[[], bytes]] = {
    "bomb of gzip": lambda: gzipped(tar_of(a_file("zeros", bytes(70 * MIB))), level=9),
    "bomb of zstd": lambda: zstandardised(tar_of(a_file("zeros", bytes(70 * MIB)))),
}
"""Made by the test that needs one: packing them takes longer than reading this file."""


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """What nobody may touch, beside the target."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "victim").write_text("untouched")
    (tmp_path / "base" / "target").mkdir(parents=True)
    return folder


def everything(root: Path, *, apart_from: Path) -> Iterator[tuple[str, int, float, bytes]]:
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if Path(folder, name) != apart_from]
        for name in (*names, *files):
            path = Path(folder, name)
            status = path.lstat()
            yield str(path), status.st_mode, status.st_nlink, path.read_bytes() if path.is_file() else b""


def aimed(attack: list[bytes], outside: Path) -> list[bytes]:
    """With the real path in it, of which a test that is written down knows nothing."""
    there = str(outside).lstrip("/").encode()
    return [rewritten(layer, there) if b"OUTSIDE" in layer else layer for layer in attack]


def rewritten(layer: bytes, there: bytes) -> bytes:
    result = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(layer)) as old,
        tarfile.open(fileobj=result, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for info in old:
            info.name = info.name.replace("OUTSIDE", there.decode())
            info.linkname = info.linkname.replace("OUTSIDE", there.decode())
            info.pax_headers = {}
            new.addfile(info, old.extractfile(info) if info.isreg() else None)
    return result.getvalue()


def improper(target: Path) -> Iterator[str]:
    """What must not be in the target, however it got there."""
    real = os.path.realpath(target)
    for folder, names, files in os.walk(target):
        for name in (*names, *files):
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                if not (os.path.realpath(path) + "/").startswith(real + "/"):
                    yield f"{path} leads to {os.path.realpath(path)}"
            elif not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                yield f"{path} is neither a file nor a directory"
            elif mode & 0o7022:
                yield f"{path} has the mode {mode:o}"
            elif not mode & stat.S_IRUSR or (stat.S_ISDIR(mode) and mode & 0o700 != 0o700):
                yield f"{path} cannot be used by its owner"


HARMLESS = {
    # These do in the target what they meant to do outside.
    "absolute link, then through it",
    "absolute link to the victim, then over it",
    "link of an earlier layer",
    "directory, then a link in its place",
    "whiteout of a directory, then a link",
    "whiteout through a link",
    "opaque through a link",
    "whiteout of a link",
    "hard link to a link that means something else there",
    "file over a hard link",
    "set-uid, set-gid and sticky",
    "directory that nobody may enter",
    "link of thousands of characters",
}


@pytest.mark.parametrize("name", [*ATTACKS, *BOMBS])
def test_an_attack_harms_nothing(name: str, outside: Path, tmp_path: Path) -> None:
    target = tmp_path / "base" / "target"
    before = sorted(everything(tmp_path, apart_from=target))
    layers = aimed([BOMBS[name]()] if name in BOMBS else ATTACKS[name], outside)

    try:
        unpack(target, *layers, limits=LIMITS)
        was_refused = False
    except REFUSED:
        was_refused = True

    assert sorted(everything(tmp_path, apart_from=target)) == before
    assert was_refused is (name not in HARMLESS)
    assert was_refused or list(improper(target)) == []


def test_nothing_that_is_sound_is_refused(outside: Path, tmp_path: Path) -> None:
    """The corpus would be easy if everything was refused."""
    target = tmp_path / "base" / "target"
    layer = tar_of(
        a_directory("lib/x86"),
        a_file("lib/x86/libc.so"),
        a_symlink("lib64", "lib"),
        a_symlink("lib/x86/libc.so.6", "../x86/libc.so"),
        a_symlink("bin/python", "../lib64/x86/libc.so"),
        a_symlink("abs", "/lib/x86"),
        a_hard_link("bin/also", "lib/x86/libc.so"),
        a_file("lib64/through-a-link"),
        a_file("abs/through-another"),
    )

    unpack(target, layer, limits=LIMITS)

    assert list(improper(target)) == []
    assert (target / "bin/python").read_bytes() == b"content"
    assert (target / "lib/through-a-link").exists()
    assert (target / "lib/x86/through-another").exists()


def swapped(target: Path, outside: Path) -> Callable[[int], None]:
    """Somebody who puts a link in the place of a directory while its files are unpacked."""

    def swap(_: int) -> None:
        if (target / "d").is_dir() and not (target / "d").is_symlink():
            os.rename(target / "d", target / "moved")
            os.symlink(outside, target / "d")

    return swap


def test_a_link_that_is_put_in_place_meanwhile_leads_nowhere(outside: Path, tmp_path: Path) -> None:
    target = tmp_path / "base" / "target"
    members = [a_file(f"d/{number}", os.urandom(400_000)) for number in range(12)]
    layer = tar_of(a_directory("d"), *members, a_file("e/x"), a_file("d/evil"))

    with Tree(target) as tree:
        unpacker = Unpacker(tree, LIMITS, on_position=swapped(target, outside))
        unpacker.apply(io.BytesIO(layer), len(layer))

    assert [path.name for path in outside.iterdir()] == ["victim"]


def test_reaching_a_limit_names_its_setting(tmp_path: Path) -> None:
    layer = tar_of(*(a_file(f"f{number}", b"") for number in range(12)))

    with pytest.raises(LimitExceeded, match=r"more than 10 entries \(images.unpack_max_entries\)"):
        unpack(tmp_path, layer, limits=UnpackLimits(entries=10))
