"""Two frontends and five workers, of which one is off, one is slow and one never answers: what both frontends show.

Nothing is random here, and figures stand beside promises: a node that returns gets what waited for it within a second
of its heartbeat, and an install that takes longer than it is waited for is yellow, and then green, and never red.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

import msgspec

from chaos.databases import mortal_postgres
from chaos.operation_fleet import Fleet, Plan, open_fleet, operation_at
from chaos.people import Ledger, Person, Wish
from chaos.round import Workshop
from chaos.workers import Behave, Join, Leave, Look, Return
from corral.frontend.operations.decide.operation import OperationState, TargetStatus
from corral.wire.operation_views import JobStatus, OperationAsk, OperationView
from tests.kit.processes import HttpProcess
from tests.kit.waiting import eventually

CORRAL: Final = ("c1", "c2", "c3")
LOCALAI: Final = ("l1", "l2")
AWAY: Final = "c3"
SLOW: Final = "l2"
SILENT: Final = "c1"
TIMEOUT_SECONDS: Final = 5.0
SLOW_SECONDS: Final = 20.0
RETURN_SECONDS: Final = 1.0
_PATIENCE_SECONDS: Final = 120.0


async def of_one_among_five(workshop: Workshop) -> None:
    async with mortal_postgres(workshop.databases) as (url, postgres):
        plan = Plan(
            database_url=url,
            postgres=postgres,
            frontends=("f1", "f2"),
            corral=CORRAL,
            localai=LOCALAI,
            interval_seconds=1.0,
            timeout_seconds=TIMEOUT_SECONDS,
        )
        async with open_fleet(workshop.directory / "five", plan) as fleet:
            await fleet.workers.do(Join())
            watch = Watch(workshop, fleet)
            for verb in ("install", "upgrade", "delete"):
                await watch.someone_returns(verb)
            await watch.an_answer_is_lost()
            await watch.an_install_is_slow()


class Watch:
    """One operation after the other, seen at both frontends."""

    def __init__(self, workshop: Workshop, fleet: Fleet) -> None:
        self._measure = workshop.story.measure
        self._fleet = fleet
        self._person = Person("ann", 1, Ledger(), frontends=fleet.frontends, backends=["alpha"])

    async def someone_returns(self, verb: str) -> None:
        await self._fleet.workers.do(Leave(names=[AWAY]))
        wish = await self._ask(OperationAsk(verb=verb, backend="alpha"))
        await self._until(wish, lambda shown: shown.state == OperationState.WAITING)
        states = await self._fleet.workers.do(Return(names=[AWAY]))
        await self._until(wish, lambda shown: shown.state == OperationState.DONE)
        after = (await self._fleet.workers.do(Look()))[AWAY]
        returned = states[AWAY].returned_at
        assert returned is not None
        seconds = (after.journal[-1].at - returned).total_seconds()
        self._measure(f"{verb}: {AWAY} was done {seconds:+.2f} s after the heartbeat with which it was back")
        assert seconds <= RETURN_SECONDS

    async def an_answer_is_lost(self) -> None:
        """Lose the answer to an upgrade: nothing is downloaded twice."""
        wish = await self._ask(OperationAsk(verb="install", backend="beta"))
        await self._until(wish, lambda shown: shown.state == OperationState.DONE)
        await self._fleet.workers.do(Behave(names=[SILENT], silent=True))
        wish = await self._ask(OperationAsk(verb="upgrade", backend="beta"))
        await self._until(wish, lambda shown: _status(shown, SILENT) == TargetStatus.RUNNING_ON_WORKER)
        shown = await self._until(wish, lambda shown: shown.state == OperationState.DONE)
        after = (await self._fleet.workers.do(Behave(names=[SILENT])))[SILENT]
        downloads = [one for one in after.journal if one.operation == wish.operation]
        assert len(downloads) == 1, downloads
        assert not any(one.attempts for one in shown.targets)
        self._measure(f"upgrade: the answer of {SILENT} was lost; it is proven by its report, 1 download, 0 attempts")

    async def an_install_is_slow(self) -> None:
        """Four times as slow as it is waited for."""
        await self._fleet.workers.do(Behave(names=[SLOW], work_seconds=SLOW_SECONDS))
        began = time.monotonic()
        wish = await self._ask(OperationAsk(verb="install", backend="gamma"))
        shown = await self._until(wish, lambda shown: _status(shown, SLOW) == TargetStatus.RUNNING_ON_WORKER)
        yellow = time.monotonic() - began
        for frontend in self._fleet.frontends:
            job = await _job(frontend, wish)
            assert job.processed, job
            assert "still installing in background" in job.message, job
        assert not any(one.attempts for one in shown.targets)
        shown = await self._until(wish, lambda shown: shown.state == OperationState.DONE)
        green = time.monotonic() - began
        assert not any(one.attempts for one in shown.targets)
        after = (await self._fleet.workers.do(Look()))[SLOW]
        downloads = [one for one in after.journal if one.operation == wish.operation]
        assert len(downloads) == 1, downloads
        self._measure(
            f"an install of {SLOW_SECONDS:g} s with a time-out of {TIMEOUT_SECONDS:g} s: yellow after {yellow:.1f} s, "
            f"green after {green:.1f} s, 1 download, 0 attempts"
        )

    async def _ask(self, wanted: OperationAsk) -> Wish:
        wish = await self._person.ask(wanted)
        assert wish is not None, f"{wanted} was refused"
        return wish

    async def _until(self, wish: Wish, is_it: Callable[[OperationView], bool]) -> OperationView:
        """Until both frontends show it; they must never contradict each other then."""
        for frontend in self._fleet.frontends:

            async def shows(frontend: HttpProcess = frontend) -> bool:
                return is_it(await operation_at(frontend, wish.operation))

            await eventually(shows, f"{frontend.name} to show it", seconds=_PATIENCE_SECONDS)
        first, second = await asyncio.gather(
            *(operation_at(frontend, wish.operation) for frontend in self._fleet.frontends)
        )
        if first.changed_at == second.changed_at:
            assert _shown(first) == _shown(second)
        return first


def _status(shown: OperationView, name: str) -> str:
    return next(one.status for one in shown.targets if one.node_name == name)


def _shown(operation: OperationView) -> object:
    return operation.state, [(one.node_id, one.status, one.message, one.attempts) for one in operation.targets]


async def _job(frontend: HttpProcess, wish: Wish) -> JobStatus:
    answer = await frontend.call("GET", f"/api/backends/job/{wish.operation}")
    return msgspec.json.decode(answer.body, type=JobStatus)
