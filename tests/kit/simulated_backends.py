"""The backends of a worker that exists only as its messages: a disk in memory, and all that a worker can do wrong.

Both kinds are here. A Corral worker does one thing after the other with each backend, tells digests and dates each
install with its own time; one of LocalAI's does all at once, tells no digests and dates to the second.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import msgspec

from corral.base.clock import Clock
from corral.base.ids import NodeId
from corral.bus.port import Bus, Message
from corral.wire import subjects
from corral.wire.backends import (
    ChangeReply,
    DeleteRequest,
    InstalledBackend,
    InstallProgress,
    InstallReply,
    InstallRequest,
    InventoryReport,
    ListReply,
    UpgradeRequest,
    size_text,
)
from corral.wire.go_json import format_time

_IMAGE_BYTES: Final = 6 * 1024**3
"""How large every image is, for those that tell how far they are."""
_GALLERY: Final = "http://gallery/index.yaml"
_KNOWN_TO_LOCALAI: Final = ("oci://", "ocifile://", "/", "quay.io/", "ghcr.io/", "docker.io/")

DiskChange = Callable[[], str]
"""Changes the disk; returns the error message."""


@dataclass
class Faults:
    """What the worker does wrong; everything may be changed at any time."""

    refusal: str = ""
    """Answers this instead of doing anything."""
    boasts: bool = False
    """Says that it is done, and does nothing."""
    modest: bool = False
    """Does it, and says that it failed."""
    silent: bool = False
    """Does it, and never answers."""
    twice: bool = False
    """Answers everything twice."""
    mute: bool = False
    """Does not tell what it has."""
    knows_upgrades: bool = True
    undated: bool = False
    """Tells neither dates nor digests."""
    backdates: bool = False
    """Dates what it replaces as what was there before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskWrite:
    """What truly happened to the disk."""

    at: datetime
    backend: str
    uri: str = ""
    """Where it was downloaded from; empty when it was deleted."""
    operation: str = ""
    """What it was downloaded for; a delete does not say."""
    is_repeated: bool = False
    """A report had shown it, downloaded for the same operation, before it was asked for."""


@dataclass
class SimulatedBackends:
    node_id: NodeId
    clock: Clock
    is_corral: bool = True
    faults: Faults = field(default_factory=Faults)
    disk: dict[str, InstalledBackend] = field(default_factory=dict)
    requests: list[tuple[str, object]] = field(default_factory=list)
    """Everything that was asked of it, without the lists."""
    lists: int = 0
    """How often it was asked what it has."""
    aliases: dict[str, str] = field(default_factory=dict)
    """The alias of each backend that has one."""
    written: Counter[str] = field(default_factory=Counter)
    """How often each backend was downloaded."""
    journal: list[DiskWrite] = field(default_factory=list)
    digest: str = "sha256:1"
    """Digest of the next download."""
    version: str = ""
    """Version of the next download."""
    tells: float = 0.0
    """Progress that is told when a download begins, as a percentage."""
    work_seconds: float = 0.0
    """Real time that each install takes."""
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    """Installs wait until it is set, as it is at first."""
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a request has come to the gate."""
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when one has been carried out, whatever was answered."""
    looked_at: asyncio.Event = field(default_factory=asyncio.Event)
    """Set after a request for the inventory."""
    outdates: Callable[[], Awaitable[None]] | None = None
    """What happens between its look at the disk and the arrival of its report."""

    def __post_init__(self) -> None:
        self.gate.set()
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._at_work: set[asyncio.Task[object]] = set()
        self._shown: dict[str, str] = {}
        self._subscriptions = AsyncExitStack()

    async def listen(self, bus: Bus) -> None:
        """Answer until `stop`."""
        self._bus = bus
        handlers = {
            subjects.backend_install(self.node_id): self._on_install,
            subjects.backend_delete(self.node_id): self._on_delete,
            subjects.backend_list(self.node_id): self._on_list,
        }
        if self.faults.knows_upgrades:
            handlers[subjects.backend_upgrade(self.node_id)] = self._on_upgrade
        for subject, handler in handlers.items():
            subscription = await bus.subscribe(subject, handler)
            self._subscriptions.push_async_callback(subscription.close)

    async def stop(self) -> None:
        """Stop replying."""
        await self._subscriptions.aclose()

    def put(self, name: str) -> None:
        """Add a backend as if it had been installed long ago."""
        self._write(name, _gallery_uri(name))
        self.written[name] -= 1

    async def forget(self, names: Iterable[str]) -> None:
        """Lose these backends behind everybody's back, and say what is left, as after a restart."""
        for name in names:
            del self.disk[name]
        report = InventoryReport(backends=list(self.disk.values()))
        await self._bus.publish(subjects.inventory(self.node_id), msgspec.json.encode(report))

    def die(self) -> None:
        """The work under way is lost, and whoever asked for it gets no answer. The disk stays as it is."""
        for task in self._at_work:
            task.cancel()

    async def say(self, operation: str, percentage: float, *, total: int = 0) -> None:
        """Publish progress; of so many bytes, if it is known how many."""
        progress = InstallProgress(
            op_id=operation, node_id=self.node_id, backend="", percentage=percentage, phase="downloading"
        )
        if total:
            progress.current, progress.total = size_text(int(total * percentage / 100)), size_text(total)
        await self._bus.publish(subjects.install_progress(self.node_id, operation), msgspec.json.encode(progress))

    async def _tell(self, operation: str) -> None:
        if self.tells and operation:
            await self.say(operation, self.tells, total=_IMAGE_BYTES)

    async def _on_install(self, message: Message) -> None:
        request = msgspec.json.decode(message.data, type=InstallRequest)
        self.requests.append(("install", request))
        write = self._download(request)
        await self._tell(request.op_id)
        error = await self._do(_name(request), lambda: "" if self._is_there(request) else write())
        await self._answer(message, InstallReply(success=not error, error=error, address="127.0.0.1:1"))

    async def _on_upgrade(self, message: Message) -> None:
        request = msgspec.json.decode(message.data, type=UpgradeRequest)
        self.requests.append(("upgrade", request))
        await self._tell(request.op_id)
        error = await self._do(_name(request), self._download(request))
        await self._answer(message, ChangeReply(success=not error, error=error, reports_stopped_processes=True))

    async def _on_delete(self, message: Message) -> None:
        request = msgspec.json.decode(message.data, type=DeleteRequest)
        self.requests.append(("delete", request))
        error = await self._do(request.backend, lambda: self._delete(request.backend))
        await self._answer(message, ChangeReply(success=not error, error=error, reports_stopped_processes=True))

    async def _on_list(self, message: Message) -> None:
        self.lists += 1
        self.looked_at.set()
        if not self.faults.mute:
            self._shown = {entry.backend: entry.operation for entry in self.journal if entry.backend in self.disk}
            entries = [_undated(entry) if self.faults.undated else entry for entry in self.disk.values()]
            if self.outdates is not None:
                await self.outdates()
            await message.respond(msgspec.json.encode(ListReply(backends=entries or None)))

    async def _do(self, name: str, deed: DiskChange) -> str:
        with self._mortal():
            if self.is_corral:
                async with self._locks[name]:
                    return await self._do_now(deed)
            return await self._do_now(deed)

    @contextmanager
    def _mortal(self) -> Iterator[None]:
        """While inside, the task ends with this worker."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("workers work in tasks")
        self._at_work.add(task)
        try:
            yield
        finally:
            self._at_work.discard(task)

    async def _do_now(self, deed: DiskChange) -> str:
        self.begun.set()
        await self.gate.wait()
        await asyncio.sleep(self.work_seconds)
        if self.faults.refusal or self.faults.boasts:
            return self.faults.refusal
        error = deed()
        self.finished.set()
        return "no" if self.faults.modest else error

    async def _answer(self, message: Message, reply: msgspec.Struct) -> None:
        if not self.faults.silent:
            await message.respond(msgspec.json.encode(reply))
        if self.faults.twice:
            await message.respond(msgspec.json.encode(reply))

    def _is_there(self, request: InstallRequest) -> bool:
        return _name(request) in self.disk and not request.force

    def _download(self, request: InstallRequest | UpgradeRequest) -> DiskChange:
        """What will be written once the work is done."""
        name, operation = _name(request), request.op_id
        is_repeated = bool(operation) and self._shown.get(name) == operation

        def write() -> str:
            if error := self._refusal(request):
                return error
            uri = request.uri or _gallery_uri(name)
            self._write(name, uri)
            self._rename(name, request.alias)
            done = DiskWrite(at=self.clock.now(), backend=name, uri=uri, operation=operation, is_repeated=is_repeated)
            self.journal.append(done)
            return ""

        return write

    def _refusal(self, request: InstallRequest | UpgradeRequest) -> str:
        """LocalAI's workers look for what comes without a uri in galleries, also if it came from a uri before, and know
        references to images only by `oci://` or by three hosts."""
        if self.is_corral:
            return ""
        installed = self.disk.get(_name(request))
        if not request.uri and installed is not None and not installed.gallery_url:
            return f'upgrading backend from gallery: no backend found with name "{request.backend}"'
        if request.uri and not request.uri.startswith(_KNOWN_TO_LOCALAI):
            return f'failed to download backend "{request.uri}"'
        return ""

    def _rename(self, name: str, alias: str) -> None:
        """LocalAI's workers forget the alias of what they replace, unless it is given again."""
        if alias or not self.is_corral:
            self.aliases[name] = alias

    def _write(self, name: str, uri: str) -> None:
        self.written[name] += 1
        self.disk[name] = InstalledBackend(
            name=name,
            installed_at=self._date(name),
            gallery_url=_GALLERY if uri == _gallery_uri(name) else "",
            uri=uri,
            version=self.version,
            digest=self.digest if self.is_corral else "",
        )

    def _date(self, name: str) -> str:
        at = self.clock.now().replace(microsecond=0)
        if name not in self.disk:
            return format_time(at)
        before = self.disk[name].installed_at
        if self.faults.backdates:
            return before
        return format_time(max(at, datetime.fromisoformat(before) + timedelta(seconds=1)) if self.is_corral else at)

    def _delete(self, name: str) -> str:
        if self.disk.pop(name, None) is None:
            return f'backend "{name}": backend not found'
        self.journal.append(DiskWrite(at=self.clock.now(), backend=name))
        return ""


def _name(request: InstallRequest | UpgradeRequest) -> str:
    return request.name or request.backend


def _gallery_uri(name: str) -> str:
    return f"oci://gallery/{name}"


def _undated(entry: InstalledBackend) -> InstalledBackend:
    return msgspec.structs.replace(entry, installed_at="", digest="")
