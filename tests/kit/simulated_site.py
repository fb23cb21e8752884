"""Frontends as people run them, real processes on one database and one NATS server, with simulated nodes: where a test
needs many nodes, or more frontends than one.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from corral.frontend.store.secrets import SecretsKey
from tests.kit.admin_api import open_session
from tests.kit.backends import BACKENDS
from tests.kit.loop_thread import LoopThread
from tests.kit.plain_nats import PlainNats
from tests.kit.ports import lasting_port
from tests.kit.processes import FrontendProcess, WorkerProcess, ready_together
from tests.kit.registry import FakeRegistry
from tests.kit.simulated_fleet import FleetTarget, SimulatedFleet
from tests.kit.up import call

INTERVAL_SECONDS: Final = 2
"""Between heartbeats of real workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedSite:
    frontends: Sequence[FrontendProcess]
    fleet: SimulatedFleet
    """Its nodes join the first frontend."""
    folder: Path
    worker_environment: Mapping[str, str]

    @property
    def admin_key(self) -> str:
        return self.frontends[0].admin_key

    def worker(self, name: str) -> WorkerProcess:
        """A real one beside the simulated nodes, which the caller starts and ends."""
        return WorkerProcess(name, self.folder / name, self.worker_environment)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedFleet:
    """Real workers beside simulated nodes, for code that has no event loop of its own, such as tests in a browser."""

    loop: LoopThread
    site: SimulatedSite
    registry: FakeRegistry
    workers: dict[str, WorkerProcess]

    @property
    def url(self) -> str:
        return self.site.frontends[0].url

    @property
    def key(self) -> str:
        return self.site.admin_key

    def api(self, method: str, path: str, body: object = None) -> Any:
        """As the administrator; the answer must be a good one."""
        answer = call(method, self.url + path, body, key=self.key)
        if not 200 <= answer.status < 300:
            raise AssertionError(f"{method} {path}: {answer.status} {answer.body!r}")
        return answer.json() if answer.body else None


@asynccontextmanager
async def simulated_site(
    folder: Path,
    *,
    database: str = "",
    count: int = 1,
    settings: Mapping[str, str] | None = None,
    worker_settings: Mapping[str, str] | None = None,
) -> AsyncIterator[SimulatedSite]:
    """So many frontends, which approve everybody; on a SQLite file unless a database is given, which more than one
    needs. `settings` are for them, `worker_settings` for real workers."""
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(PlainNats(folder / "nats", port=lasting_port()))
        session = await stack.enter_async_context(open_session())
        shared = {
            "CORRAL_DATABASE": database or f"sqlite:///{folder / 'corral.db'}",
            "CORRAL_NATS_URL": nats.frontend_url,
            "CORRAL_SECRETS_KEY": SecretsKey.generate().to_text(),
            "CORRAL_AUTO_APPROVE": "true",
            "CORRAL_SOURCE_REGISTRATIONS": "0",  # all simulated nodes come from here
            **(settings or {}),
        }
        names = [f"frontend-{number}" for number in range(1, count + 1)]
        frontends = [FrontendProcess(name, session, {**shared, "CORRAL_DATA": str(folder / name)}) for name in names]
        for frontend in frontends:
            await stack.enter_async_context(frontend)
        token = await ready_together(frontends)
        target = FleetTarget(
            frontend_url=frontends[0].url,
            registration_token=token,
            nats_url=nats.worker_url,
        )
        fleet = await stack.enter_async_context(SimulatedFleet(target))
        of_workers = {
            "CORRAL_REGISTER_TO": ",".join(frontend.url for frontend in frontends),
            "CORRAL_REGISTRATION_TOKEN": target.registration_token,
            "CORRAL_NATS_URL": nats.worker_url,
            "CORRAL_HEARTBEAT_INTERVAL": f"{INTERVAL_SECONDS}s",
            "CORRAL_BACKEND_READ_PATHS": str(BACKENDS),
            **(worker_settings or {}),
        }
        yield SimulatedSite(frontends=frontends, fleet=fleet, folder=folder, worker_environment=of_workers)
