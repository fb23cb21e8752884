"""Threads in which the file server blocks: how urgent they are."""

import os
import socket
import threading
from collections.abc import AsyncIterator, Sequence

import pytest

from corral.worker.files.bodies import BodyTransfer, Piece
from corral.worker.files.threads import LESS_URGENT, Threads


@pytest.fixture
async def threads() -> AsyncIterator[Threads]:
    threads = Threads()
    yield threads
    await threads.close()


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


async def test_whatever_is_soon_done_is_as_urgent_as_the_event_loop(threads: Threads) -> None:
    assert await threads.run(niceness) == niceness()


async def test_whatever_takes_long_steps_back_behind_the_event_loop(threads: Threads) -> None:
    usual = niceness()

    assert await threads.run_long(niceness) == min(usual + LESS_URGENT, 19)
    assert niceness() == usual


class Sink:
    """Notes how urgent those are who write and hash."""

    def __init__(self) -> None:
        self.writing: set[int] = set()
        self.hashing: set[int] = set()

    def write(self, pieces: Sequence[Piece]) -> None:
        self.writing.add(niceness())

    def hash(self, pieces: Sequence[Piece]) -> None:
        self.hashing.add(niceness())


async def test_a_large_body_is_written_and_hashed_behind_the_event_loop(threads: Threads) -> None:
    sink = Sink()
    sender, receiver = socket.socketpair()
    with sender, receiver:
        sender.sendall(b"x" * 1000)
        lane = BodyTransfer(receiver, sink, begun=b"begun", length=1005, stall_seconds=60, is_ending=lambda: False)

        assert await threads.run_lane(lane.run) == 1005

    assert sink.writing == sink.hashing == {min(niceness() + LESS_URGENT, 19)}
