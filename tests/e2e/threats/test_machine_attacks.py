"""Disks, processes and ports under attack: what lies around in a fleet, and what the owner of a database can do."""

import hashlib
import re
import stat
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import insert, select

from corral.base.ids import new_secret
from corral.frontend.routes import ROUTES
from corral.frontend.store.db import Database
from corral.frontend.store.schema import api_keys, metadata
from corral.frontend.store.secrets import Secrets, SecretsKey, node_secret_name
from corral.wire.keys import hash_secret, new_key
from tests.kit.threats import AttackedFleet, ask_http
from tests.kit.waiting import wait_until

ENDLESS = ("/stream", "/live")
"""What ends only with its reader."""
GUARDED_BY_WORKERS = ("/v1/files/x", "/v1/files-list/models/", "/v1/corral/files/x", "/v1/backend-logs", "//v1/files/x")


NATS_SEED = re.compile(rb"\bS[AOU][A-Z2-7]{56}\b")
"""Of an account, an operator or a user."""


@pytest.fixture(scope="module")
def secrets(fleet: AttackedFleet) -> dict[str, str]:
    """One of each kind, all of them in use."""
    password = new_secret()
    fleet.good("POST", "/api/v1/users", {"name": "eve", "role": "viewer", "password": password})
    invitation = fleet.good("POST", "/api/v1/invitations", {"expires_in": "1h"})
    return {
        "administrator key": fleet.admin_key,
        "registration token": fleet.registration_token,
        "node secret": fleet.secret_of("worker-1"),
        "gateway key": fleet.new_key("a gateway", "gateway"),
        "password": password,
        "join code": invitation["code"],
    }


@pytest.fixture
async def database(fleet: AttackedFleet) -> AsyncIterator[Database]:
    """As somebody opens it who has the file or the password of the database."""
    opened = await Database.open(fleet.database, lock=False)
    yield opened
    await opened.close()


async def dump(database: Database) -> str:
    """All rows of all tables."""
    rows: list[Any] = []
    async with database.read() as connection:
        for table in metadata.sorted_tables:
            rows += (await connection.execute(select(table))).all()
    return repr(rows)


async def test_the_database_holds_no_secret_that_can_be_presented(
    fleet: AttackedFleet, secrets: dict[str, str], database: Database
) -> None:
    text = await dump(database)
    assert fleet.victim() in text, "it is the right one"
    assert [name for name, secret in secrets.items() if secret in text or secret.replace("-", "") in text] == []
    assert hash_secret(secrets["node secret"]) in text
    for path in ("/api/v1/nodes", "/api/v1/keys"):  # a hash is no key
        assert fleet.call("GET", path, key=hash_secret(fleet.admin_key)).status == 401


async def test_who_writes_the_database_owns_the_fleet(fleet: AttackedFleet, database: Database) -> None:
    """Nobody is kept from it, and the page says so: protect the database like the frontends."""
    key, now = new_key(), datetime.now(UTC)
    row = {"id": "k-thief", "name": "thief", "hash": hash_secret(key), "scopes": ["admin"], "created_by": "thief"}
    async with database.begin() as connection:
        await connection.execute(insert(api_keys).values(created_at=now, **row))
    wait_until(lambda: fleet.call("GET", "/api/v1/nodes", key=key).status == 200, "the key to open the API")
    listed = fleet.good("GET", "/api/v1/keys")
    assert "thief" in [entry["name"] for entry in listed], "people see it"
    assert fleet.admin("DELETE", "/api/v1/keys/k-thief").status in (202, 204)


async def test_who_owns_the_frontends_host_opens_what_is_sealed(fleet: AttackedFleet, database: Database) -> None:
    """Nobody is kept from it: the key is a file there."""
    (file,) = [path for folder in fleet.folders for path in folder.rglob("secrets.key")]
    opened = Secrets(database, SecretsKey.from_text(file.read_text().strip()))
    assert await opened.get(node_secret_name(fleet.victim())) == fleet.secret_of("worker-1")  # type: ignore[arg-type]


def test_no_secret_is_in_a_command_line_or_a_log(fleet: AttackedFleet, secrets: dict[str, str]) -> None:
    lines = [" ".join(psutil.Process(pid).cmdline()) for pid in fleet.pids()]
    logs = [path for folder in fleet.folders for path in [*folder.rglob("*.log"), *folder.parent.glob("*.log")]]
    texts = [*lines, *(path.read_text(errors="replace") for path in logs)]
    assert len(lines) >= 5
    assert sum(map(len, texts)) > 1000, "there is something to look at"
    assert [name for name, secret in secrets.items() for text in texts if secret in text] == []


def test_files_with_secrets_are_private(fleet: AttackedFleet, secrets: dict[str, str]) -> None:
    files = [path for folder in fleet.folders for path in folder.rglob("*") if is_small_file(path)]
    holding = [path for path in files if any(secret.encode() in path.read_bytes() for secret in secrets.values())]
    seeds = [path for path in files if path.name == "secrets.key" or NATS_SEED.search(path.read_bytes())]
    assert {path.name for path in holding} >= {"node-secret"}
    assert len(seeds) >= 3, "the sealing key, those of the NATS account and its operator, and the system user's"
    assert [path for path in [*holding, *seeds] if stat.S_IMODE(path.stat().st_mode) & 0o077] == []


def is_small_file(path: Path) -> bool:
    try:
        return path.is_file() and not path.is_symlink() and path.stat().st_size < 1_000_000
    except OSError:  # it went away
        return False


@pytest.mark.parametrize(
    "holder", ["stranger", "registration token", "another node", "administrator", "gateway", "forged ticket"]
)
def test_a_workers_files_and_logs_open_to_its_own_secret_only(fleet: AttackedFleet, holder: str) -> None:
    keys = {
        "stranger": "",
        "registration token": fleet.registration_token,
        "another node": fleet.secret_of("worker-2"),
        "administrator": fleet.admin_key,
        "gateway": fleet.new_key("one more gateway", "gateway"),
        "forged ticket": f"{'e30'}.{hashlib.sha256(b'guess').hexdigest()}",
    }
    address = f"http://{fleet.nodes()['worker-1']['http_address']}"
    schemes = ("Bearer", "Corral-Ticket")
    for path in GUARDED_BY_WORKERS:
        for method in ("GET", "PUT", "HEAD"):
            for scheme in schemes:
                headers = {"Authorization": f"{scheme} {keys[holder]}"} if keys[holder] else {}
                assert ask_http(method, address + path, headers=headers).status == 401, (method, path)
    own = ask_http("GET", f"{address}/v1/files/nothing", key=fleet.secret_of("worker-1"))
    assert own.status == 404, "it is a question of who asks"


@pytest.mark.parametrize("scope", ["viewer", "operator", "admin"])
def test_what_people_read_holds_no_secret(fleet: AttackedFleet, secrets: dict[str, str], scope: str) -> None:
    """Every page that can be read, about a node where it is about one."""
    key, victim = fleet.new_key(f"reads as {scope}", scope), fleet.victim()
    read = 0
    for route in ROUTES:
        if route.method != "GET" or route.path.startswith("/ws/") or route.path.endswith(ENDLESS):
            continue
        reply = fleet.call("GET", re.sub(r"\{\w+(:path)?\}", victim, route.path), key=key)
        read += reply.status == 200
        found = [name for name, secret in secrets.items() if secret.encode() in reply.body]
        assert found == [], route.path
    assert read > 20
