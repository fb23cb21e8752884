"""Builds the gateway's report about itself: its counters, its current state, and the process's memory and CPU time."""

import os
import socket
import time
from pathlib import Path
from typing import Final

from corral import __version__
from corral.gateway.exchange import Services
from corral.gateway.tally import ModelTally
from corral.wire.metrics import GatewayCounts, ModelCounts, RequestCount
from corral.wire.view import GatewayReport

_MEMORY: Final = Path("/proc/self/statm")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def current_counts(services: Services) -> GatewayCounts:
    """Read the values on demand, once a second and on request: nothing here is kept up to date in between."""
    tally, directory = services.tally, services.directory
    return GatewayCounts(
        host=socket.gethostname(),
        pid=os.getpid(),
        version=__version__,
        models=_models(services),
        connections=tally.connections,
        refusals=dict(tally.refusals),
        passed=dict(tally.passed),
        time_outs=dict(tally.time_outs),
        retries=tally.retries,
        reconnects=tally.reconnects,
        cpu_seconds=round(time.process_time(), 3),
        open_connections=tally.open_connections,
        upstream_open=services.pool.open_count,
        upstream_idle=services.pool.idle_count,
        body_bytes=services.bodies.held,
        view_age_seconds=None if directory.version is None else round(directory.age(services.loop.time()), 3),
        memory_bytes=_resident_bytes(),
    )


def complete_report(services: Services, report: GatewayReport) -> GatewayReport:
    """Fill in the current values of a report."""
    report.view_version = services.directory.version
    report.keys_digest = services.directory.keys_digest
    report.models_digest = services.directory.models_digest
    report.in_flight = services.directory.in_flight()
    report.waiting = services.dispatcher.waiting()
    report.counts = current_counts(services)
    report.trusted_proxies = [str(network) for network in services.config.trusted_proxies]
    return report


def _models(services: Services) -> dict[str, ModelCounts]:
    in_flight, waiting = services.directory.in_flight_by_model(), services.dispatcher.waiting()
    models: dict[str, ModelCounts] = {}
    for name in {*services.tally.models, *in_flight, *waiting}:
        tally = services.tally.models.get(name) or ModelTally()
        models[name] = ModelCounts(
            requests=[
                RequestCount(code=code, outcome=outcome, requests=times)
                for (code, outcome), times in sorted(tally.requests.items())
            ],
            prompt_tokens=tally.prompt_tokens,
            completion_tokens=tally.completion_tokens,
            request_bytes=tally.request_bytes,
            answer_bytes=tally.answer_bytes,
            waits=tally.waits,
            wait_seconds=round(tally.wait_seconds, 3),
            first_byte=tally.first_byte,
            answer_seconds=round(tally.answer_seconds, 3),
            in_flight=in_flight.get(name, 0),
            waiting=waiting.get(name, 0),
        )
    return models


def _resident_bytes() -> int:
    """Return 0 where the system does not report it."""
    try:
        return int(_MEMORY.read_bytes().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0
