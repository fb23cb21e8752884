"""The parts of the model of a fleet: workers with a disk and a queue, frontends that forget all when they die."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from corral.base.ids import LeaseToken
from corral.frontend.backends.decide.backend import Artefact, BackendEntry, Inventory, Wish
from corral.frontend.operations.decide.intent import Intent, Verb
from corral.frontend.rules.decide import FleetRule

IntentKey = tuple[str, str]


class WorkerConduct(StrEnum):
    """What a worker does with a request, and what it says."""

    HONEST = "honest"
    REFUSES = "refuses"
    BOASTS = "boasts"
    """Says that it is done, and did nothing."""
    MODEST = "modest"
    """Did it, and says that it failed."""


@dataclass(kw_only=True)
class Request:
    key: str
    wish: Wish
    force: bool
    frontend: int
    life: int
    generation: int
    accepted_at: datetime
    until: datetime


@dataclass(kw_only=True)
class Worker:
    """A worker: its disk, and the requests that wait for it."""

    name: str
    is_corral: bool
    up: bool = True
    lives: int = 1
    labels: dict[str, str] = field(default_factory=dict)
    last_report: Inventory | None = None
    """The last stored report."""
    disk: dict[str, BackendEntry] = field(default_factory=dict)
    serials: dict[str, int] = field(default_factory=dict)
    """How often each backend was written, which no report tells."""
    door: list[Request] = field(default_factory=list)
    files: dict[str, datetime] = field(default_factory=dict)
    """Model files by key, with the creation time of the model that they were loaded for. Not reported."""

    @property
    def life(self) -> str:
        """Id of the current run: Corral's workers report it, LocalAI's register again instead."""
        return str(self.lives)

    def report(self, now: datetime) -> Inventory:
        return Inventory(entries=tuple(self.disk.values()), seen_at=now)

    def do(self, request: Request, now: datetime, digest: str) -> str | None:
        """Carry out a request as an honest worker; returns its error."""
        wish, key = request.wish, request.key
        if wish.verb is Verb.REMOVE:
            since = self.files.pop(key, request.accepted_at)
            assert since <= request.accepted_at, "a removal took the files of a model that was added later"
            return None
        if wish.verb is Verb.DELETE:
            return None if self.disk.pop(key, None) is not None else f'backend "{key}": backend not found'
        if key in self.disk and wish.verb is Verb.INSTALL and not request.force:
            return None
        self._write(key, wish.artefact, now, digest)
        return None

    def _write(self, key: str, artefact: Artefact, now: datetime, digest: str) -> None:
        at = now.replace(microsecond=0)
        before = self.disk.get(key)
        if self.is_corral and before is not None:
            at = max(at, datetime.fromisoformat(before.installed_at) + timedelta(seconds=1))
        self.serials[key] = self.serials.get(key, 0) + 1
        uri = artefact.uri or f"oci://gallery/{key}"
        reported = digest if self.is_corral else ""
        self.disk[key] = BackendEntry(name=key, installed_at=at.isoformat(), uri=uri, digest=reported)


@dataclass(kw_only=True)
class ClaimedIntent:
    """An intent that a frontend has claimed, with its request open."""

    intent: Intent
    request: Request


@dataclass(kw_only=True)
class Decision:
    """What a rule is about to start, and the generations that this was decided on."""

    rule: FleetRule
    seen: dict[str, int]


@dataclass(kw_only=True)
class ModelledFrontend:
    number: int
    life: int = 0
    working: dict[IntentKey, ClaimedIntent] = field(default_factory=dict)
    decided: list[Decision] = field(default_factory=list)

    @property
    def token(self) -> LeaseToken:
        return LeaseToken(f"{self.number}/{self.life}")


@dataclass(kw_only=True)
class ModelledAnswer:
    request: Request
    node: str
    error: str | None
