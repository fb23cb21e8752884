"""What a node reports about the processes that it runs for models."""

from dataclasses import dataclass, field
from typing import NamedTuple


class Reach(NamedTuple):
    """How requests reach a process. Two are compared to see whether a node reports something new."""

    url: str
    key: str
    routes: tuple[str, ...] | None
    front_port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedProcess:
    """What a node reports of one process that runs for a model."""

    model: str
    index: int
    address: str
    url: str = ""
    key: str = field(default="", repr=False)
    routes: tuple[str, ...] | None = None
    front_port: int = 0

    @property
    def reach(self) -> Reach:
        """How requests reach it."""
        return Reach(self.url, self.key, self.routes, self.front_port)

    @property
    def process_key(self) -> str:
        """The name that the node has for it."""
        return f"{self.model}#{self.index}"


def port_of(address: str) -> str:
    return address.rpartition(":")[2]
