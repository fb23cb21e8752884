"""`backend.list`: which backends a node has on its disk. The node's own report, and so the only proof.

A field with a default factory is always sent, any other default is not, as LocalAI's peers do it.
"""

import msgspec


def _nothing() -> "list[InstalledBackend] | None":
    """LocalAI's workers say `null` when they have none."""
    return None


class InstalledDetails(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What Corral's workers add."""

    platform_digest: str = ""
    """Of the image for the node's platform, where `digest` is that of an index of several."""


class InstalledBackend(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One backend. Those of the system path say nothing of where they came from."""

    name: str = msgspec.field(default_factory=str)
    is_system: bool = msgspec.field(default_factory=bool)
    is_meta: bool = msgspec.field(default_factory=bool)
    installed_at: str = ""
    gallery_url: str = ""
    version: str = ""
    uri: str = ""
    digest: str = ""
    corral: InstalledDetails | None = None


class ListReply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Answer to `backend.list`, in no order."""

    backends: list[InstalledBackend] | None = msgspec.field(default_factory=_nothing)
    error: str = ""
    """When set, the list says nothing."""
