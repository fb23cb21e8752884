"""A server of the kit does not outlive a test run that a signal ends."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import psutil

_ROOT: Final = Path(__file__).parents[3]

_RUN: Final = """
import sys, time
from tests.kit.s3 import S3Server
with S3Server() as server:
    print("serving", flush=True)
    time.sleep(600)
"""


def test_the_s3_server_ends_with_a_process_that_is_killed(tmp_path: Path) -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", _RUN], stdout=subprocess.PIPE, cwd=_ROOT, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    with run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"serving\n"
        servers = psutil.Process(run.pid).children()
        run.kill()
    gone, alive = psutil.wait_procs(servers, timeout=10)
    for server in alive:
        server.kill()
    assert (len(gone), alive) == (1, [])
