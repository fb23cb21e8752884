"""The gateway process: builds its parts, serves, and closes them in reverse order."""

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Final

import msgspec
import uvloop

from corral.base.clock import Clock, SystemClock
from corral.base.errors import AddressInUse, SettingInvalid
from corral.base.ids import new_incarnation
from corral.base.own_network import is_this_machine
from corral.base.processes import allow_descriptors, look_for_garbage_rarely
from corral.base.tasks import run_services, stop_on_signals
from corral.gateway.bodies import UnfinishedHeads
from corral.gateway.config import GatewayConfig, Limits
from corral.gateway.control_link import ControlLink, GatewayReporter, ViewFollower
from corral.gateway.dialling import CertificateKey, EngineDialler, FleetDialler
from corral.gateway.dispatch import RequestDispatcher, Tasks
from corral.gateway.exchange import Services
from corral.gateway.pool import Pool
from corral.gateway.server import Server
from corral.gateway.tally import Ledger
from corral.gateway.upstream import Origin
from corral.gateway.view import Directory
from corral.gateway.vitals import complete_report

log = logging.getLogger(__name__)

_GOODBYE_SECONDS: Final = 1.0
_OWN_DESCRIPTORS: Final = 64
"""Descriptors of the program itself: libraries, log, listeners, and calls to control."""
_FEWEST_WAITING: Final = 16


class Gateway(msgspec.Struct, frozen=True, kw_only=True):
    """All parts of the gateway process, built and serving."""

    port: int
    services: Services
    server: Server
    follower: ViewFollower
    reporter: GatewayReporter


def main(config: GatewayConfig, *, ready: Callable[[int], None] = lambda port: None) -> None:
    """Serve at once, with or without control, until SIGTERM or SIGINT; then finish the responses, within a time limit.

    `ready` is called with the port. Raise AddressInUse or SettingInvalid when it cannot listen.
    """
    look_for_garbage_rarely()
    limits = fitting(config.limits, allowed_descriptors(config.limits))

    async def run() -> None:
        stop = asyncio.Event()
        with stop_on_signals(stop):
            async with open_gateway(replace(config, limits=limits)) as gateway:
                log.info("gateway is ready", extra={"event": "gateway.ready", "port": gateway.port})
                ready(gateway.port)
                await stop.wait()
                clients = gateway.server.client_count
                log.info("gateway stops", extra={"event": "gateway.stopping", "clients": clients})

    uvloop.run(run())


def allowed_descriptors(limits: Limits) -> int:
    """Return how many files and sockets this process may open, after raising the limit as far as needed and allowed."""
    return allow_descriptors(2 * limits.connections + 2 * limits.backlog + _OWN_DESCRIPTORS)


def fitting(limits: Limits, descriptors: int) -> Limits:
    """Reduce the connection limits to the available descriptors: half for clients, a quarter for replicas, and a
    quarter for clients that the kernel accepts before others are closed."""
    spare = max(descriptors - _OWN_DESCRIPTORS, 4)
    backlog = max(spare // 4, _FEWEST_WAITING)
    return replace(limits, connections=min(limits.connections, spare // 2), backlog=min(limits.backlog, backlog))


@asynccontextmanager
async def open_gateway(config: GatewayConfig, *, clock: Clock | None = None) -> AsyncIterator[Gateway]:
    """Serve until the end of the block. The loops run until the last response: a drain needs timeouts and reports."""
    async with AsyncExitStack() as stack:
        listener = stack.enter_context(listen(config))
        plain_config = replace(config, host="127.0.0.1", port=config.plain_port or 0)  # for programs of this machine
        plain = [] if config.plain_port is None else [stack.enter_context(listen(plain_config))]
        link = ControlLink(config)
        ports = frozenset(each.getsockname()[1] for each in (listener, *plain))
        services = wire(config, link, clock or SystemClock(), ports)
        stack.callback(services.pool.close)
        stack.push_async_callback(services.tasks.close)
        gateway = Gateway(
            port=listener.getsockname()[1],
            services=services,
            server=Server(services),
            follower=ViewFollower(link, services.directory, silence=config.view_silence, reconnect=config.reconnect),
            reporter=GatewayReporter(
                link, services.ledger, complete=partial(complete_report, services), period=config.report_period
            ),
        )
        services.directory.on_keys.append(gateway.reporter.ring)
        services.directory.on_names.append(gateway.reporter.ring)
        async with _running(gateway), gateway.server.serving(listener, *plain):
            yield gateway


def wire(config: GatewayConfig, link: ControlLink, clock: Clock, ports: frozenset[int]) -> Services:
    """Build the services and connect them. `ports` are those that this process listens on."""
    loop = asyncio.get_running_loop()
    directory, tasks = Directory(now=loop.time()), Tasks()
    control = Origin.of(config.control_url)
    own_ports = ports if control.socket else ports | {control.port}

    def is_ours(address: str, port: int) -> bool:
        return directory.is_fleet_address(address, port) or (port in own_ports and is_this_machine(address))

    engines = EngineDialler(loop, is_ours=is_ours)
    fleet = FleetDialler(loop, ask=link.certificate, new_key=_new_key, clock=clock)
    pool = Pool(
        config.limits, config.time_outs, loop, control=control, engines=engines, fleet=fleet, tls=config.control_tls
    )
    directory.on_change.append(lambda: fleet.need() if directory.has_doors() else None)
    directory.on_change.append(lambda: pool.keep_only({control, *directory.origins()}))
    return Services(
        config=config,
        clock=clock,
        loop=loop,
        control=control,
        pool=pool,
        directory=directory,
        dispatcher=RequestDispatcher(config, directory, link, tasks),
        ledger=Ledger(new_incarnation()),
        tasks=tasks,
        fleet=fleet,
        heads=UnfinishedHeads(config.limits.unfinished_heads),
    )


def _new_key() -> CertificateKey:
    """A key for a certificate. Its library is imported only where TLS inside the fleet is on: it takes memory."""
    from corral.base.tls_keys import PrivateKey

    return PrivateKey()


@asynccontextmanager
async def _running(gateway: Gateway) -> AsyncIterator[None]:
    """Run the loops beside the server. A failing loop ends the process."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(
            run_services(
                stop,
                view=gateway.follower.run(),
                reports=gateway.reporter.run(),
                time_outs=gateway.server.watch_time_outs(),
                certificate=gateway.services.fleet.run(),
            ),
            name="gateway loops",
        )
        try:
            yield
        finally:
            stop.set()
    # Control counts our share as unknown unless it gets a last report.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_GOODBYE_SECONDS):
            await gateway.reporter.send(is_last=True)


def listen(config: GatewayConfig) -> socket.socket:
    """Bind the address first, so that a taken port is reported before anything else happens."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if config.reuse_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((config.host, config.port))
        listener.listen(config.limits.backlog)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            problem = f"port {config.port} on {config.host} is taken by another program; choose another with --port"
            raise AddressInUse(problem) from None
        raise SettingInvalid("host", f"cannot listen on {config.host}: {error.strerror or error}") from error
    listener.setblocking(False)
    return listener
