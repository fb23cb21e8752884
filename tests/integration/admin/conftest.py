"""A frontend for every test of the admin API, on both databases."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from corral.bus.port import Bus
from corral.state.db import Database
from corral.state.secrets_key import SecretsKey
from tests.kit.clock import ManualClock
from tests.kit.frontend import Frontend, frontend_config, open_frontend


@pytest.fixture
async def frontend(database: Database, clock: ManualClock, bus: Bus, tmp_path: Path) -> AsyncIterator[Frontend]:
    config = frontend_config(tmp_path)
    async with open_frontend(database, clock, bus, config, key=SecretsKey.generate()) as opened:
        yield opened
