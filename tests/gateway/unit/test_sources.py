"""What limits count connections by, whom proxies speak for, and how often a source may do something."""

from collections import Counter
from ipaddress import ip_network

import pytest

from corral.base.ids import source_of
from corral.gateway.config import Limits
from corral.gateway.senders import AcceptedBearers, SourceBudget, Strangers, TrustedProxies
from corral.processes.gateway import fitting


@pytest.mark.parametrize(
    ("host", "source"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("", ""),
    ],
)
def test_an_ipv6_address_counts_with_its_network(host: str, source: str) -> None:
    assert source_of(host) == source


@pytest.mark.parametrize(
    ("header", "client"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("203.0.113.1, 192.0.2.1", "192.0.2.1"),
        ("203.0.113.1, 192.0.2.1, 10.0.0.9", "192.0.2.1"),
        ("[2001:db8::1], 10.0.0.9", "2001:db8::1"),
        ("192.0.2.1:5678", "192.0.2.1"),
        ("203.0.113.1:1, 192.0.2.1:5678, 10.0.0.9:80", "192.0.2.1"),
        ("[2001:db8::1]:443, 10.0.0.9", "2001:db8::1"),
        ("2001:db8::1:443", "2001:db8::1:443"),
        ("192.0.2.1:", None),
        ("192.0.2.1:http", None),
        ("[192.0.2.1:5678", None),
        ("10.0.0.9", None),
        ("somebody", None),
        ("192.0.2.1, unknown", None),
        ("", None),
    ],
)
def test_the_last_address_that_is_no_proxy_of_ours_is_the_client(header: str, client: str | None) -> None:
    proxies = TrustedProxies([ip_network("10.0.0.0/8"), ip_network("fd00::/8")])
    assert proxies.client_of(header) == client


def test_only_named_proxies_are_trusted() -> None:
    proxies = TrustedProxies([ip_network("10.0.0.0/8")])
    assert (proxies.has("10.1.2.3"), proxies.has("::ffff:10.1.2.3"), proxies.has("11.1.2.3")) == (True, True, False)
    assert not TrustedProxies([]).has("10.1.2.3")


def test_a_source_that_asks_too_often_is_told_how_long_to_wait() -> None:
    budget = SourceBudget(60)
    assert [budget.take("a", 0.0) for _ in range(60)] == [0.0] * 60
    assert budget.take("a", 0.0) == pytest.approx(1.0)
    assert budget.take("b", 0.0) == 0.0
    assert budget.take("a", 1.0) == 0.0
    assert budget.take("a", 1.5) == pytest.approx(0.5)
    assert SourceBudget(0).take("a", 0.0) == 0.0


def test_a_thousand_sources_at_once_are_all_let_in() -> None:
    budget = SourceBudget(1)
    assert not any(budget.take(f"10.0.{number // 256}.{number % 256}", 0.0) for number in range(1000))


def test_the_memory_of_sources_is_bounded() -> None:
    budget = SourceBudget(1)
    for number in range(30_000):
        budget.take(str(number), 0.0)
    assert len(budget._spent) <= 10_000
    assert budget.take("29999", 0.0) > 0


def test_a_budget_may_have_another_burst_than_its_rate_and_gives_back() -> None:
    budget = SourceBudget(60, burst=2)
    assert [budget.take("a", 0.0) for _ in range(3)] == [0.0, 0.0, 1.0]
    budget.give_back("a")
    assert [budget.take("a", 0.0) for _ in range(2)] == [0.0, 1.0]
    assert [budget.take("a", 1.0) for _ in range(2)] == [0.0, 1.0]
    budget.give_back("nobody")
    assert len(budget._spent) == 1


def test_the_memory_of_accepted_bearers_is_bounded_and_keeps_those_used_last() -> None:
    bearers = AcceptedBearers(2)
    for hash in ("a", "b", "a", "c"):
        bearers.add(hash)
    assert [hash in bearers for hash in "abc"] == [True, False, True]
    bearers.drop("a")
    bearers.drop("nobody's")
    assert "a" not in bearers


class Someone:
    def __init__(self) -> None:
        self.was_aborted = False

    def abort(self) -> None:
        self.was_aborted = True


def test_strangers_that_were_closed_or_are_known_are_not_counted() -> None:
    refusals: Counter[str] = Counter()
    strangers = Strangers(per_source=2, refusals=refusals)
    first, second, third, other = (Someone() for _ in range(4))
    for one in (first, second, third):
        strangers.add(one, "a", 10.0)
    strangers.add(other, "b", 10.0)
    strangers.sweep(12.5)
    assert not first.was_aborted  # so young ones may have a request on the way
    strangers.sweep(13.0)
    assert [one.was_aborted for one in (first, second, third, other)] == [True, False, False, False]
    assert (len(strangers), strangers.closing) == (3, 1)
    strangers.closed(first)
    strangers.drop(second)
    assert strangers.make_room_for(other)
    assert third.was_aborted
    assert not strangers.make_room_for(other)
    strangers.closed(third)
    strangers.closed(other)
    assert (len(strangers), strangers.closing, strangers._by_source) == (0, 0, {})
    assert refusals == {"connection_evicted": 2}


@pytest.mark.parametrize(
    ("descriptors", "connections", "backlog"),
    [(256, 96, 48), (500, 218, 109), (1024, 480, 240), (200_000, 20_000, 4096)],
)
def test_the_limit_of_connections_follows_from_the_limit_of_descriptors(
    descriptors: int, connections: int, backlog: int
) -> None:
    limits = fitting(Limits(), descriptors)
    assert (limits.connections, limits.backlog) == (connections, backlog)
