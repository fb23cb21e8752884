"""Landlock's rules for one backend, as numbers that `base/confining.py` hands to the kernel. Pure.

Every version of Landlock knows more rights than the one before. A right that the kernel does not know is left out of
what is handled, so that it is not restricted there; `worker/confinement/machine.py` tells people what that means.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from corral.wire.confinement import BackendNetwork

_EXECUTE: Final = 1 << 0
_WRITE: Final = 1 << 1
_READ: Final = 1 << 2
_LIST: Final = 1 << 3
_REMOVE_DIRECTORY: Final = 1 << 4
_REMOVE_FILE: Final = 1 << 5
_MAKE_DIRECTORY: Final = 1 << 7
_MAKE_FILE: Final = 1 << 8
_MAKE_SOCKET: Final = 1 << 9
_MAKE_PIPE: Final = 1 << 10
_MAKE_LINK: Final = 1 << 12
_MOVE: Final = 1 << 13
_TRUNCATE: Final = 1 << 14
_CONTROL_DEVICE: Final = 1 << 15

_READING: Final = _READ | _LIST
_RUNNING: Final = _READING | _EXECUTE
_USING_DEVICE: Final = _READING | _WRITE | _CONTROL_DEVICE
_WRITING: Final = (
    _RUNNING
    | _WRITE
    | _TRUNCATE
    | _REMOVE_DIRECTORY
    | _REMOVE_FILE
    | _MAKE_DIRECTORY
    | _MAKE_FILE
    | _MAKE_SOCKET
    | _MAKE_PIPE
    | _MAKE_LINK
    | _MOVE
)

_PATH_RIGHTS: Final = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""How many rights of files each version knows."""
_NEWEST_PATHS: Final = 5
_PORTS_SINCE: Final = 4
_SCOPES_SINCE: Final = 6
_BIND: Final = 1 << 0
_CONNECT: Final = 1 << 1
_SCOPES: Final = 0b11
"""Neither abstract sockets of other processes, nor signals to them."""


class FileAccess(msgspec.Struct, frozen=True, kw_only=True):
    """Paths by what a backend may do beneath them. Paths that do not exist are ignored."""

    read: Sequence[str] = ()
    run: Sequence[str] = ()
    write: Sequence[str] = ()
    devices: Sequence[str] = ()


class PortAccess(msgspec.Struct, frozen=True, kw_only=True):
    """What Landlock is asked to restrict about TCP."""

    network: BackendNetwork
    own: Sequence[int]
    keeps_addresses: bool = False
    """Something else keeps connections to the loopback addresses, so that ports need not be restricted for it."""


def knows_ports(version: int) -> bool:
    return version >= _PORTS_SINCE


def ruleset(version: int, files: FileAccess, ports: PortAccess) -> dict[str, Any]:
    """Return the rules in the form of `base/confining.py`."""
    paths = (1 << _PATH_RIGHTS[min(version, _NEWEST_PATHS)]) - 1
    handled_ports = _handled_ports(ports) if knows_ports(version) else 0
    scopes = _SCOPES if version >= _SCOPES_SINCE else 0
    size = 8 if version < _PORTS_SINCE else 16 if version < _SCOPES_SINCE else 24
    return {
        "size": size,
        "paths": paths,
        "ports": handled_ports,
        "scopes": scopes,
        "path_rules": [
            *_rules(files.read, _READING & paths),
            *_rules(files.run, _RUNNING & paths),
            *_rules(files.write, _WRITING & paths),
            *_rules(files.devices, _USING_DEVICE & paths),
        ],
        "port_rules": [[port, rights] for port, rights in _port_rules(ports, handled_ports).items() if rights],
    }


def _rules(paths: Iterable[str], rights: int) -> list[list[object]]:
    return [[path, rights] for path in paths]


def _handled_ports(ports: PortAccess) -> int:
    match ports.network:
        case BackendNetwork.ANY:
            return 0
        case BackendNetwork.LOOPBACK if ports.keeps_addresses:
            return _BIND
        case _:
            return _BIND | _CONNECT


def _port_rules(ports: PortAccess, handled: int) -> dict[int, int]:
    """Its own ports listen. With `loopback` a port of the kernel's choice does, too, for an engine's own processes."""
    if ports.network is BackendNetwork.NONE:
        return dict.fromkeys(ports.own, _BIND & handled)
    return {**dict.fromkeys(ports.own, (_BIND | _CONNECT) & handled), 0: _BIND & handled}
