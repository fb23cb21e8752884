"""Newer versions of backends as the admin API shows them: Corral's own form, and LocalAI's."""

import msgspec


class NodeUpgradeView(msgspec.Struct, kw_only=True):
    """A backend on one node."""

    node_id: str
    node_name: str
    node_status: str
    version: str
    digest: str
    freshness: str
    """`current`, `outdated` or `unknown`."""
    reason: str = ""
    """Why it is `unknown`; empty when it is not."""
    differs: bool
    """Most nodes have another build."""


class BackendUpgradeView(msgspec.Struct, kw_only=True):
    """One backend across the fleet."""

    name: str
    needs_upgrade: bool
    installed_version: str
    """Of most nodes."""
    installed_digest: str
    available_version: str = ""
    available_digest: str = ""
    uri: str = ""
    """Where it is to be had; empty when nobody offers it."""
    looked_at: str | None = None
    """When its registry last told what it has."""
    nodes: list[NodeUpgradeView]


class UpgradesView(msgspec.Struct, kw_only=True):
    """Answer of `GET /api/v1/backends/upgrades`."""

    checked_at: str | None
    """When galleries and registries were last asked; null before the first time."""
    problem: str = ""
    """Why the galleries could not be read then."""
    items: list[BackendUpgradeView]


class NodeDrift(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A node that has another build than most; LocalAI's form."""

    node_id: str = msgspec.field(default_factory=str)
    node_name: str = msgspec.field(default_factory=str)
    version: str = ""
    digest: str = ""


class UpgradeInfo(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One value of `GET /api/backends/upgrades`, whose keys are names; LocalAI's form."""

    backend_name: str = msgspec.field(default_factory=str)
    installed_version: str = msgspec.field(default_factory=str)
    available_version: str = msgspec.field(default_factory=str)
    installed_digest: str = ""
    available_digest: str = ""
    node_drift: list[NodeDrift] = []
