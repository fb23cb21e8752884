"""Keeps the engine from connecting anywhere.

llama.cpp fetches pictures and sounds that a request names by URL, so whoever may ask a model could have it call what
only this machine reaches. The engine needs to be called and never calls, so its process gives up connecting before a
model is loaded. Only Linux can do this, on processors whose numbers of system calls are known.
"""

import contextlib
import ctypes
import errno
import os
import struct
import sys
from typing import Final

_NO_NEW_PRIVILEGES: Final = 38
_SECCOMP: Final = 22
_FILTER_MODE: Final = 2
_ARCHITECTURES: Final = {"x86_64": (0xC000003E, 42), "aarch64": (0xC00000B7, 203)}
"""How the kernel calls the processor, and the number of `connect`."""


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_void_p))


def connect_nowhere() -> None:
    """Refuse every connection of this process and of those that it starts, for good. Call it before any thread runs."""
    architecture = _ARCHITECTURES.get(os.uname().machine)
    if sys.platform != "linux" or architecture is None:
        return
    code = _filter(*architecture)
    steps = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.addressof(steps))
    with contextlib.suppress(OSError):  # a kernel without filters
        _control(_NO_NEW_PRIVILEGES, 1, 0)
        _control(_SECCOMP, _FILTER_MODE, ctypes.addressof(program))


def _filter(processor: int, connect: int) -> bytes:
    load, equal, answer = 0x20, 0x15, 0x06
    steps = (
        (load, 0, 0, 4),
        (equal, 0, 3, processor),  # calls of another kind are those of no library here
        (load, 0, 0, 0),
        (equal, 0, 1, connect),
        (answer, 0, 0, 0x00050000 | errno.EACCES),
        (answer, 0, 0, 0x7FFF0000),
    )
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def _control(option: int, first: int, second: int) -> None:
    words = [ctypes.c_ulong(word) for word in (first, second, 0, 0)]
    if ctypes.CDLL(None, use_errno=True).prctl(option, *words) < 0:
        raise OSError(ctypes.get_errno(), "prctl failed")
