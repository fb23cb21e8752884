"""The PostgreSQL server of tests: from any source of binaries, and gone when it should be."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from corral.base.errors import ChildFailed
from corral.frontend.store.db import Database
from tests.kit.postgres import PostgresServer
from tests.kit.postgres_binaries import packaged_binaries

pytestmark = pytest.mark.postgres

STARTS_A_SERVER = """
import sys
from tests.kit.postgres import PostgresServer
with PostgresServer() as server:
    print(server.processes[0].pid, server._home, flush=True)
    sys.stdin.read()
"""


async def test_the_packaged_server_works_and_leaves_nothing() -> None:
    with PostgresServer(packaged_binaries()) as server:
        database = await Database.open(server.create_database("one"))
        await database.check()
        await database.close()
        processes = server.processes
        with pytest.raises(ChildFailed, match="already exists"):
            server.create_database("one")
        server.create_database("two")

    assert not any(process.is_running() for process in processes)


def test_a_console_that_is_killed_fails_one_statement_and_says_how_it_ended() -> None:
    with PostgresServer() as server:
        server.run("SELECT 1")
        words = {"psql", str(server.port)}
        (console,) = [
            child for child in psutil.Process().children() if words <= {*map(os.path.basename, child.cmdline())}
        ]
        console.kill()
        with pytest.raises(
            ChildFailed, match="psql ended with -9 after no word in: SELECT 2; the server's last lines: "
        ):
            server.run("SELECT 2")
        server.run("SELECT 3")


def test_a_server_dies_with_the_process_that_started_it() -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", STARTS_A_SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert program.stdin is not None
    assert program.stdout is not None
    pid, home = program.stdout.readline().split()
    server = psutil.Process(int(pid))
    program.send_signal(signal.SIGKILL)
    program.wait()
    program.stdin.close()
    program.stdout.close()

    gone, alive = psutil.wait_procs([server], timeout=20)
    assert (gone, alive) == ([server], [])
    subprocess.run(["rm", "-rf", home], check=True)
    assert not os.path.exists(home)
