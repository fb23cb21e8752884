"""The engine of llama.cpp calls nobody, whatever a request has it fetch."""

import subprocess
import sys
from pathlib import Path

import pytest

BACKEND = Path(__file__).parents[3] / "backends" / "llama_cpp"
PROGRAM = """
import socket, sys
sys.path.insert(0, sys.argv[1])
from llama_network import connect_nowhere
connect_nowhere()
with socket.create_server(("127.0.0.1", 0)) as server:
    for family, address in ((socket.AF_INET, server.getsockname()), (socket.AF_UNIX, "/nowhere")):
        try:
            socket.socket(family).connect(address)
        except OSError as error:
            print(type(error).__name__)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has filters of system calls")
def test_a_process_that_gave_up_connecting_listens_and_connects_nowhere() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM, BACKEND], capture_output=True, text=True, check=False)
    assert (ended.stdout.split(), ended.stderr) == (["PermissionError"] * 2, "")
