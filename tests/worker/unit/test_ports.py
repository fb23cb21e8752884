"""Ports for backends: whose turn it is, what rests, and what the kernel keeps for itself."""

import socket
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from corral.worker.membership.addresses import AddressConfig, decide
from corral.worker.processes.ports import (
    CLAIM,
    LINUX_EPHEMERAL,
    QUARANTINE,
    Ports,
    PortsExhausted,
    can_listen,
    ephemeral_ports,
    ranges_of,
    usable_ranges,
)
from tests.kit.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def ports(clock: ManualClock, count: int, *, taken: frozenset[int] = frozenset()) -> Ports:
    return Ports([range(100, 100 + count)], clock=clock, is_free=lambda port: port not in taken)


def test_ports_are_given_in_order(clock: ManualClock) -> None:
    pool = ports(clock, 3)
    assert [pool.take(owner) for owner in "abc"] == [100, 101, 102]


def test_a_port_of_another_program_is_passed_over(clock: ManualClock) -> None:
    assert ports(clock, 3, taken=frozenset({100})).take("a") == 101


async def test_a_released_port_rests(clock: ManualClock) -> None:
    pool = ports(clock, 2)
    pool.release(pool.take("a"))
    assert pool.take("a") == 101
    pool.release(101)
    with pytest.raises(PortsExhausted, match="100 to 101: backends use 0, 2 rest for 15 s"):
        pool.take("a")
    await clock.advance(QUARANTINE)
    assert pool.take("a") in {100, 101}


async def test_an_owner_gets_its_own_port_back(clock: ManualClock) -> None:
    pool = ports(clock, 5)
    for owner in "ab":
        pool.take(owner)
    for port in (100, 101):
        pool.release(port)
    await clock.advance(QUARANTINE)
    assert (pool.take("b"), pool.take("a")) == (101, 100)


async def test_a_claimed_port_goes_to_another_only_when_there_is_no_other(clock: ManualClock) -> None:
    pool = ports(clock, 2)
    pool.release(pool.take("a"))
    await clock.advance(QUARANTINE)
    assert (pool.take("b"), pool.take("c")) == (101, 100)


async def test_a_port_that_nobody_claims_any_more_comes_before_a_new_one(clock: ManualClock) -> None:
    pool = ports(clock, 5)
    pool.release(pool.take("a"))
    await clock.advance(CLAIM)
    assert pool.take("b") == 100


def test_releasing_twice_or_what_was_never_taken_is_nothing(clock: ManualClock) -> None:
    pool = ports(clock, 2)
    port = pool.take("a")
    pool.release(port)
    pool.release(port)
    pool.release(65000)
    assert pool.take("b") == 101


async def test_a_second_release_starts_the_rest_again(clock: ManualClock) -> None:
    pool = ports(clock, 1)
    pool.release(pool.take("a"))
    await clock.advance(QUARANTINE)
    pool.release(pool.take("a"))
    await clock.advance(QUARANTINE - timedelta(seconds=1))
    with pytest.raises(PortsExhausted):
        pool.take("a")


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (50051, 65535, [range(61000, 65536)]),
        (21001, 21099, [range(21001, 21100)]),
        (30000, 40000, [range(30000, 32768)]),
        (30000, 65535, [range(30000, 32768), range(61000, 65536)]),
        (50051, 50100, [range(50051, 50101)]),
        (50051, 50051, [range(50051, 50052)]),
    ],
)
def test_ports_of_outgoing_connections_are_left_out(first: int, last: int, expected: list[range]) -> None:
    assert usable_ranges(first, last, range(32768, 61000)) == expected


def test_the_kernel_s_range_is_read(tmp_path: Path) -> None:
    file = tmp_path / "range"
    assert ephemeral_ports(file) == LINUX_EPHEMERAL
    file.write_text("1024\t65535\n")
    assert ephemeral_ports(file) == range(1024, 65536)
    file.write_text("nonsense")
    assert ephemeral_ports(file) == LINUX_EPHEMERAL


def test_listening_is_tried_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not can_listen("127.0.0.1", port)
        assert not can_listen("0.0.0.0", port)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (AddressConfig(), [range(61000, 65536)]),
        (AddressConfig(addr="0.0.0.0:50051"), [range(50051, 65536)]),
        (AddressConfig(addr="0.0.0.0:50051", grpc_max_port=50100), [range(50051, 50101)]),
        (AddressConfig(serve_addr="0.0.0.0:40000"), [range(40000, 65536)]),
        (AddressConfig(addr="nonsense"), [range(61000, 65536)]),
    ],
)
def test_a_base_port_that_was_chosen_is_the_first_one(config: AddressConfig, expected: list[range]) -> None:
    places = decide(replace(config, advertise_addr="h:1"), "host")
    assert ranges_of(places, LINUX_EPHEMERAL) == expected


def test_a_base_port_that_is_advertised_was_chosen() -> None:
    """Whoever advertises it opens or maps the ports from there on, as for LocalAI's worker."""
    places = decide(AddressConfig(advertise_addr="worker-1:50051"), "host")

    assert ranges_of(places, LINUX_EPHEMERAL) == [range(50051, 65536)]
