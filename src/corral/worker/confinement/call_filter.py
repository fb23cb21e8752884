"""The filter of system calls for one backend (seccomp), as a program for the kernel's classic BPF. Pure.

It refuses what no engine needs and what leads out of the other fences: looking into other processes, mounts and
namespaces, the kernel's own programs and modules. Where the network is restricted it also refuses every kind of socket
that Landlock does not see. Refusals are errors of the call, so that libraries fall back; nothing is killed.

Landlock sees no change of a mode either. A backend that has the worker's user owns the worker's files, so it could lock
models or open secrets to others. Such a change is answered as if it was made, and not made: start scripts of images end
at the first error, and do not look at what became of a mode.
"""

import errno
import struct
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from corral.wire.confinement import BackendNetwork

_LOAD: Final = 0x20
_AND: Final = 0x54
_EQUAL: Final = 0x15
_ANY_BIT: Final = 0x45
_AT_LEAST: Final = 0x35
_RETURN: Final = 0x06
_ALLOW: Final = 0x7FFF0000
_REFUSE: Final = 0x00050000

_NUMBER_AT: Final = 0
_ARCHITECTURE_AT: Final = 4
_ARGUMENTS_AT: Final = 16
_X32: Final = 0x40000000
"""Calls of the x32 kind have numbers from here on."""

_NAMESPACES: Final = 0x7E020000
"""All flags of clone that make a namespace."""
_FAST_OPEN: Final = 0x20000000
"""Connects while sending, past the check of connections."""
_TYPE_BITS: Final = 0xF
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_STREAM: Final = 1
_TCP: Final = 6
_DONE: Final = 0
"""The error of a call that is not carried out and seems to have worked."""
_MODE_BITS: Final = 0o7777
_OWN_MODES: Final = (0o700,)
"""Modes that may be given to a file by its path: its owner can go on, and nobody else can do more than before."""
_OPENED_MODES: Final = (0o700, 0o755)
"""Modes that may be given to an open file: what Landlock lets a backend open holds nothing that is secret."""


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of system calls on one kind of processor."""

    audit: int
    refused: Sequence[int]
    absent: Sequence[int]
    """Refused as if the kernel did not have them, so that libraries use an older call."""
    clone: int
    socket: int
    connect: int
    sending: Mapping[int, int]
    """Calls that send, with the place of their flags among the arguments."""
    limit: int
    """Sets the limits of a process, of any that has the same user."""
    modes: Mapping[int, tuple[int, Sequence[int]]]
    """Calls that change the mode of a file, with the place of the mode among the arguments and the allowed modes."""
    attributes: Sequence[int]
    """Calls that change other attributes of a file, such as a list of who may access it."""


_EVERYWHERE: Final = (
    428,  # open_tree
    429,  # move_mount
    430,  # fsopen
    431,  # fsconfig
    432,  # fsmount
    433,  # fspick
    438,  # pidfd_getfd
    442,  # mount_setattr
)
_CHANGE_MODE_TOO: Final = 452  # fchmodat2, for which libraries use an older call where the kernel does not have it
_ATTRIBUTES: Final = (463, 466, 469)  # setxattrat, removexattrat, file_setattr
_ABSENT: Final = (425, 426, 427, 435)  # io_uring, whose requests no filter sees, and clone3, whose flags none sees

ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "x86_64": Architecture(
        audit=0xC000003E,
        refused=(
            *_EVERYWHERE,
            *(101, 310, 311, 312),  # ptrace, process_vm_readv, process_vm_writev, kcmp
            *(155, 161, 165, 166, 272, 308),  # pivot_root, chroot, mount, umount2, unshare, setns
            *(321, 298, 323),  # bpf, perf_event_open, userfaultfd
            *(248, 249, 250),  # add_key, request_key, keyctl
            *(246, 320, 169),  # kexec_load, kexec_file_load, reboot
            *(175, 313, 176),  # init_module, finit_module, delete_module
            *(167, 168, 163, 172, 173, 304),  # swapon, swapoff, acct, iopl, ioperm, open_by_handle_at
        ),
        absent=_ABSENT,
        clone=56,
        socket=41,
        connect=42,
        sending={44: 3, 46: 2, 307: 3},
        limit=302,
        modes={90: (1, _OWN_MODES), 91: (1, _OPENED_MODES), 268: (2, _OWN_MODES)},
        attributes=(*_ATTRIBUTES, *range(188, 191), *range(197, 200)),
    ),
    "aarch64": Architecture(
        audit=0xC00000B7,
        refused=(
            *_EVERYWHERE,
            *(117, 270, 271, 272),  # ptrace, process_vm_readv, process_vm_writev, kcmp
            *(41, 51, 40, 39, 97, 268),  # pivot_root, chroot, mount, umount2, unshare, setns
            *(280, 241, 282),  # bpf, perf_event_open, userfaultfd
            *(217, 218, 219),  # add_key, request_key, keyctl
            *(104, 294, 142),  # kexec_load, kexec_file_load, reboot
            *(105, 273, 106),  # init_module, finit_module, delete_module
            *(224, 225, 89, 265),  # swapon, swapoff, acct, open_by_handle_at
        ),
        absent=_ABSENT,
        clone=220,
        socket=198,
        connect=203,
        sending={206: 3, 211: 2, 269: 3},
        limit=261,
        modes={52: (1, _OPENED_MODES), 53: (2, _OWN_MODES)},
        attributes=(*_ATTRIBUTES, *range(5, 8), *range(14, 17)),
    ),
}


def call_filter(machine: str, network: BackendNetwork, *, sees_ports: bool, shares_user: bool) -> bytes | None:
    """Return the program; None for a processor whose numbers are not known.

    `sees_ports`: Landlock restricts TCP. Where it does not, the network `none` refuses every connection.
    `shares_user`: the backend has the user of its worker, and so owns the worker's files.
    """
    architecture = ARCHITECTURES.get(machine)
    if architecture is None:
        return None
    program = [
        _step(_LOAD, _ARCHITECTURE_AT),
        _step(_EQUAL, architecture.audit, then=1),
        _refuse(errno.EPERM),
        _step(_LOAD, _NUMBER_AT),
        _step(_AT_LEAST, _X32, otherwise=1),
        _refuse(errno.EPERM),
        *_refused(architecture.refused, errno.EPERM),
        *_refused(architecture.absent, errno.ENOSYS),
        *_when(architecture.clone, _refused_bits(0, _NAMESPACES)),
        *_when(architecture.limit, _only_itself(0)),
    ]
    if shares_user:
        program += _refused([_CHANGE_MODE_TOO], errno.ENOSYS)
        program += _refused(architecture.attributes, errno.ENOTSUP)
        for number, (place, modes) in architecture.modes.items():
            program += _when(number, _only_modes(place, modes))
    if network is not BackendNetwork.ANY:
        program += _when(architecture.socket, _plain_sockets(has_paths=network is not BackendNetwork.NONE))
        for number, flags in architecture.sending.items():
            program += _when(number, _refused_bits(flags, _FAST_OPEN))
    if network is BackendNetwork.NONE and not sees_ports:
        program += _refused([architecture.connect], errno.EACCES)
    return b"".join([*program, _step(_RETURN, _ALLOW)])


def _step(code: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("=HBBI", code, then, otherwise, value)


def _refuse(number: int) -> bytes:
    return _step(_RETURN, _REFUSE | number)


def _refused(numbers: Sequence[int], error: int) -> list[bytes]:
    return [step for number in numbers for step in (_step(_EQUAL, number, otherwise=1), _refuse(error))]


def _when(number: int, steps: Sequence[bytes]) -> list[bytes]:
    """Steps for one call, which end with a decision."""
    return [_step(_EQUAL, number, otherwise=len(steps)), *steps]


def _argument(place: int) -> bytes:
    """Load the lower half of an argument: all that are looked at are ints."""
    return _step(_LOAD, _ARGUMENTS_AT + 8 * place)


def _refused_bits(place: int, bits: int) -> list[bytes]:
    return [_argument(place), _step(_ANY_BIT, bits, otherwise=1), _refuse(errno.EPERM), _step(_RETURN, _ALLOW)]


def _only_itself(place: int) -> list[bytes]:
    """Allow a call whose argument names the caller and no other process."""
    return [_argument(place), _step(_EQUAL, 0, then=1), _refuse(errno.EPERM), _step(_RETURN, _ALLOW)]


def _only_modes(place: int, modes: Sequence[int]) -> list[bytes]:
    """Allow these modes of a file; others seem to be set."""
    allowed = [_step(_EQUAL, mode, then=len(modes) - number) for number, mode in enumerate(modes)]
    return [_argument(place), _step(_AND, _MODE_BITS), *allowed, _refuse(_DONE), _step(_RETURN, _ALLOW)]


def _plain_sockets(*, has_paths: bool) -> list[bytes]:
    """Allow TCP proper, since Landlock sees no other kind of connection, and questions to the kernel.

    `has_paths`: sockets with a path too, by which a backend reaches services of its user that Landlock does not see.
    Pairs of connected sockets are made by another call.
    """
    tcp = [
        _argument(1),
        _step(_AND, _TYPE_BITS),
        _step(_EQUAL, _STREAM, then=1),
        _refuse(errno.EACCES),
        _argument(2),
        _step(_EQUAL, 0, then=2),
        _step(_EQUAL, _TCP, then=1),
        _refuse(errno.EACCES),
        _step(_RETURN, _ALLOW),
    ]
    return [
        _argument(0),
        _step(_EQUAL, _UNIX if has_paths else _NETLINK, then=4),
        _step(_EQUAL, _NETLINK, then=3),
        _step(_EQUAL, _INET, then=3),
        _step(_EQUAL, _INET6, then=2),
        _refuse(errno.EAFNOSUPPORT),
        _step(_RETURN, _ALLOW),
        *tcp,
    ]
