"""Real frontends on a real nats-server, with simulated workers in a process of their own."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from chaos.workers import Surroundings, Workers
from corral.base.ids import new_secret
from corral.frontend.store.secrets import SecretsKey
from corral.wire.operation_views import OperationPage, OperationView
from tests.kit.admin_api import AdminApi, open_session
from tests.kit.plain_nats import PlainNats
from tests.kit.ports import lasting_port
from tests.kit.postgres import PostgresServer
from tests.kit.processes import ControlProcess, FrontendProcess, HttpProcess, said_once

BACKENDS: Final = ("alpha", "beta", "gamma", "delta")
"""What the only gallery has."""
_PAGE: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a fleet consists of."""

    database_url: str = field(repr=False)
    postgres: PostgresServer | None
    frontends: Sequence[str]
    """Names of whole frontends."""
    controls: Sequence[str] = ()
    """Names of further ones that are a control process and nothing else: they start sooner."""
    corral: Sequence[str]
    """Names of workers."""
    localai: Sequence[str]
    interval_seconds: float
    """Interval of heartbeats."""
    timeout_seconds: float
    """Timeout of requests to workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    frontends: Sequence[HttpProcess]
    nats: PlainNats
    postgres: PostgresServer | None
    workers: Workers


@asynccontextmanager
async def open_fleet(folder: Path, plan: Plan) -> AsyncIterator[Fleet]:
    """The frontends are ready, the workers have not joined."""
    folder.mkdir()  # noqa: ASYNC240 - before anything runs
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(PlainNats(folder / "nats", port=lasting_port()))
        session = await stack.enter_async_context(open_session())
        token = new_secret()
        settings = {
            "CORRAL_DATABASE": plan.database_url,
            "CORRAL_NATS_URL": nats.frontend_url,
            "CORRAL_REGISTRATION_TOKEN": token,
            "CORRAL_AUTO_APPROVE": "true",
            "CORRAL_SECRETS_KEY": SecretsKey.generate().to_text(),
            "LOCALAI_NATS_BACKEND_INSTALL_TIMEOUT": f"{plan.timeout_seconds:g}s",
            "LOCALAI_NATS_BACKEND_UPGRADE_TIMEOUT": f"{plan.timeout_seconds:g}s",
            "CORRAL_DELETE_TIMEOUT": f"{plan.timeout_seconds:g}s",
            **_gallery(folder),
        }
        own = {name: {**settings, "CORRAL_DATA": str(folder / name)} for name in (*plan.frontends, *plan.controls)}
        frontends: list[HttpProcess] = [FrontendProcess(name, session, own[name]) for name in plan.frontends]
        frontends += [ControlProcess(session, own[name], name=name) for name in plan.controls]
        for frontend in frontends:
            await stack.enter_async_context(frontend)
        for frontend in frontends:
            await frontend.until_ready()
        key = said_once(frontends, lambda frontend: frontend.new_keys)
        for frontend in frontends:
            frontend.admin_key = key
        surroundings = Surroundings(
            frontend_urls=[frontend.url for frontend in frontends],
            registration_token=token,
            nats_url=nats.frontend_url,
            interval_seconds=plan.interval_seconds,
            corral=list(plan.corral),
            localai=list(plan.localai),
        )
        workers = await stack.enter_async_context(Workers(surroundings))
        yield Fleet(frontends=frontends, nats=nats, postgres=plan.postgres, workers=workers)


def _gallery(folder: Path) -> dict[str, str]:
    index = folder / "index.yaml"
    index.write_text("".join(f"- name: {one}\n  uri: oci://registry.invalid/{one}:latest\n" for one in BACKENDS))
    sources = [{"name": "chaos", "url": f"file://{index}"}]
    return {
        "CORRAL_BACKEND_GALLERIES": msgspec.json.encode(sources).decode(),
        "CORRAL_GALLERY_CACHE": str(folder / "galleries"),
    }


async def history_of(frontend: AdminApi) -> list[OperationView]:
    """All operations, the newest first."""
    found: list[OperationView] = []
    cursor: str | None = ""
    while cursor is not None:
        page = await _page(frontend, cursor)
        found += page.items
        cursor = page.next_cursor
    return found


async def _page(frontend: AdminApi, cursor: str) -> OperationPage:
    path = f"/api/v1/operations?limit={_PAGE}" + (f"&cursor={cursor}" if cursor else "")
    answer = await frontend.call("GET", path)
    assert answer.status == 200, answer
    return msgspec.json.decode(answer.body, type=OperationPage)


async def operation_at(frontend: AdminApi, id: str) -> OperationView:
    answer = await frontend.call("GET", f"/api/v1/operations/{id}")
    assert answer.status == 200, answer
    return msgspec.json.decode(answer.body, type=OperationView)
