"""A control with workers that are only their messages."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from corral.bus.port import Bus
from corral.state.db import Database
from tests.kit.clock import ManualClock
from tests.kit.shop import Shop, open_shop
from tests.kit.world import World, open_world


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    async with open_shop(tmp_path) as shop:
        yield shop


@pytest.fixture
async def world(database: Database, clock: ManualClock, bus: Bus, tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(database, clock, bus, tmp_path) as world:
        yield world
