"""Who this node is: its own secret, kept in a private file, and the id a frontend last gave it.

The secret is the identity: whoever sends it is this node. So it is stored before it is first sent, and never replaced
silently. A damaged file is an error, since a new secret would make this machine a new, pending node; so is a file that
others may read, since only a person can say whether it leaked. The remembered id is for logs and tools only, and a
damaged memory is forgotten.
"""

import logging
import os
import re
from pathlib import Path
from typing import Final

import msgspec

from corral.base.errors import PathNotUsable
from corral.base.ids import NodeId, new_secret
from corral.base.private_files import make_private_directory, read_private, write_private
from corral.base.unreadable_json import UNREADABLE_JSON

log = logging.getLogger(__name__)

SECRET_FILE: Final = "node-secret"  # noqa: S105 - a name of a file
MEMORY_FILE: Final = "node.json"
MAX_NAME: Final = 255

_SECRET = re.compile(rb"[A-Za-z0-9_-]{32,256}")


class Memory(msgspec.Struct, kw_only=True, frozen=True):
    """What is remembered of the last registration."""

    id: str
    name: str = ""


class NodeIdentity:
    """The files of one node in its data directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def secret(self) -> str:
        """The node's secret, made and stored at the first call. One worker at a time may use the directory."""
        path = self._directory / SECRET_FILE
        data = read_private(path)
        if data is None:
            return self._make_secret(path)
        secret = data.strip()
        if not _SECRET.fullmatch(secret):
            raise PathNotUsable(
                f"{path} is damaged; restore it, or delete it: then this machine joins as a new node, to be approved"
            )
        return secret.decode("ascii")

    def _make_secret(self, path: Path) -> str:
        secret = new_secret()
        make_private_directory(self._directory)
        write_private(path, secret.encode("ascii") + b"\n")
        _sync_directory(self._directory)
        return secret

    def remember(self, node_id: NodeId, name: str) -> None:
        """Keep the id for tools and for the logs of the next start. A full disk must not end a worker that serves."""
        try:
            write_private(self._directory / MEMORY_FILE, msgspec.json.encode(Memory(id=node_id, name=name)) + b"\n")
        except PathNotUsable as error:
            log.warning("cannot remember the node id: %s", error, extra={"event": "identity.not_remembered"})

    def remembered(self) -> Memory | None:
        """The last registration, as far as it is known."""
        try:
            data = read_private(self._directory / MEMORY_FILE)
            return None if data is None else msgspec.json.decode(data, type=Memory)
        except (PathNotUsable, *UNREADABLE_JSON) as error:
            log.warning("forgetting the last node id: %s", error, extra={"event": "identity.forgotten"})
            return None


def node_name(configured: str, *, hostname: str, pid: int) -> str:
    """What people call this node: what they said, else the host name, else something that is never empty."""
    return (configured.strip() or hostname.strip() or f"node-{pid}")[:MAX_NAME]


def _sync_directory(path: Path) -> None:
    """Make a new name in a directory survive a power cut: the secret must not be lost once it was sent."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
