"""What a hub says about a model: its files, pinned to one revision; and how asking may fail.

HubModelMissing     404: no such repository, model, revision or file
HubRefused          401, 403 and other refusals; answers that cannot be used
HubUnavailable      retryable: 429, 5xx, no connection, too slow
"""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Final

import msgspec

from corral.base.errors import CorralError, InvalidInput, NotFound
from corral.hubs.plans import PlannedFile

_LONGEST_PATH: Final = 1024
_LONGEST_PART: Final = 255


class HubName(StrEnum):
    """Whose token goes with a request."""

    HUGGING_FACE = "hf"
    OLLAMA = "ollama"
    OCI = "oci"
    NONE = ""


class HubModelMissing(NotFound):
    """The hub has no such model."""


class HubRefused(CorralError):
    """The hub refuses, or answers with what cannot be used."""

    code = "hub_refused"


class HubUnavailable(CorralError):
    """The hub does not answer as it should."""

    code = "hub_unavailable"
    retryable = True

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        self.retry_after = retry_after
        """Seconds that the hub asked us to wait."""
        super().__init__(message)


class HubFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a model, as its hub lists it."""

    path: str
    """Path within the repository."""
    url: str
    hub: HubName = HubName.NONE
    size: int | None = None
    digest: str = ""
    """`sha256:…` or `git-sha1:…`; empty if the hub states none."""

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name

    @property
    def folder(self) -> str:
        parent = str(PurePosixPath(self.path).parent)
        return "" if parent == "." else parent

    def planned(self, path: str) -> PlannedFile:
        """Return the file as part of a plan, to be at this path of the models directory."""
        return PlannedFile(path=path, url=self.url, hub=self.hub.value, size=self.size, digest=self.digest)


class OwnSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a hub says about a model beside its files, in LocalAI's words."""

    parameters: Mapping[str, object] = msgspec.field(default_factory=dict)
    top: Mapping[str, object] = msgspec.field(default_factory=dict)
    """Keys at the top: `context_size`, `stopwords`, `system_prompt`."""
    template: Mapping[str, object] = msgspec.field(default_factory=dict)
    """Used where the weights have no template of their own."""
    template_problem: str = ""
    """Why the hub's template cannot be used; empty if it can, or there is none."""
    source: str = ""
    """Who says so, for notes."""


class HubListing(msgspec.Struct, frozen=True, kw_only=True):
    """A model at one revision."""

    name: str
    """What the hub calls it, without the owner."""
    resolved: str
    """The reference with everything pinned: a commit, a digest."""
    files: tuple[HubFile, ...]
    beside: tuple[HubFile, ...] = ()
    """Files that belong to the model whichever build is taken, such as an adapter."""
    licence: str = ""
    notes: tuple[str, ...] = ()
    tags: frozenset[str] = msgspec.field(default=frozenset())
    """What the hub says that it is for: `text-generation`, `feature-extraction`, `sentence-transformers`."""
    own: OwnSettings = msgspec.field(default_factory=OwnSettings)


def check_file_path(path: str) -> str:
    """Return a path of a hub unchanged. InvalidInput if it could lead out of its directory, or no disk takes it."""
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts) or not path.isprintable() or "\\" in path:
        raise InvalidInput("path", f"{path[:80]!r} must be a printable path without empty parts, . and ..")
    if len(path.encode()) > _LONGEST_PATH or any(len(part.encode()) > _LONGEST_PART for part in parts):
        raise InvalidInput("path", f"{path[:80]!r} is longer than disks allow")
    return path
