"""`model.unload`, `model.stop` and `model.delete`: what frontends ask of one model on one node.

A field with a default factory is always sent, any other default is not, as LocalAI's peers do it.
"""

import msgspec


class UnloadRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Have a backend give its model back. The process goes on."""

    model_name: str = msgspec.field(default_factory=str)
    address: str = ""
    """Which process. LocalAI's frontends never say; its workers then take any."""


class ModelStopRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """End exactly one process."""

    model_name: str = msgspec.field(default_factory=str)
    process_key: str = msgspec.field(default_factory=str)
    expected_address: str = msgspec.field(default_factory=str)
    """Where the process must be; another one under the same key is left alone."""
    force: bool = False
    """Do not ask the backend to free its model first."""
    config_revision: str = ""


class ModelStopReply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Only `terminated` says whether it is done; an error beside it tells what went less well."""

    matched: bool = msgspec.field(default_factory=bool)
    """There was a process of that key."""
    freed: bool = msgspec.field(default_factory=bool)
    terminated: bool = msgspec.field(default_factory=bool)
    """The process is gone; also when there never was one."""
    process_key: str = msgspec.field(default_factory=str)
    address: str = ""
    error: str = ""


class ModelDeleteRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Remove a model's files."""

    model_name: str = msgspec.field(default_factory=str)


class ModelCommandReply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Answer to `model.unload` and `model.delete`."""

    success: bool = msgspec.field(default_factory=bool)
    error: str = ""
