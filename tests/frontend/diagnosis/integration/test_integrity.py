"""The thorough check of the database that `corral doctor --deep` asks for."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, update

from corral.bus.port import Bus
from corral.frontend.store.db import Database
from corral.frontend.store.schema import marks
from corral.frontend.store.schema import secrets as secrets_table
from corral.frontend.store.secrets import SecretsKey
from tests.kit.clock import ManualClock
from tests.kit.frontend import Frontend, frontend_config, open_frontend
from tests.kit.samples import after


@pytest.fixture
async def frontend(database_url: str, clock: ManualClock, bus: Bus, tmp_path: Path) -> AsyncIterator[Frontend]:
    config = replace(frontend_config(tmp_path), database_url=database_url)
    database = await Database.open(database_url)
    try:
        async with open_frontend(database, clock, bus, config, key=SecretsKey.generate()) as opened:
            yield opened
    finally:
        await database.close()


def overwrite_a_page(file: Path) -> None:
    content = file.read_bytes()
    half = len(content) // 2 // 4096 * 4096
    file.write_bytes(content[:half] + b"\xff" * 4096 + content[half + 4096 :])


async def integrity(frontend: Frontend) -> tuple[str, str]:
    report: Any = (await frontend.call("GET", "/api/v1/doctor?deep=true")).json()
    (finding,) = [each for each in report["findings"] if each["check"] == "integrity"]
    return finding["level"], finding["summary"]


async def test_a_whole_database_is_well(frontend: Frontend) -> None:
    assert await integrity(frontend) == ("ok", "every page, row and sealed secret of the database can be read")


async def test_it_is_not_asked_for_by_default_and_nonsense_is_refused(frontend: Frontend) -> None:
    report: Any = (await frontend.call("GET", "/api/v1/doctor")).json()
    assert "integrity" not in {finding["check"] for finding in report["findings"]}

    refused = await frontend.call("GET", "/api/v1/doctor?deep=maybe")
    assert refused.status == 400
    assert b"deep: must be true or false, got 'maybe'" in refused.body


async def test_a_secret_that_the_key_does_not_open_is_named(frontend: Frontend) -> None:
    secrets = frontend.control.context.secrets
    await secrets.replace("node/n1", "value", at=after(0))
    async with frontend.control.context.database.begin() as connection:
        broken = update(secrets_table).where(secrets_table.c.name == "node/n1").values(sealed=b"\x01" * 40)
        await connection.execute(broken)

    assert await integrity(frontend) == ("problem", "the secrets key does not open these secrets: node/n1")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_a_damaged_page_is_found(frontend: Frontend) -> None:
    database = frontend.control.context.database
    async with database.begin() as connection:
        await connection.execute(insert(marks), [{"name": f"{n:0100}", "made_at": after(0)} for n in range(2000)])
    async with database.write() as connection:
        await connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    overwrite_a_page(Path(frontend.control.context.config.database_url.removeprefix("sqlite:///")))

    level, summary = await integrity(frontend)

    assert level == "problem"
    assert summary.startswith("the database is damaged: ")


async def test_one_reads_the_whole_database_at_a_time_and_no_viewer_does(frontend: Frontend) -> None:
    keys = {}
    for role in ("operator", "viewer"):
        made: Any = (await frontend.call("POST", "/api/v1/keys", {"name": role, "scopes": [role]})).json()
        keys[role] = made["key"]
    refused = await frontend.call("GET", "/api/v1/doctor?deep=true", key=keys["viewer"])
    assert (refused.status, b"operations.act" in refused.body) == (403, True)
    assert (await frontend.call("GET", "/api/v1/doctor", key=keys["viewer"])).status == 200

    calls = [frontend.call("GET", "/api/v1/doctor?deep=true", key=keys["operator"]) for _ in range(5)]
    assert sorted([answer.status for answer in await asyncio.gather(*calls)]) == [200, 429, 429, 429, 429]
    assert (await frontend.call("GET", "/api/v1/doctor?deep=true", key=keys["operator"])).status == 200
