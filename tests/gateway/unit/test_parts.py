"""Small parts: the fair queue, the ledger, addresses, what is said of a control that is away."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.base.errors import InvalidInput, PeerUnavailable
from corral.gateway.config import GatewayConfig
from corral.gateway.control_link import ControlLink
from corral.gateway.dispatch import FairQueue
from corral.gateway.tally import OTHERS, Ledger
from corral.gateway.upstream import Origin
from corral.gateway.usage import Usage


def test_owners_take_turns() -> None:
    queue: FairQueue[str] = FairQueue()
    for waiter in ("a1", "a2", "a3", "b1", "c1", "b2"):
        queue.add(waiter[0], waiter)
    assert [queue.pop() for _ in range(6)] == ["a1", "b1", "c1", "a2", "b2", "a3"]
    assert queue.first() is None


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 99)), unique=True), st.data())
def test_who_leaves_a_queue_is_gone_and_the_others_stay(waiters: list[tuple[str, int]], data: st.DataObject) -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue()
    for waiter in waiters:
        queue.add(waiter[0], waiter)
    leaving = data.draw(st.sets(st.sampled_from(waiters))) if waiters else set()
    for waiter in leaving:
        queue.remove(waiter[0], waiter)
        queue.remove(waiter[0], waiter)
    assert len(queue) == len(waiters) - len(leaving)
    left = [queue.pop() for _ in range(len(queue))]
    assert set(left) == set(waiters) - leaving
    for owner in "abc":
        assert [one for one in left if one[0] == owner] == [
            one for one in waiters if one[0] == owner and one not in leaving
        ]


def told(ledger: Ledger) -> dict[str, int]:
    report = ledger.report()
    return {line.replica: line.requests for line in report.finished}


def test_a_batch_is_the_same_until_it_is_acknowledged() -> None:
    ledger = Ledger("g")
    ledger.ended("r1", "m", "k", "ok", Usage(1, 2))
    assert told(ledger) == {"r1": 1}
    ledger.ended("r1", "m", "k", "ok", None)
    ledger.failed("r1", "refused")
    first = ledger.report()
    assert (first.sequence, first.finished[0].requests, first.failures) == (1, 1, [])
    ledger.acknowledged()
    second = ledger.report()
    assert (second.sequence, second.finished[0].usage_unknown, second.failures[0].times) == (2, 1, 1)


def test_a_ledger_stays_small_however_long_control_is_away() -> None:
    ledger = Ledger("g")
    for number in range(12_000):
        ledger.ended(f"r{number}", "m", "k", "ok", Usage(1, 1))
        ledger.failed(f"r{number}", "refused")
    report = ledger.report()
    assert sum(line.requests for line in report.finished) == 12_000
    assert len(report.finished) == 10_001
    assert [line.requests for line in report.finished if line.replica == OTHERS] == [2000]
    assert len(report.failures) == 10_000


def test_addresses_are_understood() -> None:
    assert Origin.of("http://10.0.0.1:8080") == Origin("10.0.0.1", 8080, "")
    assert Origin.of("http://[::1]:8080").host_header == b"[::1]:8080"
    assert Origin.of("https://control") == Origin("control", 443, "", tls=True)
    assert Origin.of("unix:/run/control.sock") == Origin("", 0, "/run/control.sock")


@pytest.mark.parametrize("url", ["", "10.0.0.1:8080", "ftp://a:1", "http://", "http://a:port", "http://a:99999"])
def test_what_cannot_be_dialled_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        Origin.of(url)


async def test_a_control_that_does_not_listen_yet_is_told_in_words(tmp_path: Path) -> None:
    link = ControlLink(GatewayConfig(control_url=f"unix:{tmp_path}/control.sock", control_key="k"))
    with pytest.raises(PeerUnavailable, match="control does not listen"):
        await link.ensure("small")
