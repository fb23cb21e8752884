"""The launcher's side of a frontend's adapter: started when somebody waits for one, replaced when it hangs."""

import socket
from datetime import timedelta
from pathlib import Path

from corral.base.private_files import bind_private_socket
from corral.base.processes import ChildCommand
from corral.processes.adapter_child import FrontendAdapter
from tests.kit.clock import ManualClock
from tests.kit.waiting import eventually


async def test_one_that_hangs(tmp_path: Path) -> None:
    started: list[int] = []

    def command(listener: socket.socket) -> ChildCommand:
        started.append(listener.fileno())
        return ChildCommand(argv=["/bin/sleep", "1000"], env={}, shared=[listener.fileno()])

    async def has_started(count: int) -> bool:
        return len(started) == count

    clock, path = ManualClock(), tmp_path / "a.sock"
    with bind_private_socket(path) as listener, socket.socket(socket.AF_UNIX) as control:
        async with FrontendAdapter(listener=listener, command=command, clock=clock).kept():
            assert started == [], "nobody needs one"
            control.connect(str(path))
            await eventually(lambda: has_started(1), "the start")

            for _ in range(3):  # looks that find control waiting
                await clock.until_sleeping(1)
                assert len(started) == 1
                await clock.advance(timedelta(seconds=5))
            await clock.until_sleeping(1)  # before the next start
            await clock.advance(timedelta(seconds=1))

            await eventually(lambda: has_started(2), "another one")
