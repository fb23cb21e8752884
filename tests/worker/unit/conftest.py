"""Doubles for one worker's surroundings: a clock that costs no time, a machine that is always the same."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from corral.base.ids import NodeId
from corral.wire.registration import FEATURES, CorralHello
from corral.worker.hardware.machine import Measurement
from corral.worker.hardware.readings import Space
from corral.worker.membership.addresses import AddressConfig, decide
from corral.worker.membership.registration import AcceptedRegistration, Profile


class InstantClock:
    """Sleeps cost nothing and are written down."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.slept: list[float] = []

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.seconds += seconds
        await asyncio.sleep(0)


class Readings:
    """Measurements, one after the other; the last one stays."""

    def __init__(self, readings: Sequence[Measurement]) -> None:
        self._readings = list(readings)

    async def measure(self) -> Measurement:
        return self._readings.pop(0) if len(self._readings) > 1 else self._readings[0]


@pytest.fixture
def clock() -> InstantClock:
    return InstantClock()


@pytest.fixture
def measured() -> Measurement:
    return Measurement(
        ram=Space(total=25274793984, available=24444141568), disk=Space(total=270553174016, available=73109417984)
    )


@pytest.fixture
def gauge(measured: Measurement) -> Readings:
    return Readings([measured])


@pytest.fixture
def profile() -> Profile:
    return Profile(
        name="w1",
        addresses=decide(AddressConfig(addr="127.0.0.1:51101", advertise_http_addr="127.0.0.1:51190"), "box"),
        token="tok",
        hello=CorralHello(
            version="0.1.0", features=list(FEATURES), secret="own-secret", incarnation="life-1", heartbeat_seconds=10
        ),
        labels={"site": "lab", "tier": "test"},
    )


@pytest.fixture
def member() -> AcceptedRegistration:
    return AcceptedRegistration(node_id=NodeId("b7a906b9-07eb-4422-842c-cd3275dd7934"), bearer="tok", status="healthy")
