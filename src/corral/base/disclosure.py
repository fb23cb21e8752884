"""What a process shows to others of its user, and what it passes on to its children.

A program that is started with a secret in its environment shows it in `/proc/<pid>/environ` for all its life, and one
that may be dumped shows its whole memory there. Backends run as the user of their worker where that is not root.
"""

import ctypes
import os
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

_SET_DUMPABLE: Final = 4
"""PR_SET_DUMPABLE of prctl(2)."""
_ENVIRONMENT_FIELDS: Final = (47, 48)
"""Where `/proc/self/stat` says that the environment begins and ends, counted after the name of the program."""
_BLOT: Final = b"*"
_BASIC_VARIABLES: Final = (
    *("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "LD_LIBRARY_PATH"),
    *("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "PYTHONWARNINGS", "PYTHONASYNCIODEBUG"),
)


def basic_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what every program may know: where things are on its machine, and nothing that opens anything."""
    return {name: environment[name] for name in _BASIC_VARIABLES if name in environment}


def refuse_inspection() -> None:
    """Keep others of the same user from reading this process's memory, environment and descriptors, or tracing it.

    Root with CAP_SYS_PTRACE still can. A core dump is no longer written either. Executing another program ends it, so
    each program does it for itself.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)


def blot_out(variables: Collection[str]) -> None:
    """Overwrite the values of variables where `/proc/<pid>/environ` shows them. They must have been removed before:
    that alone only forgets where they are.

    Their length stays, so that what follows is still found.
    """
    if not variables or sys.platform != "linux":
        return
    fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    start, end = (int(fields[place]) for place in _ENVIRONMENT_FIELDS)
    if not 0 < start < end:  # a kernel that does not say
        return
    names = {os.fsencode(variable) for variable in variables}
    position = start
    for entry in ctypes.string_at(start, end - start).split(b"\0"):
        name, separator, value = entry.partition(b"=")
        if separator and name in names:
            ctypes.memmove(position + len(name) + 1, _BLOT * len(value), len(value))
        position += len(entry) + 1
