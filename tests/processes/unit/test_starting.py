"""The first start: accidents are forgiven, mistakes are not."""

from typing import Any

import pytest

from corral.base.errors import AddressInUse, ChildFailed
from corral.processes.children import start_patiently
from tests.kit.clock import ManualClock


class Scripted:
    """Children whose starts end as told."""

    def __init__(self, *endings: Exception | None) -> None:
        self._endings = list(endings)

    @property
    def left(self) -> int:
        return len(self._endings)

    async def start(self, *group: object) -> None:
        ending = self._endings.pop(0)
        if ending is not None:
            raise ending


class QuickClock(ManualClock):
    """Every sleep is over at once; the test counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)


def failed(exit_code: int | None) -> ChildFailed:
    return ChildFailed("it failed", exit_code=exit_code)


async def start(children: Scripted, clock: QuickClock, **options: Any) -> None:
    await start_patiently(children, clock=clock, **options)  # type: ignore[arg-type]


async def test_accidents_are_repeated_with_growing_pauses() -> None:
    clock = QuickClock()
    children = Scripted(failed(-9), failed(1), failed(69), failed(None), None)
    await start(children, clock)
    assert children.left == 0
    assert len(clock.pauses) == 4
    assert clock.pauses[3] > clock.pauses[0]


@pytest.mark.parametrize("code", [64, 73, 75, 77, 78])
async def test_what_only_people_can_mend_is_raised_at_once(code: int) -> None:
    with pytest.raises(ChildFailed):
        await start(Scripted(failed(code), None), QuickClock())


async def test_after_the_last_attempt_the_failure_is_raised() -> None:
    children = Scripted(failed(1), failed(2), None)
    with pytest.raises(ChildFailed) as raised:
        await start(children, QuickClock(), attempts=2)
    assert raised.value.fields["exit_code"] == 2


async def test_which_codes_are_final_can_be_said() -> None:
    children = Scripted(failed(75), None)
    await start(children, QuickClock(), final=frozenset())
    assert children.left == 0


async def test_what_is_no_failure_of_a_child_is_raised_at_once() -> None:
    with pytest.raises(AddressInUse):
        await start(Scripted(AddressInUse("taken"), None), QuickClock())
