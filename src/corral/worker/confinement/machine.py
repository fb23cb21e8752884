"""What this machine offers for confining backends, tried out once, and sentences for people about what is missing.
Blocks."""

import contextlib
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from corral.base import confining
from corral.base.confining import landlock_version
from corral.wire.confinement import BackendNetwork, ConfinementReport
from corral.worker.confinement import cgroups
from corral.worker.confinement.call_filter import ARCHITECTURES, call_filter
from corral.worker.confinement.cgroups import CgroupParents
from corral.worker.confinement.landlock import FileAccess, PortAccess, knows_ports, ruleset

GPU_DEVICES: Final = (
    "nvidia*",
    "nvhost*",
    "nvmap",
    "nvgpu",
    "nvsciipc",
    "dri",
    "kfd",
    "dxg",
    "accel",
    "mali*",
    "davinci*",
)
"""Names below /dev by which engines reach GPUs and other accelerators."""
PLAIN_DEVICES: Final = ("null", "zero", "full", "random", "urandom")
"""Without terminals: those of the worker's user show what its owner types, in other programs as well."""
_SIGNALS_SINCE: Final = 6
_DEV: Final = Path("/dev")
_TRY: Final = """
import sys
sys.path.append(sys.argv[1])
from confining import confine
confine(sys.stdin.buffer.read())
"""
_TRY_SECONDS: Final = 10.0
_MOST_LOOKED_AT: Final = 5000
CAP_OVERRIDE: Final = 1
CAP_SEARCH: Final = 2
_CAP_SETPCAP: Final = 8
_NEEDED_FOR_USERS: Final = frozenset({0, CAP_OVERRIDE, 5, 6, 7})
"""What a worker uses to give files to another user, remove them, signal its processes, and become it."""


class Abilities(msgspec.Struct, frozen=True, kw_only=True):
    """What the machine can give to a worker of this user."""

    is_root: bool
    landlock: int = 0
    """Version of Landlock; 0 without it."""
    has_filters: bool = False
    has_users: bool = False
    """User ids of the range can be taken."""
    capabilities: frozenset[int] = frozenset()
    """What the worker has of root's rights; in a container seldom all of them."""
    drops_bounding: bool = False
    """Rights can be taken out of what programs may ever gain."""
    groups: CgroupParents = msgspec.field(default_factory=CgroupParents)
    limits: frozenset[str] = frozenset()
    """Controllers that a group of this machine really has: `memory`, `pids`."""
    keeps_loopback: bool = False

    @property
    def knows_ports(self) -> bool:
        return knows_ports(self.landlock)


def look(first_user: int) -> Abilities:
    """Try everything out. Takes some milliseconds, and leaves nothing behind."""
    if sys.platform != "linux":
        return Abilities(is_root=os.geteuid() == 0)
    parents = cgroups.find_parents()
    trial = cgroups.make_group(
        parents, f"trial-{os.getpid()}", limits={"memory": 1 << 40, "pids": 1 << 16}, keeps_loopback=True
    )
    trial.end()
    capabilities = _own_capabilities()
    abilities = Abilities(
        is_root=os.geteuid() == 0,
        landlock=landlock_version(),
        has_filters=os.uname().machine in ARCHITECTURES and _has("/proc/sys/kernel/seccomp/actions_avail"),
        has_users=os.geteuid() == 0 and capabilities >= _NEEDED_FOR_USERS,
        capabilities=capabilities,
        drops_bounding=_CAP_SETPCAP in capabilities,
        groups=parents,
        limits=trial.limits,
        keeps_loopback=trial.is_loopback,
    )
    return _tried(abilities, first_user)


def _own_capabilities() -> frozenset[int]:
    """Capabilities that this process can use and hand on."""
    sets = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines())
    usable = int(sets["CapPrm"], 16) & int(sets["CapEff"], 16) & int(sets["CapBnd"], 16)
    return frozenset(number for number in range(usable.bit_length()) if usable >> number & 1)


def _tried(abilities: Abilities, first_user: int) -> Abilities:
    """Return those abilities that a trial child could really use.

    If one child can use all, no other is started; if not, each ability is tried alone.
    """
    if _works({**_landlock_trial(abilities), **_filter_trial(abilities), **_user_trial(abilities, first_user)}):
        return abilities
    return replace(
        abilities,
        landlock=abilities.landlock if _works(_landlock_trial(abilities)) else 0,
        has_filters=abilities.has_filters and _works(_filter_trial(abilities)),
        has_users=abilities.has_users and _works(_user_trial(abilities, first_user)),
        drops_bounding=abilities.drops_bounding
        and _works(_user_trial(replace(abilities, has_users=False), first_user)),
    )


def _landlock_trial(abilities: Abilities) -> dict[str, Any]:
    if not abilities.landlock:
        return {}
    ports = PortAccess(network=BackendNetwork.NONE, own=[1])
    return {"landlock": ruleset(abilities.landlock, FileAccess(read=["/"], devices=["/dev/null"]), ports)}


def _filter_trial(abilities: Abilities) -> dict[str, Any]:
    if not abilities.has_filters:
        return {}
    code = call_filter(os.uname().machine, BackendNetwork.NONE, sees_ports=False, shares_user=True)
    return {} if code is None else {"filter": code.hex()}


def _user_trial(abilities: Abilities, user: int) -> dict[str, Any]:
    if not abilities.is_root:
        return {}
    capabilities = sorted(abilities.capabilities & {CAP_SEARCH})
    order = {"capabilities": capabilities, "drops_bounding": abilities.drops_bounding}
    return {"user": {**order, "uid": user, "gid": user, "groups": []} if abilities.has_users else order}


def reads_anywhere(abilities: Abilities, *, closed: str) -> bool:
    """Whether a backend's own user keeps the right to read any file, which Landlock bounds, to reach its own files."""
    return bool(closed) and abilities.has_users and abilities.landlock > 0 and CAP_SEARCH in abilities.capabilities


def has_own_users(abilities: Abilities, *, closed: str) -> bool:
    """Whether backends can have users of their own. `closed` is the directory that keeps other users from the files."""
    return abilities.has_users and (not closed or reads_anywhere(abilities, closed=closed))


def report(abilities: Abilities, *, closed: str = "", left_out: Sequence[str] = ()) -> ConfinementReport:
    """Describe the abilities for frontends. `closed` is the directory that keeps other users from the files, and
    `left_out` are settings that backends are not given, because they lead to the worker's own files."""
    return ConfinementReport(
        is_on=True,
        landlock=abilities.landlock,
        filters_calls=abilities.has_filters,
        own_users=has_own_users(abilities, closed=closed),
        cgroup=abilities.groups.version,
        limits=sorted("processes" if name == "pids" else name for name in abilities.limits),
        loopback="address" if abilities.keeps_loopback else "port" if abilities.knows_ports else "",
        missing=[*_missing(abilities, closed=closed), *left_out],
    )


def _missing(abilities: Abilities, *, closed: str) -> list[str]:
    """Sentences, the most important one first."""
    sentences = [_missing_landlock(abilities), _missing_users(abilities, closed=closed)]
    if not has_own_users(abilities, closed=closed):
        exception = "unless its network is none" if abilities.has_filters else "with any network"
        sentences.append(
            "a backend can connect to services of its user by sockets with a path, such as a session bus or Docker's, "
            f"{exception}: run the worker as root, or as a user of its own without such services"
        )
    if abilities.is_root and not abilities.drops_bounding:
        sentences.append(
            "the worker may not limit what programs can ever gain (CAP_SETPCAP), so no_new_privs alone keeps backends "
            "from it: give the container that capability"
        )
    if not abilities.has_filters:
        sentences.append("system calls are not filtered on this kernel or processor")
    if not abilities.groups.version:
        sentences.append(
            "no cgroup can be made, so a process that leaves its backend may outlive it: run the worker as a service "
            "with delegation (Delegate=yes)"
        )
    names = {"memory": "memory", "pids": "number of processes"}
    if unlimited := [words for name, words in names.items() if name not in abilities.limits]:
        sentences.append(f"no cgroup limits the {' and the '.join(unlimited)} of a backend")
    if not abilities.keeps_loopback:
        how = "by port number only" if abilities.knows_ports else "not at all"
        sentences.append(f"the network loopback is kept {how}: to keep it by address, run as root with cgroup v2")
    return [sentence for sentence in sentences if sentence]


def _missing_landlock(abilities: Abilities) -> str:
    if not abilities.landlock:
        return (
            "the kernel has no Landlock, so a backend can read every file that its user can: use Linux 5.13 or newer "
            "with landlock among its security modules (lsm=)"
        )
    if not abilities.knows_ports:
        return (
            "the kernel's Landlock does not restrict TCP, so the network none refuses connections by system calls "
            "only: use Linux 6.7 or newer"
        )
    if abilities.landlock < _SIGNALS_SINCE and not abilities.has_users:
        return (
            "the kernel's Landlock does not restrict signals, so a backend can end other processes of its user: use "
            "Linux 6.12 or newer"
        )
    return ""


def _missing_users(abilities: Abilities, *, closed: str) -> str:
    if not abilities.is_root:
        return "the worker is not root, so backends run as its own user: run it as root to separate them"
    if not abilities.has_users:
        return (
            "the user ids of backend_uids cannot be taken here, so backends run as root with the right to read files: "
            "give the container CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_KILL, CAP_SETGID and CAP_SETUID"
        )
    if not closed:
        return ""
    if reads_anywhere(abilities, closed=closed):
        return (
            f"{closed} is closed to other users, so backends keep the right to read any file, which Landlock bounds "
            "(CAP_DAC_READ_SEARCH): keep data and models below an open directory such as /var/lib/corral"
        )
    return (
        f"{closed} is closed to other users, so backends run as root: keep data and models below an open directory "
        "such as /var/lib/corral"
    )


def _has(path: str) -> bool:
    return Path(path).exists()


def _works(order: Mapping[str, Any]) -> bool:
    """Whether a child can do all of an order, as a backend will have to."""
    if not order:
        return True
    argv = [sys.executable, "-I", "-S", "-c", _TRY, str(Path(confining.__file__).parent)]
    text = json.dumps({"no_new_privileges": True, **order}).encode()
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(argv, check=False, capture_output=True, timeout=_TRY_SECONDS, input=text)  # noqa: S603 - our own text
        return done.returncode == 0
    return False


def make_devices(dev: Path = _DEV, search_path: str = os.defpath) -> None:
    """Have NVIDIA's own program make the device for CUDA where it is missing, as after a boot.

    CUDA's library starts that program by itself, with a set-uid bit that confined processes cannot use, and finds no
    GPU without the device. Blocks.
    """
    if not (dev / "nvidiactl").exists() or (dev / "nvidia-uvm").exists():
        return
    program = shutil.which("nvidia-modprobe", path=search_path)
    if program is not None:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run([program, "-u", "-c", "0"], check=False, capture_output=True, timeout=_TRY_SECONDS)  # noqa: S603 - a program of the system


def gpu_devices() -> list[Path]:
    """Devices of accelerators that are there now; directories stand for all that is in them."""
    return [path for pattern in GPU_DEVICES for path in sorted(_DEV.glob(pattern))]


def device_groups(devices: Sequence[Path]) -> list[int]:
    """Groups that may use these devices, without root's."""
    groups = set()
    for device in devices:
        nodes = [device, *device.iterdir()] if device.is_dir() else [device]
        for node in nodes:
            with contextlib.suppress(OSError):
                groups.add(node.stat().st_gid)
    return sorted(groups - {0})


def closed_to_others(paths: Sequence[Path], *, worker_folder: Path | None = None) -> str:
    """Return the first directory on the way to one of the paths that other users cannot enter; "" without one.

    `worker_folder` is a directory that can be opened by us, with what is in it.
    """
    exempt = None if worker_folder is None else Path(os.path.realpath(worker_folder))
    for path in paths:
        real = Path(os.path.realpath(path))
        for folder in (*reversed(real.parents), real):
            if exempt is not None and folder.is_relative_to(exempt):
                break
            with contextlib.suppress(OSError):
                if folder.is_dir() and not folder.stat().st_mode & 0o001:
                    return str(folder)
    return ""


def unreadable_to_others(folders: Sequence[Path]) -> str:
    """Return the first file or directory below these that other users cannot read; "" without one. Bounded."""
    remaining = _MOST_LOOKED_AT
    for top in folders:
        for place, names, files in os.walk(top):
            for path in (place, *(os.path.join(place, name) for name in files)):
                remaining -= 1
                if remaining < 0:
                    return ""
                with contextlib.suppress(OSError):
                    status = os.stat(path)
                    needed_mode = 0o005 if stat.S_ISDIR(status.st_mode) else 0o004
                    if status.st_mode & needed_mode != needed_mode:
                        return path
            names.sort()
    return ""
