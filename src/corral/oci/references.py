"""Parses image references as Docker writes them, the other forms of a backend's uri, and digests."""

import hashlib
import os
import re
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final, Protocol, TypeAlias
from urllib.parse import unquote, urlsplit

import msgspec

from corral.oci.errors import SourceInvalid

_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_READ_BYTES: Final = 1024 * 1024


class Hash(Protocol):
    def update(self, data: bytes | memoryview, /) -> None: ...

    def hexdigest(self) -> str: ...


def is_digest(text: str) -> bool:
    """Whether this is a digest with a supported algorithm."""
    return _DIGEST.fullmatch(text) is not None


def check_digest(text: str) -> str:
    """Return the digest unchanged. Raise SourceInvalid when it is malformed or its algorithm is unsupported."""
    if not is_digest(text):
        raise SourceInvalid(f"{text[:200]!r} is not a digest; expected is sha256: and 64 hexadecimal digits")
    return text


def digest_of(content: bytes, *, like: str = "sha256:") -> str:
    hashed = new_hash(like)
    hashed.update(content)
    return f"{algorithm_of(like)}:{hashed.hexdigest()}"


def algorithm_of(digest: str) -> str:
    return digest.partition(":")[0]


def new_hash(digest: str) -> Hash:
    """Return a new hash of the digest's algorithm."""
    return hashlib.new(algorithm_of(digest), usedforsecurity=True)


def feed_file(hashed: Hash, file: BinaryIO) -> int:
    """Hash from the file's position to its end; return the number of bytes."""
    size = 0
    while piece := file.read(_READ_BYTES):
        hashed.update(piece)
        size += len(piece)
    return size


DOCKER_HUB: Final = "docker.io"
HUB_NAMES: Final = frozenset({"docker.io", "index.docker.io", "registry-1.docker.io"})
_HUB_HOST: Final = "registry-1.docker.io"
_DEFAULT_TAG: Final = "latest"
_MAX_REPOSITORY: Final = 255
_PORTS: Final = 1 << 16
_REGISTRY: Final = re.compile(r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?|\[[0-9a-fA-F:.]+\])(?::[0-9]{1,5})?")
_COMPONENT: Final = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
_TAG: Final = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_MAX_URI: Final = 4096
_ENDINGS: Final = (".tar.gz", ".tar.zst", ".tar.xz", ".tar.bz2", ".tgz", ".tar")


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """An image in a registry. With both a tag and a digest the digest takes precedence."""

    registry: str
    """As users write it: `docker.io`, `quay.io`, `localhost:5000`."""
    repository: str
    tag: str = ""
    digest: str = ""

    @property
    def host(self) -> str:
        """Host name of the registry's API."""
        return _HUB_HOST if self.registry == DOCKER_HUB else self.registry

    @property
    def selector(self) -> str:
        return self.digest or self.tag

    @property
    def name(self) -> str:
        """Registry and repository, without tag and digest."""
        return f"{self.registry}/{self.repository}"

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.name}{tag}" + (f"@{self.digest}" if self.digest else "")


def parse_reference(text: str) -> Reference:
    """Parse by Docker's rules: the registry defaults to Docker Hub, the tag to `latest`."""
    named, at, digest = text.partition("@")
    first, slash, below = named.partition("/")
    registry, repository, tag = DOCKER_HUB, named, ""
    if slash and ("." in first or ":" in first or first == "localhost" or first != first.lower()):
        registry, repository = (DOCKER_HUB if first in HUB_NAMES else first), below
    path, colon, word = repository.rpartition(":")
    if colon and "/" not in word:
        repository, tag = path, word
    if registry == DOCKER_HUB and "/" not in repository:
        repository = f"library/{repository}"
    port = registry.rpartition("]")[2].partition(":")[2]
    problem = ""
    if not _REGISTRY.fullmatch(registry) or (port and not 0 < int(port) < _PORTS):
        problem = f"{registry[:200]!r} is no registry"
    elif len(repository) > _MAX_REPOSITORY or not all(map(_COMPONENT.fullmatch, repository.split("/"))):
        problem = f"{repository[:200]!r} is no repository, whose names have small letters and digits"
    elif tag and not _TAG.fullmatch(tag):
        problem = f"{tag[:200]!r} is no tag"
    elif named.endswith(":"):
        problem = "its tag is empty"
    if problem:
        raise SourceInvalid(f"{text[:200]!r} is not an image reference: {problem}")
    if at:
        check_digest(digest)
    return Reference(registry=registry, repository=repository, tag=tag or ("" if at else _DEFAULT_TAG), digest=digest)


class RegistryImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image in a registry."""

    reference: Reference


class ImageFile(msgspec.Struct, frozen=True, kw_only=True):
    """An image on this machine: an OCI layout, as a directory or an archive, or what `docker save` writes."""

    path: Path


class ArchiveUrl(msgspec.Struct, frozen=True, kw_only=True):
    """An archive to download, whose content is the backend."""

    url: str


class LocalSource(msgspec.Struct, frozen=True, kw_only=True):
    """A directory to copy, an OCI layout, or an archive; which one is decided when it is opened."""

    path: Path


PullSource: TypeAlias = RegistryImage | ImageFile | ArchiveUrl | LocalSource


def parse_source(uri: str) -> PullSource:
    """Parse a backend's uri. SourceInvalid says what is wrong with it."""
    if not uri or len(uri) > _MAX_URI or not uri.isprintable():
        raise SourceInvalid(f"{uri[:200]!r} is not a uri of an image")
    scheme, separator, place = uri.partition("://")
    if not separator:
        return LocalSource(path=Path(uri)) if uri.startswith("/") else RegistryImage(reference=parse_reference(uri))
    match scheme.lower():
        case "oci":
            return RegistryImage(reference=parse_reference(place))
        case "ocifile":
            return ImageFile(path=_absolute(uri, place))
        case "http" | "https":
            return ArchiveUrl(url=_archive_url(uri))
        case "file":
            return LocalSource(path=_absolute(uri, unquote(urlsplit(uri).path)))
        case _:
            allowed = "oci://, ocifile://, https://, http://, file://, a reference or a path"
            raise SourceInvalid(f"{uri[:200]!r} has the unknown scheme {scheme!r}; known are {allowed}")


def _absolute(uri: str, path: str) -> Path:
    if not os.path.isabs(path):
        raise SourceInvalid(f"{uri[:200]!r} needs the full path of a file")
    return Path(path)


def _archive_url(uri: str) -> str:
    try:
        parts = urlsplit(uri)
        has_address = bool(parts.hostname) and parts.port != 0
    except ValueError:
        has_address = False
    if not has_address:
        raise SourceInvalid(f"{uri[:200]!r} is not a URL")
    return uri


def names_an_entry(uri: str) -> bool:
    """Whether this is not a uri but the name of a backend in a gallery, which LocalAI's workers accept too."""
    return "/" not in uri


def default_name(source: PullSource) -> str:
    """Return the default name of a backend from this source; empty for registry images, which have no good one."""
    match source:
        case RegistryImage():
            return ""
        case ImageFile(path=path) | LocalSource(path=path):
            return _stem(path.name)
        case ArchiveUrl(url=url):
            return _stem(PurePosixPath(unquote(urlsplit(url).path)).name)


def _stem(name: str) -> str:
    for ending in _ENDINGS:
        if name.lower().endswith(ending) and len(name) > len(ending):
            return name[: -len(ending)]
    return Path(name).stem
