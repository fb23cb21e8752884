"""Programs that end with the process that started them, also when a signal ends that one and no `finally` runs."""

import os
import sys
from collections.abc import Sequence
from typing import Final

# Asks the kernel for SIGKILL when the parent dies, and becomes the wanted program.
_BECOME: Final = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    os._exit(125)
os.execv(sys.argv[2], sys.argv[2:])
"""


def tied(command: Sequence[str]) -> list[str]:
    """The command, tied to the thread that starts it: start it from one that lasts. Its program is a path."""
    return [sys.executable, "-I", "-S", "-c", _BECOME, str(os.getpid()), *command]
