"""Programs that the kernel runs before a process of a cgroup connects: they let it reach its own machine only.

Landlock restricts port numbers and seccomp sees no addresses, so this is the only exact way. It needs root, cgroup v2
and a kernel with BPF for cgroups; `keep_to_loopback` raises OSError where one is missing.
"""

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

_CALL: Final = {"x86_64": 321, "aarch64": 280}
_LOAD_PROGRAM: Final = 5
_ATTACH: Final = 8
_SOCKET_ADDRESS_PROGRAM: Final = 18
_CONNECT_4, _CONNECT_6, _SEND_4, _SEND_6 = 10, 11, 14, 15

_READ_WORD: Final = 0x61
_EQUAL: Final = 0x16
_DIFFERENT: Final = 0x56
_AND: Final = 0x57
_SET: Final = 0xB7
_EXIT: Final = 0x95
_ADDRESS_4: Final = 4
_ADDRESS_6: Final = 8
_LOOPBACK: Final = 127
_ONE: Final = 0x01000000
"""The last word of `::1`, in the byte order of these processors."""
_MAPPED: Final = -0x10000
"""The third word of an IPv4 address inside of IPv6, as a signed number."""


class _Unless(msgspec.Struct, frozen=True):
    """Refuse, or allow, when a register compares so with a value."""

    comparison: int
    value: int
    is_allowed: bool
    register: int = 2


def _step(code: int, *, destination: int = 0, source: int = 0, offset: int = 0, value: int = 0) -> bytes:
    return struct.pack("<BBhi", code, source << 4 | destination, offset, value)


def _read(at: int, register: int = 2) -> bytes:
    return _step(_READ_WORD, destination=register, source=1, offset=at)


def _assemble(steps: Iterable[bytes | _Unless]) -> bytes:
    """Add the two ends, of which the first refuses, and lead every decision to its end."""
    listed = list(steps)
    code = []
    for place, step in enumerate(listed):
        if isinstance(step, bytes):
            code.append(step)
            continue
        offset = len(listed) - place - 1 + (2 if step.is_allowed else 0)
        code.append(_step(step.comparison, destination=step.register, offset=offset, value=step.value))
    ends = [_step(_SET, value=0), _step(_EXIT), _step(_SET, value=1), _step(_EXIT)]
    return b"".join([*code, *ends])


def _first_byte(register: int = 2) -> bytes:
    return _step(_AND, destination=register, value=0xFF)


# An address of zeros means this machine, too.
LOOPBACK_4: Final = _assemble(
    [
        _read(_ADDRESS_4),
        _Unless(_EQUAL, 0, is_allowed=True),
        _first_byte(),
        _Unless(_EQUAL, _LOOPBACK, is_allowed=True),
    ]
)
_NATIVE_6: Final = (
    _read(_ADDRESS_6 + 8),
    _Unless(_DIFFERENT, 0, is_allowed=False),
    _read(_ADDRESS_6 + 12),
    _Unless(_EQUAL, 0, is_allowed=True),
    _Unless(_EQUAL, _ONE, is_allowed=True),
)
LOOPBACK_6: Final = _assemble(
    [
        _read(_ADDRESS_6),
        _Unless(_DIFFERENT, 0, is_allowed=False),
        _read(_ADDRESS_6 + 4),
        _Unless(_DIFFERENT, 0, is_allowed=False),
        _read(_ADDRESS_6 + 8),
        # An IPv4 address inside of IPv6 has its own rule; any other goes on behind it.
        _step(_DIFFERENT, destination=2, offset=4, value=_MAPPED),
        _read(_ADDRESS_6 + 12),
        _first_byte(),
        _Unless(_EQUAL, _LOOPBACK, is_allowed=True),
        _Unless(_DIFFERENT, _LOOPBACK, is_allowed=False),
        *_NATIVE_6,
    ]
)


def keep_to_loopback(group: Path) -> None:
    """Let processes of this cgroup, and of those beneath it, connect and send to addresses of the machine only."""
    descriptor = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for kind, code in (
            (_CONNECT_4, LOOPBACK_4),
            (_CONNECT_6, LOOPBACK_6),
            (_SEND_4, LOOPBACK_4),
            (_SEND_6, LOOPBACK_6),
        ):
            program = _load(code, kind)
            try:
                _bpf(_ATTACH, struct.pack("=IIII", descriptor, program, kind, 0))
            finally:
                os.close(program)  # the cgroup keeps it
    finally:
        os.close(descriptor)


def _load(code: bytes, kind: int) -> int:
    buffer = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(b"Apache-2.0")
    places = (ctypes.addressof(buffer), ctypes.addressof(licence))
    head = struct.pack("=IIQQ", _SOCKET_ADDRESS_PROGRAM, len(code) // 8, *places)
    return _bpf(_LOAD_PROGRAM, head + struct.pack("=IIQII16sII", 0, 0, 0, 0, 0, b"corral_loopback", 0, kind))


def _bpf(command: int, attributes: bytes) -> int:
    number = _CALL.get(os.uname().machine)
    if number is None:
        raise OSError("BPF is not used on this kind of processor")
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    libc = ctypes.CDLL(None, use_errno=True)
    result = int(libc.syscall(number, command, buffer, len(attributes)))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
