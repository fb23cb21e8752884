"""Ports for servers that come back."""

import itertools
import socket

from tests.kit.ports import is_free, lasting_port, lasting_range, own_part


def test_processes_of_one_run_take_from_parts_of_their_own() -> None:
    parts = [own_part({"PYTEST_XDIST_WORKER": f"gw{number}", "PYTEST_XDIST_WORKER_COUNT": "3"}) for number in range(3)]
    for earlier, later in itertools.pairwise(parts):
        assert earlier[-1] < later[0] - 1, "the port below each belongs to it"
    assert {len(part) for part in parts} == {2000}
    assert own_part({}) == range(parts[0].start, parts[-1].stop, 2)


def test_no_port_is_handed_out_twice() -> None:
    taken = [lasting_port() for _ in range(20)]
    both = [port for first in taken for port in (first - 1, first)]
    assert len(set(both)) == 40
    assert all(is_free(port) for port in both)


def test_a_range_is_passed_over_as_a_whole() -> None:
    reserved = lasting_range(10)
    assert len(reserved) == 10
    assert lasting_port() - 1 not in reserved


def test_a_taken_port_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not is_free(server.getsockname()[1])
