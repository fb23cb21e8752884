"""What would fail if this machine joined: tried out beforehand, each as a sentence. Changes nothing anywhere.

The frontend is asked to call back, since firewalls between machines cannot be seen from here.
"""

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import aiohttp
import msgspec

from corral.base.errors import AddressInUse, CorralError, DataInUse, InvalidInput, PathNotUsable, PeerUnavailable
from corral.base.http_client import HttpFailed, asked, host_of, read_body
from corral.base.private_files import held
from corral.base.tasks import end_tasks
from corral.bus.config import parse_endpoints, reached_from
from corral.wire import go_json
from corral.wire.joining import DialledAddress, FleetProof, JoinCheck, JoinCheckAnswer
from corral.worker.config import WorkerConfig
from corral.worker.hardware.drivers import driver_problems
from corral.worker.hardware.gpus import MeasuredGpu
from corral.worker.hardware.machine import nearest_existing, read_disk
from corral.worker.membership.addresses import Addresses, HostPort, parse_host_port
from corral.worker.membership.frontend_client import error_text
from corral.worker.membership.pinned_fleet import PinnedFleet
from corral.worker.membership.trust import OtherFleet, TlsCheck
from corral.worker.processes.ports import can_listen, ephemeral_ports, ranges_of

_MAX_ANSWER: Final = 64 * 1024
_WORD: Final = 64
_MOST_CALLERS: Final = 64
_GIB: Final = 1024**3


class Verdict(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


class CheckLine(msgspec.Struct, frozen=True):
    """The result of one check, as a line for people."""

    subject: str
    verdict: Verdict
    sentence: str


class CheckLimits(msgspec.Struct, frozen=True, kw_only=True):
    """When something is worth a warning, and when it is a failure."""

    least_disk: int = 1 * _GIB
    low_disk: int = 10 * _GIB
    skew: timedelta = timedelta(seconds=5)
    most_skew: timedelta = timedelta(seconds=60)
    """Users of NATS last for minutes: with clocks further apart they may end before they begin."""
    patience: timedelta = timedelta(seconds=5)


class CheckedMachine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine and the configuration that the checks are about."""

    config: WorkerConfig
    places: Addresses
    gpus: Sequence[MeasuredGpu]
    bearer: str
    """A join code, the node's own secret, or the registration token; empty when there is none."""
    lock: Path
    sys: Path = Path("/sys")


class JoinChecks:
    def __init__(
        self,
        machine: CheckedMachine,
        session: aiohttp.ClientSession,
        fleet: PinnedFleet,
        limits: CheckLimits,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._machine = machine
        self._session = session
        self._fleet = fleet
        self._limits = limits
        self._now = now
        self._offered: list[str] | None = None
        """Where the frontend says that NATS is; None until it said so."""

    async def run(self) -> list[CheckLine]:
        """Run all checks once, in the order in which a join would need them."""
        findings = [*self._data(), *await asyncio.to_thread(self._disks), *await asyncio.to_thread(self._drivers)]
        for url in self._machine.config.frontend.urls:
            findings += await self._frontend(url)
        return [*findings, *await self._nats()]

    def _data(self) -> list[CheckLine]:
        path = self._machine.config.data_path
        place = nearest_existing(path)
        try:
            if not os.access(place, os.W_OK | os.X_OK):
                raise PathNotUsable(f"the directory {place} is not writable for this user; choose another with --data")
            if path.is_dir():
                with held(self._machine.lock, f"another worker uses the data directory {path}; it runs already"):
                    pass
        except (PathNotUsable, DataInUse) as error:
            return [CheckLine("data", Verdict.FAILED, error.message)]
        return [CheckLine("data", Verdict.OK, f"{path} can be used")]

    def _disks(self) -> list[CheckLine]:
        config, findings = self._machine.config, []
        for name, path in (("models", config.models_path), ("backends", config.backends_path)):
            disk = read_disk(path)
            if disk is None:
                findings.append(CheckLine("disk", Verdict.FAILED, f"the disk of {path} ({name}) cannot be read"))
                continue
            free = f"{disk.available / _GIB:.1f} GiB are free at {path} ({name})"
            if disk.available < self._limits.least_disk:
                least = f"at least {self._limits.least_disk / _GIB:.0f} GiB are needed"
                findings.append(CheckLine("disk", Verdict.FAILED, f"{free}: {least}; choose another with --{name}"))
            elif disk.available < self._limits.low_disk:
                findings.append(CheckLine("disk", Verdict.WARNING, f"{free}, and most models take more"))
            else:
                findings.append(CheckLine("disk", Verdict.OK, free))
        return findings

    def _drivers(self) -> list[CheckLine]:
        problems = driver_problems(self._machine.sys, self._machine.gpus)
        if problems:
            return [CheckLine("gpu", Verdict.FAILED, problem) for problem in problems]
        names = ", ".join(f"{gpu.vendor} {gpu.name}".strip() for gpu in self._machine.gpus)
        return [CheckLine("gpu", Verdict.OK, f"found: {names}" if names else "none, and no driver is missing")]

    async def _frontend(self, url: str) -> list[CheckLine]:
        began = self._now()
        try:
            proof, tls = await self._fleet.prove(url)
        except HttpFailed as error:
            remedy = "is the URL right, does the frontend listen there (--host), is its port open for this machine?"
            problem = f"{error.host} does not answer: {error.reason}; {remedy}"
            return [CheckLine("frontend", Verdict.FAILED, problem)]
        except PeerUnavailable as error:
            frontend = self._machine.config.frontend
            is_expected = isinstance(error, OtherFleet) and not frontend.is_joining and not frontend.fleet_pin
            return [CheckLine("frontend", Verdict.WARNING if is_expected else Verdict.FAILED, error.message)]
        reached = CheckLine("frontend", Verdict.OK, f"{host_of(url)} answers: Corral {proof.version}, {self._known()}")
        return [reached, self._clock(proof, began), *await self._from_there(url, tls)]

    def _known(self) -> str:
        return f"fleet #{self._fleet.pin}"

    def _clock(self, proof: FleetProof, began: datetime) -> CheckLine:
        """The frontend read its clock between the question and the answer."""
        ended = self._now()
        try:
            frontend_time = datetime.fromisoformat(proof.time)
        except ValueError:
            return CheckLine("clock", Verdict.WARNING, "the frontend does not say what time it has")
        apart = max(frontend_time - ended, began - frontend_time, timedelta(0))
        if apart <= self._limits.skew:
            return CheckLine("clock", Verdict.OK, "as the frontend's")
        way = "behind" if frontend_time > ended else "ahead of"
        problem = f"this machine's clock is {apart.total_seconds():.0f} s {way} the frontend's; let both follow one"
        verdict = Verdict.FAILED if apart > self._limits.most_skew else Verdict.WARNING
        return CheckLine("clock", verdict, f"{problem} time server (chrony, systemd-timesyncd)")

    async def _from_there(self, url: str, tls: TlsCheck) -> list[CheckLine]:
        """Have the frontend call the ports that this worker will have."""
        if not self._machine.bearer:
            problem = "the frontend was not asked to call back: give the join code, as when joining"
            return [CheckLine("ports", Verdict.WARNING, problem)]
        async with AsyncExitStack() as stack:
            doors = []
            for place in self._doors():
                try:
                    doors.append(await stack.enter_async_context(_listening(place)))
                except AddressInUse as error:
                    return [CheckLine("ports", Verdict.FAILED, error.message)]
            addresses = [str(door.advertised) for door in doors]
            try:
                answer = await self._asked_to_call(url, tls, addresses)
            except (HttpFailed, InvalidInput, CorralError) as error:
                return [CheckLine("code", Verdict.FAILED, error.message)]
            if answer.nats_urls is not None:
                self._offered = [*(self._offered or []), *_from_here(answer.nats_urls, url)]
            findings = [CheckLine("code", Verdict.OK, answer.invitation)] if answer.invitation else []
            calls = {call.address: call for call in answer.dialled}
            for door in doors:
                findings.append(await self._judged(door, calls.get(str(door.advertised)), answer.seen_from))
        return findings

    def _doors(self) -> "list[_Destination]":
        """The HTTP port, and one of those that backends will have; with TLS, the HTTP port is in front of all."""
        places, doors, has_tls = self._machine.places, [], self._machine.config.fleet_tls
        http = parse_host_port(places.advertise_http)
        if http is not None and http.host:
            door_name = "the TLS port" if has_tls else "the HTTP server"
            doors.append(_Destination(title=door_name, bind=places.http_bind, advertised=http, remedy=_HTTP_REMEDY))
        if has_tls:
            return doors
        base = parse_host_port(places.advertise)
        ranges = ranges_of(places, ephemeral_ports())
        free = (port for ports in reversed(ranges) for port in reversed(ports) if can_listen(places.backend_bind, port))
        port = next(free, None)
        if base is not None and base.host and port is not None:
            spans = " or ".join(f"{ports.start} to {ports.stop - 1}" for ports in ranges)
            doors.append(
                _Destination(
                    title="backends",
                    bind=HostPort(places.backend_bind, port),
                    advertised=HostPort(base.host, port),
                    remedy=f"open the ports {spans} to frontends and gateways, or set advertise_address",
                )
            )
        return doors

    async def _asked_to_call(self, url: str, tls: TlsCheck, addresses: list[str]) -> JoinCheckAnswer:
        headers = {"Authorization": f"Bearer {self._machine.bearer}", "Content-Type": "application/json"}
        body = msgspec.json.encode(JoinCheck(addresses=addresses))
        path = f"{url}/api/v1/join-checks"
        async with asked(self._session, "POST", path, headers=headers, data=body, tls=tls) as response:
            content, status = await read_body(response, _MAX_ANSWER), response.status
        if status != 200:
            raise PeerUnavailable(f"{host_of(url)} answered {status}: {error_text(content)}")
        return go_json.decode(content, JoinCheckAnswer)

    async def _judged(self, door: "_Door", call: DialledAddress | None, seen_from: str) -> CheckLine:
        where = f"{door.place.title} at {door.advertised}"
        if call is None:
            return CheckLine("ports", Verdict.WARNING, f"the frontend did not try {where}")
        if call.problem.startswith("not tried"):
            return CheckLine("ports", Verdict.WARNING, f"{where}: {call.problem}; is this machine behind a router?")
        if call.problem:
            return CheckLine(
                "ports", Verdict.FAILED, f"the frontend does not reach {where} ({call.problem}); {door.place.remedy}"
            )
        if not await door.heard(call.word, self._limits.patience):
            problem = f"what the frontend said does not arrive at {where}: nothing leads from there to here, or another"
            problem += f" machine or program has that address; {door.place.remedy}"
            return CheckLine("ports", Verdict.FAILED, problem)
        return CheckLine("ports", Verdict.OK, f"the frontend reaches {where}, from {seen_from} it seems")

    async def _nats(self) -> list[CheckLine]:
        url = self._machine.config.bus.url or ",".join(dict.fromkeys(self._offered or ()))
        if not url and self._offered is None:
            return [CheckLine("nats", Verdict.OK, "its address comes with the registration")]
        if not url:
            problem = "the frontend does not tell where NATS is; set nats_url (CORRAL_NATS_URL) on this machine"
            return [CheckLine("nats", Verdict.FAILED, problem)]
        try:
            endpoints = parse_endpoints(url)
        except InvalidInput as error:
            return [CheckLine("nats", Verdict.FAILED, f"the address of NATS cannot be used: {error.message}")]
        return [await self._nats_server(endpoint.host, endpoint.port) for endpoint in endpoints]

    async def _nats_server(self, host: str, port: int) -> CheckLine:
        """A NATS server speaks first."""
        where = str(HostPort(host, port))
        try:
            async with asyncio.timeout(self._limits.patience.total_seconds()):
                reader, writer = await asyncio.open_connection(host, port)
                try:
                    greeting = await reader.readline()
                finally:
                    writer.close()
        except (OSError, ValueError, TimeoutError) as error:
            why = "no answer" if isinstance(error, TimeoutError) else _reason(error)
            problem = f"{where} cannot be reached ({why}); is its port open for this machine, does it listen there?"
            return CheckLine("nats", Verdict.FAILED, f"{problem} (corral up --nats-host)")
        if not greeting.startswith(b"INFO "):
            return CheckLine("nats", Verdict.FAILED, f"what listens at {where} is no NATS server; check nats_url")
        return CheckLine("nats", Verdict.OK, f"{where} answers")


def _from_here(nats_urls: list[str], url: str) -> list[str]:
    """Return where this machine looks for the NATS servers that the frontend at a URL names."""
    try:
        return [reached_from(server_url, urlsplit(url).hostname or "") for server_url in nats_urls]
    except InvalidInput:
        return nats_urls  # judged later


_HTTP_REMEDY: Final = "open that port to frontends and gateways, or set advertise_http_address"


class _Destination(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    bind: HostPort
    advertised: HostPort
    remedy: str


class _Door:
    """A port that is open for a moment, and what was said there."""

    def __init__(self, place: _Destination) -> None:
        self.place = place
        self.advertised = place.advertised
        self._words: asyncio.Queue[bytes] = asyncio.Queue()
        self.callers: set[asyncio.Task[None]] = set()

    async def listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        try:
            if task is None or len(self.callers) >= _MOST_CALLERS:
                return
            self.callers.add(task)
            self._words.put_nowait(await reader.read(_WORD))
        except OSError:
            return  # somebody else's call
        finally:
            writer.close()

    async def heard(self, word: str, patience: timedelta) -> bool:
        try:
            async with asyncio.timeout(patience.total_seconds()):
                while not secrets.compare_digest(await self._words.get(), word.encode()):
                    pass
        except TimeoutError:
            return False
        return True


@asynccontextmanager
async def _listening(place: _Destination) -> AsyncIterator[_Door]:
    door = _Door(place)
    host = None if place.bind.host in ("", "::") else place.bind.host
    try:
        server = await asyncio.start_server(door.listen, host, place.bind.port, family=socket.AF_UNSPEC)
    except OSError as error:
        remedy = "stop it, or choose another port with address (--address)"
        raise AddressInUse(
            f"{place.title} cannot listen on {place.bind} ({_reason(error)}): another program has it; {remedy}"
        ) from error
    try:
        yield door
    finally:
        server.close()
        await end_tasks(*(task for task in door.callers if not task.done()))


def _reason(error: Exception) -> str:
    number = getattr(error, "errno", None)
    return os.strerror(number).lower() if isinstance(number, int) and number > 0 else "its name cannot be found"
