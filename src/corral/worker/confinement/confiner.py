"""Gives each backend process its surroundings, a directory and a cgroup of its own, and decides what it gives up.

The decisions are pure and near the end of this file; everything else happens before a process starts and after it has
ended.
"""

import contextlib
import hashlib
import json
import os
import resource
import shutil
import stat
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from corral.base.errors import ChildFailed
from corral.base.tasks import in_thread
from corral.wire.confinement import BackendNetwork, ConfinementReport, ConfinementWish, read_network, strictest
from corral.worker.confinement import cgroups
from corral.worker.confinement.call_filter import call_filter
from corral.worker.confinement.cgroups import BackendGroup
from corral.worker.confinement.config import ConfinementConfig
from corral.worker.confinement.granted_files import BackendPlaces, granted_files, left_out
from corral.worker.confinement.landlock import PortAccess, ruleset
from corral.worker.confinement.machine import (
    CAP_OVERRIDE,
    CAP_SEARCH,
    Abilities,
    closed_to_others,
    device_groups,
    gpu_devices,
    has_own_users,
    make_devices,
    reads_anywhere,
    report,
    unreadable_to_others,
)
from corral.worker.confinement.python_places import make_python_place
from corral.worker.confinement.shared_memory import SharedMemory
from corral.worker.installing import switching
from corral.worker.processes.process import Launch


class BackendUser(msgspec.Struct, frozen=True, kw_only=True):
    """The user of a process."""

    uid: int | None
    """The user of the process; None means the worker's own."""
    capabilities: Sequence[int] = ()
    groups: Sequence[int] = ()


class Confiner:
    """Confines backend processes as far as the machine and the settings allow."""

    def __init__(
        self,
        config: ConfinementConfig,
        *,
        places: BackendPlaces,
        abilities: Abilities,
        is_with_localai: Callable[[], bool] = lambda: False,
    ) -> None:
        self._config = config
        self._places = places
        self._abilities = abilities
        self._is_with_localai = is_with_localai
        self._making_home = threading.Lock()
        self._memory = SharedMemory()
        self._owner = hashlib.sha256(os.fsencode(places.data.absolute())).hexdigest()[:12]

    def report(self) -> ConfinementReport:
        """What the machine can give. Blocks."""
        if not self._config.is_on:
            return ConfinementReport(missing=["backends are not confined: confine_backends is off on this worker"])
        closed = closed_to_others(self._ways(), worker_folder=self._places.data)
        if self._abilities.landlock:
            closed = closed or unreadable_to_others(self._places.models)
        return report(self._abilities, closed=closed, left_out=left_out(self._places, self._config))

    def sweep(self) -> None:
        """End and remove what an earlier worker process of this data directory left. Blocks."""
        cgroups.end_left_groups(self._abilities.groups, self._owner)
        shutil.rmtree(self._places.scratch, ignore_errors=True)

    def scratch_of(self, mark: str) -> Path | None:
        return self._places.scratch.absolute() / mark

    @asynccontextmanager
    async def around(self, launch: Launch) -> AsyncIterator[bytes | None]:
        """Make directory and cgroup, and remove them with everything that still runs in them."""
        try:
            try:
                order = await in_thread(lambda: self._prepare(launch))
            except OSError as error:
                problem = f"backend {launch.key} has no place to run: {error.strerror}: {error.filename}"
                raise ChildFailed(problem, child=str(launch.key)) from error
            yield order
        finally:
            await in_thread(lambda: self._clean(launch))

    def _prepare(self, launch: Launch) -> bytes | None:
        make_devices()
        user = self._user(launch)
        self._memory.begin(launch.mark, user.uid)
        group = self._group(launch)
        self._make_scratch(launch, user)
        if launch.kept_home is not None:
            with self._making_home:  # replicas that start at once share it
                _make_home(launch.kept_home, user)
        return self._order(launch, user, group)

    def _clean(self, launch: Launch) -> None:
        """Remove what may be there, whatever of it was made."""
        cgroups.named_group(self._abilities.groups, self._group_name(launch)).end()
        self._memory.end(launch.mark)
        if launch.scratch is not None:
            shutil.rmtree(launch.scratch, ignore_errors=True)

    def _group_name(self, launch: Launch) -> str:
        return f"{self._owner}-{launch.mark}"

    def _is_confined(self, launch: Launch) -> bool:
        return self._config.is_on and (not launch.wish.is_off or bool(_limits(launch)))

    def _user(self, launch: Launch) -> BackendUser:
        """Decide the user. Files that other users cannot reach are read with a capability that Landlock bounds."""
        if not self._is_confined(launch) or not self._abilities.is_root:
            return BackendUser(uid=None)
        capabilities = sorted(self._abilities.capabilities & {CAP_OVERRIDE, CAP_SEARCH})
        everything = BackendUser(uid=None, capabilities=capabilities)
        if not self._abilities.has_users or self._is_with_localai():
            return everything
        home = launch.home.directory
        _let_pass(self._places.data, [home, *self._places.models])
        if not launch.home.is_system:
            _let_read(home)
        closed = closed_to_others([home, *self._ways()])
        if not has_own_users(self._abilities, closed=closed):
            return everything
        # Only by what operators closed: an image chooses its own modes, and must not choose its rights by them.
        closed = closed or unreadable_to_others(self._places.models)
        uid = user_of(launch.home.name, self._owner, self._config.users)
        search = (CAP_SEARCH,) if reads_anywhere(self._abilities, closed=closed) else ()
        return BackendUser(uid=uid, capabilities=search, groups=device_groups(gpu_devices()))

    def _ways(self) -> list[Path]:
        """What every backend must reach."""
        return [*self._places.runtimes, self._places.data, *self._places.models]

    def _group(self, launch: Launch) -> BackendGroup:
        confined = self._is_confined(launch)
        most = {"memory": self._config.max_memory, "pids": self._config.max_processes} if confined else {}
        return cgroups.make_group(
            self._abilities.groups,
            self._group_name(launch),
            limits={controller: limit for controller, limit in most.items() if limit},
            keeps_loopback=confined and self.network_of(launch) is BackendNetwork.LOOPBACK,
        )

    def _make_scratch(self, launch: Launch, user: BackendUser) -> None:
        """Make the directories; `exchange` belongs to the worker, so that a backend cannot put a link in its place."""
        if launch.scratch is None:
            return
        closed = stat.S_IRWXU
        passable = closed | stat.S_IXGRP | stat.S_IXOTH
        # That of all processes has the same mode for each: one that is exempt must not shut out the others.
        launch.scratch.parent.mkdir(parents=True, exist_ok=True)
        launch.scratch.parent.chmod(passable if self._abilities.has_users else closed)
        launch.scratch.mkdir(exist_ok=True)
        launch.scratch.chmod(closed if user.uid is None else passable)
        for name in ("tmp", "exchange", *(["home"] if launch.kept_home is None else [])):
            folder = launch.scratch / name
            folder.mkdir()
            folder.chmod(closed)
            if user.uid is not None and name == "exchange":
                os.chown(folder, -1, user.uid)
                folder.chmod(closed | stat.S_IRGRP | stat.S_IXGRP)
            elif user.uid is not None:
                os.chown(folder, user.uid, user.uid)
        if launch.python_place is not None:
            for path in make_python_place(launch.home.directory, launch.python_place):
                os.chown(path, -1 if user.uid is None else user.uid, -1)

    def network_of(self, launch: Launch) -> BackendNetwork:
        decided = decide_network(launch.wish, launch.home.manifest.network, self._config.network)
        return strictest([decided, *_limits(launch)])

    def _order(self, launch: Launch, user: BackendUser, group: BackendGroup) -> bytes | None:
        """What `base/confining.py` does in the child."""
        if sys.platform != "linux":
            return None
        order: dict[str, Any] = {"cgroups": group.task_files}
        if not self._is_confined(launch):
            return json.dumps(order).encode()
        abilities, network = self._abilities, self.network_of(launch)
        order["no_new_privileges"] = True
        # Counted for all processes of the user together, so it is only the second choice.
        max_processes = 0 if "pids" in group.limits else self._config.max_processes
        order["limits"] = limits_of(user, is_root=abilities.is_root, max_processes=max_processes)
        if abilities.is_root:
            order["user"] = _user_order(user, drops_bounding=abilities.drops_bounding)
        if abilities.landlock:
            ports = PortAccess(network=network, own=launch.ports, keeps_addresses=group.is_loopback)
            exchanged = self._places.exchanged if self._is_with_localai() else ()
            files = granted_files(launch, places=self._places, config=self._config, exchanged=exchanged)
            order["landlock"] = ruleset(abilities.landlock, files, ports)
        if abilities.has_filters:
            sees_ports, shares_user = abilities.knows_ports, user.uid is None
            code = call_filter(os.uname().machine, network, sees_ports=sees_ports, shares_user=shares_user)
            order["filter"] = "" if code is None else code.hex()
        return json.dumps(order).encode()


def _make_home(folder: Path, user: BackendUser) -> None:
    """Make the HOME of a backend's processes. One of another user, from before the backend got one of its own, is made
    anew: what is in it can be fetched or computed again."""
    owner = os.geteuid() if user.uid is None else user.uid
    folder.parent.mkdir(parents=True, exist_ok=True)
    for way in (folder.parent.parent, folder.parent):
        _add_mode(way, stat.S_IXOTH)
    with contextlib.suppress(FileNotFoundError):
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != owner:
            switching.discard(folder)
    if not folder.exists():
        folder.mkdir(mode=stat.S_IRWXU)
        if user.uid is not None:
            os.chown(folder, user.uid, user.uid)


def _limits(launch: Launch) -> list[BackendNetwork]:
    """The network limits that were decided for other names of the same program."""
    return launch.wish.limits({launch.backend, *launch.home.names, *launch.home.shared_names})


def _let_pass(data: Path, directories: Sequence[Path]) -> None:
    """Let other users pass through the worker's directory to these, not list it: its secrets have their own modes."""
    real = Path(os.path.realpath(data))
    reached = [Path(os.path.realpath(path)) for path in directories]
    ways = {folder for path in reached for folder in (path, *path.parents) if folder.is_relative_to(real)}
    for folder in sorted({real, *ways}):
        with contextlib.suppress(OSError):
            if folder.is_dir():
                _add_mode(folder, stat.S_IXOTH)


def _let_read(home: Path) -> None:
    """Let other users read and run an installed backend, whose modes are its image's."""
    for place, _, files in os.walk(home):
        for path in (Path(place), *(Path(place, name) for name in files)):
            with contextlib.suppress(OSError):
                mode = path.lstat().st_mode
                if stat.S_ISDIR(mode) or stat.S_ISREG(mode):
                    _add_mode(path, stat.S_IROTH | (stat.S_IXOTH if mode & stat.S_IXUSR else 0))


def _add_mode(path: Path, bits: int) -> None:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & bits != bits:
        path.chmod(mode | bits)


def user_of(backend: str, owner: str, users: range) -> int:
    """The user id of a backend of one worker: always the same, and with a large range no other's."""
    digest = hashlib.sha256(f"{owner}\0{backend}".encode(errors="surrogateescape")).digest()
    return users[int.from_bytes(digest[:8]) % len(users)]


def decide_network(wish: ConfinementWish, manifest: str, usual: BackendNetwork) -> BackendNetwork:
    """An administrator decides; otherwise the stricter one of the worker's setting and the backend's own wish."""
    if wish.network:
        return read_network(wish.network) or BackendNetwork.NONE  # a newer frontend's word is not taken for more
    declared = read_network(manifest)
    return usual if declared is None else strictest([declared, usual])


def limits_of(user: BackendUser, *, is_root: bool, max_processes: int) -> dict[str, int]:
    """Resource limits: no core files, which would hold prompts; memory may be locked where root can allow it."""
    limits = {"RLIMIT_CORE": 0}
    if is_root:
        limits["RLIMIT_MEMLOCK"] = resource.RLIM_INFINITY
    if user.uid is not None and max_processes:
        limits["RLIMIT_NPROC"] = max_processes
    return limits


def _user_order(user: BackendUser, *, drops_bounding: bool) -> dict[str, Any]:
    order = {"capabilities": list(user.capabilities), "drops_bounding": drops_bounding}
    if user.uid is None:
        return order
    return {**order, "uid": user.uid, "gid": user.uid, "groups": list(user.groups)}
