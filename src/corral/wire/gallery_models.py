"""Answers about what galleries of models offer."""

from typing import Any

import msgspec

from corral.wire.galleries import GalleryView


class GalleryFitView(msgspec.Struct, kw_only=True):
    """How many nodes could run an entry, as far as sizes and backends tell before anything is downloaded."""

    verdict: str
    """`fits`, `blocked` or `unknown`."""
    build: str
    """The build that this is about: the one that suits the fleet best."""
    reason: str
    fitting: int = 0
    """How many nodes it is known to fit."""
    nodes: int = 0
    """How many nodes there are to run it."""


class GalleryModelView(msgspec.Struct, kw_only=True):
    """One entry of a gallery."""

    id: str
    """`gallery@name`."""
    name: str
    gallery: str
    description: str = ""
    license: str = ""
    icon: str = ""
    tags: list[str] = []
    urls: list[str] = []
    uses: list[str] = []
    """What it is for, in LocalAI's words: `chat`, `embeddings`."""
    backend: str = ""
    """The backend; empty where only the base definition names it."""
    bytes: int | None = None
    """As the gallery says, or as the names of its files suggest; null if neither tells."""
    is_size_guessed: bool = False
    variants: list[str] = []
    """Names of other builds of it."""
    is_installed: bool = False
    """Whether the fleet has a model of this name."""
    fit: GalleryFitView | None = None
    """Whether the fleet can run the model; only in lists."""


class GalleryModelList(msgspec.Struct, kw_only=True):
    """A page of what was found."""

    items: list[GalleryModelView]
    total: int
    page: int
    pages: int
    galleries: list[GalleryView]
    near: list[str] = []
    """Names that are like the one that was looked for, when nothing was found."""


class GalleryModelFile(msgspec.Struct, kw_only=True):
    path: str
    """Below the models directory."""
    uri: str
    sha256: str = ""
    """Empty: the gallery promises nothing of what the file holds."""
    bytes: int | None = None


class GalleryBuildView(msgspec.Struct, kw_only=True):
    """One build of an entry: the entry itself, or a variant."""

    name: str
    is_usable: bool
    is_chosen: bool
    """What would be pulled if nobody names a build."""
    reason: str
    backend: str = ""
    bytes: int | None = None
    is_size_guessed: bool = False


class GalleryEstimate(msgspec.Struct, kw_only=True):
    """What a model needs, as far as the heads of its files tell before they are downloaded."""

    bytes: int | None
    """Size of all files; null if one is not known."""
    is_size_guessed: bool = False
    memory_bytes: int | None = None
    """RAM, or video memory where all of it is there, with a context of `context` tokens."""
    context: int = 0
    max_context: int = 0
    """The longest that the model was made for; 0 if unknown."""
    architecture: str = ""
    parameters: int = 0
    quantisation: str = ""
    disk_free_bytes: int | None = None
    """Free space of the store with the most room; null while none is known."""
    problems: list[str] = []
    """What could not be learned, and why."""


class GalleryModelDetail(msgspec.Struct, kw_only=True):
    """One entry with what would be pulled."""

    entry: GalleryModelView
    builds: list[GalleryBuildView]
    """The entry and its variants, and which suits the fleet."""
    build: str
    """The build that the following is about."""
    name: str
    """What the model would be called."""
    license: str = ""
    config: dict[str, Any] = {}
    files: list[GalleryModelFile] = []
    problems: list[str] = []
    """What Corral would refuse or warn about."""
    estimate: GalleryEstimate | None = None
    """Null if it was not asked for."""
