"""The plan of a pull: all that has to be known to download a model and to add it, as one JSON document.

A plan is made once, when somebody asks for a model: it pins the revision, sizes and digests that a hub stated then. Its
execution, even after any number of crashes, asks the hub for nothing but the bytes.
"""

import msgspec

from corral.hubs.weight_shape import WeightShape


class PlannedFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file of a model."""

    path: str
    """Where it will be, relative to the models directory."""
    url: str
    """`https://…` or `http://…` without credentials, or `file:///…` for a file of the frontend's own machine. With
    `#member=…` at its end, the file inside of the archive that the URL leads to."""
    hub: str = ""
    """Whose token goes with the request: `hf`, `ollama`, `oci`, or empty for none. Tokens are never in a plan."""
    size: int | None = None
    """None: the server did not say."""
    digest: str = ""
    """`sha256:…`, or `git-sha1:…` as Hugging Face states it for small files; empty: nobody promised one. Of a file
    inside of an archive it is the digest of the archive."""
    shape: WeightShape | None = None
    """What it says about the memory that it takes; None when nobody has looked into it, or it is no GGUF file."""


class ModelOrigin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a model came from."""

    reference: str
    """What was asked for, as it was typed."""
    resolved: str = ""
    """The reference with everything pinned: a commit, a digest."""
    gallery: str = ""
    """`gallery@name` of the entry, if there was one."""
    licence: str = ""


class BuildChoice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of several builds of a model that a repository offers: usually a quantisation."""

    name: str
    """As it can be asked for: `Q4_K_M`."""
    bytes: int
    files: int = 1
    needed_bytes: int = 0
    """Estimated memory to run it, its context included; 0: unknown."""
    fits: bool | None = None
    """Whether a machine of the fleet has the memory for it; None: unknown."""
    is_chosen: bool = False


class PullPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The plan of a pull: which files are downloaded, and which configuration the model gets."""

    name: str
    config: str
    """The model's YAML. Paths in it are those of `files`."""
    files: tuple[PlannedFile, ...] = ()
    origin: ModelOrigin
    choices: tuple[BuildChoice, ...] = ()
    """What could have been taken, the largest first; the one that is taken among them."""
    notes: tuple[str, ...] = ()
    """Sentences for the person who asks: what was not taken over, what was assumed."""
    memory_bytes: int = 0
    """Memory that it takes on a machine without a GPU; 0: unknown."""

    @property
    def bytes(self) -> int:
        """Bytes to download, as far as they are known."""
        return sum(file.size or 0 for file in self.files)
