"""Settings of how backends are confined."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from corral.base.setting_kinds import PATH, SWITCH, SettingKind, choice, items, size, whole
from corral.base.settings import setting
from corral.wire.confinement import BackendNetwork

_USERS: Final = re.compile(r"([0-9]{1,10})-([0-9]{1,10})")
_MOST_USER: Final = 2**31 - 1


def _read_users(text: str) -> range:
    match = _USERS.fullmatch(text.strip())
    first, last = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 0 < first <= last <= _MOST_USER:
        raise ValueError(text)
    return range(first, last + 1)


USERS: Final = SettingKind(
    placeholder="FIRST-LAST", allowed="two user ids such as 1900000000-1999999999, without 0", read=_read_users
)


def _read_variable(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z_*?][A-Za-z0-9_*?]*", text):
        raise ValueError(text)
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfinementConfig:
    """What backends may do on this machine."""

    is_on: bool = setting(
        SWITCH,
        """Confine backends as far as the machine allows: files, users, system calls, network, memory. On by default. An
        administrator can exempt one backend with `corral backends confine`, which is the better way.""",
        name="confine_backends",
        default=True,
    )
    network: BackendNetwork = setting(
        choice(*BackendNetwork).into(BackendNetwork),
        """Where backends may connect to: `none`, `loopback` (their own machine) or `any`. A backend's `corral.json` may
        ask for less, as those that ship with Corral do, and an administrator decides for one backend. `any`, because
        some engines fetch models by themselves.""",
        name="backend_network",
        default="any",
    )
    environment: tuple[str, ...] = setting(
        SettingKind(
            placeholder="NAME[,…]",
            allowed="names of variables, with * for any characters",
            read=items(_read_variable),
        ),
        """Variables of the worker's environment that backends inherit beyond the usual ones. A name that looks like a
        secret's must be written out, without *. None by default.""",
        name="backend_environment",
        default=(),
    )
    read_paths: tuple[Path, ...] = setting(
        SettingKind(placeholder="PATH[,…]", allowed="paths", read=items(PATH.read)),
        "Files and directories that backends may read and run beyond the usual ones. None by default.",
        name="backend_read_paths",
        default=(),
    )
    write_paths: tuple[Path, ...] = setting(
        SettingKind(placeholder="PATH[,…]", allowed="paths", read=items(PATH.read)),
        """Directories that backends may write to, such as a cache of models that several engines share. None by
        default: each backend has a home for what it fetches, and each process a directory of its own.""",
        name="backend_write_paths",
        default=(),
    )
    users: range = setting(
        USERS,
        """User ids for backends when the worker is root: each backend has one of its own, the same after a restart. The
        default is a range that Linux distributions leave free, and so large that two backends never share one.""",
        name="backend_uids",
        default="1900000000-1999999999",
    )
    max_processes: int = setting(
        whole(0, 10_000_000),
        """Processes and threads that one backend may have together, where a cgroup or a user of its own allows to limit
        them; 0: no limit. 4096: more than engines use, and a fork bomb ends there.""",
        name="backend_max_processes",
        default="4096",
    )
    max_memory: int = setting(
        size("0", "1000000GiB"),
        """Memory that one backend may use, where a cgroup allows to limit it; 0: no limit, the default, since what a
        model needs is decided when it is placed.""",
        name="backend_max_memory",
        default="0",
    )
