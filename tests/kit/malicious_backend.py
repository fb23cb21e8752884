"""A backend that tries everything it should not be able to do, and says what worked; and a worker's part to run it.

Run as a program, with one JSON argument, it plays the worker: as root or as an ordinary user, with or without Landlock,
confined or not. What the backend achieved is printed as JSON.
"""

import asyncio
import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
from msgspec.structs import replace

from corral.base import confining
from corral.base.errors import ChildFailed
from corral.wire.backends import CorralInstall, InstallRequest
from corral.wire.confinement import ConfinementWish
from corral.worker.confinement.config import ConfinementConfig
from corral.worker.confinement.confiner import Confiner
from corral.worker.confinement.granted_files import BackendPlaces
from corral.worker.confinement.machine import look
from corral.worker.processes.process import Unconfined
from tests.kit.backend_node import BackendNode
from tests.kit.clock import ManualClock
from tests.kit.ports import lasting_port

NOBODY: Final = 65534
SECRET: Final = "the-worker-holds-this"
MOST_PROCESSES: Final = 64
_PR_SET_DUMPABLE: Final = 4
PYTHON: Final = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
"""One that every user of the machine can start, where there is one."""
_RUNTIME: Final = Path(PYTHON).resolve().parent.parent

EVIL: Final = r"""
import ctypes, errno, json, os, resource, signal, socket, sys, threading
order = json.load(open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "order.json")))
fleet, victim, outside = order["fleet"], order["victim"], order["outside"]
done = []
descriptors = {}
for name in os.listdir("/proc/self/fd"):
    try:
        descriptors[int(name)] = os.readlink("/proc/self/fd/" + name)
    except OSError:
        pass

def attack(name):
    def run(act):
        try:
            if act() is not False:
                done.append(name)
        except (OSError, ValueError) as error:
            pass
    return run

def read(path):
    return open(path, "rb").read()

def connect(address, kind=socket.SOCK_STREAM, protocol=0):
    with socket.socket(socket.AF_INET, kind, protocol) as link:
        link.setblocking(False)
        code = link.connect_ex(address)
        return code not in (errno.EPERM, errno.EACCES)

def listen(port):
    with socket.socket() as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        link.bind(("127.0.0.1", port))
        link.listen()

attack("read secrets.key")(lambda: read(fleet + "/secrets.key"))
attack("read the database")(lambda: read(fleet + "/corral.db"))
attack("read the node secret")(lambda: read(fleet + "/worker/secret"))
attack("list the worker's directory")(lambda: os.listdir(fleet + "/worker"))
attack("read another backend")(lambda: read(fleet + "/worker/backends/other/run.sh"))
attack("read the scratch of others")(lambda: read(fleet + "/worker/scratch/other/prompt"))
attack("read the worker's environment")(lambda: b"=" in read("/proc/%d/environ" % os.getppid()))
attack("read the worker's memory")(lambda: open("/proc/%d/mem" % victim, "rb").close())
attack("change a model")(lambda: open(fleet + "/worker/models/m.gguf", "ab").close())
attack("add a model")(lambda: open(fleet + "/worker/models/new.gguf", "xb").close())
attack("change its own program")(lambda: open(os.path.abspath(__file__), "ab").close())
attack("change another backend")(lambda: open(fleet + "/worker/backends/other/run.sh", "ab").close())
attack("read a terminal of the worker's user")(lambda: os.close(os.open(order["terminal"], os.O_RDONLY | os.O_NOCTTY)))
attack("open a terminal")(lambda: os.close(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)))

def service():
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(order["service"])

attack("use a service of the worker's user")(service)

def abstract():
    with socket.socket(socket.AF_UNIX) as link:
        link.connect("\0" + order["abstract"])

attack("use an abstract socket")(abstract)
attack("signal the worker")(lambda: os.kill(victim, signal.SIGCONT))
attack("limit the worker")(lambda: resource.prlimit(victim, resource.RLIMIT_CORE, (0, 0)))

def changes_mode(path, change):
    before = os.stat(path).st_mode
    change()
    return os.stat(path).st_mode != before

def through_descriptor(path, mode):
    file = os.open(path, os.O_RDONLY)
    try:
        os.fchmod(file, mode)
    finally:
        os.close(file)

model, key = fleet + "/worker/models/m.gguf", fleet + "/secrets.key"
attack("lock a model")(lambda: changes_mode(model, lambda: through_descriptor(model, 0)))
attack("open a secret to other users")(lambda: changes_mode(key, lambda: os.chmod(key, 0o644)))
attack("lend the user of the worker")(lambda: changes_mode(model, lambda: os.chmod(model, 0o4755)))
attack("leave attributes")(lambda: os.setxattr(key, "user.corral", b"x"))
attack("connect to this machine")(lambda: connect(("127.0.0.1", outside)))
attack("connect to other machines")(lambda: connect(("192.0.2.1", 9)))
attack("send datagrams")(lambda: connect(("192.0.2.1", 9), socket.SOCK_DGRAM))
attack("connect past TCP")(lambda: connect(("192.0.2.1", 9), protocol=262))

def fast_open():
    with socket.socket() as link:
        link.setblocking(False)
        try:
            link.sendto(b"x", 0x20000000, ("192.0.2.1", 9))
        except OSError as error:
            return error.errno not in (errno.EPERM, errno.EACCES, errno.EPIPE)

attack("connect while sending")(fast_open)
attack("listen elsewhere")(lambda: listen(order["port"]))

def in_child(act):
    child = os.fork()
    if child == 0:
        os._exit(0 if act() else 1)
    return os.waitpid(child, 0)[1] == 0

attack("make a namespace")(lambda: in_child(lambda: ctypes.CDLL(None).unshare(0x10000000) == 0))
attack("gain privileges")(lambda: b"NoNewPrivs:\t0" in read("/proc/self/status"))
# What must go on working.
attack("OWN read a model")(lambda: read(fleet + "/worker/models/m.gguf"))
attack("OWN write its scratch")(lambda: open(os.path.join(os.environ.get("TMPDIR", "/nowhere"), "x"), "w").close())
attack("OWN listen on its port")(lambda: listen(int(sys.argv[sys.argv.index("--addr") + 1].rpartition(":")[2])))
attack("OWN use shared memory")(lambda: os.unlink(__import__("tempfile").mkstemp(dir="/dev/shm")[1]))
attack("OWN start a program")(lambda: os.system("true") == 0)

def script():
    path = os.path.join(os.environ.get("TMPDIR", "/tmp"), "script-%d" % os.getpid())
    with open(path, "w") as file:
        file.write("#!/bin/sh\n")
    os.chmod(path, 0o700)
    ended = os.system(path)
    os.unlink(path)
    return ended == 0

attack("OWN make a script executable")(script)
attack("OWN make a pair of sockets")(lambda: [end.close() for end in socket.socketpair()])
attack("OWN start a thread")(lambda: (lambda t: (t.start(), t.join()))(threading.Thread(target=int)))

left = __import__("tempfile").mkdtemp(prefix="corral-left-", dir="/dev/shm")
open(left + "/memory", "w").write("x")

reader, writer = os.pipe()
daemon = os.fork()
if daemon == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.write(writer, str(os.getpid()).encode())
    os.close(writer)
    os.execve("/bin/sleep", ["sleep", "30"], {})
os.waitpid(daemon, 0)
found = int(os.read(reader, 20))
bomb = []
try:
    for _ in range(order["bomb"]):
        child = os.fork()
        if child == 0:
            signal.pause()
        bomb.append(child)
    done.append("start any number of processes")
except OSError:
    pass
for child in bomb:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
facts = {"done": done, "daemon": found, "uid": os.getuid(), "environment": sorted(os.environ)}
facts["descriptors"] = descriptors
facts["memory"] = left
facts["capabilities"] = int(read("/proc/self/status").split(b"CapEff:")[1].split()[0], 16)
sys.stderr.write("RESULT " + json.dumps(facts) + "\n")
"""


@dataclass(frozen=True, kw_only=True)
class AttackCase:
    """The surroundings of one attack."""

    user: str
    """`root` or `ordinary`."""
    landlock: bool
    is_confined: bool
    network: str = "none"
    is_off: bool = False
    """An administrator exempted the backend."""
    lacks: tuple[int, ...] = ()
    """Capabilities that root does not have, as in a container."""
    python: str = ""
    """The worker's interpreter, below the fleet's directory."""


@dataclass(frozen=True, kw_only=True)
class AttackResult:
    done: frozenset[str]
    uid: int
    daemon_lives: bool
    environment: frozenset[str]
    descriptors: dict[int, str]
    capabilities: int
    """Those that it could use."""
    left: tuple[str, ...]
    """What is left of the backend's own directories."""
    memory_is_left: bool
    """Whether shared memory that it took is still taken."""


def attack(case: AttackCase) -> AttackResult:
    """Run the malicious backend once, in a fleet of its own, with a worker in a process of its own."""
    fleet = Path(tempfile.mkdtemp(prefix="corral-attack-"))
    try:
        _build(fleet, as_user=NOBODY if case.user == "ordinary" and os.geteuid() == 0 else os.geteuid())
        wish = {"case": case.__dict__, "fleet": str(fleet)}
        done = subprocess.run(
            [sys.executable, "-m", "tests.kit.malicious_backend", json.dumps(wish)],
            capture_output=True,
            check=False,
            timeout=120,
            env={**os.environ, "FLEET_SECRET": SECRET},
        )
        if done.returncode:
            raise AssertionError(done.stderr.decode())
        facts = json.loads(done.stdout.splitlines()[-1])
    finally:
        shutil.rmtree(fleet, ignore_errors=True)
    return AttackResult(
        done=frozenset(facts["done"]),
        uid=facts["uid"],
        daemon_lives=facts["daemon_lives"],
        environment=frozenset(facts["environment"]),
        descriptors={int(number): target for number, target in facts["descriptors"].items()},
        capabilities=facts["capabilities"],
        left=tuple(facts["left"]),
        memory_is_left=facts["memory_is_left"],
    )


def _build(fleet: Path, *, as_user: int) -> None:
    """A data directory as `corral up` has it: open above, private files with modes of their own."""
    fleet.chmod(0o755)
    worker = fleet / "worker"
    files = {
        "secrets.key": 0o600,
        "corral.db": 0o600,
        "worker/secret": 0o600,
        "worker/models/m.gguf": 0o644,
        "worker/backends/other/run.sh": 0o755,
        "worker/backends/evil/run.sh": 0o755,
        "worker/backends/evil/evil.py": 0o644,
        "worker/scratch/other/prompt": 0o600,
    }
    contents = {"run.sh": f'#!/bin/sh\nexec {PYTHON} "$(dirname "$0")/evil.py" "$@"\n', "evil.py": EVIL}
    for name, mode in files.items():
        file = fleet / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(contents.get(file.name, SECRET))
        file.chmod(mode)
    worker.chmod(0o700)
    for path in (fleet, *fleet.rglob("*")):
        os.chown(path, as_user, -1)


def _give_up(lacking: tuple[int, ...]) -> None:
    """Be root of a container: without these, and without a way to get them back."""
    for capability in lacking:
        confining._control(confining._PR_CAPBSET_DROP, capability, 0, 0, 0)
    sets = (confining._CapabilitySet * 2)()
    header = confining._CapabilityHeader(confining._CAPABILITY_VERSION, 0)
    assert confining._LIBC.capget(ctypes.byref(header), sets) == 0
    for capability in lacking:
        part, bit = sets[capability // 32], ~(1 << capability % 32)
        part.effective, part.permitted, part.inheritable = part.effective & bit, part.permitted & bit, 0
    assert confining._LIBC.capset(ctypes.byref(header), sets) == 0


async def _run(case: AttackCase, fleet: Path) -> dict[str, Any]:
    if case.lacks:
        _give_up(case.lacks)
    if case.user == "ordinary" and os.geteuid() == 0:
        # Keeps the right to reach the interpreter, wherever that is.
        confining._become({"uid": NOBODY, "gid": NOBODY, "groups": [], "capabilities": [2], "drops_bounding": True})
        confining._control(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # as a process is that was started by its user
    worker = fleet / "worker"
    config = ConfinementConfig(max_processes=MOST_PROCESSES)
    abilities = look(config.users.start)
    if not case.landlock:
        abilities = replace(abilities, landlock=0)
    places = BackendPlaces(data=worker, models=[worker / "models"], runtimes=[_RUNTIME])
    confiner = Confiner(config, places=places, abilities=abilities)
    confiner.sweep = lambda: None  # type: ignore[method-assign] # what others have is there to be attacked
    ports = [lasting_port() for _ in range(2)]
    node = BackendNode(
        folder=worker,
        clock=ManualClock(),
        ranges=[range(ports[0], ports[0] + 1)],
        environment={
            "PATH": os.defpath,
            **({"CORRAL_WORKER_PYTHON": str(fleet / case.python)} if case.python else {}),
        },
        confinement=confiner if case.is_confined else Unconfined(),
    )
    with contextlib.ExitStack() as stack:
        outside = stack.enter_context(socket.socket())
        outside.bind(("127.0.0.1", 0))
        outside.listen()
        order = {"fleet": str(fleet), "victim": os.getpid(), "outside": outside.getsockname()[1], "port": ports[1]}
        order |= _offers(stack, fleet)
        order["bomb"] = 2 * MOST_PROCESSES
        (node.installed / "evil" / "order.json").write_text(json.dumps(order))
        async with node:
            corral = CorralInstall(confinement=ConfinementWish(network=case.network, is_off=case.is_off))
            try:
                await node.deliver(InstallRequest(backend="evil", model_id="m", corral=corral))
                raise AssertionError("it never becomes ready")
            except ChildFailed as error:
                facts = _facts(error)
    facts["daemon_lives"] = _lives(facts["daemon"])
    with contextlib.suppress(OSError):
        os.kill(facts["daemon"], signal.SIGKILL)
    facts["memory_is_left"] = _was_there(Path(facts["memory"]))
    facts["left"] = sorted(path.name for path in (worker / "scratch").iterdir() if path.name != "other")
    return facts


def _offers(stack: contextlib.ExitStack, fleet: Path) -> dict[str, Any]:
    """What a user has open beside the worker: a terminal, and services at a private and at an abstract socket."""
    folder = Path(tempfile.mkdtemp(prefix="corral-run-"))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    for address in (str(folder / "bus"), f"\0{fleet.name}"):
        service = stack.enter_context(socket.socket(socket.AF_UNIX))
        service.bind(address)
        service.listen()
    ends = os.openpty()
    for end in ends:
        stack.callback(os.close, end)
    return {"terminal": os.ttyname(ends[1]), "service": str(folder / "bus"), "abstract": fleet.name}


def _was_there(folder: Path) -> bool:
    """Remove a directory; whether there was one."""
    found = folder.exists()
    shutil.rmtree(folder, ignore_errors=True)
    return found


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _facts(error: ChildFailed) -> dict[str, Any]:
    for line in error.message.splitlines():
        if line.startswith("RESULT "):
            facts: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
            return facts
    raise AssertionError(error.message)


if __name__ == "__main__":
    wish = json.loads(sys.argv[1])
    sys.stdout.write(json.dumps(asyncio.run(_run(AttackCase(**wish["case"]), Path(wish["fleet"])))) + "\n")
