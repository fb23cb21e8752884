"""A malicious image on a real worker: what it can read, write, reach, end and leave, before and after confinement."""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from corral.base.confining import landlock_version
from corral.worker.confinement.config import ConfinementConfig
from corral.worker.confinement.confiner import Confiner
from corral.worker.confinement.granted_files import BackendPlaces
from corral.worker.confinement.machine import look
from tests.kit.backend_node import SleepingNode
from tests.kit.backend_scripts import write_backend
from tests.kit.malicious_backend import AttackCase, attack

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux confines")

USERS = ("root", "ordinary") if os.geteuid() == 0 else ("ordinary",)
LANDLOCK = (True, False) if landlock_version() else (False,)
COLUMNS = [(user, landlock) for user in USERS for landlock in LANDLOCK]
"""Surroundings of the table in docs/concepts/confinement.md that this machine can give."""
DAC_READ_SEARCH, SETPCAP, CHOWN = 2, 8, 0

OWN = {
    "OWN read a model",
    "OWN write its scratch",
    "OWN listen on its port",
    "OWN use shared memory",
    "OWN start a program",
    "OWN make a script executable",
    "OWN start a thread",
    "OWN make a pair of sockets",
}
"""What every backend needs."""
FILES = {
    "read secrets.key",
    "read the database",
    "read the node secret",
    "list the worker's directory",
    "read another backend",
    "read the scratch of others",
    "change a model",
    "add a model",
    "change its own program",
    "change another backend",
}
MODES = {"lock a model", "open a secret to other users", "lend the user of the worker", "leave attributes"}
PROCESSES = {"read the worker's environment", "read the worker's memory", "signal the worker"}
CONNECTIONS = {
    "connect to this machine",
    "connect to other machines",
    "send datagrams",
    "connect past TCP",
    "connect while sending",
    "listen elsewhere",
}
TERMINALS = {"read a terminal of the worker's user", "open a terminal"}
SERVICES = {"use a service of the worker's user", "use an abstract socket"}
REACHED = CONNECTIONS | SERVICES
KERNEL = {"make a namespace", "gain privileges", "limit the worker"}
NUMBER = {"start any number of processes"}
EVERYTHING = FILES | MODES | PROCESSES | CONNECTIONS | TERMINALS | SERVICES | KERNEL | NUMBER

NAMESPACE = "import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare(0x10000000) != 0)"


def everything() -> set[str]:
    """All attacks that succeed here without confinement. Some machines let only root make namespaces."""
    may_make_one = subprocess.run([sys.executable, "-I", "-c", NAMESPACE], check=False).returncode == 0
    return EVERYTHING if may_make_one else EVERYTHING - {"make a namespace"}


LEFT = {
    ("root", True): set(),
    ("root", False): {"read another backend", "listen elsewhere", "open a terminal"},
    ("ordinary", True): NUMBER,
    ("ordinary", False): FILES | PROCESSES | TERMINALS | NUMBER | {"listen elsewhere"},
}
"""What still works when it is confined with the network `none`, by user and Landlock."""


@pytest.mark.filterwarnings("default:columns that only another user")
def test_every_column_of_the_table_is_run_or_told_to_be_missing() -> None:
    """A machine that gives less must not make the table shorter in silence: those that check changes are root's."""
    absent = LEFT.keys() - set(COLUMNS)
    if os.geteuid() == 0:
        assert not absent, f"this machine has no Landlock, so these columns were not run: {sorted(absent)}"
    elif absent:
        warnings.warn(f"columns that only another user or kernel can run: {sorted(absent)}", stacklevel=1)


@pytest.mark.parametrize("user", USERS)
def test_without_confinement_a_malicious_backend_can_do_everything(user: str) -> None:
    result = attack(AttackCase(user=user, landlock=False, is_confined=False))

    assert result.done - OWN == everything()
    assert result.daemon_lives


@pytest.mark.parametrize("landlock", LANDLOCK)
@pytest.mark.parametrize("user", USERS)
def test_a_confined_backend_can_do_little(user: str, landlock: bool) -> None:
    result = attack(AttackCase(user=user, landlock=landlock, is_confined=True))

    assert result.done - OWN == LEFT[user, landlock]
    assert result.done >= OWN, "what it needs goes on working"
    assert result.left == (), "its directories are removed with it"
    assert set(result.descriptors) == {0, 1, 2}
    assert result.environment == {"PATH", "HOME", "TMPDIR", "CORRAL_PROCESS_MARK", "LOCALAI_GRPC_AUTH_TOKEN", "PWD"} | (
        result.environment & {"LC_CTYPE", "OLDPWD", "SHLVL", "_"}  # made by the shell and by Python themselves
    )
    assert (result.uid in range(1_900_000_000, 2_000_000_000)) == (user == "root")


@pytest.mark.parametrize("user", USERS)
def test_nothing_outlives_its_replica_where_cgroups_can_be_made(user: str) -> None:
    result = attack(AttackCase(user=user, landlock=bool(landlock_version()), is_confined=True))

    makes_groups = user == "root" and bool(look(1_900_000_000).groups.version)
    assert result.daemon_lives != makes_groups


@pytest.mark.parametrize("user", USERS)
def test_no_shared_memory_outlives_a_backend_with_a_user_of_its_own(user: str) -> None:
    result = attack(AttackCase(user=user, landlock=bool(landlock_version()), is_confined=True))

    assert result.memory_is_left == (user == "ordinary"), "of the worker's user it could be anybody's"


@pytest.mark.parametrize("landlock", LANDLOCK)
@pytest.mark.parametrize("user", USERS)
def test_the_network_is_what_was_chosen(user: str, landlock: bool) -> None:
    loopback = attack(AttackCase(user=user, landlock=landlock, is_confined=True, network="loopback")).done & REACHED
    anywhere = attack(AttackCase(user=user, landlock=landlock, is_confined=True, network="any")).done & REACHED

    assert anywhere - SERVICES == CONNECTIONS
    for done in (loopback, anywhere):
        assert ("use a service of the worker's user" in done) == (user == "ordinary"), "modes keep another user out"
        assert ("use an abstract socket" in done) == (not landlock or landlock_version() < 6)
    loopback -= SERVICES
    if look(1_900_000_000).keeps_loopback and user == "root":
        assert loopback - {"listen elsewhere"} == {"connect to this machine"}
    elif landlock:
        assert loopback == set(), "by port number: its own ones"
    else:
        assert not loopback & {"send datagrams", "connect past TCP", "connect while sending"}
    assert ("listen elsewhere" in loopback) == (not landlock)


@pytest.mark.parametrize("user", USERS)
def test_an_exempted_backend_still_gets_no_variable_beyond_the_list(user: str) -> None:
    result = attack(AttackCase(user=user, landlock=bool(landlock_version()), is_confined=True, is_off=True))

    assert result.done - OWN == everything()
    assert "FLEET_SECRET" not in result.environment
    assert result.left == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities to lack")
@pytest.mark.parametrize("landlock", LANDLOCK)
@pytest.mark.parametrize("lacks", [(DAC_READ_SEARCH,), (DAC_READ_SEARCH, SETPCAP), (SETPCAP,)])
def test_root_of_a_container_confines_with_the_rights_that_it_has(lacks: tuple[int, ...], landlock: bool) -> None:
    result = attack(AttackCase(user="root", landlock=landlock, is_confined=True, lacks=lacks))

    assert result.done - OWN == LEFT["root", landlock]
    assert result.done >= OWN
    assert result.uid in range(1_900_000_000, 2_000_000_000)
    assert result.capabilities == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities to lack")
@pytest.mark.parametrize("lacks", [(CHOWN,), (CHOWN, SETPCAP)])
def test_root_that_cannot_have_other_users_starts_backends_with_few_rights(lacks: tuple[int, ...]) -> None:
    result = attack(AttackCase(user="root", landlock=True, is_confined=True, lacks=lacks))

    assert result.done >= OWN
    assert not result.done & (FILES | CONNECTIONS | TERMINALS | SERVICES | KERNEL)
    assert (result.uid, result.capabilities) == (0, 0b110), "to read and to write what Landlock lists"


@pytest.mark.parametrize(("user", "landlock"), COLUMNS)
def test_a_data_directory_that_only_its_owner_can_enter_costs_no_right_to_read_everything(
    user: str, landlock: bool
) -> None:
    assert (
        attack(AttackCase(user=user, landlock=landlock, is_confined=True)).capabilities & ~(4 * (user != "root")) == 0
    )


@pytest.mark.skipif(not landlock_version(), reason="only Landlock has lists of files")
@pytest.mark.parametrize("python", ["bin/python3", "worker/bin/python3"])
@pytest.mark.parametrize("user", USERS)
def test_an_interpreter_beside_the_fleets_files_does_not_open_them(user: str, python: str) -> None:
    result = attack(AttackCase(user=user, landlock=True, is_confined=True, python=python))

    assert result.done - OWN == LEFT[user, True]
    assert result.done >= OWN


@pytest.mark.skipif(not landlock_version(), reason="only Landlock has lists of files")
async def test_a_start_that_is_denied_a_file_names_the_setting(tmp_path: Path) -> None:
    outside = tmp_path / "outside.sh"
    outside.write_text("echo never\n")
    places = BackendPlaces(data=tmp_path / "data", models=[])
    confiner = Confiner(ConfinementConfig(), places=places, abilities=look(1_900_000_000))
    node = SleepingNode(folder=tmp_path / "data", confinement=confiner)
    write_backend(node.installed, "dies", shell=f". {outside}")
    async with node:
        answer = await node.ask("backend.install", b'{"backend": "dies", "model_id": "m"}')
    assert answer is not None
    error = json.loads(answer)["error"]
    assert "backend_read_paths (CORRAL_BACKEND_READ_PATHS)" in error
    assert "corral backends confine dies --off" in error
