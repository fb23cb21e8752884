"""What another program of the same user sees of a process: a neighbour, as a backend is to its worker."""

import subprocess
import sys
from pathlib import Path
from typing import Final

_WITHOUT_CAPABILITIES: Final = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
for capability in range(64):
    libc.prctl(24, capability, 0, 0, 0)  # out of the bounding set, so that the next program has none, root or not
os.execvp(sys.argv[1], sys.argv[1:])
"""
_LOOK: Final = """
import ctypes, errno, os, sys
pid, libc = int(sys.argv[1]), ctypes.CDLL(None, use_errno=True)
def attempt(name, deed):
    try:
        deed()
    except OSError as error:
        print(name, errno.errorcode[error.errno])
    else:
        print(name, "open")
def read(file):
    with open(f"/proc/{pid}/{file}", "rb") as opened:
        opened.read(1)
def attach():
    if libc.ptrace(16, pid, 0, 0):
        raise OSError(ctypes.get_errno(), "")
    os.waitpid(pid, 0x40000000)
    libc.ptrace(17, pid, 0, 0)
attempt("environ", lambda: read("environ"))
attempt("memory", lambda: os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY)))
attempt("descriptors", lambda: os.readlink(f"/proc/{pid}/fd/0"))
attempt("tracing", attach)
"""


def as_neighbour(*argv: str) -> list[str]:
    """A command that runs without capabilities. Root usually has some, and looks into everything; whoever looks at a
    process that has more of them than itself sees nothing. So both must have none."""
    return [sys.executable, "-I", "-S", "-c", _WITHOUT_CAPABILITIES, *argv]


def seen_by_neighbour(pid: int) -> dict[str, str]:
    """What a program of the same user can open of a process that was started `as_neighbour` too: `open`, or the name of
    the refusal, for its environment, memory, descriptors, and for tracing it."""
    argv = as_neighbour(sys.executable, "-I", "-S", "-c", _LOOK, str(pid))
    ended = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=30)
    return dict(line.split() for line in ended.stdout.splitlines())


def environment_text(pid: int) -> str:
    """The environment of a process as the kernel shows it to us; empty where it is not shown, as to ordinary users."""
    try:
        return Path(f"/proc/{pid}/environ").read_text()
    except PermissionError:
        return ""
