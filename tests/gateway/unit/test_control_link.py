"""What a gateway says about a control that does not answer: nothing alarming while both are starting."""

import asyncio
from datetime import timedelta
from typing import Any, cast

import pytest

from corral.base.errors import PeerUnavailable
from corral.base.retry import Backoff
from corral.base.tasks import end_tasks, start_task
from corral.gateway.control_link import STARTING_SECONDS, ControlLink, GatewayReporter, ViewFollower
from corral.gateway.tally import Ledger
from corral.gateway.view import Directory
from tests.kit.loop_time import let_loop_time_pass

AWAY = PeerUnavailable("control does not listen")


class AbsentControl:
    """Counts how often it was asked in vain."""

    def __init__(self) -> None:
        self.asked = asyncio.Semaphore(0)

    async def report(self, report: object) -> None:
        self.asked.release()
        raise AWAY

    def view_lines(self, silence: timedelta) -> "AbsentControl":
        return self

    def __aiter__(self) -> "AbsentControl":
        return self

    async def __anext__(self) -> bytes:
        self.asked.release()
        raise AWAY


def follower(control: AbsentControl) -> ViewFollower:
    pause = Backoff(first=timedelta(seconds=1), cap=timedelta(seconds=1))
    return ViewFollower(cast(ControlLink, control), Directory(), silence=timedelta(seconds=9), reconnect=pause)


def reporter(control: AbsentControl) -> GatewayReporter:
    period = timedelta(seconds=1)
    return GatewayReporter(cast(ControlLink, control), Ledger("g"), complete=lambda report: report, period=period)


@pytest.mark.parametrize(
    ("make", "alarm"),
    [
        (follower, "no view from control: control does not listen"),
        (reporter, "control took no report: control does not listen"),
    ],
)
async def test_a_control_that_is_starting_alarms_nobody_and_one_that_stays_away_does(
    make: Any, alarm: str, caplog: pytest.LogCaptureFixture
) -> None:
    control = AbsentControl()
    running = start_task(make(control).run(), name="asks control")

    async def ask_again(after: float, times: int) -> list[str]:
        for _ in range(times):
            await asyncio.sleep(0)
            let_loop_time_pass(timedelta(seconds=after))
            await control.asked.acquire()
        return [record.message for record in caplog.records if record.levelname == "WARNING"]

    assert await ask_again(1, int(STARTING_SECONDS) - 5) == []
    assert await ask_again(STARTING_SECONDS, 5) == [alarm]
    await end_tasks(running)
