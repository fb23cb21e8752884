"""Parses a gallery's URL into the location of its index."""

from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec

from corral.base.errors import InvalidInput
from corral.galleries.gallery import BUILT_IN_URL

ALLOWED: Final = "http://, https://, file:///, oci:// or github:OWNER/REPOSITORY/PATH@REF"
REFERENCE_END: Final = ".ref"
_GITHUB: Final = "github:"
_RAW: Final = "https://raw.githubusercontent.com"
_DEFAULT_BRANCH: Final = "main"


class Scheme(StrEnum):
    """How a location is read."""

    BUILT_IN = "builtin"
    FILE = "file"
    HTTP = "http"
    OCI = "oci"


class IndexLocation(msgspec.Struct, frozen=True, kw_only=True):
    """A location of an index."""

    scheme: Scheme
    url: str
    """URL to send the request to."""
    path: Path | None = None
    """Path of a local file."""

    @property
    def is_local(self) -> bool:
        """Whether it is a file of this machine."""
        return self.scheme in (Scheme.FILE, Scheme.BUILT_IN)

    @property
    def shown(self) -> str:
        """The URL without login and query, which may be secret."""
        return without_secrets(self.url)

    @property
    def is_reference(self) -> bool:
        """Whether the file contains only the name of the index beside it."""
        return self.url.endswith(REFERENCE_END) and self.scheme in (Scheme.HTTP, Scheme.FILE)

    def beside(self, name: str) -> "IndexLocation":
        """Return the location of another file in the same directory."""
        return read_place(self.url.rpartition("/")[0] + "/" + name)


def read_place(url: str) -> IndexLocation:
    """Parse a URL. Raise InvalidInput for an unsupported form."""
    if url == BUILT_IN_URL:
        return IndexLocation(scheme=Scheme.BUILT_IN, url=url)
    if url.startswith(_GITHUB):
        # `github:owner/repository/path@ref`, with or without leading slashes, stands for the URL of the raw file.
        path, _, ref = url.removeprefix(_GITHUB).removeprefix("//").partition("@")
        owner, _, path_below = path.partition("/")
        repository, _, file = path_below.partition("/")
        if not all((owner, repository, *file.split("/"))):
            raise _refused(url)
        return IndexLocation(scheme=Scheme.HTTP, url=f"{_RAW}/{owner}/{repository}/{ref or _DEFAULT_BRANCH}/{file}")
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise _refused(url) from None
    if parts.scheme in ("http", "https") and parts.hostname:
        return IndexLocation(scheme=Scheme.HTTP, url=url)
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path.startswith("/"):
        return IndexLocation(scheme=Scheme.FILE, url=url, path=Path(unquote(parts.path)))
    if parts.scheme == "oci" and url.removeprefix("oci://"):
        return IndexLocation(scheme=Scheme.OCI, url=url)
    raise _refused(url)


def _refused(url: str) -> InvalidInput:
    return InvalidInput("url", f"{without_secrets(url)!r} is no place of a gallery; allowed is {ALLOWED}")


def is_for_everybody(url: str) -> bool:
    """Whether any worker can read the index: over HTTP, and without a login."""
    return read_place(url).scheme is Scheme.HTTP and without_secrets(url) == url


def without_secrets(url: str) -> str:
    """Return a URL without login and query, for display."""
    scheme, separator, address = url.partition("://")
    if not separator:
        return url.partition("?")[0]
    host, slash, path = address.partition("/")
    without_login = host.rpartition("@")[2] + slash + path
    return scheme + separator + without_login.partition("?")[0]
