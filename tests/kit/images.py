"""Archives and images for tests: valid ones, and those that no tool would make."""

import gzip
import io
import tarfile
from pathlib import Path
from typing import Final

import zstandard

from corral.base.errors import ChildFailed
from corral.oci.limits import UnpackLimits
from corral.oci.tree import Tree
from corral.oci.unpack import Unpacker

_BLOCK: Final = 512
SOME_TIME: Final = 1_700_000_000


def a_file(name: str, content: bytes = b"content", *, mode: int = 0o644) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = len(content), mode, SOME_TIME
    return info, content


def a_directory(name: str, *, mode: int = 0o755) -> tuple[tarfile.TarInfo, bytes]:
    return _special(name, tarfile.DIRTYPE, mode=mode)


def a_symlink(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return _special(name, tarfile.SYMTYPE, target=target)


def a_hard_link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return _special(name, tarfile.LNKTYPE, target=target)


def a_device(name: str, kind: bytes = tarfile.CHRTYPE) -> tuple[tarfile.TarInfo, bytes]:
    return _special(name, kind)


def _special(name: str, kind: bytes, *, target: str = "", mode: int = 0o644) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode, info.mtime = kind, target, mode, SOME_TIME
    return info, b""


def tar_of(*members: tuple[tarfile.TarInfo, bytes], format: int = tarfile.PAX_FORMAT) -> bytes:
    """An archive of these members, in this order."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def a_layer(files: dict[str, bytes]) -> bytes:
    """A compressed layer with these files."""
    return gzipped(tar_of(*(a_file(name, content, mode=0o755) for name, content in files.items())))


def gzipped(data: bytes, *, level: int = 6) -> bytes:
    return gzip.compress(data, level, mtime=0)


def zstandardised(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def raw_member(
    name: bytes,
    kind: bytes = b"0",
    content: bytes = b"",
    *,
    size: bytes | None = None,
    link: bytes = b"",
    rest: bytes = b"",
) -> bytes:
    """A member as it stands in an archive, also as no tool would write it. `rest` goes over the end of the header."""
    stated = b"%011o\0" % len(content) if size is None else size
    head = name.ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + stated + b"%011o\0" % SOME_TIME + b" " * 8
    head += kind + link.ljust(100, b"\0") + b"ustar\0" + b"00"
    head = head.ljust(_BLOCK, b"\0")
    head = head[: _BLOCK - len(rest)] + rest
    head = head[:148] + b"%06o\0 " % sum(head) + head[156:]
    return head + content + bytes(-len(content) % _BLOCK)


def pax_records(*records: tuple[bytes, bytes]) -> bytes:
    return b"".join(_pax_record(key, value) for key, value in records)


def _pax_record(key: bytes, value: bytes) -> bytes:
    tail = b" " + key + b"=" + value + b"\n"
    length = len(tail) + 1
    while len(str(length)) + len(tail) != length:
        length += 1
    return str(length).encode() + tail


def pax_header(*records: tuple[bytes, bytes]) -> bytes:
    return raw_member(b"pax", b"x", pax_records(*records))


def archive(*parts: bytes) -> bytes:
    """Raw members with the end of an archive after them."""
    return b"".join(parts) + bytes(2 * _BLOCK)


_BUILD: Final = Path(__file__).absolute().parents[2] / ".build"


def own_gallery() -> Path:
    """Its index; the images are beside it."""
    indexes = sorted(_BUILD.glob("backends-*/index.yaml"), key=lambda path: path.stat().st_mtime)
    if not indexes:
        raise ChildFailed("there are no images of Corral's own backends: run `make setup` with a network")
    return indexes[-1]


def unpack(target: Path, *layers: bytes, limits: UnpackLimits) -> None:
    """Unpack layers into an empty directory, the lowest first."""
    with Tree(target) as tree:
        unpacker = Unpacker(tree, limits)
        for layer in layers:
            unpacker.apply(io.BytesIO(layer), len(layer))
        tree.prove_links()
