"""The leak checks find what is left behind, say what it is, and leave in peace what may stay."""

import asyncio
import os
import select
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.kit.leaks import ChildWatch, Snapshot, report, tasks_left

WATCH = ChildWatch()


@pytest.fixture
def before() -> Snapshot:
    return Snapshot.take(WATCH)


async def test_a_task_that_nobody_ended_is_named_with_its_place() -> None:
    task = asyncio.create_task(asyncio.Event().wait(), name="forgotten")

    (leak,) = await tasks_left()

    assert "'forgotten'" in leak
    assert "locks.py" in leak
    task.cancel()
    assert await tasks_left() == []


async def test_a_task_about_to_end_is_no_leak() -> None:
    async def ends_soon() -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    task = asyncio.create_task(ends_soon())
    assert await tasks_left() == []
    assert task.done()


def test_a_child_that_still_runs_is_shown_with_its_command(before: Snapshot) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        (found,) = [leak for leak in before.leaks() if "child" in leak]

    assert found.startswith(f"child process {child.pid} ")
    assert found.endswith("-c input()")
    assert before.leaks() == []


def test_a_child_that_nobody_reaped_is_a_leak(before: Snapshot) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.read()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    found = [leak for leak in before.leaks() if "child" in leak]

    assert "zombie" in found[0]
    child.communicate()
    assert before.leaks() == []


def test_a_server_of_the_kit_may_stay_with_its_pipes(before: Snapshot, tmp_path: Path) -> None:
    psql = tmp_path / "psql"
    psql.write_text("#!/bin/sh\nread line\n")
    psql.chmod(0o700)

    with subprocess.Popen([str(psql)], stdin=subprocess.PIPE, text=True) as child:
        assert before.leaks() == []
        child.communicate("done\n")


def test_a_thread_that_does_not_end_is_named(before: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.kit.leaks._THREAD_SECONDS", 0.0)
    go = threading.Event()
    thread = threading.Thread(target=go.wait, name="forgotten")
    thread.start()

    assert before.leaks() == ["thread 'forgotten'"]

    go.set()
    thread.join()
    assert before.leaks() == []


def test_open_files_and_sockets_are_shown_with_what_they_lead_to(before: Snapshot, tmp_path: Path) -> None:
    path = tmp_path / "open"
    with path.open("w"), socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        leaks = before.leaks()

    assert any(leak.endswith(f": {path}") for leak in leaks)
    assert any(leak.endswith(f"('127.0.0.1', {port}) to nobody") for leak in leaks)
    assert before.leaks() == []


def test_what_a_native_thread_still_closes_is_no_leak(before: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    poller, has_looked, look = select.epoll(), threading.Event(), Snapshot._new_descriptors

    def looked(snapshot: Snapshot) -> list[tuple[int, str]]:
        has_looked.set()
        return look(snapshot)

    def close() -> None:
        has_looked.wait()
        poller.close()

    monkeypatch.setattr(Snapshot, "_new_descriptors", looked)
    closing = threading.Thread(target=close)
    closing.start()
    assert before._descriptors() == []
    closing.join()


def test_a_poller_that_stays_is_a_leak(before: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.kit.leaks._THREAD_SECONDS", 0.0)
    with select.epoll() as poller:
        assert before.leaks() == [f"descriptor {poller.fileno()}: anon_inode:[eventpoll]"]


def test_what_a_server_of_before_accepted_is_its_own() -> None:
    """A server of a whole module answers other processes whenever they ask, also while a test runs."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        before = Snapshot.take(WATCH)
        with socket.create_connection(server.getsockname()) as client, server.accept()[0]:
            (leak,) = before.leaks()
            assert f"descriptor {client.fileno()}: " in leak
        assert before.leaks() == []


def test_a_look_is_cheap(before: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes long is done only when there is a reason."""
    for slow in ("psutil.Process", "gc.collect"):
        monkeypatch.setattr(f"tests.kit.leaks.{slow}", lambda *_: pytest.fail("takes long"))
    assert Snapshot.take(WATCH).leaks() == []


def test_the_report_lists_everything() -> None:
    assert report(["one", "two"]) == "this test left something behind:\n  - one\n  - two"
