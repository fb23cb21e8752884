"""Where an index may lie: what the forms of a gallery's URL mean."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from corral.base.errors import InvalidInput
from corral.galleries.gallery import BUILT_IN_URL

ALLOWED: Final = "http://, https://, file:///, oci:// or github:OWNER/REPOSITORY/PATH@REF"
REFERENCE_END: Final = ".ref"
_GITHUB: Final = "github:"
_RAW: Final = "https://raw.githubusercontent.com"
_DEFAULT_BRANCH: Final = "main"


class Scheme(StrEnum):
    """How a place is read."""

    BUILT_IN = "builtin"
    FILE = "file"
    HTTP = "http"
    OCI = "oci"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexLocation:
    """One place of an index."""

    scheme: Scheme
    url: str
    """As it is asked for."""
    path: Path | None = None
    """On this machine."""

    @property
    def is_local(self) -> bool:
        """A file of this machine, which costs nothing to look at."""
        return self.scheme in (Scheme.FILE, Scheme.BUILT_IN)

    @property
    def shown(self) -> str:
        """Without logins and queries, which may be secret."""
        return without_secrets(self.url)

    @property
    def is_reference(self) -> bool:
        """Whether what lies there is only the name of the file beside it that is the index."""
        return self.url.endswith(REFERENCE_END) and self.scheme in (Scheme.HTTP, Scheme.FILE)

    def beside(self, name: str) -> "IndexLocation":
        """What lies in the same directory under another name."""
        return read_place(self.url.rpartition("/")[0] + "/" + name)


def read_place(url: str) -> IndexLocation:
    """What a URL means; InvalidInput for forms that are none of ours."""
    if url == BUILT_IN_URL:
        return IndexLocation(scheme=Scheme.BUILT_IN, url=url)
    if url.startswith(_GITHUB):
        return IndexLocation(scheme=Scheme.HTTP, url=_github_url(url))
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


def _github_url(url: str) -> str:
    """`github:owner/repository/path@ref`, with or without slashes in front, as the file itself."""
    path, _, ref = url.removeprefix(_GITHUB).removeprefix("//").partition("@")
    parts = path.split("/")
    if len(parts) < 3 or not all(parts):
        raise _refused(url)
    return f"{_RAW}/{parts[0]}/{parts[1]}/{ref or _DEFAULT_BRANCH}/{'/'.join(parts[2:])}"


def _refused(url: str) -> InvalidInput:
    return InvalidInput("url", f"{without_secrets(url)!r} is no place of a gallery; allowed is {ALLOWED}")


def is_for_everybody(url: str) -> bool:
    """Whether any machine may read an index there, and any worker knows how: over HTTP, and without a login."""
    return read_place(url).scheme is Scheme.HTTP and without_secrets(url) == url


def without_secrets(url: str) -> str:
    """A URL as it may be shown: without a login and without a query."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url.partition("?")[0]
    host, slash, path = rest.partition("/")
    shown = host.rpartition("@")[2] + slash + path
    return scheme + separator + shown.partition("?")[0]
