"""Takes rights away from the process that it runs in, just before that becomes another program. Linux only.

A child of `base/processes.py` imports this file alone, without the rest of the package, so it imports nothing but the
standard library. What is taken away is decided by the parent and arrives as JSON; nothing is decided here. A step that
fails ends the child: a program never runs with more rights than was decided.
"""

import ctypes
import json
import os
import resource
import sys
from typing import Any, Final

CANNOT_CONFINE: Final = 124
"""Exit code of a child that could not be confined."""

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long

_PR_SET_KEEPCAPS: Final = 8
_PR_SET_SECCOMP: Final = 22
_PR_CAPBSET_DROP: Final = 24
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_CAP_AMBIENT: Final = 47
_AMBIENT_RAISE: Final = 2
_SECCOMP_FILTER: Final = 2
_CAPABILITY_VERSION: Final = 0x20080522

# These three have the same numbers on all architectures.
_LANDLOCK_CREATE: Final = 444
_LANDLOCK_ADD: Final = 445
_LANDLOCK_RESTRICT: Final = 446
_LANDLOCK_PATH: Final = 1
_LANDLOCK_PORT: Final = 2
_LANDLOCK_VERSION: Final = 1
_FILE_RIGHTS: Final = 1 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15
"""Landlock's rights that a single file can have: execute, write, read, truncate, ioctl."""


class _Ruleset(ctypes.Structure):
    _fields_ = (("paths", ctypes.c_uint64), ("ports", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("rights", ctypes.c_uint64), ("descriptor", ctypes.c_int32))


class _PortRule(ctypes.Structure):
    _fields_ = (("rights", ctypes.c_uint64), ("port", ctypes.c_uint64))


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))


class _CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapabilitySet(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def landlock_version() -> int:
    """Return the version of Landlock that the kernel offers; 0 without it."""
    if sys.platform != "linux":
        return 0
    return max(0, int(_LIBC.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_LANDLOCK_VERSION))))


def confine(text: bytes) -> None:
    """Apply everything that the text asks for, or end the process with a sentence on standard error."""
    order: dict[str, Any] = json.loads(text)
    step = "join its cgroup"
    try:
        for tasks in order.get("cgroups", ()):
            _join(tasks)
        step = "take the limits"
        for name, most in order.get("limits", {}).items():
            _limit(name, most)
        step = "give up new privileges"
        if order.get("no_new_privileges"):
            _control(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        step = "use Landlock"
        ruleset = _make_ruleset(order["landlock"]) if "landlock" in order else None
        if "user" in order:
            step = "become its own user"
            _become(order["user"])
        if ruleset is not None:
            step = "use Landlock"
            _call(_LANDLOCK_RESTRICT, ruleset, ctypes.c_uint32(0))
            os.close(ruleset)
        if "filter" in order:
            step = "filter system calls"
            _filter(bytes.fromhex(order["filter"]))
    except (OSError, ValueError, KeyError) as error:
        os.write(2, f"the backend was not started, because it could not {step}: {error}\n".encode())
        os._exit(CANNOT_CONFINE)


def _join(tasks: str) -> None:
    with open(tasks, "w", encoding="ascii") as file:
        file.write("0")


def _limit(name: str, most: int) -> None:
    """Set a resource limit, never above the one that the parent has, unless the parent may raise it."""
    kind = getattr(resource, name)
    try:
        resource.setrlimit(kind, (most, most))
    except (ValueError, PermissionError):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (hard, hard))


def _make_ruleset(order: dict[str, Any]) -> int:
    handled = _Ruleset(order["paths"], order["ports"], order["scopes"])
    size = ctypes.c_size_t(order["size"])
    ruleset = _call(_LANDLOCK_CREATE, ctypes.byref(handled), size, ctypes.c_uint32(0))
    for path, rights in order["path_rules"]:
        _allow_path(ruleset, path, rights)
    for port, rights in order["port_rules"]:
        rule = _PortRule(rights, port)
        _call(_LANDLOCK_ADD, ruleset, _LANDLOCK_PORT, ctypes.byref(rule), ctypes.c_uint32(0))
    return ruleset


def _allow_path(ruleset: int, path: str, rights: int) -> None:
    """Allow access beneath a path. One that does not exist gives nothing, so it is left out."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    try:
        if not os.path.isdir(f"/proc/self/fd/{descriptor}"):
            rights &= _FILE_RIGHTS
        rule = _PathRule(rights, descriptor)
        _call(_LANDLOCK_ADD, ruleset, _LANDLOCK_PATH, ctypes.byref(rule), ctypes.c_uint32(0))
    finally:
        os.close(descriptor)


def _become(order: dict[str, Any]) -> None:
    """Change the user, where there is one, and keep only the named capabilities.

    Without the right to change the bounding set that stays as it is: `no_new_privs` keeps programs from gaining by it.
    """
    capabilities: list[int] = order["capabilities"]
    if order["drops_bounding"]:
        with open("/proc/sys/kernel/cap_last_cap", encoding="ascii") as file:
            last = int(file.read())
        for capability in range(last + 1):
            if capability not in capabilities:
                _control(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    if "uid" in order:
        _control(_PR_SET_KEEPCAPS, 1, 0, 0, 0)
        os.setgroups(order["groups"])
        os.setresgid(order["gid"], order["gid"], order["gid"])
        os.setresuid(order["uid"], order["uid"], order["uid"])
    _keep_capabilities(capabilities)


def _keep_capabilities(capabilities: list[int]) -> None:
    """Keep these alone, across exec as well."""
    low = sum(1 << capability for capability in capabilities)
    sets = (_CapabilitySet * 2)(_CapabilitySet(low, low, low), _CapabilitySet(0, 0, 0))
    header = _CapabilityHeader(_CAPABILITY_VERSION, 0)
    if _LIBC.capset(ctypes.byref(header), sets) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    for capability in capabilities:
        _control(_PR_CAP_AMBIENT, _AMBIENT_RAISE, capability, 0, 0)


def _filter(code: bytes) -> None:
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Filter(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    _control(_PR_SET_SECCOMP, _SECCOMP_FILTER, ctypes.byref(program), 0, 0)


def _control(option: int, *arguments: Any) -> None:
    words = [ctypes.c_ulong(word) if isinstance(word, int) else word for word in arguments]
    if _LIBC.prctl(option, *words) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _call(number: int, *arguments: Any) -> int:
    result = int(_LIBC.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
